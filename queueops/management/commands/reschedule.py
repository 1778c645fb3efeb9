"""Give delayed jobs another time."""

from __future__ import annotations

from queueops.management.bulk_command import BulkCommand


class Command(BulkCommand):
    help = "Give delayed jobs another time to run."
    verb = "reschedule"
    past = "rescheduled"
