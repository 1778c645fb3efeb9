"""Ask running jobs to stop."""

from __future__ import annotations

from queueops.management.bulk_command import BulkCommand


class Command(BulkCommand):
    help = "Ask running jobs to stop, which their handlers see; with --stop-after, end what does not obey."
    verb = "cancel"
    past = "asked to stop"
