"""Rows on their way into the database: few statements a batch, on SQLite and PostgreSQL alike.

Written as SQL since Django's bulk_create has no ON CONFLICT DO NOTHING on one key (INSERT OR IGNORE,
its form on SQLite, also swallows what a CHECK or NOT NULL refuses) and no DO UPDATE … WHERE.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, fields
from datetime import datetime
from functools import cache
from typing import Any

from django.db import connections

from queueops.events import Event
from queueops.job import from_ms, to_ms
from queueops.mirror.fold import AttemptRow, Folded, JobRow
from queueops.models import Job

#: SQLite takes 32,766 parameters in one statement, PostgreSQL 65,535.
_PARAMETERS = 30_000

_JOB_COLUMNS = [field.name for field in fields(JobRow)]
_JOB_TIMES = [
    i
    for i, name in enumerate(_JOB_COLUMNS)
    if name
    in {"since", "enqueued_at", "run_at", "expires_at", "died_at", "finished_at", "keep_until", "accepted_at"}
]
_ATTEMPT_COLUMNS = [field.name for field in fields(AttemptRow)]
_ATTEMPT_TIMES = [_ATTEMPT_COLUMNS.index("started_at"), _ATTEMPT_COLUMNS.index("ended_at")]
_EVENT_COLUMNS = [
    "queue", "stream_id", "job_id", "verb", "from_state", "to_state", "actor", "at", "delivery", "details",
]  # fmt: skip
#: What an event says and its job's or attempt's row holds.
_ELSEWHERE = frozenset({"error", "result"})

_newer = "queueops_job.last_event < excluded.last_event"
_JOB_CONFLICT = (
    "ON CONFLICT (queue, job_id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _JOB_COLUMNS if name not in {"queue", "job_id"})
    + f" WHERE {_newer}"
)


def read_jobs(using: str, queue: str, job_ids: Sequence[str]) -> dict[str, JobRow]:
    """The rows of these jobs, as they are now."""
    found = Job.objects.using(using).filter(queue=queue, job_id__in=job_ids).values_list(*_JOB_COLUMNS)
    rows = {}
    for values in found:
        row = list(values)
        for i in _JOB_TIMES:
            if row[i] is not None:
                row[i] = to_ms(row[i])
        made = JobRow(*row)
        if made.spec is not None:
            made.spec = bytes(made.spec)
        rows[made.job_id] = made
    return rows


def write_jobs(using: str, jobs: Iterable[JobRow]) -> None:
    """Insert rows; one that is there takes only a newer event."""
    instant = _instant(using)
    rows = [_with_times(astuple(job), _JOB_TIMES, instant) for job in jobs]
    _insert(using, "queueops_job", _JOB_COLUMNS, rows, _JOB_CONFLICT)


def write_attempts(using: str, attempts: Iterable[AttemptRow]) -> None:
    """Insert attempts, once a delivery."""
    instant = _instant(using)
    rows = [_with_times(astuple(attempt), _ATTEMPT_TIMES, instant) for attempt in attempts]
    _insert(
        using, "queueops_attempt", _ATTEMPT_COLUMNS, rows, "ON CONFLICT (queue, job_id, delivery) DO NOTHING"
    )


def write_events(using: str, queue: str, events: Iterable[Event]) -> None:
    """Insert events, once a stream id."""
    instant = _instant(using)
    rows = [
        [
            queue,
            event.stream_id,
            event.job_id,
            event.verb,
            event.from_state[:9],
            event.to_state[:9],
            event.actor,
            instant(event.at_ms),
            event.numbers.get("delivery"),
            _details(event),
        ]
        for event in events
    ]
    _insert(using, "queueops_jobevent", _EVENT_COLUMNS, rows, "ON CONFLICT (queue, stream_id) DO NOTHING")


def insert_accepted(using: str, given: Sequence[dict[str, Any]]) -> set[tuple[str, str]]:
    """Insert accepted rows in one statement; the (queue, id) of those whose id was new."""
    if not given:
        return set()
    defaults = {name: getattr(BLANK, name) for name in _JOB_COLUMNS}
    db = connections[using]
    adapt = db.ops.adapt_datetimefield_value if db.vendor == "sqlite" else lambda value: value
    rows = []
    for values in given:
        row = defaults | values
        rows.append(
            [adapt(v) if isinstance(v, datetime) else v for v in (row[name] for name in _JOB_COLUMNS)]
        )
    found = _insert(
        using,
        "queueops_job",
        _JOB_COLUMNS,
        rows,
        "ON CONFLICT (queue, job_id) DO NOTHING RETURNING queue, job_id",
    )
    return {(queue, job_id) for queue, job_id in found}


#: A row of which nothing is known.
BLANK = JobRow("", "")


def insert_tags(using: str, given: Iterable[tuple[str, str, dict[str, str]]]) -> None:
    """Insert tags of (queue, id)."""
    rows = [[queue, job_id, name, value] for queue, job_id, tags in given for name, value in tags.items()]
    _insert(using, "queueops_jobtag", _TAG_COLUMNS, rows, _TAG_CONFLICT)


_TAG_COLUMNS = ["queue", "job_id", "name", "value"]
_TAG_CONFLICT = "ON CONFLICT (queue, job_id, name) DO UPDATE SET value = excluded.value"


def write_tags(using: str, jobs: Iterable[Folded]) -> None:
    """Insert tags, once a name."""
    insert_tags(using, [(job.row.queue, job.row.job_id, job.tags or {}) for job in jobs])


def _details(event: Event) -> str:
    said: dict[str, Any] = {name: value for name, value in event.numbers.items() if name != "delivery"}
    said |= {
        name: value
        for name, value in event.texts.items()
        if name not in _ELSEWHERE or (name == "error" and "ran_ms" not in event.numbers)
    }
    return json.dumps(said, ensure_ascii=False) if said else "{}"


def _with_times(values: tuple[Any, ...], places: Sequence[int], instant: Callable[[int], Any]) -> list[Any]:
    row = list(values)
    for i in places:
        if row[i] is not None:
            row[i] = instant(row[i])
    return row


@cache
def _instant(using: str) -> Callable[[int], Any]:
    """What the database takes for Unix ms."""
    if connections[using].vendor == "sqlite":
        adapt = connections[using].ops.adapt_datetimefield_value
        return lambda ms: adapt(from_ms(ms))
    return from_ms


def _insert(
    using: str, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], conflict: str
) -> list[Any]:
    """Insert rows; the answers of RETURNING, if `conflict` has one."""
    found: list[Any] = []
    if not rows:
        return found
    one = f"({', '.join(['%s'] * len(columns))})"
    start = f"INSERT INTO {table} ({', '.join(columns)}) VALUES "  # noqa: S608 - names of ours
    step = max(1, _PARAMETERS // len(columns))
    with connections[using].cursor() as cursor:
        for first in range(0, len(rows), step):
            chunk = rows[first : first + step]
            values = [value for row in chunk for value in row]
            cursor.execute(f"{start}{', '.join([one] * len(chunk))} {conflict}", values)
            if cursor.description:
                found += cursor.fetchall()
    return found


def forget_earlier_lives(using: str, jobs: Iterable[Folded]) -> None:
    """Delete what belongs to an earlier use of a job's id: its attempts and tags, and its effects.

    Effects are told apart by time, with half of the shortest keep time between the two lives: the
    clock of the host that wrote them is not Redis TIME.
    """
    from queueops.models import Attempt, Effect, JobTag

    for job in jobs:
        if job.earlier_life_ended is None:
            continue
        mine = {"queue": job.row.queue, "job_id": job.row.job_id}
        Attempt.objects.using(using).filter(**mine).delete()
        JobTag.objects.using(using).filter(**mine).delete()
        before = from_ms(job.earlier_life_ended + _BETWEEN_LIVES_MS)
        if before < _enqueued(job.row):
            Effect.objects.using(using).filter(**mine, created_at__lt=before).delete()


_BETWEEN_LIVES_MS = 150_000


def _enqueued(row: JobRow) -> datetime:
    return from_ms(row.enqueued_at or row.since)
