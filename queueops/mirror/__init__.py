"""The mirror: engine events become rows. The only writer of what happened.

Each queue's stream is read from its start, up to 1,000 events at a time. Their rows commit in one
transaction; only then do the events leave the stream. So the stream holds just what the record
lacks, a crash at any line loses nothing, and what is read twice is written once: an event by its
stream id, a job's row by its newest event. Two mirrors may run at once.
"""

from queueops.mirror.compare import compare, compare_all
from queueops.mirror.copy import catch_up, copy_events, run_once
from queueops.mirror.health import MirrorHealth, health
from queueops.mirror.reading import BATCH
from queueops.mirror.workers import record_workers

__all__ = [
    "BATCH",
    "MirrorHealth",
    "catch_up",
    "compare",
    "compare_all",
    "copy_events",
    "health",
    "record_workers",
    "run_once",
]
