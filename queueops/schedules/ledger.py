"""What became of each slot, in the database: written from what Redis decided, followed to the end.

Redis decides, and keeps a line a decision until the ledger has it. So a crash between the two loses
no slot: the next scheduler finds the line. Every write here may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Min, Q
from django.db.models.functions import Coalesce, Greatest

from queueops.cron import slot_jitter_s
from queueops.inspector import Inspector
from queueops.job import from_ms, to_ms
from queueops.models import Job, JobEvent, Schedule, ScheduleSlot
from queueops.models.jobs import GONE
from queueops.schedules.plan import ON_TIME_MS
from queueops.slots import Decision
from queueops.states import JobState

State = ScheduleSlot.State
#: Slots of a schedule that the ledger keeps, and for how long at most.
KEPT_SLOTS, KEPT_DAYS = 5_000, 400
#: A fired slot whose job nobody knows any more is missed after this.
_LOST_AFTER = timedelta(minutes=10)
_ENDED = (JobState.DONE, JobState.DEAD, JobState.DISCARDED, GONE)


@dataclass(frozen=True, slots=True)
class Entry:
    """What Redis decided for one schedule, and where the schedule stands then. Unix ms."""

    schedule_id: int
    queue: str
    version: int
    decisions: Sequence[Decision]
    last_ms: int
    next_ms: int | None


def record(entries: Iterable[Entry]) -> int:
    """Write decisions down; how many. Safe to repeat: a slot has one row, which only goes forward."""
    entries = list(entries)
    if not entries:
        return 0
    with transaction.atomic():
        here = set(
            Schedule.objects.filter(pk__in=[entry.schedule_id for entry in entries]).values_list(
                "pk", flat=True
            )
        )
        entries = [entry for entry in entries if entry.schedule_id in here]  # one may be deleted by now
        newest = [(entry, _newest(entry.decisions)) for entry in entries]
        rows = [_row(entry, decision) for entry, decisions in newest for decision in decisions]
        held = {entry.schedule_id: _held(entry, decisions) for entry, decisions in newest if decisions}
        # Not ignore_conflicts: on SQLite that would also swallow a CHECK failure.
        ScheduleSlot.objects.bulk_create(
            rows,
            batch_size=50,
            update_conflicts=True,
            unique_fields=["schedule", "slot_at", "suffix"],
            update_fields=["version"],
        )
        for entry, decisions in newest:
            for decision in decisions:
                if decision.at_ms in held[entry.schedule_id]:
                    _go_forward(entry.schedule_id, decision)
            _move_on(entry)
    return len(rows)


def _newest(decisions: Sequence[Decision]) -> list[Decision]:
    """The last word on each slot: one that waited may have been fired since."""
    return list({each.at_ms: each for each in sorted(decisions, key=lambda each: each.number)}.values())


def _held(entry: Entry, decisions: Sequence[Decision]) -> set[int]:
    """Slots that have a row which may go forward: they wait, or a person skipped them beforehand."""
    slots = [decision.at_ms for decision in decisions]
    rows = ScheduleSlot.objects.filter(
        schedule_id=entry.schedule_id,
        slot_at__gte=from_ms(min(slots)),
        slot_at__lte=from_ms(max(slots)),
        suffix="",
    ).filter(Q(state=State.WAITING) | (Q(state=State.SKIPPED) & ~Q(actor="")))
    return {to_ms(slot_at) for slot_at in rows.values_list("slot_at", flat=True)}


def _row(entry: Entry, decision: Decision) -> ScheduleSlot:
    return ScheduleSlot(
        schedule_id=entry.schedule_id,
        slot_at=from_ms(decision.at_ms),
        state=decision.state,
        queue=entry.queue,
        job_id=decision.job_id,
        stands_for=decision.stands_for,
        reason=decision.reason,
        version=entry.version,
        fired_at=from_ms(decision.decided_ms) if decision.state == State.FIRED else None,
    )


def _go_forward(schedule_id: int, decision: Decision) -> None:
    """A waiting slot is fired or skipped; one that a person skipped too late was fired all the same."""
    if decision.state == State.WAITING:
        return
    slot = ScheduleSlot.objects.filter(schedule_id=schedule_id, slot_at=from_ms(decision.at_ms), suffix="")
    if decision.state == State.FIRED:
        slot.filter(state__in=[State.WAITING, State.SKIPPED]).update(
            state=State.FIRED,
            job_id=decision.job_id,
            fired_at=from_ms(decision.decided_ms),
            reason=decision.reason,
        )
    else:
        slot.filter(state=State.WAITING).update(state=decision.state, job_id="", reason=decision.reason)


def _move_on(entry: Entry) -> None:
    last_at = from_ms(entry.last_ms)
    recorded = max((decision.number for decision in entry.decisions), default=0)
    Schedule.objects.filter(pk=entry.schedule_id).update(
        last_slot_at=Greatest(Coalesce("last_slot_at", last_at), last_at),
        recorded=Greatest("recorded", recorded),
        next_slot_at=None if entry.next_ms is None else from_ms(entry.next_ms),
    )


# -- what became of the jobs -------------------------------------------------------------------------


def follow(now_ms: int, *, inspector: Inspector | None = None, limit: int = 500) -> int:
    """Bring open slots up to what the record knows of their jobs; how many changed."""
    open_slots = ScheduleSlot.objects.filter(state__in=[State.FIRED, State.RUNNING]).order_by("-slot_at")
    dead = ScheduleSlot.objects.filter(outcome=JobState.DEAD).order_by("-slot_at")  # sent again meanwhile?
    slots = [*open_slots.select_related("schedule")[:limit], *dead.select_related("schedule")[:100]]
    slots = [slot for slot in slots if slot.job_id]
    jobs = _jobs(slots)
    starts = _starts(slots)
    now = from_ms(now_ms)
    changed = []
    unknown = []
    for slot in slots:
        job = jobs.get((slot.queue, slot.job_id))
        if job is None:
            if slot.outcome == "" and slot.fired_at and now - slot.fired_at > _LOST_AFTER:
                unknown.append(slot)
        elif _settle(slot, job, starts.get((slot.queue, slot.job_id))):
            changed.append(slot)
    changed += _lost(unknown[:50], inspector or Inspector())
    ScheduleSlot.objects.bulk_update(
        changed, ["state", "reason", "started_at", "finished_at", "outcome"], batch_size=50
    )
    return len(changed)


def _jobs(slots: Sequence[ScheduleSlot]) -> dict[tuple[str, str], Job]:
    found = Job.objects.filter(
        queue__in={slot.queue for slot in slots}, job_id__in=[slot.job_id for slot in slots]
    ).only("queue", "job_id", "state", "since", "ran_ms", "finished_at", "reason")
    return {(job.queue, job.job_id): job for job in found}


def _starts(slots: Sequence[ScheduleSlot]) -> dict[tuple[str, str], datetime]:
    """When a child first took each job."""
    claims = JobEvent.objects.filter(
        queue__in={slot.queue for slot in slots}, job_id__in=[slot.job_id for slot in slots], verb="claim"
    )
    firsts = claims.values_list("queue", "job_id").annotate(first=Min("at")).order_by()
    return {(queue, job_id): first for queue, job_id, first in firsts}


def _settle(slot: ScheduleSlot, job: Job, started_at: datetime | None) -> bool:
    """Take over what the job's row says; whether anything changed."""
    before = (slot.state, slot.outcome, slot.started_at, slot.finished_at)
    if job.state == JobState.PENDING:
        slot.started_at = started_at or job.since
        slot.state, slot.outcome, slot.finished_at = State.RUNNING, "", None
    elif job.state in _ENDED:
        slot.finished_at = job.finished_at or job.since
        if started_at is None and job.state in {JobState.DONE, JobState.DEAD}:
            started_at = slot.finished_at - timedelta(milliseconds=job.ran_ms or 0)
        slot.started_at = started_at
        slot.outcome = job.state if job.state != GONE else slot.outcome or JobState.DISCARDED
        if started_at is None:
            slot.state = State.SKIPPED
            slot.reason = job.reason or "its job was set aside before it ran"
        else:
            slot.state = State.LATE if lateness_s(slot) * 1000 > ON_TIME_MS else State.RAN
    elif started_at is not None:  # waits for its next try
        slot.started_at = started_at
        slot.state, slot.outcome, slot.finished_at = State.RUNNING, "", None
    return before != (slot.state, slot.outcome, slot.started_at, slot.finished_at)


