"""Ask running jobs to stop."""

from __future__ import annotations

from queueops.management.bulk_command import BulkCommand


class Command(BulkCommand):
    help = "Ask running jobs to stop; their handlers see it."
    verb = "cancel"
    past = "asked to stop"
