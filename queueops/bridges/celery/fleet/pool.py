"""In a process of a Celery worker's pool: take a job over, run its handler, settle it, say that it ended."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from asgiref.sync import async_to_sync

from queueops.bridges.celery.fleet.board import FleetBoard
from queueops.bridges.celery.fleet.presence import Presence
from queueops.conf import config
from queueops.connection import Connection
from queueops.errors import StoreUnavailable
from queueops.job import Delivery
from queueops.store import Outcome
from queueops.worker.databases import watch_connections
from queueops.worker.intake import Intake
from queueops.worker.rules import Rules
from queueops.worker.running import Runner, Task
from queueops.worker.start import make_store

logger = logging.getLogger("queueops.fleet")

#: A message whose job can't be taken over for so long is dropped: who handed it over has taken it back.
GIVE_UP_S = 20.0
#: Between two tries to reach Redis, at most, seconds.
LAST_PAUSE_S = 2.0

_T = TypeVar("_T")


class PoolProcess:
    """Runs jobs in this process: one at a time in a forked pool, several on the threads of another."""

    def __init__(self, worker: str, board: FleetBoard) -> None:
        self.child = f"{worker}/{os.getpid()}"
        self._board = board
        self._store = make_store(Connection())
        self._presence = Presence(self._store.connection)
        self._rules = Rules(self._store.connection)
        self._runner = Runner(board, self._rules, self._look)
        self._intake = Intake()
        self._slots: deque[int] = deque()  # of the board, not in use: one for each handler that ran at once
        self._registered: dict[str, float] = {}  # queue -> when, monotonic
        self._versions: dict[str, int] = {}  # of the queues' settings
        self._renew_s = config().lease_s / 3
        watch_connections()

    def run(self, queue: str, hand: str, job_id: str, delivery: int) -> str:
        """Run one job that `hand` handed over; what became of it, in a word."""
        try:
            slot = self._slots.pop()
        except IndexError:
            slot = self._board.take_slot()
        try:
            return self._run(slot, queue, hand, job_id, delivery)
        finally:
            self._board.settled(slot)
            self._slots.append(slot)

    def _run(self, slot: int, queue: str, hand: str, job_id: str, delivery: int) -> str:
        job, word = self._take_over(slot, queue, hand, job_id, delivery)
        if job is None:
            # The usual end of a second copy of a message, or of one that came late.
            logger.info("%s of %s: delivery %d is not to be run here: %s", job_id, queue, delivery, word)
            return word
        outcome = self._outcome(slot, job, is_cancelled=word == "cancelled")
        answer = self._insist(lambda: self._store.settle(queue, self.child, [outcome]))[0]
        self._board.settled(slot)
        if answer == "lost":
            logger.warning(
                "%s of %s: delivery %d was no longer this process's, its %s was refused",
                job_id, queue, delivery, outcome.verb,
            )  # fmt: skip
        self._tell(hand, f"{queue} {job_id} {delivery}")
        return outcome.verb

    def _look(self, delivery: Delivery, progress: str) -> str:
        return self._store.look(delivery.queue, self.child, delivery.id, delivery.delivery, progress)

    # -- before -----------------------------------------------------------------------

    def _take_over(
        self, slot: int, queue: str, hand: str, job_id: str, delivery: int
    ) -> tuple[Delivery | None, str]:
        token = secrets.token_hex(8)

        def take() -> tuple[str, Delivery | None]:
            self._register(queue)
            # Noted first: from the script on the job is this process's, whatever happens to it.
            self._board.start(slot, queue, job_id, delivery, 0.0)
            word, job = self._store.take_over(
                queue, hand, self.child, token=token, job_id=job_id, delivery=delivery
            )
            if word == "unregistered":
                self._registered.pop(queue, None)
                raise StoreUnavailable("the lease of this process is over")
            return word, job

        try:
            word, job = self._insist(take, give_up_s=GIVE_UP_S)
        except StoreUnavailable as error:
            return None, str(error)
        return job, word

    def _register(self, queue: str) -> None:
        """Have a lease in the queue; the parent renews it while a job runs."""
        now = time.monotonic()
        if now - self._registered.get(queue, -self._renew_s) < self._renew_s:
            return
        version = self._store.renew(queue, [self.child]).version
        self._registered[queue] = now
        if self._versions.get(queue) != version:
            with self._store.connection.translating():
                self._rules.load(queue)
            self._versions[queue] = version

    # -- the run ------------------------------------------------------------------------

    def _outcome(self, slot: int, job: Delivery, *, is_cancelled: bool) -> Outcome:
        if is_cancelled:
            return Outcome.discard(job, reason="cancelled before it started")
        read = self._intake.read(job)
        if isinstance(read, Outcome):
            return read
        task = Task(job, *read, None, job.queue)
        if task.is_async:
            return async_to_sync(self._runner.run_async)(task, slot)
        return self._runner.run(task, slot)

    # -- after --------------------------------------------------------------------------

    def _insist(self, what: Callable[[], _T], *, give_up_s: float = float("inf")) -> _T:
        """Do it, again while Redis is away: a job that ended keeps its result until it is settled."""
        give_up_at = time.monotonic() + give_up_s
        pause_s, is_told = 0.02, False
        while True:
            try:
                return what()
            except StoreUnavailable as error:
                if time.monotonic() >= give_up_at:
                    raise
                if not is_told and pause_s > 0.1:
                    is_told = True
                    logger.warning("%s: Redis is away, what ended waits: %s", self.child, error)
            time.sleep(pause_s)
            pause_s = min(LAST_PAUSE_S, pause_s * 2)

    def _tell(self, hand: str, what: str) -> None:
        """Say that a job ended; a word that is lost costs a look."""
        try:
            self._presence.tell(hand, what)
        except StoreUnavailable as error:
            logger.info("%s could not tell %s that a job ended: %s", self.child, hand, error)
