"""Enqueue inside a transaction: jobs are written with it, pushed right after it, or rolled back with it.

An accepted job is a row of Job in the database whose transaction is open. Nothing marks a push: the
mirrored enqueue event moves the row on, and until then the relay pushes it again, which is
harmless while Redis still answers for the id, done or not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import DatabaseError, connections, router, transaction
from django.utils import timezone

from queueops import keys
from queueops.client import Prepared
from queueops.conf import config
from queueops.errors import QueueOpsError
from queueops.inspector.reads import Reads
from queueops.job import Job, NewJob, from_ms, to_ms
from queueops.mirror import catch_up
from queueops.mirror.fold import JobRow as MirrorRow
from queueops.mirror.rows import BLANK, insert_accepted, write_tags
from queueops.models import Job as JobRow
from queueops.models import Queue
from queueops.models.jobs import ACCEPTED, DUPLICATE_OF, DUPLICATES, GONE
from queueops.payload import decode_spec
from queueops.states import JobState, Lane
from queueops.store import Enqueued, Store

log = logging.getLogger(__name__)

TABLE = JobRow._meta.db_table
#: The relay leaves a row this long to the process that wrote it. Seconds.
_OWN_PUSH_S = 1.0
#: Rows that one pass of the relay looks at, of the last seconds and of all.
_PAGE = 500
_RECENT_S = 15.0
#: What a life of a job begins with.
_BEGINNING = {
    name: getattr(BLANK, name)
    for name in (
        *("attempts", "rescues", "delivery", "edition", "requeues", "cause", "error", "reason", "result"),
        *("child", "actor", "ran_ms", "enqueued_at", "died_at", "finished_at", "keep_until"),
    )
}
_OVER = (JobState.DONE.value, GONE)


# -- writing --------------------------------------------------------------------------------------


def accept(prepared: Sequence[Prepared]) -> list[Job] | None:
    """Write jobs with the open transaction and push them after its commit; None when none is open.

    An id that the record knows is the same job and is returned as it is. A savepoint that rolls
    back takes its jobs with it. Where the open transaction's database has no tables of ours, the jobs
    are only kept in memory until its commit: a process killed right then loses them.
    """
    using = _open_transaction()
    if using is None:
        return None
    if not _has_table(using):
        transaction.on_commit(
            partial(_push_after_commit, None, list(prepared), time.monotonic()), using=using
        )
        return [item.job(ACCEPTED) for item in prepared]
    now = timezone.now()
    fresh = insert_accepted(using, [_accepted(item, now) for item in prepared])
    jobs: list[Job] = []
    to_push: list[Prepared] = []
    seen: set[tuple[str, str]] = set()
    known = _known(using, [item for item in prepared if (item.queue, item.new.id) not in fresh])
    for item in prepared:
        identity = (item.queue, item.new.id)
        if identity in fresh or (identity in known and _reopen(using, known[identity], item, now)):
            known.pop(identity, None)
            if identity not in seen:
                to_push.append(item)
            seen.add(identity)
            jobs.append(item.job(ACCEPTED))
        else:
            jobs.append(known[identity].as_job() if identity in known else item.job(ACCEPTED))
    write_tags(using, [(item.queue, item.new.id, _tags(item.new)) for item in to_push])
    if to_push:
        push = partial(_push_after_commit, using, to_push, time.monotonic())
        transaction.on_commit(push, using=using, robust=True)
    return jobs


def _open_transaction() -> str | None:
    """The database whose transaction is open here: the record's before others."""
    main = router.db_for_write(JobRow)
    for alias in (main, *(other for other in connections if other != main)):
        if connections[alias].in_atomic_block:
            return alias
    return None


def databases() -> list[str]:
    """The databases that may hold accepted jobs, the record's first."""
    main = router.db_for_write(JobRow)
    others = [
        alias for alias in connections if alias != main and _may_have_table(alias) and _has_table(alias)
    ]
    return [main, *others]


def _may_have_table(alias: str) -> bool:
    return router.allow_migrate_model(alias, JobRow)


_tables: dict[tuple[str, str], bool] = {}


def forget_databases() -> None:
    """Ask again which databases have tables of ours, as after a `migrate`."""
    _tables.clear()


def _has_table(alias: str) -> bool:
    """Whether this database is migrated; asked once a database, in its own transaction if one is open."""
    if alias == router.db_for_write(JobRow):
        return True
    place = (alias, str(connections[alias].settings_dict["NAME"]))
    if place not in _tables:
        try:
            with connections[alias].cursor() as cursor:
                _tables[place] = TABLE in connections[alias].introspection.table_names(cursor)
        except DatabaseError:
            return False
    return _tables[place]


def _accepted(item: Prepared, now: datetime) -> MirrorRow:
    row = _row(item, now)
    times = {name: to_ms(value) for name, value in row.items() if isinstance(value, datetime)}
    return MirrorRow(**(row | times))


