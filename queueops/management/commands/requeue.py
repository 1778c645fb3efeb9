"""Send dead jobs again."""

from __future__ import annotations

from queueops.management.bulk_command import BulkCommand


class Command(BulkCommand):
    help = "Send dead jobs again, each with a fresh cycle of attempts."
    verb = "requeue"
    past = "requeued"
