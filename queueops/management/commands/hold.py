"""Hold back one handler, one cause or one tag of a queue."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from queueops import holding
from queueops.holds import HoldKind
from queueops.job import from_ms
from queueops.management.engine_command import EngineCommand, Refused, seconds, shell_actor


def add_meaning(parser: CommandParser) -> None:
    """Let a command name one hold."""
    parser.add_argument("queue", metavar="QUEUE")
    meant = parser.add_mutually_exclusive_group(required=True)
    meant.add_argument("--handler", metavar="H", help="jobs of this handler")
    meant.add_argument("--cause", metavar="C", help="jobs whose last failure has this cause")
    meant.add_argument("--tag", metavar="NAME=VALUE", help="jobs with this tag")


def meaning(given: dict[str, Any]) -> tuple[str, str]:
    """The kind and the value that was named."""
    return next((kind.value, given[kind]) for kind in HoldKind if given[kind] is not None)


class Command(EngineCommand):
    help = "Hold back one handler, one cause or one tag of a queue; nothing is dropped, the rest runs."

    def add_arguments(self, parser: CommandParser) -> None:
        add_meaning(parser)
        parser.add_argument("--for", dest="until", metavar="T", help="lift it by itself after so long: 30m")
        parser.add_argument("--reason", default="", help="why, for everybody who sees it")

    def answer(self, **given: Any) -> None:
        queue = self.known_queue(given["queue"])
        kind, value = meaning(given)
        until = None
        if given["until"] is not None:
            until = from_ms(self.inspector().now_ms()) + timedelta(seconds=seconds(given["until"], "--for"))
        try:
            holding.hold(queue, kind, value, actor=shell_actor(), reason=given["reason"], until=until)
        except ValueError as error:
            raise Refused(str(error)) from error
        end = f" until {until:%Y-%m-%d %H:%M:%S} UTC" if until else ""
        self.say(f"{kind} {value} of {queue} is held{end}")
