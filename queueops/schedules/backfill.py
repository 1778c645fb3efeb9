"""Backfill: the slots of a past range, each with a job and a row of its own, as an operation.

A dry run says what it would do. It goes from the oldest slot on at its rate, step by step; a step that
was cut short is done again: its jobs and rows have the same names.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import uuid_utils
from django.db import transaction
from django.utils import timezone

from queueops import cron
from queueops.client import enqueue_many
from queueops.errors import QueueOpsError, ScheduleError, StoreUnavailable
from queueops.inspector import Inspector
from queueops.job import from_ms
from queueops.models import Operation, OperatorAction, Schedule, ScheduleSlot
from queueops.schedules.by_hand import Refused
from queueops.schedules.definition import Definition
from queueops.schedules.rows import BACKFILL

log = logging.getLogger(__name__)

VERB = "backfill"
#: Slots in one backfill, and in one step of it.
MAX_SLOTS, STEP = 10_000, 100
MAX_RATE = 1_000.0
Status = Operation.Status


@dataclass(frozen=True)
class Range:
    """What a backfill would run. Unix ms; `ran`: how many of these slots ran before."""

    slots: int
    first_ms: int | None
    last_ms: int | None
    ran: int


def dry_run(schedule: Schedule, from_at_ms: int, until_ms: int, *, now_ms: int | None = None) -> Range:
    """Return the slots from `from_at_ms` to `until_ms`, both included. Raises Refused."""
    definition = schedule.definition()
    now_ms = Inspector().now_ms() if now_ms is None else now_ms
    if until_ms > now_ms:
        raise Refused("a backfill is of the past: its end is ahead")
    if from_at_ms > until_ms:
        raise Refused("its end is before its start")
    try:
        slots = definition.slots_between(from_at_ms - 1, until_ms, MAX_SLOTS + 1)
    except ScheduleError as error:
        raise Refused(str(error)) from None
    if len(slots) > MAX_SLOTS:
        raise Refused(f"these are more than {MAX_SLOTS:,} slots, the most of one backfill")
    if not slots:
        return Range(0, None, None, 0)
    ran = ScheduleSlot.objects.filter(
        schedule=schedule, slot_at__gte=from_ms(slots[0]), slot_at__lte=from_ms(slots[-1])
    ).exclude(state__in=[ScheduleSlot.State.SKIPPED, ScheduleSlot.State.MISSED])
    return Range(len(slots), slots[0], slots[-1], ran.values("slot_at").distinct().count())


def start(
    schedule: Schedule,
    from_at_ms: int,
    until_ms: int,
    *,
    actor: str,
    actor_name: str = "",
    reason: str = "",
    rate: float = 1.0,
) -> Operation:
    """Write the operation down; a scheduler runs it. Raises Refused."""
    if not 0 < rate <= MAX_RATE:
        raise Refused(f"the rate must be over 0 and at most {MAX_RATE:g} slots a second")
    now_ms = Inspector().now_ms()
    found = dry_run(schedule, from_at_ms, until_ms, now_ms=now_ms)
    if not found.slots:
        raise Refused("there is no slot in this range")
    definition = schedule.definition()
    if problems := definition.problems():
        raise Refused("it can't run: " + "; ".join(f"{name}: {why}" for name, why in problems.items()))
    with transaction.atomic():
        operation = Operation.objects.create(
            id=uuid_utils.uuid7().hex,
            verb=VERB,
            queue=schedule.queue,
            filter={"schedule": schedule.key, "from_ms": from_at_ms, "until_ms": until_ms},
            # As it is now: an edit meanwhile does not change which slots these are.
            arguments={"rate": rate, "schedule": schedule.pk, "definition": definition.to_json()},
            frozen_ms=now_ms,
            total=found.slots,
            cursor={"v": 0, "after_ms": from_at_ms - 1},
            actor=actor,
            reason=reason,
        )
        OperatorAction.objects.create(
            actor=actor,
            actor_name=actor_name,
            verb=VERB,
            queue=schedule.queue,
            filter=operation.filter,
            count=found.slots,
            reason=reason,
            operation=operation.id,
        )
    return operation


def run_once(now_ms: int) -> int:
    """Do a step of each backfill that is open; how many slots. Raises StoreUnavailable."""
    done = 0
    rows = Operation.objects.filter(verb=VERB, status__in=[Status.WAITING, Status.RUNNING])
    for operation in rows.order_by("created_at")[:100]:
        try:
            done += _step(operation, now_ms)
        except StoreUnavailable:
            raise
        except (QueueOpsError, ValueError, TypeError, KeyError) as error:
            log.exception("backfill %s failed", operation.pk)
            _end(operation, Status.FAILED, str(error))
    return done


def _step(operation: Operation, now_ms: int) -> int:
    cursor, given = operation.cursor, operation.arguments
    schedule = Schedule.objects.filter(pk=given["schedule"]).first()
    if schedule is None:
        _end(operation, Status.STOPPED, "its schedule was deleted")
        return 0
    passed_s = max(0.0, (now_ms - cursor.get("at_ms", now_ms - 1000)) / 1000)
    tokens = min(max(1.0, given["rate"]), cursor.get("tokens", 0.0) + passed_s * given["rate"])
    definition = Definition.from_json(operation.filter["schedule"], given["definition"])
    room = min(STEP, int(tokens))
    slots = definition.slots_between(cursor["after_ms"], operation.filter["until_ms"], room) if room else []
    if slots:
        _enqueue(operation, schedule, definition, slots)
    after = {
        "v": cursor["v"] + 1,
        "after_ms": slots[-1] if slots else cursor["after_ms"],
        "at_ms": now_ms,
        "tokens": tokens - len(slots),
    }
    here = Operation.objects.filter(pk=operation.pk, cursor__v=cursor["v"])
    if not here.update(cursor=after, done=operation.done + len(slots), updated_at=timezone.now()):
        return 0  # another scheduler did the same step
    waiting = Operation.objects.filter(pk=operation.pk, status=Status.WAITING)
    waiting.update(status=Status.RUNNING, started_at=timezone.now())
    if room and len(slots) < room:
        _end(operation, Status.FINISHED)
    return len(slots)


def _enqueue(operation: Operation, schedule: Schedule, definition: Definition, slots: list[int]) -> None:
    suffix = BACKFILL + operation.pk[-12:]
    now = from_ms(Inspector().now_ms())
    jobs = [
        {
            "handler": definition.handler,
            "args": definition.args,
            "kwargs": definition.kwargs,
            "queue": definition.queue,
            "policy": definition.policy or None,
            "job_id": definition.job_id(slot, suffix),
            "tags": {"schedule": definition.key, "slot": cron.slot_name(from_ms(slot))},
        }
        for slot in slots
    ]
    rows = [
        ScheduleSlot(
            schedule=schedule,
            slot_at=from_ms(slot),
            suffix=suffix,
            state=ScheduleSlot.State.FIRED,
            queue=definition.queue,
            job_id=definition.job_id(slot, suffix),
            reason="backfilled",
            version=schedule.version,
            actor=operation.actor,
            fired_at=now,
        )
        for slot in slots
    ]
    with transaction.atomic():
        ScheduleSlot.objects.bulk_create(
            rows,
            batch_size=50,
            update_conflicts=True,
            unique_fields=["schedule", "slot_at", "suffix"],
            update_fields=["version"],
        )
        enqueue_many(jobs)


def _end(operation: Operation, status: str, error: str = "") -> None:
    now = timezone.now()
    Operation.objects.filter(pk=operation.pk, status__in=Operation.OPEN).update(
        status=status, error=error, finished_at=now, updated_at=now
    )
