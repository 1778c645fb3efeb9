"""Stop claims from a queue."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from queueops import publishing
from queueops.job import from_ms
from queueops.management.engine_command import EngineCommand, seconds, shell_actor


class Command(EngineCommand):
    help = "Stop claims from a queue; what runs goes on, what comes waits."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queue", metavar="QUEUE")
        parser.add_argument("--for", dest="until", metavar="T", help="resume by itself after so long: 30m")
        parser.add_argument("--reason", default="", help="why, for everybody who sees it")

    def answer(self, **given: Any) -> None:
        queue = self.known_queue(given["queue"])
        until = None
        if given["until"] is not None:
            until = from_ms(self.inspector().now_ms()) + timedelta(seconds=seconds(given["until"], "--for"))
        publishing.pause(queue, actor=shell_actor(), reason=given["reason"], until=until)
        self.say(f"{queue} is paused" + (f" until {until:%Y-%m-%d %H:%M:%S} UTC" if until else ""))
