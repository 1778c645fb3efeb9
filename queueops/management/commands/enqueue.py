"""Enqueue one job from the shell."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandParser

from queueops import client
from queueops.management.engine_command import EngineCommand, Refused, seconds
from queueops.states import PRIORITIES


class Command(EngineCommand):
    help = "Ask for a handler to be run; print the job's id."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("handler", metavar="HANDLER", help="a registered name, as webhook.deliver")
        parser.add_argument("--args", dest="job_args", default="[]", metavar="JSON", help="""as '["a", 1]'""")
        parser.add_argument(
            "--kwargs", dest="job_kwargs", default="{}", metavar="JSON", help="""as '{"amount": 5}'"""
        )
        parser.add_argument("--queue", metavar="Q", help="default: the handler's, else the site's")
        parser.add_argument("--delay", metavar="T", help="run so long from now: 90, 15m, 2h, 1d")
        parser.add_argument("--id", dest="job_id", metavar="ID", help="the same id again is the same job")
        parser.add_argument("--priority", default="normal", help=", ".join(PRIORITIES))
        parser.add_argument("--tag", action="append", default=[], metavar="NAME[=VALUE]", help="a tag")

    def answer(self, **given: Any) -> None:
        args = _parsed("--args", given["job_args"], list)
        kwargs = _parsed("--kwargs", given["job_kwargs"], dict)
        try:
            job = client.enqueue(
                given["handler"],
                args,
                kwargs,
                queue=given["queue"],
                delay=seconds(given["delay"], "--delay") if given["delay"] is not None else None,
                job_id=given["job_id"],
                priority=given["priority"],
                tags={name: value for name, _, value in (tag.partition("=") for tag in given["tag"])},
                on_commit=False,
            )
        except (TypeError, ValueError) as error:
            raise Refused(str(error)) from error
        self.say(job.id)


def _parsed(option: str, text: str, kind: type) -> Any:
    """The value of a JSON option. Raises Refused with the place of the fault."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"character {error.pos + 1}"
        raise Refused(f"{option} is not JSON: {error.msg} at {place}") from error
    except RecursionError as error:
        raise Refused(f"{option} is nested too deep") from error
    if not isinstance(value, kind):
        name = "a list" if kind is list else "an object"
        raise Refused(f"{option} must be {name} in JSON, got {type(value).__name__}")
    return value
