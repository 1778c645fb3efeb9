"""What the processes of a Celery worker's pool run, in memory that they share with their parent.

Made before the pool is forked. It outlives a process that was killed, and one that holds the GIL can
still be read. Times are CLOCK_MONOTONIC seconds; 0 means none. A process takes a slot a handler that
runs at once and gives it back when it ends; those of a dead one are freed by the parent, so that no
other process can write over what it ran.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from dataclasses import dataclass

SLOTS = 1024
_PID = struct.Struct("<Q")
_TIME = struct.Struct("<d")
#: After the pid and the start: deadline, delivery, lengths of queue and id, the two.
_BODY = struct.Struct("<dQHH64s128s")
_STARTED, _BODY_AT = _PID.size, _PID.size + _TIME.size
_BYTES = _BODY_AT + _BODY.size


class BoardFull(Exception):
    """The worker runs more handlers than the board has slots."""


@dataclass(frozen=True)
class OnBoard:
    """One handler that runs: in which process, which job, since when and until when at most; monotonic."""

    slot: int
    pid: int
    queue: str
    job_id: str
    delivery: int
    started: float
    deadline: float


class FleetBoard:
    """The mapping of one Celery worker."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, SLOTS * _BYTES)
        # Locks of fcntl are a process's own, also on a descriptor that a fork inherited.
        self._lock = os.memfd_create("queueops-fleet", os.MFD_CLOEXEC)

    def take_slot(self) -> int:
        """A slot of this process's own. Raises BoardFull."""
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            for slot in range(SLOTS):
                if not self._pid(slot):
                    self._map[slot * _BYTES : (slot + 1) * _BYTES] = bytes(_BYTES)
                    _PID.pack_into(self._map, slot * _BYTES, os.getpid())
                    return slot
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)
        raise BoardFull(f"more than {SLOTS} handlers run in one Celery worker")

    def free_slots(self, pid: int) -> None:
        """Free those of a process that is gone."""
        for slot in range(SLOTS):
            if self._pid(slot) == pid:
                self._map[slot * _BYTES : (slot + 1) * _BYTES] = bytes(_BYTES)

    # -- as worker.running.Runner notes a run -------------------------------------------

    def start(self, slot: int, queue: str, job_id: str, delivery: int, deadline: float) -> float:
        """Note that a handler starts; the time. `deadline` is seconds from now, 0 for none."""
        at, now = slot * _BYTES, time.monotonic()
        raw_queue, raw_id = queue.encode(), job_id.encode()
        until = now + deadline if deadline else 0.0
        _BODY.pack_into(
            self._map, at + _BODY_AT, until, delivery, len(raw_queue), len(raw_id), raw_queue, raw_id
        )
        _TIME.pack_into(self._map, at + _STARTED, now)  # last: a slot with a start has its body
        return now

    def stop(self, slot: int) -> None:
        """Do nothing: the job is this process's until it is settled, which `settled` notes."""

    def settled(self, slot: int) -> None:
        """Note that the job of a slot is nobody's any more."""
        _TIME.pack_into(self._map, slot * _BYTES + _STARTED, 0.0)

    # -- as the parent reads it -----------------------------------------------------------

    def pids(self) -> set[int]:
        """The processes that have a slot."""
        return {pid for slot in range(SLOTS) if (pid := self._pid(slot))}

    def running(self) -> list[OnBoard]:
        """The handlers that run now, and those whose outcome is not settled yet."""
        found = []
        for slot in range(SLOTS):
            at = slot * _BYTES
            pid, started = self._pid(slot), float(_TIME.unpack_from(self._map, at + _STARTED)[0])
            if not pid or not started:
                continue
            deadline, delivery, queue_size, id_size, queue, job_id = _BODY.unpack_from(
                self._map, at + _BODY_AT
            )
            if float(_TIME.unpack_from(self._map, at + _STARTED)[0]) == started:  # else it ended meanwhile
                names = queue[:queue_size].decode(), job_id[:id_size].decode()
                found.append(OnBoard(slot, pid, *names, delivery, started, deadline))
        return found

    def _pid(self, slot: int) -> int:
        return int(_PID.unpack_from(self._map, slot * _BYTES)[0])