def lateness_s(slot: ScheduleSlot) -> float:
    """How long after its time, jitter included, a slot's job started; 0 for one run by hand."""
    if slot.suffix or slot.started_at is None:
        return 0.0
    jitter_s = slot_jitter_s(slot.schedule.key, slot.slot_at, slot.schedule.jitter_s)
    return max(0.0, (slot.started_at - slot.slot_at).total_seconds() - jitter_s)


def _lost(slots: Sequence[ScheduleSlot], inspector: Inspector) -> list[ScheduleSlot]:
    """Slots whose job neither the record nor Redis knows: Redis lost it."""
    gone = []
    for slot in slots:
        if inspector.job(slot.queue, slot.job_id) is None:
            slot.state, slot.reason = State.MISSED, "store lost: its job is gone without a result"
            gone.append(slot)
    return gone


# -- how long it is kept ------------------------------------------------------------------------------


def prune(now_ms: int, *, limit: int = 500) -> int:
    """Delete what is over KEPT_SLOTS a schedule or older than KEPT_DAYS; how many, `limit` at most."""
    oldest = from_ms(now_ms) - timedelta(days=KEPT_DAYS)
    over = list(ScheduleSlot.objects.filter(slot_at__lt=oldest).values_list("pk", flat=True)[:limit])
    for pk in Schedule.objects.values_list("pk", flat=True):
        if len(over) >= limit:
            break
        slots = ScheduleSlot.objects.filter(schedule_id=pk).order_by("-slot_at")
        over += slots.values_list("pk", flat=True)[KEPT_SLOTS : KEPT_SLOTS + limit - len(over)]
    return ScheduleSlot.objects.filter(pk__in=over).delete()[0]
