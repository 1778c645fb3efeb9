"""Say whether a worker fetches: for container health checks."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from queueops.errors import QueueOpsError
from queueops.worker.health import check_health


class Command(BaseCommand):
    help = "Exit 1 when the worker on this host, or the one with this id, has not fetched in time."

    requires_system_checks = ()  # a probe answers for the worker only

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "worker", nargs="?", metavar="ID", help="a worker's id; default: those of this host"
        )

    def handle(self, **given: Any) -> None:
        try:
            reports = check_health(given["worker"])
        except QueueOpsError as error:
            raise CommandError(str(error)) from error
        for report in reports:
            self.stdout.write(report.text)
        if any(not report.is_well for report in reports):
            raise SystemExit(1)
