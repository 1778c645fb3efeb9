"""Rows on their way into the database and back: few statements a batch, on SQLite and PostgreSQL alike.

Written as SQL since Django's bulk_create has no ON CONFLICT DO NOTHING on one key (INSERT OR IGNORE,
its form on SQLite, also swallows what a CHECK or NOT NULL refuses) and no DO UPDATE … WHERE. PostgreSQL
gets a batch as one JSON parameter: ten thousand parameters cost more to send than to insert.
Times are Unix ms on this side.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from django.db import connections, models
from django.db.models import Q

from queueops.events import Event
from queueops.job import from_ms, to_ms
from queueops.mirror.fold import AttemptRow, Folded, JobRow
from queueops.models import Attempt, Effect, Job, JobEvent, JobTag

#: SQLite takes 32,766 parameters in one statement.
_PARAMETERS = 30_000
#: What an event says and its job's or attempt's row holds.
_ELSEWHERE = frozenset({"error", "result"})
#: Half of the shortest keep time: what was written until then belongs to the earlier life of an id.
_BETWEEN_LIVES_MS = 150_000

#: A row of which nothing is known.
BLANK = JobRow("", "")


class _Table(NamedTuple):
    """A table as it is written: its columns in order, those that are times, bytes and JSON, its conflict."""

    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]  # as PostgreSQL reads them from JSON
    blanks: tuple[Any, ...]  # what is left out of the JSON: '', 0, false; None where NULL is allowed
    times: tuple[int, ...]
    blobs: tuple[int, ...]
    objects: tuple[int, ...]
    conflict: str


def _table(model: type[models.Model], columns: Iterable[str], conflict: str) -> _Table:
    columns = tuple(columns)
    found = [model._meta.get_field(name) for name in columns]

    def places(*kinds: type[models.Field[Any, Any]]) -> tuple[int, ...]:
        return tuple(i for i, field in enumerate(found) if isinstance(field, kinds))

    return _Table(
        model._meta.db_table,
        columns,
        tuple(_type_in_json(field) for field in found),
        tuple(None if field.null else _BLANKS[_type_in_json(field)] for field in found),
        places(models.DateTimeField),
        places(models.BinaryField),
        places(models.JSONField),
        conflict,
    )


#: By type: what a column holds when nothing is said, and how PostgreSQL writes that.
_BLANKS: dict[str, Any] = {"text": "", "bigint": 0, "boolean": False, "jsonb": {}, "bytea": b""}
_LITERALS = {"text": "''", "bigint": "0", "boolean": "false", "jsonb": "'{}'", "bytea": "''"}


def _type_in_json(field: Any) -> str:
    if isinstance(field, models.BinaryField):
        return "bytea"
    if isinstance(field, models.JSONField):
        return "jsonb"
    if isinstance(field, models.BooleanField):
        return "boolean"
    return "bigint" if isinstance(field, (models.DateTimeField, models.IntegerField)) else "text"


_JOB_COLUMNS = tuple(field.name for field in fields(JobRow) if field.name != "has_spec")
_SPEC = _JOB_COLUMNS.index("spec")
#: None leaves the spec as it is, NO_SPEC takes it away.
_SET_SPEC = (
    "spec = CASE WHEN length(excluded.spec) = 0 THEN NULL ELSE coalesce(excluded.spec, queueops_job.spec) END"
)
_JOBS = _table(
    Job,
    _JOB_COLUMNS,
    "ON CONFLICT (queue, job_id) DO UPDATE SET "
    + ", ".join(
        _SET_SPEC if name == "spec" else f"{name} = excluded.{name}"
        for name in _JOB_COLUMNS
        if name not in {"queue", "job_id"}
    )
    + " WHERE queueops_job.last_event < excluded.last_event",
)
_ACCEPTED = _JOBS._replace(conflict="ON CONFLICT (queue, job_id) DO NOTHING RETURNING queue, job_id")
_ATTEMPTS = _table(
    Attempt,
    (field.name for field in fields(AttemptRow)),
    "ON CONFLICT (queue, job_id, delivery) DO NOTHING",
)
_EVENTS = _table(
    JobEvent,
    ("queue", "stream_id", "job_id", "verb", "from_state", "to_state", "actor", "at", "delivery", "details"),
    "ON CONFLICT (queue, stream_id) DO NOTHING",
)
_TAGS = _table(
    JobTag,
    ("queue", "job_id", "name", "value"),
    "ON CONFLICT (queue, job_id, name) DO UPDATE SET value = excluded.value",
)
_job_values = attrgetter(*_JOBS.columns)
_attempt_values = attrgetter(*_ATTEMPTS.columns)


# -- reading ----------------------------------------------------------------------------------------


def read_jobs(using: str, queue: str, job_ids: Sequence[str]) -> dict[str, JobRow]:
    """The rows of these jobs, as they are now."""
    found: dict[str, JobRow] = {}
    db = connections[using]
    is_sqlite = db.vendor == "sqlite"
    said = [_time(name, db.vendor) if i in _JOBS.times else name for i, name in enumerate(_JOBS.columns)]
    said[_SPEC] = "spec IS NOT NULL"
    with db.cursor() as cursor:
        for first in range(0, len(job_ids), _PARAMETERS):
            part = list(job_ids[first : first + _PARAMETERS])
            where = f"job_id IN ({', '.join(['%s'] * len(part))})" if is_sqlite else "job_id = ANY(%s)"
            cursor.execute(
                f"SELECT {', '.join(said)} FROM {_JOBS.name} WHERE queue = %s AND {where}",  # noqa: S608 - ours
                [queue, *part] if is_sqlite else [queue, part],
            )
            for values in cursor.fetchall():
                row = _read(values) if is_sqlite else JobRow(*values)
                row.spec, row.has_spec = None, bool(row.spec)
                found[row.job_id] = row
    return found


def _time(name: str, vendor: str) -> str:
    # An expression on SQLite, since a plain column is parsed by a slow regular expression.
    return f"{name} || ''" if vendor == "sqlite" else f"(extract(epoch FROM {name}) * 1000)::bigint"


def _read(values: Sequence[Any]) -> JobRow:
    row = list(values)
    for i in _JOBS.times:
        if row[i] is not None:
            row[i] = to_ms(datetime.fromisoformat(row[i]).replace(tzinfo=UTC))
    return JobRow(*row)


# -- writing ----------------------------------------------------------------------------------------


def write_jobs(using: str, jobs: Iterable[JobRow]) -> None:
    """Insert rows; one that is there takes only a newer event."""
    _insert(using, _JOBS, [_job_values(job) for job in jobs])


def insert_accepted(using: str, jobs: Iterable[JobRow]) -> set[tuple[str, str]]:
    """Insert accepted rows in one statement; the (queue, id) of those whose id was new."""
    return set(_insert(using, _ACCEPTED, [_job_values(job) for job in jobs]))


def write_attempts(using: str, attempts: Iterable[AttemptRow]) -> None:
    """Insert attempts, once a delivery."""
    _insert(using, _ATTEMPTS, [_attempt_values(attempt) for attempt in attempts])


def write_events(using: str, queue: str, events: Iterable[Event]) -> None:
    """Insert events, once a stream id."""
    rows = [
        (
            queue,
            event.stream_id,
            event.job_id,
            event.verb,
            event.from_state[:9],
            event.to_state[:9],
            event.actor,
            event.at_ms,
            event.numbers.get("delivery"),
            _details(event),
        )
        for event in events
    ]
    _insert(using, _EVENTS, rows)


def write_tags(using: str, tags: Iterable[tuple[str, str, dict[str, str]]]) -> None:
    """Insert the tags of (queue, job id)."""
    rows = [(queue, job_id, name, value) for queue, job_id, mine in tags for name, value in mine.items()]
    _insert(using, _TAGS, rows)


def _details(event: Event) -> dict[str, Any]:
    said: dict[str, Any] = {name: value for name, value in event.numbers.items() if name != "delivery"}
    return said | {
        name: value
        for name, value in event.texts.items()
        if name not in _ELSEWHERE or (name == "error" and "ran_ms" not in event.numbers)
    }


def forget_earlier_lives(using: str, jobs: Iterable[Folded]) -> None:
    """Delete what belongs to an earlier use of a job's id: its attempts and tags, and its effects.

    An effect of the new life says when the earlier one had ended, or was made long after it: the
    clock of the host that wrote it is not Redis TIME.
    """
    for job in jobs:
        if job.earlier_life_ended is None:
            continue
        mine = {"queue": job.row.queue, "job_id": job.row.job_id}
        Attempt.objects.using(using).filter(**mine).delete()
        JobTag.objects.using(using).filter(**mine).delete()
        ended = from_ms(job.earlier_life_ended)
        effects = Effect.objects.using(using).filter(
            **mine, created_at__lt=from_ms(job.earlier_life_ended + _BETWEEN_LIVES_MS)
        )
        effects.filter(Q(earlier_end__isnull=True) | ~Q(earlier_end=ended)).delete()


# -- one statement ----------------------------------------------------------------------------------


def _insert(using: str, table: _Table, rows: Sequence[Sequence[Any]]) -> list[Any]:
    """Insert rows; the answers of RETURNING, if the conflict clause has one."""
    if not rows:
        return []
    db = connections[using]
    with db.cursor() as cursor:
        if db.vendor == "postgresql":
            cursor.execute(_from_json(table), [_as_json(table, rows)])
            return list(cursor.fetchall()) if cursor.description else []
        found: list[Any] = []
        one = f"({', '.join(['%s'] * len(table.columns))})"
        step = _PARAMETERS // len(table.columns)
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            values = f"VALUES {', '.join([one] * len(part))}"
            flat = [value for row in part for value in _for_sqlite(table, row)]
            cursor.execute(
                f"INSERT INTO {table.name} ({', '.join(table.columns)}) {values} {table.conflict}", flat
            )
            if cursor.description:
                found += cursor.fetchall()
        return found


def _from_json(table: _Table) -> str:
    typed = ", ".join(f"{name} {kind}" for name, kind in zip(table.columns, table.types, strict=True))
    said = []
    for i, (name, kind, blank) in enumerate(zip(table.columns, table.types, table.blanks, strict=True)):
        if i in table.times:
            said.append(f"to_timestamp(x.{name} / 1000.0)")
        else:
            said.append(f"x.{name}" if blank is None else f"coalesce(x.{name}, {_LITERALS[kind]})")
    return (
        f"INSERT INTO {table.name} ({', '.join(table.columns)}) SELECT {', '.join(said)} "  # noqa: S608 - ours
        f"FROM json_to_recordset(%s) AS x({typed}) {table.conflict}"
    )


def _as_json(table: _Table, rows: Sequence[Sequence[Any]]) -> str:
    """The rows without what is blank: most of a row is, and reading JSON is half of the insert."""
    named = [
        {
            name: value
            for name, value, blank in zip(table.columns, row, table.blanks, strict=True)
            if value != blank
        }
        for row in rows
    ]
    for i in table.blobs:
        name = table.columns[i]
        for said in named:
            if name in said:
                said[name] = "\\x" + said[name].hex()
    return json.dumps(named, ensure_ascii=False, separators=(",", ":"))


def _for_sqlite(table: _Table, values: Sequence[Any]) -> list[Any]:
    row = list(values)
    for i in table.times:
        if row[i] is not None:
            row[i] = _sqlite_time(row[i])
    for i in table.objects:
        row[i] = json.dumps(row[i], ensure_ascii=False)
    return row


def _sqlite_time(ms: int) -> str:
    """What Django writes for this time."""
    second, rest = divmod(ms, 1000)
    return f"{_second(second)}.{rest:03d}000" if rest else _second(second)


@lru_cache(maxsize=4096)
def _second(second: int) -> str:
    return str(from_ms(second * 1000).replace(tzinfo=None))
