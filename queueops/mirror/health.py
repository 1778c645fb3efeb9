"""How far the record is behind, for pages and commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from queueops import keys
from queueops.inspector.reads import Reads
from queueops.mirror.copy import alias
from queueops.models import MirrorState
from queueops.store import Store


@dataclass(frozen=True, slots=True)
class MirrorHealth:
    """How far the record of a queue is behind, and what it lacks."""

    queue: str
    lag_events: int
    lag_s: float
    events_lost: int
    gaps: int
    gap_at: datetime | None
    set_aside: int
    #: Redis has another epoch than the record: its data were lost, and `rebuild` has not run.
    is_store_lost: bool
    updated_at: datetime | None


def health(store: Store) -> list[MirrorHealth]:
    """The state of every queue's mirror, its lag as of now; two round trips and one query."""
    reads = Reads(store.connection)
    names = reads.queues()
    now_ms = reads.now()[1]
    pipe = reads.pipe()
    for name in names:
        events = keys.queue_key(name, "events")
        pipe.xlen(events)
        pipe.xrange(events, count=1)
        pipe.hmget(keys.queue_key(name, "settings"), "events_lost", "epoch")
    answers = reads.answers(pipe) if names else []
    states = MirrorState.objects.using(alias()).in_bulk(names)
    return [
        _health(name, answers[3 * i : 3 * i + 3], states.get(name) or MirrorState(queue=name), now_ms)
        for i, name in enumerate(names)
    ]


def _health(queue: str, answers: Sequence[Any], state: MirrorState, now_ms: int) -> MirrorHealth:
    length, first, settings = answers
    lost, epoch = settings if isinstance(settings, list) else (None, None)
    oldest_ms = int(first[0][0].split(b"-")[0]) if isinstance(first, list) and first else now_ms
    unseen = max(0, int(lost or 0) - state.lost_counter)
    return MirrorHealth(
        queue,
        length if isinstance(length, int) else 0,
        max(0, now_ms - oldest_ms) / 1000,
        state.events_lost + unseen,
        state.gaps + (1 if unseen else 0),
        state.gap_at,
        state.set_aside_total,
        bool(state.epoch and epoch and state.epoch != epoch.decode(errors="replace")),
        state.updated_at,
    )
