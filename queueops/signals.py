"""What the record tells to who listens."""

from django.dispatch import Signal

#: Rows of a queue's events have committed. Sent with `queue`, `events` (list of Event, in their order)
#: and `states` (job id -> its state after them).
events_mirrored = Signal()
