"""Where handlers run. The child claims and settles; an executor runs what it is given.

`ThreadExecutor` runs plain handlers on threads and `async def` ones on one event loop, `slots` at
once in all. A claimed job that finds no slot waits here, and the thread whose job ends takes it
without waking anybody: that, and no lock of its own, is what makes short jobs cheap. Every shared
structure is a deque or a SimpleQueue, whose operations are atomic.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import NoReturn, Protocol

from queueops.connection import Connection
from queueops.store import Outcome
from queueops.worker.control import Order
from queueops.worker.leaving import leave
from queueops.worker.running import Runner, Task

logger = logging.getLogger("queueops.worker")

#: `rings_below` of a child that is not asleep.
NEVER = -1
#: ... and of one that wants to know of every job that ends.
ALWAYS = 1 << 30

#: Jobs that take less than this compute, and wait for nothing. Seconds.
BRIEF_S = 0.000_15
#: A longer one counts as so long: it may only have waited for the GIL.
LONGEST_S = 0.001


class Executor(Protocol):
    """What a child needs of the place where handlers run."""

    #: What ended and was not settled yet; the child takes it from the left.
    finished: deque[tuple[Task, Outcome]]
    #: The child sleeps: ring it when a job ends and no more than so many wait.
    rings_below: int
    #: Whether a job counts as started when it is claimed for a free slot.
    starts_at_claim: bool

    @property
    def free(self) -> int:
        """How many slots no job runs in or waits for."""

    @property
    def waiting(self) -> int:
        """How many have been submitted and have not started."""

    @property
    def behind(self) -> int:
        """How many of those wait though every slot is taken."""

    @property
    def running(self) -> int:
        """How many run now."""

    def submit(self, tasks: Iterable[Task]) -> None:
        """Take jobs; never blocks."""

    def spread(self) -> None:
        """Use every slot for what waits: nothing ended for a while."""

    def take_back(self) -> list[Task]:
        """Give up every job that has not started; it will not start any more."""


class ThreadExecutor:
    """Threads for plain handlers and an event loop for async ones, both made when first needed."""

    starts_at_claim = True

    def __init__(self, slots: int, runner: Runner, ring: Callable[[], None]) -> None:
        self.finished: deque[tuple[Task, Outcome]] = deque()
        self.rings_below = NEVER
        self._slots = slots
        self._runner = runner
        self._ring = ring
        self._free = deque(range(slots))
        self._waiting: deque[Task] = deque()
        self._todo: SimpleQueue[tuple[Task, int]] = SimpleQueue()
        self._idle: deque[None] = deque()  # one entry for each thread that waits in _todo.get
        self._threads = 0
        self._typical_s = LONGEST_S  # what jobs take of late; threads may overwrite each other's sums
        self._loop: asyncio.AbstractEventLoop | None = None
        self._for_loop: deque[tuple[Task, int]] = deque()
        self._loop_is_told = False
        self._context = contextvars.copy_context()
        self._alive: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references

    @property
    def free(self) -> int:
        """How many slots no job runs in or waits for."""
        return max(0, len(self._free) - len(self._waiting))

    @property
    def waiting(self) -> int:
        """How many have been submitted and have not started."""
        return len(self._waiting)

    @property
    def behind(self) -> int:
        """How many of those wait though every slot is taken."""
        return max(0, len(self._waiting) - len(self._free))

    @property
    def running(self) -> int:
        """How many run now."""
        return self._slots - len(self._free)

    def submit(self, tasks: Iterable[Task]) -> None:
        """Take jobs; never blocks. Called by one thread only."""
        self._waiting.extend(tasks)
        self._fill()

    def spread(self) -> None:
        """Use every slot for what waits: nothing ended for a while, so that jobs are not brief any more."""
        self._typical_s = LONGEST_S
        self._fill()

    def take_back(self) -> list[Task]:
        """Give up every job that has not started."""
        tasks = []
        while self._waiting:
            try:
                tasks.append(self._waiting.popleft())
            except IndexError:  # a thread was faster
                break
        return tasks

    def _fill(self) -> None:
        """Start waiting jobs on free slots. Any thread may do it, two at once too.

        Jobs that last some microseconds stay with one thread: more would only take the GIL from each
        other, and from the claim thread.
        """
        while self._waiting:
            if self._typical_s < BRIEF_S and self.running and not self._waiting[0].is_async:
                return
            try:
                slot = self._free.pop()
            except IndexError:
                return
            try:
                task = self._waiting.popleft()
            except IndexError:
                self._free.append(slot)  # and look again: another may have come before this line
            else:
                self._start(task, slot)

    def _start(self, task: Task, slot: int) -> None:
        if task.is_async:
            self._for_loop.append((task, slot))
            if not self._loop_is_told:
                self._loop_is_told = True  # one wake-up for all that come before it
                self._event_loop().call_soon_threadsafe(self._start_for_loop)
            return
        try:
            self._idle.pop()
        except IndexError:
            self._threads += 1
            threading.Thread(target=self._work, name=f"job-{self._threads}", daemon=True).start()
        self._todo.put((task, slot))

    def _next(self, slot: int) -> Task | None:
        """The next waiting job for a slot that came free; None when the slot was given up."""
        try:
            return self._waiting.popleft()
        except IndexError:
            self._free.append(slot)
            if self._waiting:  # submitted between the two lines, when no slot was free
                self._fill()
            return None

    def _done(self, task: Task, outcome: Outcome) -> None:
        self.finished.append((task, outcome))
        if len(self._waiting) <= self.rings_below:
            self.rings_below = NEVER
            self._ring()

    def _work(self) -> None:
        try:
            while True:
                task: Task | None
                task, slot = self._todo.get()
                while task is not None:
                    began = time.monotonic()
                    outcome = self._runner.run(task, slot)
                    took = min(LONGEST_S, time.monotonic() - began)
                    self._typical_s += (took - self._typical_s) / 16
                    self._done(task, outcome)
                    task = self._next(slot)
                    if task is not None and task.is_async:
                        self._start(task, slot)
                        break
                self._idle.append(None)
        except BaseException:
            _give_up()

    # -- the event loop -----------------------------------------------------------------

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            threading.Thread(target=self._run_loop, args=(loop,), name="job-loop", daemon=True).start()
            self._loop = loop
        return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    def _start_for_loop(self) -> None:
        self._loop_is_told = False  # before the first is taken: none is left lying
        while self._for_loop:
            self._start_async(*self._for_loop.popleft())

    def _start_async(self, task: Task, slot: int) -> None:
        # A task each, so that what one handler sets in its context does not reach the next.
        running = self._event_loop().create_task(self._work_async(task, slot), context=self._context.copy())
        self._alive.add(running)
        running.add_done_callback(self._alive.discard)

    async def _work_async(self, task: Task, slot: int) -> None:
        try:
            self._done(task, await self._runner.run_async(task, slot))
            following = self._next(slot)
            if following is None:
                return
            if following.is_async:
                self._start_async(following, slot)
            else:
                self._start(following, slot)
        except BaseException:
            _give_up()


def _give_up() -> NoReturn:
    """End the process: a runner that raises is a fault of ours, and its slot would be lost for good."""
    logger.exception("a child ends: an error outside of any handler")
    leave(1)


def make_executor(
    order: Order, slots: int, runner: Runner, connection: Connection, ring: Callable[[], None]
) -> Executor:
    """The executor that a child was ordered to use."""
    if order.executor == "celery":
        from queueops.bridges.celery.fleet.executor import CeleryExecutor  # Celery, where it is asked for

        return CeleryExecutor(order.child, connection, ring, is_probation=order.is_probation)
    return ThreadExecutor(slots, runner, ring)
