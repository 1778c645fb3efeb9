"""Slots on their way to Redis, and what a schedule's HASH says of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from queueops.job import spec_parts

#: Slots in one script: its length is everybody else's latency.
FIRE_BATCH = 100


class Action(StrEnum):
    """What a scheduler wants of a due slot; the script may find that an earlier run is in its way."""

    FIRE = "fire"
    CATCH_UP = "catch_up"  # fire, after the runs that are in its way
    SKIP = "skip"
    MISS = "miss"


@dataclass(frozen=True, slots=True)
class Slot:
    """A due slot of a schedule. `run_at` is '', Unix ms or '+N', as a job's."""

    at_ms: int
    action: Action
    job_id: str = ""
    reason: str = ""
    run_at: str = ""
    stands_for: int = 1  # a skipped or missed one: this and so many - 1 before it
    spec: bytes = b""

    def arguments(self) -> list[object]:
        """The slot as lua/fire.lua takes it."""
        parts = spec_parts(self.spec, delayed=bool(self.run_at)) if self.spec else []
        reason = " ".join(self.reason.split())  # a line of the log is one line
        head = (self.at_ms, self.job_id, self.action.value, reason, self.run_at, self.stands_for, len(parts))
        return [*head, *parts]


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided for a slot, as the log in Redis says until the ledger has it."""

    number: int
    at_ms: int
    state: str  # fired, skipped, missed or waiting
    decided_ms: int
    by: str
    job_id: str
    stands_for: int
    reason: str

    @classmethod
    def parse(cls, line: str) -> Decision:
        """Read one line. Raises ValueError."""
        number, at_ms, state, decided_ms, by, job_id, stands_for, reason = line.split("\t", 7)
        return cls(
            int(number), int(at_ms), state, int(decided_ms), by, job_id, int(float(stands_for)), reason
        )


@dataclass(frozen=True, slots=True)
class Fired:
    """An answer of the script. `word` is ok, lost (no HASH) or stale (a newer version is there)."""

    word: str
    last_ms: int = 0
    version: int = 0
    server_us: int = 0
    waiting: tuple[int, ...] = ()  # slots that a run holds up, Unix ms
    decisions: tuple[Decision, ...] = ()  # which the ledger may lack, by number
    words: tuple[str, ...] = ()  # one a slot

    @classmethod
    def parse(cls, answer: Sequence[Any]) -> Fired:
        """Read what the script returned."""
        word, last, version, server_us, waiting, log, *words = answer
        lines = log.decode("utf-8", "replace").split("\n") if log else []
        return cls(
            word.decode(),
            int(float(last)),
            int(version),
            int(server_us),
            tuple(int(each.rstrip(b"c")) for each in waiting.split()),
            tuple(Decision.parse(line) for line in lines),
            tuple(each.decode() for each in words),
        )


@dataclass(frozen=True, slots=True)
class FireCall:
    """One call of the script: due slots of one schedule, oldest first. See lua/fire.lua."""

    queue: str
    schedule: str
    version: int
    settled_ms: int
    recorded: int
    overlap: str
    slots: tuple[Slot, ...] = ()
    mode: str = ""
    clear: str = ""
    others: tuple[str, ...] = ()
    gap_ms: int = 0

    def rest(self) -> list[object]:
        """The list that follows them."""
        return [part for slot in self.slots for part in slot.arguments()]

    def named(self) -> dict[str, object]:
        """The arguments that have a name."""
        return {
            "schedule": self.schedule,
            "version": self.version,
            "settled": self.settled_ms,
            "recorded": self.recorded,
            "mode": self.mode,
            "clear": " ".join(self.clear.split()),
            "overlap": self.overlap,
            "others": " ".join(self.others),
            "gap_ms": self.gap_ms,
        }
