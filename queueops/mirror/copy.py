"""Batches of a queue, and passes over all queues."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from django.db import DatabaseError, InterfaceError, router
from redis.exceptions import RedisError

from queueops import keys
from queueops.errors import StoreUnavailable
from queueops.events import after
from queueops.inspector.reads import Reads
from queueops.job import from_ms
from queueops.mirror.batch import SAYS_STATE_S, Batch
from queueops.mirror.reading import BATCH, Reading, read
from queueops.models import Job, MirrorState
from queueops.signals import events_mirrored, events_recorded
from queueops.store import Store

log = logging.getLogger("queueops.mirror")


@dataclass(frozen=True, slots=True)
class Pass:
    """One batch: how many events, whether that was all, and whether some were missing before them."""

    count: int
    is_whole: bool
    has_gap: bool


def alias() -> str:
    """The database of the record."""
    return router.db_for_write(Job)


def copy_events(store: Store, queue: str, *, limit: int = BATCH) -> int:
    """Copy up to `limit` of the queue's events, oldest first; return how many were read.

    Raises StoreUnavailable or a DatabaseError when one of the two is away: then nothing has left
    the stream that is not recorded, and the call may be made again.
    """
    return copy_reading(store, read(store, queue, limit=limit)).count


def copy_reading(store: Store, reading: Reading) -> Pass:
    """Record what was read; only then does it leave the stream."""
    batch = Batch(store, alias(), reading)
    if not reading.count:
        return Pass(0, True, batch.note_nothing())
    batch.write()
    told = events_recorded.send_robust(sender=Job, queue=reading.queue, events=reading.events)
    for _, answer in told:
        if isinstance(answer, StoreUnavailable):  # others are logged, and keep nothing back
            raise answer
    stream = keys.queue_key(reading.queue, "events")
    try:
        store.connection.client.xtrim(stream, minid=after(reading.last_id), approximate=False)
    except RedisError as error:
        raise store.connection.translated(error) from error
    events_mirrored.send_robust(sender=Job, queue=reading.queue, events=reading.events, states=batch.states)
    return Pass(reading.count, reading.is_whole, batch.has_gap)


# -- passes over all queues ----------------------------------------------------------------------


def run_once(store: Store | None = None, *, limit_s: float = 5.0) -> int:
    """Copy what all queues have, a batch each in turn, for at most `limit_s`; return how many events.

    One queue's trouble does not stop the others; it is logged, and raised when all are through.
    """
    store = store or Store()
    deadline = time.monotonic() + limit_s
    copied = 0
    trouble: DatabaseError | InterfaceError | None = None
    waiting: dict[str, Callable[[], Reading]] = {
        queue: partial(read, store, queue) for queue in waiting_queues(store)
    }
    # While the database works on a batch, another thread reads the next one from Redis.
    with ThreadPoolExecutor(1, "queueops-mirror") as ahead:
        while waiting and time.monotonic() < deadline:
            now, waiting = waiting, {}
            for queue, reading_of in now.items():
                try:
                    reading = reading_of()
                    if not reading.is_whole:
                        following: Future[Reading] = ahead.submit(read, store, queue, behind=reading)
                        waiting[queue] = following.result
                    copied += copy_reading(store, reading).count
                except (DatabaseError, InterfaceError) as error:
                    log.error("the events of queue %s could not be recorded: %s", queue, error)
                    waiting.pop(queue, None)
                    trouble = error
    if trouble is not None:
        raise trouble
    return copied


def waiting_queues(store: Store) -> list[str]:
    """Queues with events, or whose book says that it has not been looked at for a while."""
    reads = Reads(store.connection)
    names = reads.queues()
    pipe = reads.pipe()
    for name in names:
        pipe.xlen(keys.queue_key(name, "events"))
    lengths = reads.answers(pipe) if names else []
    fresh_after = from_ms(reads.now()[1] - SAYS_STATE_S * 1000)
    fresh = set(
        MirrorState.objects.using(alias())
        .filter(updated_at__gt=fresh_after, lag_events=0)
        .values_list("queue", flat=True)
    )
    return [name for name, length in zip(names, lengths, strict=True) if length != 0 or name not in fresh]


def catch_up(store: Store, queue: str, *, limit_s: float = 60.0) -> bool:
    """Copy until a pass has read to the stream's end; False when that took too long or had a gap."""
    deadline = time.monotonic() + limit_s
    has_gap = False
    while time.monotonic() < deadline:
        done = copy_reading(store, read(store, queue))
        has_gap = has_gap or done.has_gap
        if done.is_whole:
            return not has_gap
    return False
