"""One reading on its way into the record."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from django.db import DataError, IntegrityError, transaction

from queueops.conf import config
from queueops.events import BadEvent, Event, order_of
from queueops.job import from_ms
from queueops.mirror import rows
from queueops.mirror.fold import Folded, JobRow, Keep, fold, take_spec
from queueops.mirror.reading import Reading, read_waiting, set_aside
from queueops.models import MirrorState, Queue, SetAsideEvent
from queueops.store import Store

log = logging.getLogger("queueops.mirror")

#: What a database refuses because of its content; anything else is not the event's fault.
_POISON = (DataError, IntegrityError, ValueError, OverflowError)
#: The book of an idle queue is written so often, seconds.
SAYS_STATE_S = 5.0


class _NeedSpecs(Exception):
    """Jobs whose spec neither the batch nor the record has; the transaction was rolled back."""

    def __init__(self, job_ids: list[str]) -> None:
        self.job_ids = job_ids


class Batch:
    """One reading on its way into the record."""

    def __init__(self, store: Store, using: str, reading: Reading) -> None:
        self.store = store
        self.queue = reading.queue
        self.using = using
        self.reading = reading
        self.specs = dict(reading.specs)
        self.states: dict[str, str] = {}
        self.has_gap = False
        self._is_gap_noted = False
        self._keep = _keep_of(reading.queue, using)

    def write(self) -> None:
        """Commit its rows. What the database refuses is found by halves and set aside.

        Raises a DatabaseError when the database is away; then some halves may have committed.
        """
        self._write(self.reading.events, self.reading.bad)

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
                self._commit([], [*bad, set_aside(events[0], str(error))])
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
                refused.append(set_aside(event, str(error)))
        self._fill_in(jobs)
        return {job_id: job for job_id, job in jobs.items() if job.row.state}, refused

    def _fill_in(self, jobs: Mapping[str, Folded]) -> None:
        """Add what only the job's hash knows. Raises _NeedSpecs for jobs not looked up yet."""
        missing = []
        for job_id, job in jobs.items():
            if job.row.has_spec or not job.is_changed:
                continue
            if job_id not in self.specs:
                # One that is known without a spec was done before it could be read: its end carries it.
                if not job.is_known:
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
        reading = self.reading
        state.lag_events = reading.lag_events
        behind_ms = reading.now_ms - int(reading.last_id.split("-")[0]) if reading.lag_events else 0
        state.lag_s = max(0, behind_ms) / 1000
        if reading.is_whole and not self.has_gap:
            state.whole_pass_at = from_ms(reading.now_ms)
        state.updated_at = from_ms(reading.now_ms)
        state.save(using=self.using)

    def _note_gap(self, state: MirrorState) -> None:
        if self._is_gap_noted:
            return
        self._is_gap_noted = True
        reading = self.reading
        if self._is_stale(state):
            return
        # The engine's counter begins again when Redis lost its data.
        lost = reading.lost - state.lost_counter if reading.lost >= state.lost_counter else reading.lost
        trimmed = self._trimmed_by_others(state, lost)
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

    def _is_stale(self, state: MirrorState) -> bool:
        """Whether another mirror recorded newer events since this was read: the book knows better."""
        newest = self.reading.newest_id
        if newest:
            return order_of(newest) < state.last_event
        return state.updated_at is not None and from_ms(self.reading.now_ms) < state.updated_at

    def _trimmed_by_others(self, state: MirrorState, lost: int) -> bool:
        """Whether more entries are gone from the stream than mirrors and the engine's bound took."""
        reading, known = self.reading, state.removed
        if reading.added is None or reading.removed is None:
            state.removed = None
            return False
        is_new = known is not None and reading.added < known  # the stream was deleted, or Redis lost its data
        state.removed = max(0 if is_new or known is None else known, reading.removed + reading.count)
        if is_new:
            return bool(state.epoch and state.epoch == reading.epoch)
        return known is not None and reading.removed - lost > known

    def note_nothing(self) -> bool:
        """Keep the book of a queue without events fresh; whether there is a gap."""
        state = MirrorState.objects.using(self.using).filter(queue=self.queue).first()
        now = from_ms(self.reading.now_ms)
        if state is not None and state.lost_counter == self.reading.lost and not state.lag_events:
            is_fresh = state.updated_at and (now - state.updated_at).total_seconds() < SAYS_STATE_S
            if is_fresh and self.reading.removed in {None, state.removed}:
                return False
        with transaction.atomic(using=self.using):
            self._note(self._state(), [], 0)
        return self.has_gap


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
