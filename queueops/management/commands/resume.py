"""Let a paused queue be claimed from again."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from queueops import publishing
from queueops.management.engine_command import EngineCommand, shell_actor


class Command(EngineCommand):
    help = "Let a paused queue be claimed from again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queue", metavar="QUEUE")
        parser.add_argument("--reason", default="", help="why, for the record")

    def answer(self, **given: Any) -> None:
        queue = self.known_queue(given["queue"])
        publishing.resume(queue, actor=shell_actor(), reason=given["reason"])
        self.say(f"{queue} goes on")
