"""The way in: enqueue jobs, and ask for one."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from asgiref.sync import sync_to_async

from queueops import keys
from queueops.conf import config
from queueops.handlers import handler_name, handler_queue
from queueops.inspector import Inspector
from queueops.job import Job, NewJob, from_ms, new_job_id, to_ms
from queueops.payload import check_tags, encode_spec
from queueops.policies import RetryPolicy
from queueops.states import PRIORITIES, JobState
from queueops.store import Enqueued, Store

#: Out of these a score would still be exact, but a datetime would not exist. Unix ms.
_FIRST_MS = to_ms(datetime.min.replace(tzinfo=UTC))
_LAST_MS = to_ms(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
_LANES = {lane.value: lane for lane in PRIORITIES}


@dataclass(frozen=True)
class JobSpec:
    """One job for `enqueue_many`; the fields are the arguments of `enqueue`."""

    handler: object
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    queue: str | None = None
    delay: float | timedelta | None = None
    run_at: datetime | None = None
    priority: str = "normal"
    job_id: str | None = None
    policy: str | RetryPolicy | None = None
    unique_key: str | None = None
    unique_for: float | timedelta | None = None
    expires: float | timedelta | datetime | None = None
    tags: Mapping[str, object] | Iterable[str] | None = None
    #: What a bridge keeps with the job, as JSON: a Celery link, time limits.
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Prepared:
    """A checked job: where it goes, what Redis gets, and what was asked for."""

    queue: str
    new: NewJob
    handler: str
    tags: dict[str, str]
    spec: JobSpec

    def job(self, state: JobState | str, run_at_ms: int | None = None) -> Job:
        """What its caller gets back; `run_at_ms` as Redis chose it, Unix ms."""
        new, spec = self.new, self.spec
        run_at = new.run_at_ms if run_at_ms is None else run_at_ms
        return Job(
            id=new.id,
            queue=self.queue,
            state=state,
            handler=self.handler,
            args=list(spec.args),
            kwargs=dict(spec.kwargs or {}),
            run_at=from_ms(run_at) if isinstance(run_at, int) else None,
            expires_at=from_ms(new.expires_ms) if isinstance(new.expires_ms, int) else None,
            tags=self.tags,
            policy=spec.policy,
            priority=new.lane.value,
        )


class Record(Protocol):
    """What the database does for the client; the app gives it at start (`use_record`)."""

    def accept(self, prepared: Sequence[Prepared]) -> list[Job] | None:
        """Write jobs with the open transaction, to be pushed after it; None when none is open."""

    def find(self, job_id: str, queue: str | None) -> Job | None:
        """The job as the record knows it, newest first when several queues have the id."""


_record: Record | None = None


def use_record(record: Record | None) -> None:
    """Let the client write to and ask this record. Called once, when Django is ready."""
    global _record
    _record = record


def enqueue(
    handler: object,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    queue: str | None = None,
    delay: float | timedelta | None = None,
    run_at: datetime | None = None,
    priority: str = "normal",
    job_id: str | None = None,
    policy: str | RetryPolicy | None = None,
    unique_key: str | None = None,
    unique_for: float | timedelta | None = None,
    expires: float | timedelta | datetime | None = None,
    tags: Mapping[str, object] | Iterable[str] | None = None,
    on_commit: bool | None = None,
) -> Job:
    """Ask for `handler` to be run with these arguments, once in effect; return the job.

    `handler` is a Celery task, a Django task or a registered name. `delay` (seconds or a timedelta)
    counts from now by Redis TIME; `run_at` is an aware datetime; a past one runs now. `job_id` makes
    the call safe to repeat: the same id is the same job, and the one that is there is returned.
    `unique_key` (per queue) is held while the job is delayed, ready or pending, or for `unique_for`;
    meanwhile the holder is returned. `expires` (seconds, a timedelta or an aware datetime): not
    delivered after that. `tags` (text or a list of names) are searchable.

    Inside `transaction.atomic()` the job is written with the transaction and pushed right after its
    commit, or rolled back with it; `on_commit=False` pushes at once.

    Raises TypeError or ValueError naming the argument; StoreUnavailable or StoreFull when Redis took
    nothing in: call again with the same `job_id`.
    """
    spec = JobSpec(
        handler,
        args,
        kwargs,
        queue,
        delay,
        run_at,
        priority,
        job_id,
        policy,
        unique_key,
        unique_for,
        expires,
        tags,
    )
    return put(spec, on_commit=on_commit)


def put(spec: JobSpec, *, on_commit: bool | None = None) -> Job:
    """Enqueue one spec; raises as `enqueue` does."""
    return _put([_prepare(spec, None)], on_commit)[0]


def enqueue_many(
    specs: Iterable[JobSpec | Mapping[str, Any]], *, queue: str | None = None, on_commit: bool | None = None
) -> list[Job]:
    """Enqueue many jobs, 500 in one round trip; return them in their order.

    A spec is a JobSpec, or a mapping of `enqueue`'s arguments. All are checked before the first is
    sent; errors name the spec by its place. `queue` is for specs that name none.
    """
    prepared = []
    for i, spec in enumerate(specs):
        try:
            given = spec if isinstance(spec, JobSpec) else JobSpec(**spec)
            prepared.append(_prepare(given, queue))
        except (TypeError, ValueError) as error:
            raise type(error)(f"specs[{i}]: {error}") from error
    return _put(prepared, on_commit)


def get_job(job_id: str, queue: str | None = None) -> Job | None:
    """The job, or None when neither Redis nor the record knows it. Without `queue` asks the record."""
    keys.check_job_id(job_id)
    inspector = Inspector()
    if queue is not None:
        return inspector.job(keys.check_queue(queue), job_id) or (
            _record.find(job_id, queue) if _record else None
        )
    found = _record.find(job_id, None) if _record else None
    if found is not None:
        return inspector.job(found.queue, job_id) or found
    return inspector.find(job_id)  # newer than the record


aenqueue = sync_to_async(enqueue)
aget_job = sync_to_async(get_job)


def push(prepared: Sequence[Prepared], *, actor: str = "", store: Store | None = None) -> list[Job]:
    """Send checked jobs to Redis, one round trip per 500 of a queue; return them in their order."""
    store = store or Store()
    by_queue: dict[str, list[int]] = {}
    for i, item in enumerate(prepared):
        by_queue.setdefault(item.queue, []).append(i)
    jobs: dict[int, Job] = {}
    for queue, places in by_queue.items():
        answers = store.enqueue(queue, [prepared[i].new for i in places], actor=actor)
        for i, answer in zip(places, answers, strict=True):
            jobs[i] = _answered(prepared[i], answer)
    return [jobs[i] for i in range(len(prepared))]


def _put(prepared: list[Prepared], on_commit: bool | None) -> list[Job]:
    if on_commit is not False and _record is not None:
        accepted = _record.accept(prepared)
        if accepted is not None:
            return accepted
    return push(prepared)


def _answered(item: Prepared, answer: Enqueued) -> Job:
    if answer.there is None:
        return item.job(JobState(answer.state), answer.run_at_ms)
    there = Inspector().job(item.queue, answer.there)
    if there is not None:
        return there
    # Settled and gone between the two commands.
    return Job(id=answer.there, queue=item.queue, state=JobState(answer.state))


def _prepare(spec: JobSpec, default_queue: str | None) -> Prepared:
    """Check one spec. Raises TypeError or ValueError naming the argument."""
    conf = config()
    name = handler_name(spec.handler)
    queue = keys.check_queue(spec.queue or default_queue or handler_queue(spec.handler) or conf.default_queue)
    job_id = new_job_id() if spec.job_id is None else keys.check_job_id(spec.job_id)
    lane = _LANES.get(spec.priority) if isinstance(spec.priority, str) else None
    if lane is None:
        raise ValueError(f"priority must be one of {', '.join(_LANES)}, got {spec.priority!r:.60}")
    if spec.delay is not None and spec.run_at is not None:
        raise ValueError("give delay or run_at, not both")
    run_at: int | str | None = None
    if spec.run_at is not None:
        run_at = _instant("run_at", spec.run_at)
    if spec.delay is not None:
        run_at = _after("delay", spec.delay)
    if spec.unique_for is not None and spec.unique_key is None:
        raise ValueError("unique_for needs a unique_key")
    expires: int | str | None = None
    if spec.expires is not None:
        is_instant = isinstance(spec.expires, datetime)
        expires = _instant("expires", spec.expires) if is_instant else _after("expires", spec.expires)
    tags = check_tags(spec.tags) if spec.tags else {}
    data = encode_spec(
        name,
        spec.args,
        spec.kwargs,
        policy=spec.policy,
        tags=tags,
        extra=spec.extra,
        max_bytes=conf.max_payload_bytes,
    )
    new = NewJob(
        id=job_id,
        spec=data,
        run_at_ms=run_at,
        lane=lane,
        unique=_digest(spec.unique_key),
        unique_for_ms=None if spec.unique_for is None else max(1, _ms("unique_for", spec.unique_for)),
        expires_ms=expires,
    )
    return Prepared(queue, new, name, tags, spec)


def _digest(unique_key: object) -> str:
    if unique_key is None:
        return ""
    if not isinstance(unique_key, str) or not unique_key:
        raise TypeError(f"unique_key must be text, not empty, got {unique_key!r:.60}")
    return hashlib.sha256(unique_key.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _ms(name: str, value: object) -> int:
    """Whole ms of seconds or a timedelta; at most as far as the year 9999 from now."""
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    else:
        raise TypeError(f"{name} must be seconds or a timedelta, got {type(value).__name__}")
    if isinstance(seconds, float) and not math.isfinite(seconds):
        raise ValueError(f"{name} must be finite, got {seconds}")
    # This machine's clock only says what is absurd; it decides nothing that runs.
    if seconds * 1000 > _LAST_MS - time.time() * 1000:
        raise ValueError(f"{name} ends past the year 9999")
    return round(max(seconds, -1e9) * 1000)


def _after(name: str, value: object) -> int | str | None:
    ms = _ms(name, value)
    return f"+{ms}" if ms > 0 else ("+0" if name == "expires" else None)


def _instant(name: str, value: object) -> int:
    if not isinstance(value, datetime):
        raise TypeError(f"{name} must be an aware datetime, got {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValueError(f"{name} must be an aware datetime, {value.isoformat()} has no time zone")
    ms = max(to_ms(value), _FIRST_MS)  # a zone's offset can lead out of the first year
    if ms > _LAST_MS:
        raise ValueError(f"{name} is past the year 9999")
    return ms
