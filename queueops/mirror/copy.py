"""One batch of events into rows, and passes over all queues."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, router, transaction
from redis.exceptions import RedisError

from queueops import keys
from queueops.conf import config
from queueops.events import BadEvent, Event, after, order_of, parse
from queueops.inspector.reads import Reads
from queueops.job import MAX_PARTS, from_ms
from queueops.mirror import rows
from queueops.mirror.fold import Folded, JobRow, Keep, fold, take_spec
from queueops.models import Job, MirrorState, Queue, SetAsideEvent
from queueops.models.fields import clean_text
from queueops.signals import events_mirrored
from queueops.store import Store

log = logging.getLogger(__name__)

#: Events in one transaction.
BATCH = 1_000
#: A set-aside event is kept up to this size; bytes of each field.
_KEPT_BYTES = 1_048_576
#: What a database refuses because of its content; anything else is not the event's fault.
_POISON = (DataError, IntegrityError, ValueError, OverflowError)
#: Verbs that begin a life; the spec is not in their events.
_BEGINS = frozenset({"enqueue", "fire", "rebuild"})
_HASH_FIELDS = ("spec", "parts", "lane", "unique", "expires")
_PART_FIELDS = ("spec", *(f"spec{i}" for i in range(1, MAX_PARTS)))
_SAYS_STATE_S = 5.0

Entry = tuple[bytes, Mapping[bytes, bytes]]
Specs = dict[str, "Waiting | None"]


@dataclass(frozen=True, slots=True)
class Reading:
    """What Redis said at the start of a batch: entries, and what a gap would show in."""

    entries: list[Entry]
    length: int
    max_deleted: str  # '' below Redis 7
    lost: int
    epoch: str
    now_ms: int  # by the server's clock, which stream ids are made of

    @property
    def is_whole(self) -> bool:
        """Whether it reads to the stream's end."""
        return self.length <= len(self.entries)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a job's hash holds and its events don't say."""

    spec: bytes
    lane: str
    unique: str
    expires: int | None


@dataclass(frozen=True, slots=True)
class Pass:
    """One batch: how many events, whether that was all, and whether some were missing before them."""

    count: int
    is_whole: bool
    has_gap: bool


class _NeedSpecs(Exception):
    """Jobs whose spec neither the batch nor the record has; the transaction was rolled back."""

    def __init__(self, job_ids: list[str]) -> None:
        self.job_ids = job_ids


def alias() -> str:
    """The database of the record."""
    return router.db_for_write(Job)


def copy_events(store: Store, queue: str, *, limit: int = BATCH) -> int:
    """Copy up to `limit` of the queue's events, oldest first; return how many were read.

    Raises StoreUnavailable or a DatabaseError when one of the two is away: then nothing has left
    the stream, and the call may be made again.
    """
    return copy_batch(store, queue, limit=limit).count


def copy_batch(store: Store, queue: str, *, limit: int = BATCH) -> Pass:
    """As copy_events; also says whether that was all."""
    using = alias()
    reading = read(store, queue, limit)
    batch = _Batch(store, queue, using, reading)
    if not reading.entries:
        return Pass(0, True, batch.note_nothing())
    events, bad = _parsed(reading.entries)
    batch.write(events, bad)
    last = reading.entries[-1][0].decode()
    try:
        store.connection.client.xtrim(keys.queue_key(queue, "events"), minid=after(last), approximate=False)
    except RedisError as error:
        raise store.connection.translated(error) from error
    events_mirrored.send_robust(sender=Job, queue=queue, events=events, states=batch.states)
    return Pass(len(reading.entries), reading.is_whole, batch.has_gap)


def read(store: Store, queue: str, limit: int = BATCH) -> Reading:
    """Read the start of a queue's stream. Raises StoreUnavailable."""
    events = keys.queue_key(queue, "events")
    now_ms = Reads(store.connection).now()[1]
    pipe = store.connection.client.pipeline(transaction=False)
    # XINFO before the entries, and both before the record is asked: what was deleted by then must
    # be in the record by then.
    pipe.xinfo_stream(events)
    pipe.xrange(events, count=limit)
    pipe.xlen(events)
    pipe.hmget(keys.queue_key(queue, "settings"), "events_lost", "epoch")
    try:
        info, entries, length, settings = pipe.execute(raise_on_error=False)
        for answer in (entries, length, settings):
            if isinstance(answer, RedisError):
                raise answer
    except RedisError as error:
        raise store.connection.translated(error) from error
    deleted = info.get("max-deleted-entry-id", b"") if isinstance(info, dict) else b""
    lost, epoch = settings
    return Reading(
        entries,
        int(length),
        deleted.decode() if isinstance(deleted, bytes) else str(deleted),
        int(lost or 0),
        (epoch or b"").decode(errors="replace"),
        now_ms,
    )


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


