"""Housekeeping: what must be done by somebody, in one place at a time.

A process of each worker stands by; the one that holds the lease runs the duties, each on a thread of
its own, so that a slow mirror does not keep an operation waiting. Each duty is safe when two run it:
the lease saves work, correctness does not rest on it.
"""

from __future__ import annotations

import logging
import random
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import close_old_connections, connections

from queueops import holding, keys, mirror, operations, outbox, publishing, retention
from queueops.errors import QueueOpsError, StoreUnavailable
from queueops.inspector import Inspector
from queueops.schedules.scheduler import Scheduler
from queueops.store import Store
from queueops.worker.control import Control

logger = logging.getLogger("queueops.worker")

ROLE = "housekeeping"
#: How long the lease stands without its holder, seconds. It is renewed three times as often.
TTL_S = 15.0
#: A duty that fails waits, from the first to the last, seconds.
FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 30.0
#: How long a stop waits for the duties, seconds.
STOP_S = 5.0
#: A worker without a heartbeat for so long is forgotten here, and stands in the record only. Seconds.
FORGOTTEN_S = 3600
#: Passes of one queue's sweep in a row: so many entries are looked at, and then it is another's turn.
SWEEP_PASSES = 20


@dataclass(frozen=True)
class Duty:
    """Something to do again and again. `run_once` answers how much it did: then it is called again soon."""

    name: str
    run_once: Callable[[Store], int]
    every_s: float
    #: Done once more when this worker stops: what its last jobs did is recorded then.
    is_last: bool = False


def prune(store: Store) -> int:
    """Delete discarded jobs whose keep time is over, a batch a queue."""
    return sum(store.prune(queue) for queue in Inspector(store.connection).queues())


def sweep(store: Store) -> int:
    """Adopt what no lease covers, in every queue."""
    found = 0
    for queue in Inspector(store.connection).queues():
        for _ in range(SWEEP_PASSES):
            adopted, dropped, _, is_through = store.sweep(queue)
            if adopted or dropped:
                logger.warning(
                    "queue %s: the sweep adopted %d jobs, dropped %d entries", queue, adopted, dropped
                )
            found += adopted
            if is_through:
                break
    return found


def forget_workers(store: Store) -> int:
    """Take workers off the list that have given no sign for an hour: killed ones don't do it themselves.

    One that was only cut off is on it again with its next heartbeat.
    """
    client = store.connection.client
    with store.connection.translating():
        over = Inspector(store.connection).now_ms() - FORGOTTEN_S * 1000
        names: Any = client.zrangebyscore(keys.WORKERS, "-inf", over, start=0, num=200)
        if names:
            client.zrem(keys.WORKERS, *names)
            client.hdel(keys.WORKER_INFO, *names)
    return len(names)


_duties: list[Duty] = []


def register(name: str, run_once: Callable[[Store], int], every_s: float, *, is_last: bool = False) -> None:
    """Add a duty to every housekeeper that starts from now on; the same name replaces it."""
    _duties[:] = [duty for duty in _duties if duty.name != name]
    _duties.append(Duty(name, run_once, every_s, is_last))


register("prune", prune, 5.0)
register("sweep", sweep, 5.0)
register("forget_workers", forget_workers, 60.0)
register("mirror", mirror.run_once, 0.2, is_last=True)
register("workers", mirror.record_workers, 5.0)
register("outbox", outbox.relay_once, 1.0)
register("publishing", publishing.run_once, 2.0)
register("holds", holding.run_once, 2.0)
register("retention", retention.run_once, 10.0)
register("operations", lambda store: operations.run_once(conn=store.connection), 0.5)


class Housekeeper:
    """The process: takes the lease, runs the duties while it holds it, gives it up when told to stop."""

    def __init__(
        self,
        name: str,
        control: Control,
        store: Store,
        duties: Sequence[Duty] | None = None,
        *,
        with_schedules: bool = True,
    ) -> None:
        self._name = name
        self._control = control
        self._store = store
        self._duties = list(_duties if duties is None else duties)
        self._with_schedules = with_schedules
        self._stop = threading.Event()
        self._is_leader = False
        self._away = False
        self.term = 0

    def run(self) -> None:
        """Serve until told to stop."""
        threads = [
            threading.Thread(target=self._serve, args=(duty,), name=duty.name, daemon=True)
            for duty in self._duties
        ]
        if self._with_schedules:
            # It has a lease of its own: slots shall not wait for this one.
            scheduler = Scheduler(self._store, name=self._name)
            threads.append(
                threading.Thread(target=scheduler.run, args=(self._stop,), name="schedules", daemon=True)
            )
        for thread in threads:
            thread.start()
        while not self._stop.is_set():
            self.run_once()
            if self._is_told_to_stop(TTL_S / 3 * (0.8 + random.random() * 0.4)):
                self._stop.set()
        deadline = time.monotonic() + STOP_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._is_leader:
            try:
                self._store.give_lease(ROLE, self._name)
            except QueueOpsError:
                pass  # it runs out by itself

    def run_once(self) -> int:
        """Take or keep the lease; its term, 0 when another holds it."""
        try:
            self.term = self._store.take_lease(ROLE, self._name, TTL_S)
        except QueueOpsError as error:
            if not self._away:
                logger.warning("%s: housekeeping waits: %s", self._name, error)
            self._away, self.term = True, 0
        else:
            self._away = False
        if bool(self.term) != self._is_leader:
            self._is_leader = bool(self.term)
            logger.info("%s: %s housekeeping", self._name, "begins" if self._is_leader else "ends")
        return self.term

    def _is_told_to_stop(self, timeout: float) -> bool:
        if not select.select([self._control], [], [], timeout)[0]:
            return False
        message = self._control.receive()
        return message is None or "stop" in message or "leave" in message

    def _serve(self, duty: Duty) -> None:
        pause_s = 0.0
        try:
            while not self._stop.is_set():
                wait_s = duty.every_s * (0.9 + random.random() / 5)
                if self._is_leader:
                    try:
                        done = self._do(duty)
                    except Exception as error:
                        if not pause_s:
                            self._say(duty, error)
                        pause_s = min(LAST_PAUSE_S, pause_s * 2 or FIRST_PAUSE_S)
                        wait_s = max(wait_s, pause_s * (0.75 + random.random() / 2))
                    else:
                        if pause_s:
                            logger.warning("housekeeping: %s goes on", duty.name)
                        pause_s = 0.0
                        if done:
                            wait_s = min(wait_s, 0.05)
                self._stop.wait(wait_s)
            if duty.is_last and self._is_leader:
                try:
                    self._do(duty)
                except Exception as error:  # the next housekeeper does it
                    self._say(duty, error)
        finally:
            connections.close_all()

    def _do(self, duty: Duty) -> int:
        close_old_connections()
        try:
            return duty.run_once(self._store)
        finally:
            close_old_connections()

    def _say(self, duty: Duty, error: Exception) -> None:
        if isinstance(error, StoreUnavailable):
            logger.warning("housekeeping: %s waits for Redis: %s", duty.name, error)
        else:
            logger.error("housekeeping: %s failed, and is tried again", duty.name, exc_info=error)
