"""Forgetting: rows whose keep time is over go, in batches so small that no lock is felt.

A done job goes early, one that was ever dead late, one that is still dead never: it waits for a
person. Times are compared with Redis TIME, which the rows were written by.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connections, transaction
from django.db.models import Q, QuerySet

from queueops.append_only import pruning
from queueops.conf import config
from queueops.inspector.reads import Reads
from queueops.job import from_ms
from queueops.mirror.copy import alias
from queueops.models import Attempt, Effect, Job, JobEvent, JobTag, Queue, SetAsideEvent, WorkerRecord
from queueops.models.jobs import GONE
from queueops.states import JobState
from queueops.store import Store

#: A batch is sized to hold its locks so long at most, with room for a slow moment. Seconds.
_AIM_S = 0.02
_SMALLEST, _LARGEST = 10, 500
#: Rows looked at in one step where an index can't say which of them are over.
_PAGE = 500
_WORKER_KEEP = timedelta(days=30)


@dataclass
class _Size:
    """How many rows a batch takes, by how long the last one took."""

    rows: int = 20

    def after(self, took_s: float) -> None:
        if took_s > _AIM_S:
            self.rows = max(_SMALLEST, self.rows // 2)
        elif took_s < _AIM_S / 2:
            self.rows = min(_LARGEST, self.rows * 2)


class Retention:
    """Prunes; remembers how far it looked through what no index sorts by its end."""

    def __init__(self) -> None:
        self._jobs = _Size()
        self._effects_after: tuple[datetime, int] | None = None
        self._events_after = 0

    def run_once(self, store: Store | None = None, *, limit_s: float = 2.0) -> int:
        """Prune for at most `limit_s`; return how many jobs, effects and others went.

        Safe to repeat, and to run twice at once.
        """
        store = store or Store()
        using = alias()
        now = from_ms(Reads(store.connection, now_ms=store.now_ms).now_ms())
        deadline = time.monotonic() + limit_s
        gone = 0
        while time.monotonic() < deadline:
            began = time.monotonic()
            batch = prune_jobs(using, now, self._jobs.rows)
            self._jobs.after(time.monotonic() - began)
            gone += batch
            if not batch:
                break
        gone += self._prune_effects(using, now, deadline)
        gone += self._prune_orphans(using, now, deadline)
        gone += _prune_rest(using, now)
        return gone

    def _prune_effects(self, using: str, now: datetime, deadline: float) -> int:
        """Effects of jobs that Redis no longer answers for, a page at a time in the order of their age."""
        keeps = _done_keeps(using)
        gone = 0
        youngest = now - timedelta(seconds=min(keeps.values()))
        while time.monotonic() < deadline:
            effects = (
                Effect.objects.using(using).filter(created_at__lte=youngest).order_by("created_at", "id")
            )
            if self._effects_after is not None:
                at, pk = self._effects_after
                effects = effects.filter(Q(created_at__gt=at) | Q(created_at=at, id__gt=pk))
            page = list(effects[:_PAGE])
            over = [effect.pk for effect in _over(using, page, now, keeps)]
            gone += _delete_in_parts(using, over)
            self._effects_after = (page[-1].created_at, page[-1].pk) if len(page) == _PAGE else None
            if self._effects_after is None:
                break
        return gone

    def _prune_orphans(self, using: str, now: datetime, deadline: float) -> int:
        """Events of jobs that have no row, as those of a settlement that came after its job was forgotten."""
        oldest = now - timedelta(seconds=config().record_dead_s)
        if time.monotonic() > deadline:
            return 0
        page = list(JobEvent.objects.using(using).filter(pk__gt=self._events_after).order_by("pk")[:_PAGE])
        old = [event for event in page if event.at <= oldest]
        self._events_after = page[-1].pk if len(old) == _PAGE else 0
        known = _rows_of(using, old)
        orphans = [event.pk for event in old if (event.queue, event.job_id) not in known]
        gone = 0
        for first in range(0, len(orphans), 100):
            with pruning(using, now):
                gone += JobEvent.objects.using(using).filter(pk__in=orphans[first : first + 100]).delete()[0]
        return gone


def prune_jobs(using: str, now: datetime, limit: int) -> int:
    """Forget up to `limit` jobs whose keep time is over, with all that belongs to them; how many."""
    with pruning(using, now):
        rows = Job.objects.using(using).select_for_update(skip_locked=_skips(using))
        over = list(
            rows.filter(keep_until__lte=now)
            .order_by("keep_until")[:limit]
            .values_list("pk", "queue", "job_id")
        )
        by_queue: dict[str, list[str]] = {}
        for _, queue, job_id in over:
            by_queue.setdefault(queue, []).append(job_id)
        for queue, job_ids in by_queue.items():
            for model in (JobEvent, Attempt, JobTag, Effect):
                mine = model.objects.using(using).filter(queue=queue, job_id__in=job_ids)
                mine._raw_delete(using)
        if over:
            Job.objects.using(using).filter(pk__in=[pk for pk, _, _ in over])._raw_delete(using)
    return len(over)


def _skips(using: str) -> bool:
    return bool(connections[using].features.has_select_for_update_skip_locked)


def _done_keeps(using: str) -> dict[str, float]:
    """How long Redis answers for a done job, by queue; '' for all others."""
    own = Queue.objects.using(using).filter(done_keep_s__isnull=False).values_list("name", "done_keep_s")
    return {"": config().done_keep_s, **{name: keep_s for name, keep_s in own if keep_s is not None}}


def _over(using: str, effects: Iterable[Effect], now: datetime, keeps: dict[str, float]) -> list[Effect]:
    effects = list(effects)
    known = _rows_of(using, effects)
    orphaned = now - timedelta(seconds=config().record_dead_s)
    over = []
    for effect in effects:
        row = known.get((effect.queue, effect.job_id))
        if row is None:
            if effect.created_at <= orphaned:
                over.append(effect)
            continue
        state, finished_at = row
        keep = timedelta(seconds=keeps.get(effect.queue, keeps[""]))
        # An effect that is younger than its job's end is of another life of the id.
        if state in _ENDED and finished_at is not None and max(finished_at, effect.created_at) + keep <= now:
            over.append(effect)
    return over


_ENDED = (JobState.DONE.value, GONE)


def _rows_of(
    using: str, of: Iterable[Effect | JobEvent]
) -> dict[tuple[str, str], tuple[str, datetime | None]]:
    by_queue: dict[str, set[str]] = {}
    for each in of:
        by_queue.setdefault(each.queue, set()).add(each.job_id)
    return {
        (queue, job_id): (state, finished_at)
        for queue, job_ids in by_queue.items()
        for job_id, state, finished_at in Job.objects.using(using)
        .filter(queue=queue, job_id__in=job_ids)
        .values_list("job_id", "state", "finished_at")
    }


def _delete_in_parts(using: str, pks: list[int]) -> int:
    gone = 0
    for first in range(0, len(pks), 200):
        with transaction.atomic(using=using):
            gone += Effect.objects.using(using).filter(pk__in=pks[first : first + 200])._raw_delete(using)
    return gone


def _prune_rest(using: str, now: datetime) -> int:
    aside = SetAsideEvent.objects.using(using).filter(
        set_aside_at__lte=now - timedelta(seconds=config().record_dead_s)
    )
    workers = WorkerRecord.objects.using(using).filter(last_seen_at__lte=now - _WORKER_KEEP)
    return _some(aside, using) + _some(workers, using)


def _some(rows: QuerySet[Any], using: str) -> int:
    pks = list(rows.order_by("pk").values_list("pk", flat=True)[:200])
    return rows.model._base_manager.using(using).filter(pk__in=pks).delete()[0] if pks else 0


_retention = Retention()


def run_once(store: Store | None = None) -> int:
    """Prune what is over; how many rows went (Retention.run_once)."""
    return _retention.run_once(store)
