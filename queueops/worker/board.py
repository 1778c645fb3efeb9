"""What a child says about itself in shared memory, so that its supervisor knows it without Redis.

One anonymous shared mapping, made before the first fork: a page of the supervisor, then a board a
child. It outlives a child that was killed, and a child that holds the GIL can still be read. Times
are CLOCK_MONOTONIC seconds, which all processes of a host share; 0 means none. Each is written in one
8-byte store.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum

_TIME = struct.Struct("<d")
_NUMBER = struct.Struct("<Q")
#: Of a slot: deadline, delivery, queue's index, length of the id, the id. `started` stands before it.
_SLOT_BODY = struct.Struct("<dQHH128s")
_SLOT_BYTES = 8 + _SLOT_BODY.size

# The supervisor's page.
_WAKES_AT, _CAUTIOUS_UNTIL, _DRAINING = 0, 8, 16
_PAGE_BYTES = 64
# A board's header.
_IN_FLIGHT, _ALARM, _FETCHED, _FINISHED, _TURNED, _WAITING, _STATE = 0, 8, 16, 24, 32, 40, 48
_HEADER_BYTES = 64


class ChildState(IntEnum):
    """What a child's claim thread is able to do."""

    BUSY = 0  # starting, or between two waits
    WAITING = 1  # a token would wake it
    FULL = 2  # every slot runs a job
    AWAY = 3  # Redis does not answer


@dataclass(frozen=True)
class Running:
    """One handler that runs: when it started and must be over, both monotonic; 0 for no limit."""

    slot: int
    queue: int  # index in the child's list of queues
    job_id: str
    delivery: int
    started: float
    deadline: float


class Memory:
    """The mapping of one worker: `boards` children of `slots` handlers each."""

    def __init__(self, boards: int, slots: int) -> None:
        self.slots = slots
        self._board_bytes = _HEADER_BYTES + slots * _SLOT_BYTES
        self._map = mmap.mmap(-1, _PAGE_BYTES + boards * self._board_bytes)
        # Rung by a child that sets an alarm earlier than the supervisor would wake.
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def board(self, index: int) -> Board:
        """The board of one child; the index is used again after its death."""
        return Board(self, _PAGE_BYTES + index * self._board_bytes)

    def read(self, at: int) -> float:
        """A time."""
        return float(_TIME.unpack_from(self._map, at)[0])

    def write(self, at: int, value: float) -> None:
        """Set a time."""
        _TIME.pack_into(self._map, at, value)

    @property
    def map(self) -> mmap.mmap:
        """The mapping itself, for writes on the hot path."""
        return self._map

    @property
    def cautious_until(self) -> float:
        """Until then no child rescues: leases may have run out while Redis was away."""
        return self.read(_CAUTIOUS_UNTIL)

    @cautious_until.setter
    def cautious_until(self, at: float) -> None:
        self.write(_CAUTIOUS_UNTIL, at)

    def plan_wake(self, at: float) -> None:
        """Say when the supervisor wakes by itself; infinity while it has not decided."""
        self.write(_WAKES_AT, at)

    def arm(self, at: float) -> None:
        """Make sure that the supervisor looks at `at` or before."""
        if at < self.read(_WAKES_AT):
            os.eventfd_write(self.bell, 1)

    def hush(self) -> None:
        """Take the rings."""
        try:
            os.eventfd_read(self.bell)
        except BlockingIOError:
            pass


class Board:
    """One child's part of the memory."""

    def __init__(self, memory: Memory, at: int) -> None:
        self._memory = memory
        self._at = at
        self._map = memory.map
        self._slots_at = at + _HEADER_BYTES
        self.slots = memory.slots

    def clear(self) -> None:
        """Make it new: by the supervisor, before a child gets it."""
        size = _HEADER_BYTES + self.slots * _SLOT_BYTES
        self._map[self._at : self._at + size] = bytes(size)

    # -- written by the child ---------------------------------------------------------

    def start(self, slot: int, queue: int, job_id: str, delivery: int, deadline: float) -> float:
        """Note that a handler starts in `slot`; the time. `deadline` is seconds from now, 0 for none."""
        at = self._slots_at + slot * _SLOT_BYTES
        now = time.monotonic()
        raw = job_id.encode()[:128]
        _SLOT_BODY.pack_into(
            self._map,
            at + 8,
            now + deadline if deadline else 0.0,
            delivery,
            min(queue, 65_535),
            len(raw),
            raw,
        )
        _TIME.pack_into(self._map, at, now)  # last: a slot with a start has its body
        if deadline:
            self._memory.arm(now + deadline)
        return now

    def stop(self, slot: int) -> None:
        """Note that the handler in `slot` is over."""
        _TIME.pack_into(self._map, self._slots_at + slot * _SLOT_BYTES, 0.0)

    def set_alarm(self, at: float) -> None:
        """Say when this child, as keeper, will ask Redis next; 0 for not waiting."""
        _TIME.pack_into(self._map, self._at + _ALARM, at)
        if at:
            self._memory.arm(at)

    def set_in_flight(self, at: float) -> None:
        """Say since when a claim is under way; 0 when its batch is recorded."""
        _TIME.pack_into(self._map, self._at + _IN_FLIGHT, at)

    def fetched(self, now: float) -> None:
        """Redis answered a claim."""
        _TIME.pack_into(self._map, self._at + _FETCHED, now)

    def turned(self, now: float) -> None:
        """The claim thread runs."""
        _TIME.pack_into(self._map, self._at + _TURNED, now)

    def set_state(self, state: ChildState) -> None:
        """Say what this child is able to do."""
        _NUMBER.pack_into(self._map, self._at + _STATE, state)

    def count(self, finished: int, waiting: int) -> None:
        """Jobs finished since the start, and claimed ones that have not started."""
        _NUMBER.pack_into(self._map, self._at + _FINISHED, finished)
        _NUMBER.pack_into(self._map, self._at + _WAITING, waiting)

    @property
    def cautious_until(self) -> float:
        """See Memory.cautious_until."""
        return self._memory.cautious_until

    # -- read by the supervisor -------------------------------------------------------

    def alarm(self) -> float:
        """When the child, as keeper, meant to ask Redis; 0 when it does not wait."""
        return self._memory.read(self._at + _ALARM)

    def in_flight(self) -> float:
        """Since when a claim is under way, or 0."""
        return self._memory.read(self._at + _IN_FLIGHT)

    def last_fetch(self) -> float:
        """When Redis last answered a claim, or 0."""
        return self._memory.read(self._at + _FETCHED)

    def last_turn(self) -> float:
        """When the claim thread last ran, or 0."""
        return self._memory.read(self._at + _TURNED)

    def state(self) -> ChildState:
        """What the child is able to do."""
        return ChildState(_NUMBER.unpack_from(self._map, self._at + _STATE)[0])

    def finished(self) -> int:
        """Jobs finished since the child's start."""
        return int(_NUMBER.unpack_from(self._map, self._at + _FINISHED)[0])

    def waiting(self) -> int:
        """Jobs that were claimed and have not started."""
        return int(_NUMBER.unpack_from(self._map, self._at + _WAITING)[0])

    def running(self) -> list[Running]:
        """The handlers that run now; exact once the child is dead."""
        found = []
        for slot in range(self.slots):
            at = self._slots_at + slot * _SLOT_BYTES
            started = self._memory.read(at)
            if started:
                deadline, delivery, queue, size, raw = _SLOT_BODY.unpack_from(self._map, at + 8)
                if self._memory.read(at) == started:  # else it ended while we read
                    found.append(Running(slot, queue, raw[:size].decode(), delivery, started, deadline))
        return found
