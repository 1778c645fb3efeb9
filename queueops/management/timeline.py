"""What has happened to one job: the record's events, and those that no mirror has taken yet."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import DatabaseError, InterfaceError

from queueops import events, keys
from queueops.connection import connection
from queueops.job import from_ms
from queueops.models import JobEvent

#: Unmirrored events looked at, the newest: a command may read them, a page may not.
_MOST = 20_000
#: Extras that say more than they are long.
_TOLD = (
    "delivery",
    "attempts",
    "rescues",
    "delay_ms",
    "run_at",
    "ran_ms",
    "cause",
    "reason",
    "policy",
    "child",
)


@dataclass(frozen=True)
class Moment:
    """One move."""

    stream_id: str
    at: datetime
    verb: str
    from_state: str
    to_state: str
    actor: str
    details: dict[str, Any]

    def plain(self) -> dict[str, Any]:
        """The move as JSON can hold it."""
        return {
            "at": self.at,
            "verb": self.verb,
            "from": self.from_state,
            "to": self.to_state,
            "actor": self.actor,
            **self.details,
        }

    def __str__(self) -> str:
        told = ", ".join(f"{name} {value}" for name, value in self.details.items())
        move = " → ".join(state for state in (self.from_state, self.to_state) if state)
        return f"{self.verb:<10} {move:<20} {self.actor}  {told}".rstrip()


def timeline(queue: str, job_id: str) -> list[Moment]:
    """The moves of a job, oldest first. Without a database, those that Redis still has."""
    found = {moment.stream_id: moment for moment in (*_recorded(queue, job_id), *_unmirrored(queue, job_id))}
    return [found[stream_id] for stream_id in sorted(found, key=events.order_of)]


def _recorded(queue: str, job_id: str) -> list[Moment]:
    try:
        rows = list(JobEvent.objects.filter(queue=queue, job_id=job_id).order_by("id")[:1_000])
    except (DatabaseError, InterfaceError):
        return []
    return [
        Moment(
            row.stream_id,
            row.at,
            row.verb,
            row.from_state,
            row.to_state,
            row.actor,
            _told({"delivery": row.delivery, **row.details}),
        )
        for row in rows
    ]


def _unmirrored(queue: str, job_id: str) -> list[Moment]:
    key, last, looked = keys.queue_key(queue, "events"), "+", 0
    found = []
    while looked < _MOST:
        entries: Any = connection().client.xrevrange(key, max=last, count=1_000)
        for stream_id, fields in entries:
            if fields.get(b"id") != job_id.encode():
                continue
            try:
                event = events.parse(stream_id.decode(), fields)
            except events.BadEvent:
                continue
            found.append(
                Moment(
                    event.stream_id,
                    from_ms(event.at_ms),
                    event.verb,
                    event.from_state,
                    event.to_state,
                    event.actor,
                    _told({**event.numbers, **event.texts}),
                )
            )
        if len(entries) < 1_000:
            break
        last, looked = "(" + entries[-1][0].decode(), looked + 1_000
    return found


def _told(details: dict[str, Any]) -> dict[str, Any]:
    return {name: details[name] for name in _TOLD if details.get(name) not in (None, "")}
