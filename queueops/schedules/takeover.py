"""From what a row says to what schedulers follow: first in Redis, which then refuses older ones, then here.

Safe to repeat, and by several schedulers at once: the row is taken over by compare-and-set on its
version, and what Redis decided meanwhile is in its log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from django.db.models import F

from queueops.job import from_ms
from queueops.models import OperatorAction, Schedule
from queueops.schedules import ledger
from queueops.schedules.changes import change, lost
from queueops.schedules.definition import Definition, without_pause
from queueops.schedules.rows import Row
from queueops.slots import FIRE_BATCH, Decision, FireCall, Fired, Slot
from queueops.store import Store

_TRIES = 5


class Takeover:
    """Makes a row's definition the one that is followed."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name

    def take(self, row: Row, now_ms: int, *, known_version: int = 0) -> bool:
        """Take the row over; False when another scheduler was first and the row must be read again.

        `known_version`: the version that Redis has, where the row's was refused as older.
        Raises StoreUnavailable, or what one schedule's data in Redis make it raise.
        """
        new = row.definition
        done = change(
            row.taken,
            new,
            last_ms=row.last_ms,
            now_ms=now_ms,
            changed_ms=row.changed_ms,
            error=row.error,
        )
        known_version = known_version or self._version_here(row)
        version = max(row.version, known_version) + (row.taken is not None or known_version > 0)
        settled_ms, recorded = done.settled_ms, row.recorded
        decisions: list[Decision] = []
        for _ in range(_TRIES):
            if row.placed_queue and row.placed_queue != new.queue:
                left = self._leave(row, version, settled_ms)
                if left.word == "stale":
                    version = left.version + 1
                    continue
                decisions = list(left.decisions)
                recorded = max([recorded, *(decision.number for decision in decisions)])
                settled_ms = max(settled_ms, left.last_ms)
            answers = self._place(row, version, settled_ms, recorded, done.slots)
            if answers[-1].word == "lost":
                passed = lost(row.taken or new, row.last_ms or settled_ms, now_ms)
                answers = self._place(row, version, settled_ms, recorded, passed, is_lost=True)
            if answers[-1].word == "ok":
                break
            version = answers[-1].version + 1
        else:
            return False
        final = answers[-1]
        seen = {decision.number: decision for answer in answers for decision in answer.decisions}
        decisions += seen.values()
        upcoming = next(new.slots_after(final.last_ms), None)
        ledger.record(
            [
                ledger.Entry(
                    row.pk, row.placed_queue or new.queue, row.version, decisions, final.last_ms, upcoming
                )
            ]
        )
        return self._follow(row, version, final)

    def _version_here(self, row: Row) -> int:
        """What Redis has under the key of a row that is new here: an earlier one may have had its key."""
        if row.taken is not None:
            return 0
        new = row.definition
        asked = FireCall(new.queue, new.key, version=0, settled_ms=0, recorded=0, overlap=new.overlap)
        return self._one(asked).version

    def _leave(self, row: Row, version: int, settled_ms: int) -> Fired:
        """Hand a schedule over: in the queue that it leaves, nothing fires any more."""
        return self._one(
            FireCall(
                row.placed_queue,
                row.definition.key,
                version,
                settled_ms=row.last_ms or 0,
                recorded=row.recorded,
                overlap=row.definition.overlap,
                mode="retire",
                clear=f"moved to queue {row.definition.queue} while it waited",
            )
        )

    def _place(
        self,
        row: Row,
        version: int,
        settled_ms: int,
        recorded: int,
        slots: Sequence[Slot],
        *,
        is_lost: bool = False,
    ) -> list[Fired]:
        new = row.definition
        is_here = row.placed_queue == new.queue and not is_lost
        old = row.taken
        keeps_waiting = old is not None and not old.has_other_timing(new) and old.overlap == new.overlap
        clear = "" if keeps_waiting else "the schedule was changed while it waited"
        if new.paused:
            clear = "the schedule was paused while it waited"
        first = FireCall(
            new.queue,
            new.key,
            version,
            settled_ms=row.last_ms or 0,
            recorded=recorded,
            overlap=new.overlap,
            mode="take" if is_here else "place",
            clear=clear,
        )
        answers = []
        for start in range(0, max(1, len(slots)), FIRE_BATCH):
            is_last = start + FIRE_BATCH >= len(slots)
            call = replace(first, slots=tuple(slots[start : start + FIRE_BATCH]))
            answers.append(self._one(replace(call, settled_ms=settled_ms) if is_last else call))
            if answers[-1].word != "ok":
                break
        return answers

    def _follow(self, row: Row, version: int, final: Fired) -> bool:
        new = row.definition
        mine = Schedule.objects.filter(pk=row.pk, version=row.version)
        return bool(
            mine.update(
                version=version,
                taken=new.to_json(),
                placed_queue=new.queue,
                last_slot_at=from_ms(max(final.last_ms, row.last_ms or 0)),
                error="",
            )
        )

    def lose(self, row: Row, last_ms: int, recorded: int, now_ms: int) -> Fired:
        """Make the state of a schedule again that Redis lost; due slots are recorded missed."""
        passed = lost(row.definition, last_ms, now_ms)
        return self._place(row, row.version, last_ms, recorded, passed, is_lost=True)[-1]

    def retire(self, definition: Definition, version: int, recorded: int) -> None:
        """Let nothing fire any more under the key of a schedule that was deleted."""
        call = FireCall(
            definition.queue,
            definition.key,
            version,
            settled_ms=0,
            recorded=recorded,
            overlap="allow",
            mode="retire",
            clear="the schedule was deleted",
        )
        self._one(call)

    def _one(self, call: FireCall) -> Fired:
        answer = self.store.fire([call], actor=self.name)[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def flag(row: Row, error: str) -> None:
    """Say in the row why it can't fire."""
    Schedule.objects.filter(pk=row.pk, version=row.version).exclude(error=error).update(error=error)


def resume(row: Row, definition: Definition) -> bool:
    """End a pause whose time is over, without that counting as an edit; False when the row changed."""
    going_on = without_pause(definition)
    ended = Schedule.objects.filter(
        pk=row.pk, version=row.version, paused=True, resume_at=_at(definition)
    ).update(
        paused=False,
        paused_reason="",
        resume_at=None,
        taken=going_on.to_json(),
        version=F("version"),
    )
    if ended:
        OperatorAction.objects.create(
            actor="queueops",
            actor_name="queueops",
            verb="resume_schedule",
            queue=definition.queue,
            filter={"schedule": definition.key},
            count=1,
            reason="the time of its pause is over",
        )
    return bool(ended)


def _at(definition: Definition) -> datetime | None:
    return None if definition.resume_ms is None else from_ms(definition.resume_ms)
