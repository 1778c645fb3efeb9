"""One schedule that a scheduler waits for: what is due, and what Redis answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from queueops.schedules.definition import Definition
from queueops.schedules.plan import plan
from queueops.schedules.rows import Row
from queueops.slots import Action, Decision, FireCall, Fired, Slot

#: Lines of another scheduler are its own to write down for so long. Ms.
OTHERS_MS = 2_000
#: So long another scheduler has for writing down that it took a schedule over. Ms.
REFUSED_MS = 2_000


@dataclass
class Watched:
    """A schedule as this process follows it. Unix ms; `next_ms` None: no slot is left."""

    row: Row
    definition: Definition
    last_ms: int
    recorded: int
    next_ms: int | None = None
    waiting: tuple[int, ...] = ()
    #: Not looked at before this, after an error of its own.
    retry_ms: int = 0
    #: The version that Redis has at least, where ours was refused, and since when.
    newer_version: int = 0
    refused_ms: int = 0
    by_hand: tuple[str, ...] = ()
    #: Slots that a person skipped beforehand, and why.
    skips: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Row, before: Watched | None = None) -> Watched:
        """Watch a row that schedulers have taken over; `before` knows what its ledger may lack."""
        definition = row.taken or row.definition
        last_ms, recorded = row.last_ms or 0, row.recorded
        if before is not None:
            last_ms, recorded = max(last_ms, before.last_ms), max(recorded, before.recorded)
        found = cls(row, definition, last_ms, recorded, waiting=before.waiting if before else ())
        found.next_ms = next(definition.slots_after(last_ms), None)
        return found

    def due_ms(self) -> int | None:
        """When something is to be done, or None."""
        times = [each for each in (self.next_ms, self.definition.resume_ms) if each is not None]
        return max(min(times), self.retry_ms) if times else None

    def is_due(self, now_ms: int) -> bool:
        """Whether there is something to do now."""
        due_ms = self.due_ms()
        return self.retry_ms <= now_ms and bool(self.waiting or (due_ms is not None and due_ms <= now_ms))

    def slots(self, now_ms: int) -> list[Slot]:
        """What is to be settled now, oldest first. Raises ScheduleError."""
        found = [
            Slot(
                ms,
                Action.FIRE,
                self.definition.job_id(ms),
                "after the run before it",
                spec=self.definition.spec(ms),
            )
            for ms in self.waiting[:1]
        ]
        if self.next_ms is None or self.next_ms > now_ms:
            return found
        for slot in plan(self.definition, self.last_ms, now_ms):
            if slot.action not in {Action.FIRE, Action.CATCH_UP}:
                found.append(slot)
            elif slot.at_ms in self.skips:
                found.append(Slot(slot.at_ms, Action.SKIP, reason=self.skips[slot.at_ms]))
            else:
                found.append(replace(slot, spec=self.definition.spec(slot.at_ms)))
        return found

    def call(self, slots: list[Slot]) -> FireCall:
        """The call that settles these slots."""
        rate = self.definition.catch_up_rate_per_s
        return FireCall(
            self.definition.queue,
            self.definition.key,
            self.row.version,
            settled_ms=self.row.last_ms or 0,
            recorded=self.recorded,
            overlap=self.definition.overlap,
            slots=tuple(slots),
            others=self.by_hand,
            gap_ms=round(1000 / rate) if self.definition.catch_up == "all" else 0,
        )

    def take(self, answer: Fired) -> None:
        """Go on from what Redis says."""
        self.waiting = answer.waiting
        if answer.last_ms > self.last_ms or self.next_ms is None:
            self.last_ms = max(self.last_ms, answer.last_ms)
            self.next_ms = next(self.definition.slots_after(self.last_ms), None)

    def refused(self, version: int, now_ms: int) -> None:
        """Wait for the newer definition: Redis has `version`, or ours, retired."""
        self.newer_version = max(version, self.row.version + 1)
        self.refused_ms = self.refused_ms or now_ms
        self.retry_ms = now_ms + REFUSED_MS

    def is_long_refused(self, now_ms: int) -> bool:
        """Whether nobody else is at it: the database is older than Redis."""
        return now_ms - self.refused_ms > REFUSED_MS

    def to_record(self, answer: Fired, name: str) -> list[Decision]:
        """The lines that this scheduler has to write down: all, where one is its own or is left over."""
        new = [each for each in answer.decisions if each.number > self.recorded]
        left_ms = answer.server_us // 1000 - OTHERS_MS
        return new if any(each.by == name or each.decided_ms < left_ms for each in new) else []
