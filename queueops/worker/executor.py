"""Where handlers run. The child claims and settles; an executor runs what it is given.

`ThreadExecutor` runs plain handlers on threads and `async def` ones on one event loop, `slots` at
once in all. A claimed job that finds no slot waits here, and the thread whose job ends takes it
without waking anybody: that, and no lock of its own, is what makes short jobs cheap. Every shared
structure is a deque or a SimpleQueue, whose operations are atomic.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Protocol

from queueops.store import Outcome
from queueops.worker.running import Runner, Task

#: `rings_below` of a child that is not asleep.
NEVER = -1
#: ... and of one that wants to know of every job that ends.
ALWAYS = 1 << 30


class Executor(Protocol):
    """What a child needs of the place where handlers run."""

    #: What ended and was not settled yet; the child takes it from the left.
    finished: deque[tuple[Task, Outcome]]
    #: The child sleeps: ring it when a job ends and no more than so many wait.
    rings_below: int

    @property
    def free(self) -> int:
        """How many more jobs would start at once."""

    @property
    def waiting(self) -> int:
        """How many have been submitted and have not started."""

    @property
    def running(self) -> int:
        """How many run now."""

    def submit(self, tasks: Iterable[Task]) -> None:
        """Take jobs; never blocks."""

    def take_back(self) -> list[Task]:
        """Give up every job that has not started; it will not start any more."""


class ThreadExecutor:
    """Threads for plain handlers and an event loop for async ones, both made when first needed."""

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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = contextvars.copy_context()
        self._alive: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references

    @property
    def free(self) -> int:
        """How many more jobs would start at once."""
        return len(self._free)

    @property
    def waiting(self) -> int:
        """How many have been submitted and have not started."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many run now."""
        return self._slots - len(self._free)

    def submit(self, tasks: Iterable[Task]) -> None:
        """Take jobs; never blocks. Called by one thread only."""
        self._waiting.extend(tasks)
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
        """Start waiting jobs on free slots. Any thread may do it, two at once too."""
        while self._waiting:
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
            self._event_loop().call_soon_threadsafe(self._start_async, task, slot)
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
        while True:
            task: Task | None
            task, slot = self._todo.get()
            while task is not None:
                self._done(task, self._runner.run(task, slot))
                task = self._next(slot)
                if task is not None and task.is_async:
                    self._start(task, slot)
                    break
            self._idle.append(None)

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

    def _start_async(self, task: Task, slot: int) -> None:
        # A task each, so that what one handler sets in its context does not reach the next.
        running = self._event_loop().create_task(self._work_async(task, slot), context=self._context.copy())
        self._alive.add(running)
        running.add_done_callback(self._alive.discard)

    async def _work_async(self, task: Task, slot: int) -> None:
        self._done(task, await self._runner.run_async(task, slot))
        following = self._next(slot)
        if following is None:
            return
        if following.is_async:
            self._start_async(following, slot)
        else:
            self._start(following, slot)
