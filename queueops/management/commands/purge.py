"""Delete discarded jobs."""

from __future__ import annotations

from queueops.management.bulk_command import BulkCommand


class Command(BulkCommand):
    help = "Delete discarded jobs now. There is no undo."
    verb = "purge"
    past = "purged"