def _row(item: Prepared, now: datetime) -> dict[str, Any]:
    new = item.new
    return {
        "queue": item.queue,
        "job_id": new.id,
        "state": ACCEPTED,
        "since": now,
        "accepted_at": now,
        "handler": item.handler[:255],
        "lane": new.lane.value,
        "run_at": _instant(new.run_at_ms, now),
        "spec": new.spec,
        "unique_digest": new.unique,
        "unique_for_ms": new.unique_for_ms,
        "expires_at": _instant(new.expires_ms, now),
    }


def _instant(given: int | str | None, now: datetime) -> datetime | None:
    """A run-at as Redis takes it ('+N' ms from its now), by this host's clock."""
    if given is None:
        return None
    if isinstance(given, str):
        return now + timedelta(milliseconds=int(given))
    return from_ms(given)


def _known(using: str, prepared: Iterable[Prepared]) -> dict[tuple[str, str], JobRow]:
    by_queue: dict[str, list[str]] = {}
    for item in prepared:
        by_queue.setdefault(item.queue, []).append(item.new.id)
    return {
        (row.queue, row.job_id): row
        for queue, job_ids in by_queue.items()
        for row in JobRow.objects.using(using).filter(queue=queue, job_id__in=job_ids)
    }


def _reopen(using: str, row: JobRow, item: Prepared, now: datetime) -> bool:
    """Let an id begin a new life whose last one is over and no longer answered for by Redis."""
    rows = JobRow.objects.using(using).filter(pk=row.pk, state=row.state, last_event=row.last_event)
    if row.state == JobState.DISCARDED.value:
        rows = rows.filter(DUPLICATES)
    elif row.state not in _OVER:
        return False
    if row.state == JobState.DONE.value and row.since + timedelta(seconds=_done_keep_s(row.queue)) > now:
        return False
    values = {**_BEGINNING, **_row(item, now)}
    return bool(rows.update(**values))


def _tags(new: NewJob) -> dict[str, str]:
    return decode_spec(new.spec).tags if b'"tags"' in new.spec else {}


def _done_keep_s(queue: str) -> float:
    own = Queue.objects.filter(name=queue).values_list("done_keep_s", flat=True).first()
    return config().done_keep_s if own is None else own


# -- pushing --------------------------------------------------------------------------------------


def _push_after_commit(using: str | None, prepared: Sequence[Prepared], accepted_s: float) -> None:
    """Push what has just been committed. A failure is the relay's to repair, not the caller's."""
    waited_ms = round((time.monotonic() - accepted_s) * 1000)
    by_queue: dict[str, list[NewJob]] = {}
    for item in prepared:
        by_queue.setdefault(item.queue, []).append(_later(item.new, waited_ms))
    for queue, jobs in by_queue.items():
        try:
            _push(Store(), using, queue, jobs)
        except QueueOpsError as error:
            log.warning("%d committed jobs of queue %s wait for the relay: %s", len(jobs), queue, error)


def _later(new: NewJob, waited_ms: int) -> NewJob:
    """The same job with what is relative to `enqueue` made relative to now."""

    def less(given: int | str | None) -> int | str | None:
        return f"+{max(0, int(given) - waited_ms)}" if isinstance(given, str) else given

    return replace(new, run_at_ms=less(new.run_at_ms), expires_ms=less(new.expires_ms))


def _push(store: Store, using: str | None, queue: str, jobs: Sequence[NewJob]) -> None:
    answers = store.enqueue(queue, jobs)
    if using is not None:
        for answer in answers:
            if answer.there is not None:
                _settle(using, queue, answer)


def _settle(using: str, queue: str, answer: Enqueued) -> None:
    """Move a row on that no enqueue event will: Redis had its id, or another held its unique key."""
    now = timezone.now()
    rows = JobRow.objects.using(using).filter(queue=queue, job_id=answer.id, state=ACCEPTED)
    if answer.there != answer.id:
        keep = timedelta(seconds=config().record_discarded_s)
        rows.update(
            state=JobState.DISCARDED.value, reason=f"{DUPLICATE_OF}{answer.there}", since=now,
            finished_at=now, keep_until=now + keep,
        )  # fmt: skip
    elif answer.state == JobState.DONE.value:
        # Known, and its end was recorded before the row was opened again: no event follows.
        keep = timedelta(seconds=config().record_done_s)
        rows.exclude(last_event="").update(
            state=JobState.DONE.value, since=now, finished_at=now, keep_until=now + keep
        )


# -- the relay ------------------------------------------------------------------------------------


