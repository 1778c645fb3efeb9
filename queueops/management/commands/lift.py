"""Let what a hold kept back go on."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from queueops import holding
from queueops.management.commands.hold import add_meaning, meaning
from queueops.management.engine_command import EngineCommand, Refused, shell_actor


class Command(EngineCommand):
    help = "Lift a hold: its jobs are ready again, in the order in which they were due."

    def add_arguments(self, parser: CommandParser) -> None:
        add_meaning(parser)
        parser.add_argument("--reason", default="", help="why, for the record")

    def answer(self, **given: Any) -> None:
        queue = self.known_queue(given["queue"])
        kind, value = meaning(given)
        if not holding.lift(queue, kind, value, actor=shell_actor(), reason=given["reason"]):
            raise Refused(f"{queue} has no hold on {kind} {value}: see manage.py queues")
        self.say(f"{kind} {value} of {queue} goes on")
