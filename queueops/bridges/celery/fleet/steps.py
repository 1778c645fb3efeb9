"""In a Celery worker's parent process: keep the leases of its pool's jobs, give back what dies, join in."""

from __future__ import annotations

import logging
import os
import resource
import select
import signal
import socket
import threading
import time
from collections import defaultdict
from typing import Any

from celery import bootsteps
from celery.signals import worker_shutdown
from celery.worker import state
from redis.exceptions import RedisError

from queueops import __version__, keys
from queueops.bridges.celery.fleet import WRAPPER, Here, here, own_queue
from queueops.bridges.celery.fleet.board import FleetBoard, OnBoard
from queueops.bridges.celery.fleet.presence import SAY_EVERY_S, Member, Presence
from queueops.conf import config
from queueops.connection import Connection
from queueops.errors import QueueOpsError, StoreUnavailable
from queueops.handlers import get_handler, load_handlers
from queueops.policies import RetryPolicy
from queueops.worker.board import Running
from queueops.worker.leases import Grave, Leases
from queueops.worker.nursery import how_it_ended
from queueops.worker.start import make_store

logger = logging.getLogger("queueops.fleet")

#: How often the processes are looked at; their end is told at once, whatever this is.
LOOK_EVERY_S = 0.1
#: Between two tries to reach Redis, at most. Seconds.
LAST_PAUSE_S = 2.0
#: How long it takes the children that hand jobs over to hear of a change. Seconds.
HEARD_S = 0.02


