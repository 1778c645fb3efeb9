"""Let delayed or ready jobs run before all others."""

from __future__ import annotations

from queueops.management.bulk_command import BulkCommand


class Command(BulkCommand):
    help = "Let delayed or ready jobs run before all others."
    verb = "run_now"
    past = "let run now"
