"""What the admin shows."""

import queueops.schedules.admin  # noqa: F401  # registers schedules and their ledger
