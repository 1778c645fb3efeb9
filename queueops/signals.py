"""What the record tells to who listens."""

from django.dispatch import Signal

#: Rows of a queue's events have committed, and the events have not left the stream: they come again when a
#: receiver raises StoreUnavailable, or this process dies, so that a receiver must be safe to repeat. Sent
#: with `queue` and `events` (list of Event, in their order).
events_recorded = Signal()
#: Rows of a queue's events have committed. Sent with `queue`, `events` (list of Event, in their order)
#: and `states` (job id -> its state after them).
events_mirrored = Signal()
