"""The states of a job and the moves between them: the one place that spells either."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class JobState(StrEnum):
    """Where a job is; the value also names its Redis structure, its URL value and its CSS class."""

    DELAYED = "delayed"  # not before its run-at
    READY = "ready"  # may be claimed now
    PENDING = "pending"  # delivered to a child under a lease, not yet settled
    DONE = "done"  # settled well; a tombstone with a TTL
    DEAD = "dead"  # given up on; waits for a person
    DISCARDED = "discarded"  # set aside; restorable until its keep time ends


#: States that pages list, in the order of a job's life.
LISTED = (JobState.DELAYED, JobState.READY, JobState.PENDING, JobState.DEAD, JobState.DISCARDED)
#: States in which a job still wants to run: it holds its unique key and counts as unfinished.
LIVE = frozenset({JobState.DELAYED, JobState.READY, JobState.PENDING})


class Lane(StrEnum):
    """A ready stream of a queue. Lanes are read in this order, with what is left of the limit."""

    FIRST = "first"  # released, rescued, run now: they keep their turn
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"  # read right after `first` at every 16th claim
    SUSPECT = "suspect"  # its process died while it ran: read by probation children only


#: What `enqueue(priority=...)` takes.
PRIORITIES = (Lane.HIGH, Lane.NORMAL, Lane.LOW)


@dataclass(frozen=True)
class Move:
    """A verb, the states it may start from and those it may end in (None: the job is gone)."""

    verb: str
    sources: frozenset[JobState]
    targets: frozenset[JobState | None]
    by_person: bool = False


def _move(verb: str, sources: str, targets: str, *, by_person: bool = False) -> Move:
    return Move(
        verb,
        frozenset(JobState(name) for name in sources.split()),
        frozenset(None if name == "gone" else JobState(name) for name in targets.split()),
        by_person,
    )


MOVES: dict[str, Move] = {
    move.verb: move
    for move in (
        _move("enqueue", "", "delayed ready"),
        _move("fire", "", "delayed ready"),  # a schedule's slot becomes a job; delayed by its jitter
        _move("promote", "delayed", "ready dead"),  # dead: its data are corrupt
        _move("hold", "ready", "delayed"),  # a hold on its handler, its cause or a tag keeps it back
        _move("lift", "delayed", "ready"),  # that hold is over
        _move("claim", "ready", "pending"),
        _move("ack", "pending", "done"),
        _move("retry", "pending", "delayed"),
        _move("snooze", "pending", "delayed"),
        _move("release", "pending", "ready"),
        _move("rescue", "pending", "ready"),
        _move("bury", "pending ready delayed", "dead"),
        _move("expire", "ready", "discarded"),
        _move("requeue", "dead", "delayed ready", by_person=True),
        _move("run_now", "delayed ready", "ready", by_person=True),
        _move("reschedule", "delayed", "delayed", by_person=True),
        _move("cancel", "pending", "pending", by_person=True),
        _move("edit", "delayed ready dead discarded", "delayed ready dead discarded", by_person=True),
        _move("discard", "delayed ready pending dead", "discarded", by_person=True),
        _move("restore", "discarded", "delayed ready dead", by_person=True),
        _move("purge", "discarded", "gone", by_person=True),
        _move("prune", "discarded", "gone"),
        _move("rebuild", "", "delayed ready dead discarded"),  # Redis lost it, the record has it
    )
}
