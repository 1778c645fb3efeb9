"""After a loss of Redis data: what the record says is unfinished, and Redis no longer knows, comes back.

A job comes back in its state, with its attempts; one that was pending is ready again, with its lost
process counted as a rescue. Deliveries go on a million higher, so that no process from before the
loss can settle anything. Safe to repeat: an id that Redis knows is left as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from queueops import keys
from queueops.conf import config
from queueops.errors import QueueOpsError
from queueops.inspector.reads import Reads
from queueops.job import from_ms, spec_parts, to_ms
from queueops.mirror.copy import alias, catch_up
from queueops.models import Job, JobEvent, MirrorState, OperatorAction, Queue
from queueops.models.jobs import DUPLICATE_OF, DUPLICATES
from queueops.publishing import run_once as publish_all
from queueops.states import JobState, Lane
from queueops.store import Store

#: Added to the delivery of what comes back: who holds a lower one is from before the loss.
DELIVERIES_AHEAD = 1_000_000
_PAGE = 200
_COMES_BACK = (
    JobState.DELAYED.value, JobState.READY.value, JobState.PENDING.value, JobState.DEAD.value,
    JobState.DISCARDED.value,
)  # fmt: skip


class RebuildRefused(QueueOpsError):
    """Nothing shows that data were lost, and the record is behind: it would bring back what is done."""


@dataclass
class Rebuilt:
    """What came back, or would: counts by the state that the record has."""

    is_dry_run: bool
    lost: list[str] = field(default_factory=list)  # queues whose epoch shows a loss
    by_state: Counter[str] = field(default_factory=Counter)
    by_queue: Counter[str] = field(default_factory=Counter)
    known: int = 0  # Redis has them
    held: list[str] = field(default_factory=list)  # "<id>: <holder>"; set aside in the record
    without_spec: list[str] = field(default_factory=list)  # ids that the record has no payload of
    may_run_again: int = 0  # completions that the record may not have heard of
    recorded_until: datetime | None = None

    @property
    def total(self) -> int:
        """How many jobs came back, or would."""
        return self.by_state.total()

    def lines(self) -> list[str]:
        """The report, for a terminal."""
        verb = "would come back" if self.is_dry_run else "came back"
        states = ", ".join(f"{count:,} {state}" for state, count in sorted(self.by_state.items()))
        said = [f"{self.total:,} jobs {verb}" + (f": {states}" if states else "")]
        said += [f"  {queue}: {count:,}" for queue, count in sorted(self.by_queue.items())]
        said.append(f"{self.known:,} unfinished jobs are in Redis already")
        if self.held:
            said.append(
                f"{len(self.held):,} met another holder of their unique key: {', '.join(self.held[:5])}"
            )
        if self.without_spec:
            some = ", ".join(self.without_spec[:5])
            said.append(
                f"{len(self.without_spec):,} can't come back, the record has no payload of them: {some}"
            )
        if self.lost:
            until = (
                f"{self.recorded_until:%Y-%m-%d %H:%M:%S} UTC" if self.recorded_until else "an unknown time"
            )
            said.append(
                f"the record is complete until {until}: up to {self.may_run_again:,} completions after that"
                " may run again"
            )
        return said


def rebuild(store: Store | None = None, *, dry_run: bool = False, actor: str = "queueops") -> Rebuilt:
    """Bring back what Redis lost. Raises RebuildRefused, StoreUnavailable or a DatabaseError."""
    store = store or Store()
    using = alias()
    publish_all(store)  # a queue that was paused must be so before it has jobs
    reads = Reads(store.connection, now_ms=store.now_ms)
    queues = _queues(reads, using)
    report = Rebuilt(dry_run, lost=_lost(store, using, queues))
    report.recorded_until, report.may_run_again = _lag_at_loss(using, report.lost)
    for queue in queues:
        # What came since the loss is newer than the record, and an id that is there stays.
        if not catch_up(store, queue) and queue not in report.lost:
            raise RebuildRefused(
                f"the epoch shows no loss of data, and the record of queue {queue} is behind or has a gap:"
                " let the mirror catch up (manage.py runmirror), then try again"
            )
        _rebuild_queue(store, using, queue, report, reads, actor)
    if not dry_run:
        MirrorState.objects.using(using).filter(queue__in=report.lost).update(epoch=store.epoch())
        OperatorAction.objects.using(using).create(
            actor=actor, verb="rebuild", count=report.total, filter={"lost": report.lost},
            after=dict(report.by_state),
        )  # fmt: skip
    return report


def _queues(reads: Reads, using: str) -> list[str]:
    recorded = (
        Job.objects.using(using).filter(state__in=_COMES_BACK).values_list("queue", flat=True).distinct()
    )
    states = MirrorState.objects.using(using).values_list("queue", flat=True)
    return sorted({*reads.queues(), *recorded, *states})


def _lost(store: Store, using: str, queues: Sequence[str]) -> list[str]:
    """Queues whose record continues another life of the data than the one in Redis."""
    epoch = store.epoch()
    states = MirrorState.objects.using(using).filter(queue__in=queues).exclude(epoch__in=["", epoch])
    return sorted(states.values_list("queue", flat=True))


def _lag_at_loss(using: str, lost: Sequence[str]) -> tuple[datetime | None, int]:
    """Until when the record of what was lost is complete, and how many completions it may lack.

    At most as many as events were waiting, and at most as many as jobs could have been running.
    """
    states = list(MirrorState.objects.using(using).filter(queue__in=lost))
    if not states:
        return None, 0
    until = min((state.updated_at for state in states if state.updated_at), default=None)
    running = Job.objects.using(using).filter(
        queue__in=lost, state__in=[JobState.READY.value, JobState.PENDING.value]
    )
    waiting = sum(state.lag_events for state in states)
    return until, min(running.count(), waiting) if waiting else running.filter(
        state=JobState.PENDING.value
    ).count()


def _rebuild_queue(store: Store, using: str, queue: str, report: Rebuilt, reads: Reads, actor: str) -> None:
    now = from_ms(reads.now_ms())
    own = Queue.objects.using(using).filter(name=queue).values_list("discarded_keep_s", flat=True).first()
    restorable = timedelta(seconds=config().discarded_keep_s if own is None else own)
    for page in _pages(using, queue):
        pipe = reads.pipe()
        for row in page:
            pipe.exists(keys.job(queue, row.job_id))
        unknown = [row for row, known in zip(page, reads.answers(pipe), strict=True) if not known]
        report.known += len(page) - len(unknown)
        coming = []
        for row in unknown:
            if row.state == JobState.DISCARDED.value and row.since + restorable <= now:
                continue  # its keep time is over: Redis would have forgotten it by now
            if row.spec is None:
                report.without_spec.append(row.job_id)
            else:
                coming.append(row)
        if report.is_dry_run:
            answers = ["ok"] * len(coming)
        else:
            # Events of the new life of the data may have lower ids than those of the old one.
            Job.objects.using(using).filter(pk__in=[row.pk for row in coming]).update(last_event="")
            was = _states_before(using, queue, coming)
            jobs = [_fields(row, restorable, was.get(row.job_id)) for row in coming]
            answers = store.rebuild(queue, jobs, actor=actor) if jobs else []
        for row, answer in zip(coming, answers, strict=True):
            _count(report, using, row, answer, now)
        held = [row for row, answer in zip(coming, answers, strict=True) if answer.startswith("held:")]
        if held:
            store.rebuild(queue, [_set_aside(row, restorable, now) for row in held], actor=actor)


def _pages(using: str, queue: str) -> Iterator[list[Job]]:
    """Rows that may come back: in the order of their key, so that none is passed over while rows change."""
    last = 0
    while True:
        rows = Job.objects.using(using).filter(queue=queue, state__in=_COMES_BACK, pk__gt=last).order_by("pk")
        page = list(rows.exclude(DUPLICATES)[:_PAGE])
        if not page:
            return
        yield page
        last = page[-1].pk


def _count(report: Rebuilt, using: str, row: Job, answer: str, now: datetime) -> None:
    if answer == "ok":
        report.by_state[row.state] += 1
        report.by_queue[row.queue] += 1
    elif answer == "known":
        report.known += 1
    else:
        holder = answer.partition(":")[2]
        report.held.append(f"{row.job_id}: {holder}")
        row.reason = DUPLICATE_OF + holder
        Job.objects.using(using).filter(pk=row.pk, last_event="").update(
            state=JobState.DISCARDED.value, reason=row.reason, since=now, finished_at=now,
            keep_until=now + timedelta(seconds=config().record_discarded_s),
        )  # fmt: skip


def _set_aside(row: Job, restorable: timedelta, now: datetime) -> list[object]:
    """A job that met another holder of its unique key, as one that a person could restore."""
    before, row.state, row.since = row.state, JobState.DISCARDED.value, now
    return _fields(row, restorable, before)


def _states_before(using: str, queue: str, rows: Sequence[Job]) -> dict[str, str]:
    """What discarded jobs were before, by their id: where restore puts them."""
    aside = [row.job_id for row in rows if row.state == JobState.DISCARDED.value]
    moves = JobEvent.objects.using(using).filter(
        queue=queue, job_id__in=aside, to_state=JobState.DISCARDED.value
    )
    return dict(moves.order_by("pk").values_list("job_id", "from_state")) if aside else {}


def _fields(row: Job, restorable: timedelta, was: str | None) -> list[object]:
    """One job as lua/lib/rebuild.lua reads it."""
    state, at, lane = row.state, to_ms(row.run_at or row.since), row.lane or Lane.NORMAL.value
    rescues = row.rescues
    if state == JobState.PENDING.value:
        state, lane, rescues = JobState.READY.value, Lane.FIRST.value, rescues + 1
    hash_fields: dict[str, object] = {"delivery": row.delivery + DELIVERIES_AHEAD}
    hash_fields |= {
        name: value
        for name, value in (
            ("attempts", row.attempts), ("rescues", rescues), ("edition", row.edition),
            ("requeues", row.requeues), ("cause", row.cause), ("error", row.error),
        )
        if value
    }  # fmt: skip
    if row.lane and row.lane not in {lane, Lane.NORMAL.value}:
        hash_fields["lane"] = row.lane
    if row.expires_at is not None:
        hash_fields["expires"] = to_ms(row.expires_at)
    if state == JobState.DEAD.value:
        at = to_ms(row.died_at or row.since)
    if state == JobState.DISCARDED.value:
        at = to_ms(row.since + restorable)
        before = was if was in {JobState.DELAYED.value, JobState.DEAD.value} else JobState.READY.value
        died = before == JobState.DEAD.value
        was_at = to_ms((row.died_at if died else row.run_at) or row.since)
        hash_fields |= {"reason": row.reason, "was": before, "was_at": was_at}
    parts = spec_parts(bytes(row.spec or b""), delayed=state == JobState.DELAYED.value)
    flat = [part for pair in hash_fields.items() for part in pair]
    return [row.job_id, state, at, lane, row.unique_digest, len(hash_fields), *flat, len(parts), *parts]