class Keeper:
    """One thread beside Celery's own loop, which it never blocks."""

    def __init__(self, worker: Any, fleet: Here) -> None:
        self._celery: Any = worker
        self._fleet = fleet
        self._board: FleetBoard = fleet.board
        self._store = make_store(Connection())
        self._leases = Leases(self._store, fleet.worker, declared=_declared)
        self._presence = Presence(self._store.connection)
        self._lease_s = config().lease_s
        self._pidfds: dict[int, int] = {}  # pid -> its descriptor; readable when it has ended
        self._processes: dict[int, Any] = {}  # pid -> the pool's own word for it
        self._graves: list[Grave] = []
        self._killed: set[int] = set()  # pids over a hard limit
        self._gone: set[int] = set()  # pids of the pool that have ended; Celery notices seconds later
        self._told_late: set[str] = set()
        self._said = ""
        self._slots_said = 0
        self._say_at = self._renew_at = self._retry_at = 0.0
        self._pause_s = 0.05
        self._away_since = self._fetched_at = 0.0
        self._busy: dict[str, int] = {}
        #: Its own queue is consumed: it may be sent jobs.
        self.is_consuming = False
        self._is_drained = False
        self._is_ending = threading.Event()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="queueops-leases", daemon=True)

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    def leave_fleet(self) -> None:
        """Take no more jobs; those that run keep their leases."""
        self.is_consuming = False
        os.eventfd_write(self._wake, 1)

    def end(self, timeout_s: float = 2.0) -> None:
        """Say goodbye; the pool has ended."""
        self.is_consuming = False
        self._is_ending.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join(timeout_s)

    # -- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            is_last = self._is_ending.is_set()
            try:
                self._look_at_processes()
                self._talk()
            except Exception:
                logger.exception("%s: an error that was not foreseen; it goes on", self._fleet.worker)
            if is_last:
                return
            self._wait()

    def _wait(self) -> None:
        ready = select.select([self._wake, *self._pidfds.values()], [], [], LOOK_EVERY_S)[0]
        if self._wake in ready:
            try:
                os.eventfd_read(self._wake)
            except BlockingIOError:
                pass

    def _look_at_processes(self) -> None:
        own, pool = os.getpid(), self._pool()
        self._gone &= pool.keys()
        for pid in (self._board.pids() | pool.keys()) - self._pidfds.keys() - self._gone - {own}:
            try:
                self._pidfds[pid] = os.pidfd_open(pid)
                self._processes[pid] = pool.get(pid)
            except ProcessLookupError:
                self._ended(pid, "its process was lost")
        if self._pidfds:
            ended = set(select.select(self._pidfds.values(), [], [], 0)[0])
            for pid, fd in [each for each in self._pidfds.items() if each[1] in ended]:
                why = how_a_process_ended(fd, self._processes.pop(pid))
                os.close(self._pidfds.pop(pid))
                self._ended(pid, why)
        now = time.monotonic()
        for each in self._board.running():
            due = self._leases.stops.of(each.queue, each.job_id, each.delivery)
            if due and due.at <= now and not self._away_since:
                self._end(each, own, f"{due.stop.by or 'a person'} wants it stopped")
            elif each.deadline and each.deadline <= now:
                self._end(each, own, "past its hard limit")

    def _end(self, each: OnBoard, own: int, why: str) -> None:
        if each.pid == own:  # threads of this process: nothing less than the whole worker could be ended
            if each.job_id not in self._told_late:
                self._told_late.add(each.job_id)
                what = f"{why}; only a pool of processes can end it"
                logger.error("%s of %s: %s", each.job_id, each.queue, what)
        elif each.pid not in self._killed:
            self._killed.add(each.pid)
            what = f"is ended, {why}"
            logger.error("process %d of %s %s: %s", each.pid, each.queue, what, each.job_id)
            try:
                os.kill(each.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _ended(self, pid: int, why: str) -> None:
        """Plan to give back what a process held."""
        self._gone.add(pid)
        now = time.monotonic()
        grave = Grave(f"{self._fleet.worker}/{pid}", why, [])
        for each in self._board.running():
            if each.pid != pid:
                continue
            due = self._leases.stops.of(each.queue, each.job_id, each.delivery)
            here = Running(each.slot, 0, each.job_id, each.delivery, each.started, each.deadline)
            if due and due.at <= now and pid in self._killed:
                grave.stopped.setdefault(each.queue, []).append((here, due.stop))
            elif each.deadline and each.deadline <= now:
                grave.late.setdefault(each.queue, []).append(here)
            else:
                grave.running.setdefault(each.queue, []).append(each.job_id)
        self._board.free_slots(pid)
        self._killed.discard(pid)
        self._leases.stops.forget(grave.child)
        grave.queues = sorted({*grave.running, *grave.late, *grave.stopped})
        if grave.queues:
            ran = ", ".join(job_id for ids in grave.running.values() for job_id in ids)
            logger.error("%s ended (%s); it ran: %s", grave.child, why, ran or "what was over its limit")
            self._graves.append(grave)

    # -- Redis ------------------------------------------------------------------------------

    def _talk(self) -> None:
        now = time.monotonic()
        if now < self._retry_at:
            return
        try:
            # First, so that what comes back is not sent to the process that has just ended.
            if self._say(now) and self._graves:
                time.sleep(HEARD_S)
            while self._graves:
                self._leases.bury(self._graves[0])
                self._graves.pop(0)
            if now >= self._renew_at or self._away_since:
                self._renew()
                self._renew_at = now + self._lease_s / 3
        except StoreUnavailable as error:
            if not self._away_since:
                self._away_since = now
                self._pause_s = 0.05
                logger.warning("%s: Redis is away: %s", self._fleet.worker, error)
            self._retry_at = now + self._pause_s
            self._pause_s = min(LAST_PAUSE_S, self._pause_s * 2)
            return
        except (QueueOpsError, RedisError) as error:
            logger.error("%s: %s", self._fleet.worker, error)
            self._retry_at = now + 1
            return
        if self._away_since:
            logger.warning("%s: Redis is back after %.1f s", self._fleet.worker, now - self._away_since)
            self._away_since = 0.0

    def _renew(self) -> None:
        """Renew the leases of the processes that run jobs, then say that this worker lives."""
        by_queue: dict[str, set[str]] = defaultdict(set)
        for each in self._board.running():
            by_queue[each.queue].add(f"{self._fleet.worker}/{each.pid}")
        for queue, children in by_queue.items():
            self._leases.renew([queue], sorted(children))
        self._fetched_at = time.monotonic()
        self._is_drained = self._leases.beat(self._about())

    def _say(self, now: float) -> bool:
        """Say how many jobs are welcome, when that changed, and again before it is forgotten; whether the
        children that hand jobs over were told to look at once."""
        if not self.is_consuming or self._is_drained or self._is_ending.is_set():
            was_there, self._said, self._slots_said = bool(self._said), "", 0
            if was_there:
                self._presence.leave(keys.FLEET, self._celery.hostname)
                self._presence.call_hands()
            if self._is_ending.is_set():
                self._leases.leave()
            return was_there
        slots = self._slots()
        member = Member(self._celery.hostname, own_queue(self._celery.hostname).name, slots, self._taken())
        said = member.to_json()
        if said != self._said or now >= self._say_at:
            self._presence.say(keys.FLEET, member.name, said)
            self._said, self._say_at = said, now + SAY_EVERY_S
        if slots == self._slots_said:
            return False
        self._slots_said = slots
        self._presence.call_hands()
        return True

    def _pool(self) -> dict[int, Any]:
        """The processes by pid of a forked pool; empty for a pool of threads."""
        try:
            return {process.pid: process for process in list(self._celery.pool._pool._pool) if process.pid}
        except AttributeError:
            return {}

    def _slots(self) -> int:
        """How many handlers can run at once. A message for a process that just died would be lost."""
        if pool := self._pool():
            return len(pool.keys() - self._gone)
        pool = self._celery.pool
        return int(getattr(pool, "num_processes", None) or getattr(pool, "limit", None) or 1)

    def _taken(self) -> dict[str, int]:
        """What the worker has taken and not finished, by who handed it over; '' is Celery's own."""
        busy: dict[str, int] = defaultdict(int)
        try:
            for request in list(state.reserved_requests):
                # Its name is the handler's, for people; its type is what it is.
                busy[str(request.reply_to or "") if request.type == WRAPPER else ""] += 1
        except RuntimeError:  # changed while it was read: next time
            return self._busy
        self._busy = dict(busy)
        return self._busy

    def _about(self) -> dict[str, object]:
        """The same that a worker of runworkers says about itself."""
        running: dict[int, int] = defaultdict(int)
        for each in self._board.running():
            running[each.pid] += 1
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": __version__,
            "queues": "all",
            "processes": self._slots(),
            "concurrency": 1,
            "executor": "celery",
            "name": self._celery.hostname,
            "children": [
                {"name": f"{self._fleet.worker}/{pid}", "pid": pid, "finished": 0, "running": count}
                for pid, count in sorted(running.items())
            ],
            "fetched_s_ago": time.monotonic() - self._fetched_at,
            "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "draining": self._is_drained or not self.is_consuming,
        }


