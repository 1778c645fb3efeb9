"""What a person does to a schedule: pause, resume, run a slot, skip the next one. Each is recorded."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from queueops import cron
from queueops.client import enqueue
from queueops.conf import config
from queueops.errors import QueueOpsError
from queueops.inspector import Inspector
from queueops.job import from_ms, to_ms
from queueops.masking import mask
from queueops.models import OperatorAction, Schedule, ScheduleSlot
from queueops.schedules.definition import MAX_SUFFIX
from queueops.schedules.rows import HAND

#: A slot that is due sooner can't be skipped any more: a scheduler may not hear of it in time. Ms.
TOO_LATE_MS = 3_000


class Refused(QueueOpsError):
    """What was asked for can't be done; the text says why."""


def pause(
    schedule: Schedule,
    *,
    actor: str,
    actor_name: str = "",
    reason: str = "",
    resume_at: datetime | None = None,
) -> None:
    """Let no slot run until it is resumed, or `resume_at` comes. Raises Refused."""
    now = from_ms(Inspector().now_ms())
    if resume_at is not None and resume_at <= now:
        raise Refused("the time to resume is over already")
    change = {"paused": True, "paused_reason": reason, "resume_at": resume_at}
    _save(schedule, {**change, "paused_at": now}, now, actor, actor_name, "pause_schedule", reason)


def resume(schedule: Schedule, *, actor: str, actor_name: str = "", reason: str = "") -> None:
    """Let it run again from its next slot on; those since the pause stay skipped."""
    change = {"paused": False, "paused_reason": "", "resume_at": None}
    now = from_ms(Inspector().now_ms())
    _save(schedule, change, now, actor, actor_name, "resume_schedule", reason)


def _save(
    schedule: Schedule,
    values: dict[str, Any],
    now: datetime,
    actor: str,
    actor_name: str,
    verb: str,
    reason: str,
) -> None:
    with transaction.atomic():
        before = {"paused": schedule.paused}
        for name, value in {**values, "changed_at": now}.items():
            setattr(schedule, name, value)
        # update, not save: a schedule whose rule is broken can be paused too.
        Schedule.objects.filter(pk=schedule.pk).update(**values, changed_at=now)
        _note(schedule, verb, actor, actor_name, reason, before=before, after={"paused": schedule.paused})


def note_edit(
    schedule: Schedule, *, actor: str, actor_name: str = "", before: dict[str, Any] | None, verb: str
) -> None:
    """Record that a person made, edited or deleted a schedule."""
    after = None if verb == "delete_schedule" else schedule.definition().to_json()
    _note(schedule, verb, actor, actor_name, "", before=before, after=after)


def run_slot(
    schedule: Schedule,
    slot_ms: int | None = None,
    *,
    token: str,
    actor: str,
    actor_name: str = "",
    reason: str = "",
) -> ScheduleSlot:
    """Run one slot now (None: this moment's), whatever the schedule does; its row in the ledger.

    `token`, up to 12 letters and digits, names the wish: the same one twice is one run. The slot has
    its own job, whose id ends in the token, and its own row. Raises Refused.
    """
    suffix = f"{HAND}{token}"
    if not token.isalnum() or not token.isascii() or len(suffix) > MAX_SUFFIX:
        raise ValueError(f"a token is 1 to {MAX_SUFFIX - len(HAND)} letters and digits, got {token!r:.40}")
    definition = schedule.definition()
    if problems := definition.problems():
        raise Refused("it can't run: " + "; ".join(f"{name}: {why}" for name, why in problems.items()))
    now_ms = Inspector().now_ms()
    slot_ms = now_ms // 1000 * 1000 if slot_ms is None else slot_ms
    if slot_ms > now_ms:
        raise Refused("a slot can't be run before its time; it will run by itself")
    job_id = definition.job_id(slot_ms, suffix)
    asked = ScheduleSlot.objects.filter(schedule=schedule, suffix=suffix).first()
    if asked is not None:
        return asked
    try:
        with transaction.atomic():
            slot = ScheduleSlot.objects.create(
                schedule=schedule,
                slot_at=from_ms(slot_ms),
                suffix=suffix,
                state=ScheduleSlot.State.FIRED,
                queue=definition.queue,
                job_id=job_id,
                reason=reason or "run by hand",
                version=schedule.version,
                actor=actor,
                fired_at=from_ms(now_ms),
            )
            _note(schedule, "run_slot", actor, actor_name, reason, job_id=job_id)
            # With this transaction, or not at all.
            enqueue(
                definition.handler,
                definition.args,
                definition.kwargs,
                queue=definition.queue,
                policy=definition.policy or None,
                job_id=job_id,
                tags={"schedule": definition.key, "slot": cron.slot_name(from_ms(slot_ms))},
            )
    except IntegrityError:  # the same wish a moment ago
        return ScheduleSlot.objects.get(schedule=schedule, suffix=suffix)
    return slot


def skip_slot(
    schedule: Schedule, slot_ms: int | None = None, *, actor: str, actor_name: str = "", reason: str = ""
) -> ScheduleSlot:
    """Let a coming slot (None: the next one) not run. Raises Refused when it is too late for that."""
    definition = schedule.definition()
    now_ms = Inspector().now_ms()
    if slot_ms is None:
        skipped = set(
            ScheduleSlot.objects.filter(
                schedule=schedule, suffix="", state=ScheduleSlot.State.SKIPPED, slot_at__gt=from_ms(now_ms)
            ).values_list("slot_at", flat=True)
        )
        coming = (slot for slot in definition.next_slots(now_ms, 100) if from_ms(slot) not in skipped)
        slot_ms = next(coming, None)
    if slot_ms is None or slot_ms not in definition.slots_between(slot_ms - 1, slot_ms, 1):
        raise Refused("there is no such slot ahead")
    if slot_ms - now_ms < TOO_LATE_MS:
        raise Refused("it is due within 3 s: too late to skip it")
    with transaction.atomic():
        slot, made = ScheduleSlot.objects.get_or_create(
            schedule=schedule,
            slot_at=from_ms(slot_ms),
            suffix="",
            defaults={
                "state": ScheduleSlot.State.SKIPPED,
                "reason": reason or f"skipped by {actor_name or actor}",
                "actor": actor,
                "version": schedule.version,
            },
        )
        if made:
            _note(schedule, "skip_slot", actor, actor_name, reason, after={"slot": to_ms(slot.slot_at)})
    return slot


def unskip_slot(schedule: Schedule, slot_ms: int, *, actor: str, actor_name: str = "") -> None:
    """Let a slot run after all that a person skipped. Raises Refused when it is too late for that."""
    if slot_ms - Inspector().now_ms() < TOO_LATE_MS:
        raise Refused("it is due within 3 s: too late to change that")
    with transaction.atomic():
        slots = ScheduleSlot.objects.filter(
            schedule=schedule, slot_at=from_ms(slot_ms), suffix="", state=ScheduleSlot.State.SKIPPED
        ).exclude(actor="")
        if slots.delete()[0]:
            _note(schedule, "unskip_slot", actor, actor_name, "", after={"slot": slot_ms})


def _note(
    schedule: Schedule,
    verb: str,
    actor: str,
    actor_name: str,
    reason: str,
    *,
    job_id: str = "",
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    OperatorAction.objects.create(
        actor=actor,
        actor_name=actor_name,
        verb=verb,
        queue=schedule.queue,
        job_id=job_id,
        filter={"schedule": schedule.key},
        count=1,
        reason=reason,
        # Arguments may hold secrets, and the activity is for many eyes.
        before=mask(before, config().secret_names)[0],
        after=mask(after, config().secret_names)[0],
    )
