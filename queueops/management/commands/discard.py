"""Set jobs aside."""

from __future__ import annotations

from queueops.management.bulk_command import BulkCommand


class Command(BulkCommand):
    help = "Set delayed, ready or dead jobs aside; they can be restored until their keep time ends."
    verb = "discard"
    past = "discarded"
