"""The start of a queue's event stream, read and parsed; and what jobs' hashes say besides."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import RedisError

from queueops import keys
from queueops.events import BadEvent, Event, order_of, parse
from queueops.inspector.reads import Reads
from queueops.job import MAX_PARTS
from queueops.models import SetAsideEvent
from queueops.models.fields import clean_text
from queueops.store import Store

#: Events in one transaction.
BATCH = 1_000
#: A set-aside event is kept up to this size; bytes of each field.
_KEPT_BYTES = 1_048_576
#: Verbs that begin a life; the spec is not in their events.
_BEGINS = frozenset({"enqueue", "fire", "rebuild"})
_HASH_FIELDS = ("spec", "parts", "lane", "unique", "expires")
_PART_FIELDS = ("spec", *(f"spec{i}" for i in range(1, MAX_PARTS)))

Entry = tuple[bytes, Mapping[bytes, bytes]]
Specs = dict[str, "Waiting | None"]


@dataclass(frozen=True, slots=True)
class Reading:
    """Entries of one queue, oldest first, and what a gap before them would show in."""

    queue: str
    events: list[Event]
    bad: list[SetAsideEvent]
    specs: Specs
    first_id: str  # '' for none
    last_id: str
    count: int
    is_whole: bool  # it reads to the stream's end
    lag_events: int  # that stand behind these
    added: int | None  # entries that the stream ever had; None below Redis 7
    removed: int | None  # of them, those before these; None where it can't be told
    newest_id: str  # of all that the stream ever had; '' where there is no stream
    lost: int
    epoch: str
    now_ms: int  # by the server's clock, which stream ids are made of


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a job's hash holds and its events don't say."""

    spec: bytes
    lane: str
    unique: str
    expires: int | None


def read(store: Store, queue: str, *, limit: int = BATCH, behind: Reading | None = None) -> Reading:
    """Read the start of a queue's stream, or what stands behind another reading.

    Raises StoreUnavailable.
    """
    stream = keys.queue_key(queue, "events")
    now_ms = Reads(store.connection).now()[1]
    pipe = store.connection.client.pipeline(transaction=False)
    # XINFO before the entries, and both before the record is asked: what was deleted by then must
    # be in the record by then.
    pipe.xinfo_stream(stream)
    pipe.xrange(stream, min=f"({behind.last_id}" if behind else "-", count=limit)
    pipe.xlen(stream)
    pipe.hmget(keys.queue_key(queue, "settings"), "events_lost", "epoch")
    try:
        info, entries, length, settings = pipe.execute(raise_on_error=False)
        for answer in (entries, length, settings):
            if isinstance(answer, RedisError):
                raise answer
    except RedisError as error:
        raise store.connection.translated(error) from error
    lost, epoch = settings
    events, bad = _parsed(entries)
    begun = {event.job_id for event in events if event.verb in _BEGINS}
    told = {event.job_id for event in events if event.spec is not None}
    is_whole = len(entries) < limit
    before = behind.count if behind else 0
    added, removed = _counts(info, behind)
    return Reading(
        queue=queue,
        events=events,
        bad=bad,
        specs=read_waiting(store, queue, list(begun - told)),
        first_id=entries[0][0].decode() if entries else "",
        last_id=entries[-1][0].decode() if entries else "",
        count=len(entries),
        is_whole=is_whole,
        lag_events=0 if is_whole else max(0, int(length) - before - len(entries)),
        added=added,
        removed=removed,
        newest_id=info["last-generated-id"].decode() if isinstance(info, dict) else "",
        lost=int(lost or 0),
        epoch=(epoch or b"").decode(errors="replace"),
        now_ms=now_ms,
    )


def _counts(info: Any, behind: Reading | None) -> tuple[int | None, int | None]:
    """How many entries the stream ever had, and how many came before this reading."""
    added = info.get("entries-added") if isinstance(info, dict) else 0
    if added is None:
        return None, None
    first = info.get("first-entry") if isinstance(info, dict) else None
    removed = added - (info["length"] if isinstance(info, dict) else 0)
    if behind is None or not first or order_of(first[0].decode()) > order_of(behind.last_id):
        return added, removed
    # What is in front is not trimmed yet; by halves it never is, unless by another hand.
    return added, removed + behind.count if first[0].decode() == behind.first_id else None


def _parsed(entries: Sequence[Entry]) -> tuple[list[Event], list[SetAsideEvent]]:
    events, bad = [], []
    for raw_id, fields in entries:
        stream_id = raw_id.decode()
        try:
            events.append(parse(stream_id, fields or {}))
        except BadEvent as error:
            bad.append(_aside(stream_id, fields or {}, str(error)))
    return events, bad


def _aside(stream_id: str, fields: Mapping[bytes, bytes], why: str) -> SetAsideEvent:
    kept = {_shown(name[:100]): _shown(value[:_KEPT_BYTES]) for name, value in list(fields.items())[:100]}
    job_id = _shown(fields.get(b"id", b""))[:128]
    return SetAsideEvent(stream_id=stream_id, job_id=job_id, fields=kept, why=clean_text(why[:2000]))


def _shown(value: bytes) -> str:
    return clean_text(value.decode("utf-8", "backslashreplace"))


def set_aside(event: Event, why: str) -> SetAsideEvent:
    fields = {
        "verb": event.verb, "id": event.job_id, "from": event.from_state, "to": event.to_state,
        "actor": event.actor, "at": str(event.at_ms), **event.texts,
        **{name: str(value) for name, value in event.numbers.items()},
    }  # fmt: skip
    if event.spec is not None:
        fields["spec"] = _shown(event.spec)
    kept = {clean_text(name[:100]): clean_text(value[:_KEPT_BYTES]) for name, value in fields.items()}
    return SetAsideEvent(
        stream_id=event.stream_id, job_id=event.job_id, fields=kept, why=clean_text(why[:2000])
    )


def read_waiting(store: Store, queue: str, job_ids: Sequence[str]) -> Specs:
    """What the hashes of these jobs hold now; None for a job that is not there or has no spec."""
    found: Specs = {}
    in_parts = []
    for job_id, answer in _hashes(store, queue, job_ids, _HASH_FIELDS):
        if isinstance(answer, RedisError) or answer[0] is None:
            found[job_id] = None
            continue
        spec, parts, lane, unique, expires = answer
        expires_ms = int(expires) if expires and expires.isdigit() else None
        found[job_id] = Waiting(spec, (lane or b"").decode()[:7], (unique or b"").decode()[:64], expires_ms)
        if parts is not None:
            in_parts.append(job_id)
    for job_id, answer in _hashes(store, queue, in_parts, _PART_FIELDS):
        waiting = found[job_id]
        if waiting is None or isinstance(answer, RedisError):
            continue
        # Edited or claimed between the two looks: the parts count by themselves, up to the first gap.
        parts = [*itertools.takewhile(lambda part: part is not None, answer)]
        found[job_id] = replace(waiting, spec=b"".join(parts))
    return found


def _hashes(
    store: Store, queue: str, job_ids: Sequence[str], names: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    if not job_ids:
        return iter(())
    pipe = store.connection.client.pipeline(transaction=False)
    for job_id in job_ids:
        pipe.hmget(keys.job(queue, job_id), names)
    try:
        return zip(job_ids, pipe.execute(raise_on_error=False), strict=True)
    except RedisError as error:
        raise store.connection.translated(error) from error