def _declared(handler: str) -> str | RetryPolicy | None:
    found = get_handler(handler)
    return found.policy if found is not None else None


def how_a_process_ended(pidfd: int, process: Any) -> str:
    """How a process of the pool ended, without taking its status from the pool, whose child it is.

    `process` is the pool's object for it, or None.
    """
    try:
        found = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # the pool was faster, and knows
        code = getattr(process, "exitcode", None)
    else:
        killed = found is not None and found.si_code != os.CLD_EXITED
        code = None if found is None else -found.si_status if killed else found.si_status
    if code is None:
        return "its process was lost"
    return f"exit {code}" if code >= 0 else how_it_ended(-code)[0]


class LeaseStep(bootsteps.StartStopStep):
    """Runs the Keeper from before the first job until after the last."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **_: Any) -> None:
        worker.queueops = None
        super().__init__(worker)
        try:
            # Before the pool is forked: each process would load them again, and one that is forked while a
            # thread of this one holds the lock of the loading would wait for ever.
            load_handlers()
            worker.queueops = Keeper(worker, here())
        except Exception as error:  # its own Celery tasks must run, whatever is wrong with ours
            logger.error("this Celery worker runs no jobs of QueueOps: %s", error)

    def start(self, worker: Any) -> None:
        """Celery calls it when the pool is up."""
        if worker.queueops is not None:
            worker.queueops.begin()

    def close(self, worker: Any) -> None:
        """... when it begins to stop: what runs may finish."""
        if worker.queueops is not None:
            worker.queueops.leave_fleet()

    def stop(self, worker: Any) -> None:
        """Do nothing yet: Celery waits for the pool after this."""

    def terminate(self, worker: Any) -> None:
        """... when it ends at once: the jobs of the pool's processes come back as these die."""


@worker_shutdown.connect(weak=False, dispatch_uid="queueops.fleet.end")
def _end(sender: Any, **_: Any) -> None:
    """The pool has ended."""
    if getattr(sender, "queueops", None) is not None:
        sender.queueops.end()


class OwnQueueStep(bootsteps.StartStopStep):
    """Consumes the worker's own Celery queue, again after each lost connection to the broker."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        """Celery calls it when the consumer is connected."""
        keeper = getattr(consumer.controller, "queueops", None)
        if keeper is None:
            return
        queue = own_queue(consumer.hostname)
        consumer.app.amqp.queues.select_add(queue)
        consumer.task_consumer.add_queue(queue)
        consumer.task_consumer.consume()
        keeper.is_consuming = True

    def stop(self, consumer: Any) -> None:
        """... when the connection is lost, or the worker stops."""
        keeper = getattr(consumer.controller, "queueops", None)
        if keeper is not None:
            keeper.leave_fleet()
