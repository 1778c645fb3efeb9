"""The supervisor: one thread, one `select`, no handler. It keeps the leases of its children, brings
dead ones back and gives back at once what they held.

It looks at the children's boards in shared memory, so that neither a handler that holds the GIL nor
one that never ends is anybody else's trouble: leases are renewed from here, a stuck keeper loses its
clock after 10 ms, a job over its hard limit is ended with its process.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from queueops.conf import config
from queueops.errors import ConfigError, StoreUnavailable
from queueops.inspector import Inspector
from queueops.store import Store
from queueops.worker.board import Memory
from queueops.worker.control import Control, Order
from queueops.worker.endings import Endings
from queueops.worker.heartbeat import about
from queueops.worker.leases import Grave, Leases
from queueops.worker.nursery import Ended, Nursery, Post, Process
from queueops.worker.start import make_store, patient, start_process
from queueops.worker.zygote import become_subreaper

logger = logging.getLogger("queueops.worker")

#: New queues are looked for this often, when none is named.
QUEUES_EVERY_S = 4.0
#: A keeper may be this late before its clock is taken from it.
STUCK_AFTER_S = 0.010
#: ... and a claim this long under way, which a slow Redis explains as well.
SLOW_AFTER_S = 1.0
#: The supervisor looks at its boards at least this often; no Redis is asked for that.
LOOK_EVERY_S = 1.0
#: ... and asks a child that runs nothing so often whether it hears.
IDLE_PING_S = 5.0
#: While a child is stuck, the leases are renewed this often, and with them tokens that nobody answered.
STUCK_RENEW_S = 1.0
#: After the grace: how long ended jobs may take to be settled, and then Redis to be told the rest.
SETTLE_S, FAREWELL_S = 3.0, 5.0
#: ... and how long the housekeeper may take to finish what it does.
HOUSEKEEPER_S = 8.0
#: How often a burst looks whether it is over.
BURST_EVERY_S = 0.05
_NEVER = float("inf")


@dataclass(frozen=True)
class Options:
    """What `runworkers` was asked for. No queues: all of them."""

    queues: tuple[str, ...] = ()
    processes: int = 1
    concurrency: int = 1
    burst: bool = False
    grace_s: float = 25.0
    housekeeping: bool = True
    executor: str = "threads"  # where handlers run, or 'celery'


class Supervisor:
    """Runs one worker until it is told to stop. Raises ConfigError or StoreUnavailable at the start."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.worker = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._conf = config()
        self._lease_s = self._conf.lease_s
        posts = [Post("child", None) for _ in range(options.processes)]
        posts.append(Post("probation", "probation"))
        if options.housekeeping:
            posts.append(Post("housekeeper", "housekeeper"))
        self._memory = Memory(len(posts), options.concurrency)
        self._nursery = Nursery(
            self.worker, options.concurrency, self._memory, self._start_process, posts, options.executor
        )
        self._store: Store
        self._leases: Leases
        self._endings: Endings
        self._queues: list[str] = list(options.queues)
        self._graves: list[Grave] = []
        self._wakeup: tuple[int, int] = (-1, -1)
        self._signals = 0
        self._stop_at = 0.0  # when the grace ends, monotonic; 0 before a stop
        self._kill_at = _NEVER
        self._renew_at = self._renewed_at = self._queues_at = self._retry_at = 0.0
        self._burst_at = 0.0
        self._away_since = 0.0
        self._pause_s = 0.05

    def _start_process(self, order: Order, control: Control) -> Any:
        return start_process(order, control, self._memory)

    # -- life ---------------------------------------------------------------------------

    def run(self) -> None:
        """Be the worker. Returns when every child has ended and Redis knows it."""
        # Before anything is open: the zygote shall inherit nothing.
        self._nursery.awaken([])
        self._store = make_store(patient())
        self._leases = Leases(self._store, self.worker, self._nursery.declared_policy)
        self._endings = Endings(self._leases.stops)
        become_subreaper(True)
        try:
            with self._signal_handlers():
                self._check_server()
                self._serve()
                self._farewell()
        finally:
            for process in self._nursery.living:
                process.kill()
                os.waitpid(process.pid, 0)
            if self._nursery.zygote is not None:
                self._nursery.zygote.end()
            become_subreaper(False)

    def _check_server(self) -> None:
        """Meet the server. Raises StoreUnavailable or ConfigError when it can't be used."""
        uptime_s = self._leases.server_uptime_s()
        now = time.monotonic()
        if uptime_s < self._lease_s:
            # Leases of workers that live may have run out while it was away.
            self._memory.cautious_until = now + self._lease_s - uptime_s
        for warning in Inspector(self._store.connection).server().warnings:
            logger.warning("worker %s: %s", self.worker, warning)
        self._find_queues()
        asked, queues = self.options, ", ".join(self._queues) or "none yet"
        logger.info(
            "worker %s: %d processes of %d, queues: %s",
            self.worker,
            asked.processes,
            asked.concurrency,
            queues,
        )

    def _serve(self) -> None:
        while True:
            now = time.monotonic()
            self._memory.plan_wake(_NEVER)  # whoever sets an alarm from here on rings
            self._obey_signals(now)
            self._redis_work(now)
            if not self._stop_at:
                self._fill_posts(now)
            wake_at = min(self._look_at_boards(now), self._next_timer(now))
            if self._stop_at and self._end_of_stop(now):
                return
            self._memory.plan_wake(wake_at)
            self._wait(wake_at)

    def _wait(self, wake_at: float) -> None:
        zygote = self._nursery.zygote
        watched: list[Any] = [self._wakeup[0], self._memory.bell, *self._nursery.living]
        if zygote is not None:
            watched.append(zygote.pidfd)
        ready = select.select(watched, [], [], max(0.0, wake_at - time.monotonic()))[0]
        for each in ready:
            if isinstance(each, Process):
                if ended := self._nursery.reap(each):
                    self._ended(ended)
            elif each == self._wakeup[0]:
                os.read(each, 1024)
            elif each == self._memory.bell:
                self._memory.hush()
            elif zygote is not None:
                logger.error("the zygote of %s died; another is made", self.worker)
                zygote.reap()
                self._nursery.zygote = None
        self._nursery.reap_strangers()

    def _next_timer(self, now: float) -> float:
        timers = [now + LOOK_EVERY_S]
        if self._away_since:
            timers.append(self._retry_at)
        else:
            timers.append(self._renew_at)
            if not self.options.queues:
                timers.append(self._queues_at)
            if self.options.burst:
                timers.append(self._burst_at)
        if self._stop_at and self._children:
            timers.append(self._stop_at if self._kill_at == _NEVER else self._kill_at)
        elif self._stop_at:
            timers += [process.kill_at for process in self._nursery.living if process.kill_at]
        elif not self._away_since:
            timers += [post.fork_at for post in self._nursery.posts if post.holder is None]
        return min(timers)

    # -- signals ------------------------------------------------------------------------

    @contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self._signalled) for number in (signal.SIGTERM, signal.SIGINT)
        }
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        wakeup = signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            for fd in self._wakeup:
                os.close(fd)

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1

    def _obey_signals(self, now: float) -> None:
        if self._signals >= 2 and self._kill_at == _NEVER:
            logger.warning("worker %s: stopping at once", self.worker)
            self._stop(now, 0.0)
        elif self._signals == 1 and not self._stop_at:
            logger.info("worker %s: stopping; jobs may finish for %g s", self.worker, self.options.grace_s)
            self._stop(now, self.options.grace_s)

    def _stop(self, now: float, grace_s: float) -> None:
        self._renew_at = now  # say so
        self._stop_at = now + grace_s
        for process in self._children:
            process.control.send({"stop": True})

    @property
    def _children(self) -> list[Process]:
        """The living processes that run jobs."""
        return [process for process in self._nursery.living if process.role != "housekeeper"]

    def _end_of_stop(self, now: float) -> bool:
        """Go on with stopping; whether all have ended and what they held was given back."""
        living = self._nursery.living
        if not living and not self._graves:
            return True
        if not self._children:
            # It comes last, to record what the last jobs did.
            for process in living:
                if not process.kill_at:
                    process.kill_at = now + (HOUSEKEEPER_S if self._signals < 2 else 1.0)
                    process.control.send({"stop": True})
                elif now >= process.kill_at:
                    process.kill()
        elif now >= self._stop_at and self._kill_at == _NEVER:
            self._kill_at = now + SETTLE_S
            for process in self._children:
                process.control.send({"leave": SETTLE_S})
        elif now >= self._kill_at:
            for process in self._children:
                process.kill()
            self._kill_at = now + 0.1
        # Redis had its time: what could not be given back comes back when its lease ends.
        return not living and now >= self._stop_at + SETTLE_S + FAREWELL_S

    def _farewell(self) -> None:
        for grave in self._graves:
            ids = sorted({job_id for ids in grave.running.values() for job_id in ids})
            logger.error(
                "%s: Redis is away, what it held comes back when its lease ends; it ran: %s",
                grave.child, ", ".join(ids) or "nothing",
            )  # fmt: skip
        try:
            self._leases.leave()
        except StoreUnavailable as error:
            logger.error("worker %s: could not take its leave: %s", self.worker, error)
        logger.info("worker %s: stopped", self.worker)

    # -- processes ------------------------------------------------------------------------

    def _fill_posts(self, now: float) -> None:
        if self._away_since:
            return
        for post in self._nursery.posts:
            if post.holder is not None or now < post.fork_at:
                continue
            if self._nursery.zygote is None and not self._awaken(now):
                return
            name = self._nursery.next_name(post)
            if any(grave.child == name for grave in self._graves):
                continue  # its name is free again once its jobs are given back
            if post.role != "housekeeper" and not self._try_redis(
                partial(self._leases.renew, self._queues, [name])
            ):
                return
            if self._nursery.fork(post, name, self._queues) is None:
                post.fork_at = now + 0.5
            else:
                self._renew_at = now  # tell Redis who is there

    def _awaken(self, now: float) -> bool:
        try:
            self._nursery.awaken([*self._wakeup])
        except ConfigError as error:
            logger.error("the zygote of %s can't be made: %s", self.worker, error)
            for post in self._nursery.posts:
                post.fork_at = max(post.fork_at, now + 5)
            return False
        return True

    def _ended(self, ended: Ended) -> None:
        process = ended.process
        if process.role == "housekeeper":
            if not ended.is_clean:
                logger.error("%s ended (%s)", process.name, ended.why)
            return
        grave = self._endings.grave(ended, is_stopping=bool(self._stop_at))
        self._graves.append(grave)
        self._redis_work(time.monotonic())

    # -- Redis --------------------------------------------------------------------------

    def _try_redis(self, work: Callable[[], object]) -> bool:
        """Do something in Redis; False when it is away, which is logged once."""
        try:
            work()
        except StoreUnavailable as error:
            now = time.monotonic()
            if not self._away_since:
                self._away_since = now
                self._pause_s = 0.05
                logger.warning("worker %s: Redis is away: %s", self.worker, error)
            self._retry_at = now + self._pause_s * (0.5 + random.random())
            self._pause_s = min(2.0, self._pause_s * 2)
            return False
        return True

    def _redis_work(self, now: float) -> None:
        if self._away_since:
            if now < self._retry_at or not self._try_redis(self._renew):
                return
            logger.warning("worker %s: Redis is back after %.1f s", self.worker, now - self._away_since)
            self._away_since = 0.0
            self._memory.cautious_until = time.monotonic() + self._lease_s
        while self._graves:
            if not self._try_redis(lambda: self._leases.bury(self._graves[0])):
                return
            grave = self._graves.pop(0)
            if grave.given_back:
                logger.info("%s: gave back %d jobs (%s)", grave.child, grave.given_back, grave.why)
        if now >= self._renew_at and not self._try_redis(self._renew):
            return
        if not self.options.queues and now >= self._queues_at and not self._try_redis(self._find_queues):
            return
        if self.options.burst and not self._stop_at and now >= self._burst_at:
            self._burst_at = now + BURST_EVERY_S
            self._try_redis(self._end_burst)

    def _renew(self) -> None:
        """Renew the leases of the living, then say that this worker lives."""
        children = [process.name for process in self._children]
        if children:
            self._leases.renew(self._queues, children)
        if self._leases.beat(self._about()) and not self._stop_at:
            logger.info("worker %s: asked to drain", self.worker)
            self._stop(time.monotonic(), self.options.grace_s)
        self._renewed_at = time.monotonic()
        self._renew_at = self._renewed_at + self._leases.shortest_s / 3

    def _find_queues(self) -> None:
        if self.options.queues:
            return
        self._queues_at = time.monotonic() + QUEUES_EVERY_S
        fresh = sorted(self._leases.queues() - set(self._queues))
        if not fresh:
            return
        children = self._children
        if children:
            self._leases.renew(fresh, [process.name for process in children])
        self._queues += fresh
        for process in children:
            process.queues += fresh
            process.tell_queues(fresh)

    def _end_burst(self) -> None:
        children = self._children
        if any(child.board.running() for child in children):
            return
        have_asked = all(child.board.last_fetch() for child in children) or not self._queues
        if have_asked and self._leases.is_idle(self._queues):
            self._stop(time.monotonic(), self.options.grace_s)

    def _about(self) -> dict[str, object]:
        asked = self.options
        return about(
            self._children,
            self._nursery.living,
            queues=asked.queues,
            processes=asked.processes,
            concurrency=asked.concurrency,
            is_draining=bool(self._stop_at),
        )

    # -- boards ---------------------------------------------------------------------------

    def _look_at_boards(self, now: float) -> float:
        """Take the clock from stuck keepers, end what must end; when to look again."""
        again = _NEVER
        for process in self._children:
            ends_at = self._endings.look(process, now, is_away=bool(self._away_since))
            again = min(again, self._look_at_clock(process, now), ends_at)
            self._look_for_life(process, now)
        return again

    def _look_for_life(self, process: Process, now: float) -> None:
        """Ask a child that is silent, and push again the tokens of one that does not answer.

        A handler that holds the GIL keeps its claim thread from taking the token that woke it.
        """
        if process.is_stuck(now):
            self._renew_at = min(self._renew_at, self._renewed_at + STUCK_RENEW_S)
            return
        every_s = LOOK_EVERY_S if process.board.running() else IDLE_PING_S
        if now - max(process.pinged, process.board.last_turn()) >= every_s:
            process.pinged = now
            process.control.send({"ping": True})

    def _look_at_clock(self, process: Process, now: float) -> float:
        alarm, flight = process.board.alarm(), process.board.in_flight()
        stuck_at = alarm + STUCK_AFTER_S if alarm else flight + SLOW_AFTER_S if flight else _NEVER
        mark = alarm or flight
        if process.nudged == mark:
            return _NEVER
        if now < stuck_at:
            return stuck_at
        if not self._away_since:  # else once it is back
            process.nudged = mark
            self._try_redis(lambda: [self._store.nudge(queue, process.name) for queue in process.queues])
        return _NEVER
