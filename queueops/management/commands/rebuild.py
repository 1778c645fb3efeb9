"""Bring back what Redis lost, from the record."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from queueops.errors import QueueOpsError
from queueops.rebuild import rebuild


class Command(BaseCommand):
    help = (
        "After a loss of Redis data: jobs that the record has in a queue, and that Redis lacks, come back in "
        "their state; one that was running is ready. Refused while neither the epoch shows a loss nor the "
        "mirror has caught up."
    )

    requires_system_checks = ("queueops",)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="only print what would come back")

    def handle(self, *, dry_run: bool, **options: Any) -> None:
        try:
            report = rebuild(dry_run=dry_run)
        except QueueOpsError as error:
            raise CommandError(str(error)) from error
        for line in report.lines():
            self.stdout.write(line)
