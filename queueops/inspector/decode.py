"""A job's hash as a Job. What can't be read is named, and never raises: a page must still show the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from redis.exceptions import RedisError

from queueops.causes import CAUSE_TEXTS, Failure
from queueops.errors import CorruptSpec
from queueops.job import Job, from_ms
from queueops.payload import Spec, decode_spec, decode_value
from queueops.states import JobState, Lane

Fields = Mapping[bytes, bytes]
_LAST_MS = 253_402_300_799_999  # the end of the year 9999: no datetime is later


def decode_job(
    queue: str, job_id: str, fields: Fields | RedisError, *, score: float | None = None
) -> Job | None:
    """Return the job that a hash describes; None for no hash at all.

    `score` is its place in the delayed set, Unix ms: there, and not in the hash, is its run-at.
    """
    if isinstance(fields, RedisError):
        return Job(id=job_id, queue=queue, state=None, corrupt=f"its key does not hold a job: {fields}")
    if not fields:
        return None
    state = _state(fields.get(b"state"))
    held = _number(fields.get(b"held")) if state is JobState.DELAYED else None
    # The place of a held job says when its hold ends; when it was due says its hash.
    is_by_score = state is JobState.DELAYED and score is not None and held is None
    run_at = score if is_by_score else _number(fields.get(b"run_at"))
    cause = _text(fields.get(b"cause"))
    lane = _text(fields.get(b"lane")) or Lane.NORMAL.value
    job = Job(
        id=job_id,
        queue=queue,
        state=state,
        attempts=_number(fields.get(b"attempts")) or 0,
        rescues=_number(fields.get(b"rescues")) or 0,
        delivery=_number(fields.get(b"delivery")) or 0,
        edition=_number(fields.get(b"edition")) or 0,
        requeues=_number(fields.get(b"requeues")) or 0,
        run_at=_maybe(run_at),
        since=_maybe(_number(fields.get(b"since"))),
        expires_at=_maybe(_number(fields.get(b"expires"))),
        started_at=_maybe(_number(fields.get(b"started")) or None),
        error=_error(fields.get(b"error"), cause),
        cause=cause,
        reason=_text(fields.get(b"reason")),
        child=_text(fields.get(b"child")),
        progress=_text(fields.get(b"progress")),
        cancelled=b"cancel" in fields,
        held=held,
        unique=_text(fields.get(b"unique")),
        operation=_text(fields.get(b"op")),
        priority=lane,
    )
    if state is JobState.DONE:
        return replace(
            job, handler=_text(fields.get(b"handler")) or None, result=_result(fields.get(b"result"))
        )
    raw, why = whole_spec(fields)
    try:
        spec = decode_spec(raw) if raw is not None else None
    except CorruptSpec as error:
        spec, why = None, str(error)
    if not isinstance(state, JobState):
        why = f"its state is {state!r}" if state else "it has no state"
    job = replace(job, spec=raw, corrupt=why)
    return with_spec(job, spec) if spec else job


def whole_spec(fields: Fields) -> tuple[bytes | None, str | None]:
    """The spec's bytes, or None and why not. A waiting job's spec is cut into several fields."""
    first = fields.get(b"spec")
    if first is None:
        return None, "it has no spec"
    if (parts := fields.get(b"parts")) is None:
        return first, None
    more = [fields.get(b"spec%d" % i) for i in range(1, _number(parts) or 0)]
    if None in more:
        return first, "a part of its spec is missing"
    return first + b"".join(part for part in more if part is not None), None


def with_spec(job: Job, spec: Spec) -> Job:
    """Return the job with what its spec says."""
    return replace(
        job,
        handler=spec.handler,
        args=spec.args,
        kwargs=spec.kwargs,
        tags=spec.tags,
        policy=spec.policy,
        extra=spec.extra,
    )


def _state(value: bytes | None) -> JobState | str | None:
    name = _text(value)
    try:
        return JobState(name) if name is not None else None
    except ValueError:
        return name


def _error(value: bytes | None, cause: str | None) -> dict[str, Any] | None:
    """What a worker wrote is JSON; what a script wrote is a sentence."""
    if value is None:
        return None
    error = asdict(Failure.from_json(value))
    if not value.startswith(b"{") and cause is not None:
        error |= {"error": cause, "cause": cause, "cause_text": f"{cause}: {CAUSE_TEXTS.get(cause, '')}"}
    return error


def _result(value: bytes | None) -> Any:
    if not value:
        return None
    try:
        return decode_value(value)
    except ValueError:
        return value.decode(errors="replace")


def instant(ms: float) -> datetime:
    """The instant of Unix ms, however absurd they are."""
    return from_ms(min(max(ms, 0), _LAST_MS))


def _maybe(ms: float | None) -> datetime | None:
    return instant(ms) if ms is not None else None


def _number(value: bytes | None) -> int | None:
    try:
        return int(float(value)) if value is not None else None
    except (ValueError, OverflowError):
        return None


def _text(value: bytes | None) -> str | None:
    return value.decode(errors="replace") if value is not None else None
