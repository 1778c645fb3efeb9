"""One schedule that a scheduler waits for: what is due, and what Redis answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from queueops.schedules.definition import Definition
from queueops.schedules.plan import is_on_time, on_time, plan
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
    #: The slot after the next one.
    after_ms: int | None = None
    #: The next slot, made ready beforehand: at its time nothing is left to do but to send it.
    prepared: Slot | None = None
    waiting: tuple[int, ...] = ()
    #: Not looked at before this, after an error of its own.
    retry_ms: int = 0
    #: The version that Redis has at least, where ours was refused, and since when.
    newer_version: int = 0
    refused_ms: int = 0
    by_hand: tuple[str, ...] = ()
    #: Slots that a person skipped beforehand, and why.
    skips: Mapping[int, str] = field(default_factory=dict)
    _coming: Iterator[int] = field(default_factory=lambda: iter(()), repr=False)

    @classmethod
    def of(cls, row: Row, before: Watched | None = None) -> Watched:
        """Watch a row that schedulers have taken over; `before` knows what its ledger may lack."""
        definition = row.taken or row.definition
        last_ms, recorded = row.last_ms or 0, row.recorded
        if before is not None:
            last_ms, recorded = max(last_ms, before.last_ms), max(recorded, before.recorded)
        found = cls(row, definition, last_ms, recorded, waiting=before.waiting if before else ())
        found._look_ahead()
        return found

    def _look_ahead(self) -> None:
        """Find the next slot after `last_ms`, and make it ready."""
        if self.after_ms is None or self.next_ms is None or self.after_ms <= self.last_ms:
            self._coming = self.definition.slots_after(self.last_ms)
            self.after_ms = next(self._coming, None)
        if self.next_ms is None or self.next_ms <= self.last_ms:
            self.next_ms, self.after_ms = self.after_ms, next(self._coming, None)
        is_plain = self.next_ms is not None and not self.definition.paused
        self.prepared = (
            on_time(self.definition, self.next_ms) if is_plain and self.next_ms is not None else None
        )

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
        is_alone = self.after_ms is None or self.after_ms > now_ms
        if self.prepared and is_alone and is_on_time(self.next_ms, now_ms) and self.next_ms not in self.skips:
            return [*found, self.prepared]
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
        if answer.last_ms > self.last_ms:
            self.last_ms = answer.last_ms
            self._look_ahead()

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