class _Batch:
    """One reading on its way into the record."""

    def __init__(self, store: Store, queue: str, using: str, reading: Reading) -> None:
        self.store = store
        self.queue = queue
        self.using = using
        self.reading = reading
        self.specs: Specs = {}
        self.states: dict[str, str] = {}
        self.has_gap = False
        self._is_gap_noted = False
        self._keep = _keep_of(queue, using)

    def write(self, events: list[Event], bad: list[SetAsideEvent]) -> None:
        """Commit rows for these events. What the database refuses is found by halves and set aside."""
        self._look_up(
            {event.job_id for event in events if event.verb in _BEGINS}
            - {event.job_id for event in events if event.spec is not None}
        )
        self._write(events, bad)

    def _write(self, events: list[Event], bad: list[SetAsideEvent]) -> None:
        try:
            try:
                self._commit(events, bad)
            except _NeedSpecs as need:
                self._look_up(need.job_ids)
                self._commit(events, bad)
        except _POISON as error:
            if not events:
                raise  # not the events' fault
            if len(events) == 1:
                self._commit([], [*bad, _aside_parsed(events[0], str(error))])
                return
            half = len(events) // 2
            self._write(events[:half], bad)
            self._write(events[half:], [])

    def _look_up(self, job_ids: Iterable[str]) -> None:
        missing = [job_id for job_id in job_ids if job_id not in self.specs]
        if missing:
            self.specs |= read_waiting(self.store, self.queue, missing)

    def _commit(self, events: list[Event], bad: list[SetAsideEvent]) -> None:
        with transaction.atomic(using=self.using, durable=True):  # not nested: "committed" means committed
            state = self._state()
            jobs, refused = self._folded(events)
            changed = sorted((job for job in jobs.values() if job.is_changed), key=lambda job: job.row.job_id)
            rows.forget_earlier_lives(self.using, changed)
            rows.write_jobs(self.using, [job.row for job in changed])
            rows.write_tags(self.using, [(self.queue, job.row.job_id, job.tags or {}) for job in changed])
            rows.write_attempts(self.using, [attempt for job in changed for attempt in job.attempts])
            kept_out = {event.stream_id for event in refused}
            rows.write_events(
                self.using, self.queue, [event for event in events if event.stream_id not in kept_out]
            )
            aside = [*bad, *refused]
            for each in aside:
                each.queue = self.queue
            SetAsideEvent.objects.using(self.using).bulk_create(aside, ignore_conflicts=True)
            self._note(state, events, len(aside))
        self.states |= {job_id: job.row.state for job_id, job in jobs.items()}

    def _folded(self, events: Sequence[Event]) -> tuple[dict[str, Folded], list[SetAsideEvent]]:
        known = rows.read_jobs(self.using, self.queue, list({event.job_id for event in events}))
        jobs: dict[str, Folded] = {}
        refused = []
        for event in events:
            job = jobs.get(event.job_id)
            if job is None:
                row = known.get(event.job_id)
                job = Folded(row or JobRow(self.queue, event.job_id), is_known=row is not None)
                jobs[event.job_id] = job
            try:
                fold(job, event, self._keep)
            except BadEvent as error:
                refused.append(_aside_parsed(event, str(error)))
        self._fill_in(jobs)
        return {job_id: job for job_id, job in jobs.items() if job.row.state}, refused

    def _fill_in(self, jobs: Mapping[str, Folded]) -> None:
        """Add what only the job's hash knows. Raises _NeedSpecs for jobs not looked up yet."""
        missing = []
        for job_id, job in jobs.items():
            if job.row.spec is not None or not job.is_changed:
                continue
            if job_id not in self.specs:
                missing.append(job_id)
            elif (found := self.specs[job_id]) is not None:
                take_spec(job, found.spec)
                job.row.lane = found.lane or job.row.lane
                job.row.unique_digest = found.unique
                job.row.expires_at = found.expires
        if missing:
            raise _NeedSpecs(missing)

    # -- the mirror's own book ---------------------------------------------------------------

    def _state(self) -> MirrorState:
        """The queue's book, locked: a second mirror waits here, so that none of its rows is older."""
        states = MirrorState.objects.using(self.using)
        state = states.select_for_update().filter(queue=self.queue).first()
        if state is None:
            states.bulk_create([MirrorState(queue=self.queue)], ignore_conflicts=True)
            state = states.select_for_update().get(queue=self.queue)
        return state

    def _note(self, state: MirrorState, events: Sequence[Event], aside: int) -> None:
        self._note_gap(state)
        if events and events[-1].order > state.last_event:
            state.last_event = events[-1].order
        state.epoch = state.epoch or self.reading.epoch
        state.events_total += len(events)
        state.set_aside_total += aside
        state.lag_events = max(0, self.reading.length - len(self.reading.entries))
        last = self.reading.entries[-1][0] if self.reading.entries else b""
        behind_ms = self.reading.now_ms - int(last.split(b"-")[0]) if last and state.lag_events else 0
        state.lag_s = max(0, behind_ms) / 1000
        if self.reading.is_whole and not self.has_gap:
            state.whole_pass_at = from_ms(self.reading.now_ms)
        state.updated_at = from_ms(self.reading.now_ms)
        state.save(using=self.using)

    def _note_gap(self, state: MirrorState) -> None:
        if self._is_gap_noted:
            return
        reading = self.reading
        # The engine's counter begins again when Redis lost its data.
        lost = reading.lost - state.lost_counter if reading.lost >= state.lost_counter else reading.lost
        trimmed = bool(
            reading.max_deleted and state.last_event and order_of(reading.max_deleted) > state.last_event
        )
        self.has_gap = lost > 0 or trimmed
        if self.has_gap:
            log.error(
                "events of queue %s are missing from the record: %d were dropped unmirrored%s",
                self.queue,
                lost,
                "" if lost else ", and the stream was trimmed by another hand",
            )
            state.gaps += 1
            state.gap_at = from_ms(reading.now_ms)
        state.events_lost += lost
        state.lost_counter = reading.lost
        if trimmed:
            state.last_event = order_of(reading.max_deleted)
        self._is_gap_noted = True

    def note_nothing(self) -> bool:
        """Keep the book of a queue without events fresh; whether there is a gap."""
        state = MirrorState.objects.using(self.using).filter(queue=self.queue).first()
        now = from_ms(self.reading.now_ms)
        if state is not None and state.lost_counter == self.reading.lost and not state.lag_events:
            is_fresh = state.updated_at and (now - state.updated_at).total_seconds() < _SAYS_STATE_S
            deleted = self.reading.max_deleted
            if is_fresh and not (deleted and state.last_event and order_of(deleted) > state.last_event):
                return False
        with transaction.atomic(using=self.using):
            self._note(self._state(), [], 0)
        return self.has_gap