class Relay:
    """Pushes what a dead process left. Each pass looks at the newest rows, and on through the others."""

    def __init__(self) -> None:
        self._cursor: dict[str, tuple[datetime, int]] = {}

    def run_once(self, store: Store | None = None) -> int:
        """One pass; how many jobs were sent. Safe to repeat, and to run twice at once.

        Raises StoreUnavailable or a DatabaseError when one of the two is away.
        """
        store = store or Store()
        return sum(self._relay(store, alias) for alias in databases())

    def _relay(self, store: Store, using: str) -> int:
        rows = {row.pk: row for row in (*self._recent(using), *self._next(using))}
        by_queue: dict[str, list[JobRow]] = {}
        for row in rows.values():
            by_queue.setdefault(row.queue, []).append(row)
        sent = 0
        for queue, mine in by_queue.items():
            waiting = self._unknown_to_redis(store, queue, mine)
            if using != router.db_for_write(JobRow):
                waiting = _not_recorded(using, queue, waiting)
            young, old = _by_age(queue, waiting)
            if old and catch_up(store, queue):
                # That pass began after these rows were seen: were one of them pushed, it had moved on.
                still = JobRow.objects.using(using).filter(pk__in=[row.pk for row in old], state=ACCEPTED)
                young += (
                    list(still) if using == router.db_for_write(JobRow) else _not_recorded(using, queue, old)
                )
            if young:
                _push(store, using, queue, [_new_job(row) for row in young])
                sent += len(young)
        return sent

    def _recent(self, using: str) -> Iterator[JobRow]:
        now = timezone.now()
        span = (now - timedelta(seconds=_RECENT_S), now - timedelta(seconds=_OWN_PUSH_S))
        rows = JobRow.objects.using(using).filter(state=ACCEPTED, accepted_at__range=span)
        return rows.order_by("-accepted_at", "-id")[:_PAGE].iterator()

    def _next(self, using: str) -> list[JobRow]:
        """The next page of all accepted rows, oldest first; from the start again at the end."""
        rows = JobRow.objects.using(using).filter(
            state=ACCEPTED, accepted_at__lt=timezone.now() - timedelta(seconds=_OWN_PUSH_S)
        )
        rows = rows.order_by("accepted_at", "id")
        if using in self._cursor:
            at, pk = self._cursor[using]
            page = list(rows.filter(accepted_at__gte=at).exclude(accepted_at=at, pk__lte=pk)[:_PAGE])
        else:
            page = list(rows[:_PAGE])
        self._cursor.pop(using, None)
        if len(page) == _PAGE and page[-1].accepted_at is not None:
            self._cursor[using] = (page[-1].accepted_at, page[-1].pk)
        return page

    def _unknown_to_redis(self, store: Store, queue: str, rows: Sequence[JobRow]) -> list[JobRow]:
        """Those whose id Redis does not answer for: a push of the others would say so at more cost."""
        reads = Reads(store.connection)
        pipe = reads.pipe()
        for row in rows:
            pipe.exists(keys.job(queue, row.job_id))
        return [row for row, known in zip(rows, reads.answers(pipe), strict=True) if known == 0]


def _not_recorded(using: str, queue: str, rows: Sequence[JobRow]) -> list[JobRow]:
    """Rows of another database that the record has no event of; the others have done their duty and go."""
    main = JobRow.objects.using(router.db_for_write(JobRow))
    recorded = set(
        main.filter(queue=queue, job_id__in=[row.job_id for row in rows])
        .exclude(last_event="")
        .values_list("job_id", flat=True)
    )
    over = [row.pk for row in rows if row.job_id in recorded]
    JobRow.objects.using(using).filter(pk__in=over, state=ACCEPTED).delete()
    return [row for row in rows if row.job_id not in recorded]


def _by_age(queue: str, rows: Iterable[JobRow]) -> tuple[list[JobRow], list[JobRow]]:
    """Those that Redis would still answer for, had they been pushed and done; and older ones.

    A fifth of the keep time is left for clocks that differ.
    """
    young_after = timezone.now() - timedelta(seconds=0.8 * _done_keep_s(queue))
    young: list[JobRow] = []
    old: list[JobRow] = []
    for row in rows:
        (young if row.accepted_at is not None and row.accepted_at > young_after else old).append(row)
    return young, old


def _new_job(row: JobRow) -> NewJob:
    return NewJob(
        id=row.job_id,
        spec=bytes(row.spec or b""),
        run_at_ms=None if row.run_at is None else to_ms(row.run_at),
        lane=Lane(row.lane or Lane.NORMAL.value),
        unique=row.unique_digest,
        unique_for_ms=row.unique_for_ms,
        expires_ms=None if row.expires_at is None else to_ms(row.expires_at),
    )


_relay = Relay()


def relay_once(store: Store | None = None) -> int:
    """Push accepted jobs that no process pushed; how many were sent (Relay.run_once)."""
    return _relay.run_once(store)
