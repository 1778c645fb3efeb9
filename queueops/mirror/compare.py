"""Does the record agree with Redis? To be asked once the mirror has caught up; nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.db.models import Count
from redis.exceptions import RedisError

from queueops import keys
from queueops.doctor import Finding
from queueops.inspector import Inspector
from queueops.job import to_ms
from queueops.mirror.copy import alias
from queueops.models import Job, MirrorState
from queueops.models.jobs import DUPLICATES
from queueops.states import LISTED, JobState, Lane
from queueops.store import Store

#: Jobs of each state that are looked at one by one, from either side.
SAMPLE = 200
#: A look that met a moving queue is made again, so often.
_TRIES = 5
_NUMBERS = ("attempts", "rescues", "delivery", "edition", "requeues")


def compare_all(store: Store) -> list[Finding]:
    """Compare every queue that Redis or the record knows. Raises StoreUnavailable or a DatabaseError."""
    queues = {
        *Inspector(store.connection).queues(),
        *MirrorState.objects.using(alias()).values_list("queue", flat=True),
    }
    return [finding for queue in sorted(queues) for finding in compare(store, queue)]


def compare(store: Store, queue: str) -> list[Finding]:
    """Compare counts by state and a sample of jobs of one queue.

    A queue that moves, or whose events are not all recorded, can't be compared: a warning says so.
    """
    state = MirrorState.objects.using(alias()).filter(queue=queue).first()
    if state is None:
        return []  # nothing of it has been recorded
    epoch = _setting(store, queue, "epoch")
    if state.epoch and epoch and state.epoch != epoch:
        return [_warn(queue, "Redis lost its data and the record has them: run 'manage.py rebuild'")]
    before: Any = None
    for _ in range(_TRIES):
        before = _position(store, queue)
        if before[0]:
            continue
        found = [*_counts(store, queue), *_samples(store, queue)]
        if _position(store, queue) == before:
            # What was never recorded can't be held against the record.
            severity = "warning" if state.gaps else "error"
            return [Finding(severity, queue, job_id, what) for job_id, what in found]
    if before[0]:
        return [_warn(queue, f"the record is {before[0]:,} events behind: it was not compared with Redis")]
    return [_warn(queue, "jobs move too fast to compare the record with Redis")]


def _warn(queue: str, what: str) -> Finding:
    return Finding("warning", queue, None, what)


def _setting(store: Store, queue: str, name: str) -> str:
    found: Any = store.connection.client.hget(keys.queue_key(queue, "settings"), name)
    return (found or b"").decode(errors="replace")


def _position(store: Store, queue: str) -> tuple[int, str]:
    """How many events wait, and the id of the last one ever: the same twice, and nothing moved."""
    try:
        info: Any = store.connection.client.xinfo_stream(keys.queue_key(queue, "events"))
    except RedisError as error:
        if "no such key" in str(error):
            return 0, ""
        raise store.connection.translated(error) from error
    return int(info["length"]), str(info["last-generated-id"])


def _compared_states(store: Store, queue: str) -> list[JobState]:
    """With `audit: outcome` the record knows of a job when it has ended."""
    if _setting(store, queue, "audit") == "outcome":
        return [JobState.DEAD, JobState.DISCARDED]
    return list(LISTED)


def _counts(store: Store, queue: str) -> Iterator[tuple[None, str]]:
    here = Inspector(store.connection).counts(queue)
    rows = Job.objects.using(alias()).filter(queue=queue, state__in=[state.value for state in LISTED])
    rows = rows.exclude(DUPLICATES)
    recorded = dict(rows.values_list("state").annotate(count=Count("pk")).values_list("state", "count"))
    for state in _compared_states(store, queue):
        there, ours = here.get(state, 0), recorded.get(state.value, 0)
        if there != ours:
            yield None, f"{there:,} jobs are {state.value} in Redis and {ours:,} in the record"


def _samples(store: Store, queue: str) -> Iterator[tuple[str, str]]:
    looked_at: set[str] = set()
    for state in _compared_states(store, queue):
        ids = dict.fromkeys([*_ids_in_redis(store, queue, state), *_ids_in_record(queue, state)])
        fresh = [job_id for job_id in ids if job_id not in looked_at]
        looked_at.update(fresh)
        yield from _differences(store, queue, fresh)


def _ids_in_redis(store: Store, queue: str, state: JobState) -> list[str]:
    client: Any = store.connection.client
    if state is JobState.READY:
        entries = [
            fields[b"id"]
            for lane in Lane
            for _, fields in client.xrange(keys.ready(queue, lane), count=SAMPLE)
            if b"id" in fields
        ]
    else:
        entries = client.zrange(keys.jobs_in(queue, state), 0, SAMPLE - 1)
    return [entry.decode(errors="replace") for entry in entries]


def _ids_in_record(queue: str, state: JobState) -> list[str]:
    rows = Job.objects.using(alias()).filter(queue=queue, state=state.value).order_by("-since", "-id")
    return list(rows.exclude(DUPLICATES).values_list("job_id", flat=True)[:SAMPLE])


def _differences(store: Store, queue: str, job_ids: Sequence[str]) -> Iterator[tuple[str, str]]:
    pipe = store.connection.client.pipeline(transaction=False)
    for job_id in job_ids:
        pipe.hmget(keys.job(queue, job_id), "state", "since", *_NUMBERS)
    answers = pipe.execute(raise_on_error=False) if job_ids else []
    rows = {
        row.job_id: row for row in Job.objects.using(alias()).filter(queue=queue, job_id__in=list(job_ids))
    }
    for job_id, answer in zip(job_ids, answers, strict=True):
        row = rows.get(job_id)
        if isinstance(answer, RedisError):
            continue  # no hash: said where jobs are examined
        if row is None:
            yield job_id, f"it is {_text(answer[0])} in Redis, and the record does not know it"
        elif answer[0] is None:
            yield job_id, f"it is {row.state} in the record, and Redis does not know it"
        else:
            here = {"state": _text(answer[0]), "since": _number(answer[1])}
            here |= {name: _number(value) for name, value in zip(_NUMBERS, answer[2:], strict=True)}
            recorded = {"state": row.state, "since": to_ms(row.since)}
            recorded |= {name: getattr(row, name) for name in _NUMBERS}
            for name, value in here.items():
                if value != recorded[name]:
                    yield job_id, f"its {name} is {value} in Redis and {recorded[name]} in the record"


def _text(value: bytes | None) -> str:
    return (value or b"nothing").decode(errors="replace")


def _number(value: bytes | None) -> int:
    return int(value) if value and value.isdigit() else 0