def _aside_parsed(event: Event, why: str) -> SetAsideEvent:
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


def _keep_of(queue: str, using: str) -> Keep:
    """How long the record keeps this queue's jobs."""
    conf = config()
    row = Queue.objects.using(using).filter(name=queue).first() or Queue(name=queue)

    def ms(own_s: float | None, default_s: float) -> int:
        return round((default_s if own_s is None else own_s) * 1000)

    return Keep(
        done_ms=max(ms(row.record_done_s, conf.record_done_s), ms(row.done_keep_s, conf.done_keep_s)),
        discarded_ms=ms(row.record_discarded_s, conf.record_discarded_s),
        dead_ms=ms(row.record_dead_s, conf.record_dead_s),
        restorable_ms=ms(row.discarded_keep_s, conf.discarded_keep_s),
    )


# -- passes over all queues ----------------------------------------------------------------------


def run_once(store: Store | None = None, *, limit_s: float = 5.0) -> int:
    """Copy what all queues have, a batch each in turn, for at most `limit_s`; return how many events.

    One queue's trouble does not stop the others; it is logged, and raised when all are through.
    """
    store = store or Store()
    deadline = time.monotonic() + limit_s
    copied, trouble = 0, None
    waiting = waiting_queues(store)
    while waiting and time.monotonic() < deadline:
        more = []
        for queue in waiting:
            try:
                done = copy_batch(store, queue)
            except (DatabaseError, InterfaceError) as error:
                log.error("the events of queue %s could not be recorded: %s", queue, error)
                trouble = error
                continue
            copied += done.count
            if not done.is_whole:
                more.append(queue)
        waiting = more
    if trouble is not None:
        raise trouble
    return copied


