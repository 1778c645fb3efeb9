"""Once in effect: database work of a handler that is done once, however often its job is delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.db import connections, router, transaction
from django.utils import timezone

from queueops import keys
from queueops.connection import connection
from queueops.current import CurrentJob, current_job
from queueops.errors import LostLease, WrongDatabase
from queueops.models import Effect, Job
from queueops.models.jobs import GONE
from queueops.payload import decode_value, encode_value
from queueops.states import JobState

_READS = ("SELECT", "WITH", "EXPLAIN", "SHOW", "PRAGMA", "SAVEPOINT", "RELEASE", "ROLLBACK", "BEGIN", "SET")
#: Half of the shortest keep time of an id: what was written until then is of its earlier life. The
#: clock of the host that wrote it is not Redis TIME.
BETWEEN_LIVES = timedelta(seconds=150)
_ENDED = (JobState.DONE.value, GONE)


def once(key: str, func: Callable[[], Any]) -> Any:
    """Run `func` and record that it ran, in one database transaction; later, return what it returned.

    To be called inside a handler. `key` names the step, up to 200 characters; an effect is known by
    the job's queue, its `idempotency_key` and `key`. Whatever kills the process, either both the work
    of `func` and the record of it have committed, or neither. The result must be JSON (it comes back
    as JSON gives it, also the first time). `once` may be nested, with another key.

    `func` does database work only, in the database of the record. Work in another database, or an
    API call, can't commit with the record: send `current_job().idempotency_key` there and let the
    other side refuse the second time.

    Raises what `func` raises (nothing is recorded then); WrongDatabase when the work is done in
    another database; LostLease when this delivery ended long ago; TypeError or ValueError for a key or
    a result that can't be kept.
    """
    if not isinstance(key, str):
        raise TypeError(f"once() needs a text as its key, got {type(key).__name__}")
    if not 0 < len(key) <= 200:
        raise ValueError(f"the key of once() must have 1 to 200 characters, got {len(key)}")
    job = current_job()
    using = router.db_for_write(Effect)
    _check_transaction(using)
    with transaction.atomic(using=using):
        end = _earlier_end(job, using)
        if not _begin(job, key, using, end):
            if end is None or not _is_stale(_mine(job, key, using).get(), end) or not _is_owner(job):
                return _recorded(job, key, using)
            _mine(job, key, using).delete()  # of an earlier use of this id, not pruned yet
            _begin(job, key, using, end)
        elif end is not None and not _is_owner(job):
            raise LostLease(f"{job.id} in {job.queue} ended while delivery {job.delivery} slept")
        with _only(using):
            result = func()
        said = encode_value(result, what=f"the result of once({key!r:.60})").decode()
        _mine(job, key, using).update(result=said)
    return decode_value(said)


def _begin(job: CurrentJob, key: str, using: str, earlier_end: datetime | None) -> bool:
    """Insert the effect; False when it is there. Waits for another delivery that is just at it."""
    db = connections[using]
    columns = ("queue", "idempotency_key", "key", "job_id", "delivery", "result", "created_at", "earlier_end")
    adapt = db.ops.adapt_datetimefield_value
    with db.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO queueops_effect ({', '.join(map(db.ops.quote_name, columns))}) "  # noqa: S608 - ours
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (queue, idempotency_key, key) DO NOTHING",
            [
                job.queue,
                job.idempotency_key,
                key,
                job.id,
                job.delivery,
                "",
                adapt(timezone.now()),
                adapt(earlier_end),
            ],
        )
        return bool(cursor.rowcount == 1)


def _recorded(job: CurrentJob, key: str, using: str) -> Any:
    said = _mine(job, key, using).values_list("result", flat=True).get()
    if not said:
        raise RuntimeError(f"once({key!r:.60}) was called inside of itself")
    return decode_value(said)


def _mine(job: CurrentJob, key: str, using: str) -> Any:
    return Effect.objects.using(using).filter(queue=job.queue, idempotency_key=job.idempotency_key, key=key)


def _earlier_end(job: CurrentJob, using: str) -> datetime | None:
    """When a job of this id ended for good, by the record: then effects of it may be here or be pruned.

    It was this very job, and this process slept through its end; or one whose id was used again,
    and the record has not heard of it yet. Redis knows which.
    """
    ended = Job.objects.using(using).filter(queue=job.queue, job_id=job.id, state__in=_ENDED)
    return ended.values_list("finished_at", flat=True).first()


def _is_stale(effect: Effect, end: datetime) -> bool:
    """Whether it is of the life of this id that ended then, and not of the one after it."""
    return effect.earlier_end != end and effect.created_at < end + BETWEEN_LIVES


def _is_owner(job: CurrentJob) -> bool:
    """Whether Redis says that this delivery runs now."""
    state, delivery = connection().client.hmget(keys.job(job.queue, job.id), "state", "delivery")
    return state == JobState.PENDING.encode() and delivery == str(job.delivery).encode()


def _check_transaction(using: str) -> None:
    if connections[using].in_atomic_block:
        return
    for other in connections:
        if other != using and connections[other].in_atomic_block:
            raise WrongDatabase(
                f"once() records in the database '{using}', and the open transaction is in '{other}':"
                " they can't commit together. Use current_job().idempotency_key there."
            )


@contextmanager
def _only(using: str) -> Iterator[None]:
    """Refuse writes to other databases inside."""

    def refuse(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        if not str(sql).lstrip(" (\n").upper().startswith(_READS):
            other = context["connection"].alias
            raise WrongDatabase(
                f"once() records in the database '{using}', and its function writes to '{other}': they can't"
                " commit together. Use current_job().idempotency_key there."
            )
        return execute(sql, params, many, context)

    with ExitStack() as stack:
        for other in connections:
            if other != using:
                stack.enter_context(connections[other].execute_wrapper(refuse))
        yield
