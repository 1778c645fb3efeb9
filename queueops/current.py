"""The job that runs here: what a handler may ask about itself, on a thread or on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from queueops.errors import QueueOpsError
from queueops.job import Delivery

#: Asks Redis about a delivery and keeps its progress ('' for none): 'ok', 'cancelled' or 'lost'.
Look = Callable[[Delivery, str], str]

#: Redis is asked at most so often whether a job is cancelled or lost, and told of its progress. Seconds.
LOOK_EVERY_S = 1.0
PROGRESS_EVERY_S = 0.2


class CurrentJob:
    """What a handler knows of its own job."""

    __slots__ = ("_delivery", "_look", "_looked_at", "_told_at", "_word")

    def __init__(self, delivery: Delivery, look: Look) -> None:
        self._delivery = delivery
        self._look = look
        self._word = "ok"
        self._looked_at = self._told_at = 0.0

    def __repr__(self) -> str:
        return f"<CurrentJob {self.id} of {self.queue}, attempt {self.attempt}>"

    @property
    def id(self) -> str:
        """The job's id, the same for life."""
        return self._delivery.id

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self._delivery.queue

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1; rescues and snoozes are not counted."""
        return self._delivery.attempts + 1

    @property
    def rescues(self) -> int:
        """How often a process was lost while it ran this job."""
        return self._delivery.rescues

    @property
    def delivery(self) -> int:
        """The fencing token: a later delivery of the same job has a higher number."""
        return self._delivery.delivery

    @property
    def idempotency_key(self) -> str:
        """What to send to an API as its idempotency key: the same through every retry and rescue."""
        return self._delivery.idempotency_key

    @property
    def cancelled(self) -> bool:
        """Whether a person asked this job to stop. Asks Redis at most once a second."""
        self._ask()
        return self._word == "cancelled"

    @property
    def lost(self) -> bool:
        """Whether this delivery no longer owns the job, so that its result will be refused."""
        self._ask()
        return self._word == "lost"

    def progress(self, n: int, of: int) -> None:
        """Tell how far the job is. At most five a second are kept, and always the last (n >= of).

        Raises ValueError on a negative number.
        """
        n, of = int(n), int(of)
        if n < 0 or of < 0:
            raise ValueError(f"progress counts from 0, got {n} of {of}")
        now = time.monotonic()
        if n >= of or now - self._told_at >= PROGRESS_EVERY_S:
            self._told_at = self._looked_at = now
            self._start_look(f"{n}/{of}")

    def _ask(self) -> None:
        now = time.monotonic()
        if self._word != "lost" and now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self._start_look("")

    def _start_look(self, progress: str) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._do_look(progress)
        else:
            # The event loop waits for nothing: an async handler sees the answer at its next question.
            loop.run_in_executor(None, self._do_look, progress)

    def _do_look(self, progress: str) -> None:
        try:
            self._word = self._look(self._delivery, progress)
        except QueueOpsError:
            pass  # without Redis nobody can tell; what was known last still stands


_current: ContextVar[CurrentJob | None] = ContextVar("queueops_current_job", default=None)


def current_job() -> CurrentJob:
    """The job that the caller runs in. Raises RuntimeError outside of a handler."""
    job = _current.get()
    if job is None:
        raise RuntimeError("current_job() was called outside of a handler that a worker runs")
    return job


def set_current(job: CurrentJob | None) -> None:
    """Name the job that this thread or asyncio task runs from now on."""
    _current.set(job)


@contextmanager
def running(delivery: Delivery, look: Look = lambda _delivery, _progress: "ok") -> Iterator[CurrentJob]:
    """Be the handler of `delivery` inside the block: for executors, and for tests of handlers."""
    job = CurrentJob(delivery, look)
    token = _current.set(job)
    try:
        yield job
    finally:
        _current.reset(token)
