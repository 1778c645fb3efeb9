"""Put discarded jobs back."""

from __future__ import annotations

from queueops.management.bulk_command import BulkCommand


class Command(BulkCommand):
    help = "Put discarded jobs back into the state they had."
    verb = "restore"
    past = "restored"