def waiting_queues(store: Store) -> list[str]:
    """Queues with events, or whose book says that it has not been looked at for a while."""
    reads = Reads(store.connection)
    names = reads.queues()
    pipe = reads.pipe()
    for name in names:
        pipe.xlen(keys.queue_key(name, "events"))
    lengths = reads.answers(pipe) if names else []
    fresh_after = from_ms(reads.now()[1] - _SAYS_STATE_S * 1000)
    fresh = set(
        MirrorState.objects.using(alias())
        .filter(updated_at__gt=fresh_after, lag_events=0)
        .values_list("queue", flat=True)
    )
    return [name for name, length in zip(names, lengths, strict=True) if length != 0 or name not in fresh]


def catch_up(store: Store, queue: str, *, limit_s: float = 60.0) -> bool:
    """Copy until a pass has read to the stream's end; False when that took too long or had a gap."""
    deadline = time.monotonic() + limit_s
    has_gap = False
    while time.monotonic() < deadline:
        done = copy_batch(store, queue)
        has_gap = has_gap or done.has_gap
        if done.is_whole:
            return not has_gap
    return False


@dataclass(frozen=True, slots=True)
class MirrorHealth:
    """How far the record of a queue is behind, and what it lacks."""

    queue: str
    lag_events: int
    lag_s: float
    events_lost: int
    gaps: int
    gap_at: datetime | None
    set_aside: int
    #: Redis has another epoch than the record: its data were lost, and `rebuild` has not run.
    is_store_lost: bool
    updated_at: datetime | None


def health(store: Store) -> list[MirrorHealth]:
    """The state of every queue's mirror, its lag as of now; two round trips and one query."""
    reads = Reads(store.connection)
    names = reads.queues()
    now_ms = reads.now()[1]
    pipe = reads.pipe()
    for name in names:
        events = keys.queue_key(name, "events")
        pipe.xlen(events)
        pipe.xrange(events, count=1)
        pipe.hmget(keys.queue_key(name, "settings"), "events_lost", "epoch")
    answers = reads.answers(pipe) if names else []
    states = MirrorState.objects.using(alias()).in_bulk(names)
    return [
        _health(name, answers[3 * i : 3 * i + 3], states.get(name) or MirrorState(queue=name), now_ms)
        for i, name in enumerate(names)
    ]


def _health(queue: str, answers: Sequence[Any], state: MirrorState, now_ms: int) -> MirrorHealth:
    length, first, settings = answers
    lost, epoch = settings if isinstance(settings, list) else (None, None)
    oldest_ms = int(first[0][0].split(b"-")[0]) if isinstance(first, list) and first else now_ms
    unseen = max(0, int(lost or 0) - state.lost_counter)
    return MirrorHealth(
        queue,
        length if isinstance(length, int) else 0,
        max(0, now_ms - oldest_ms) / 1000,
        state.events_lost + unseen,
        state.gaps + (1 if unseen else 0),
        state.gap_at,
        state.set_aside_total,
        bool(state.epoch and epoch and state.epoch != epoch.decode(errors="replace")),
        state.updated_at,
    )
