"""What the admin shows: policies and queues to edit, the record to read."""

import queueops.admin.mirrored
import queueops.admin.policies
import queueops.admin.queues
import queueops.schedules.admin  # noqa: F401  # registers schedules and their ledger
