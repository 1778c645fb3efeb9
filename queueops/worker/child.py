"""A child: one thread claims and settles for all its queues, an executor runs the handlers.

The claim thread is the process's main one. It waits on the wake lists, on its own timer, on a ring
of the executor and on its supervisor, all in one `select`; a claim and the settlements before it go
to Redis in one round trip. An unexpected error in it ends the child, whose supervisor gives back what
it held.
"""

from __future__ import annotations

import logging
import os
import random
import select
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

from redis.exceptions import RedisError

from queueops.conf import config
from queueops.errors import QueueOpsError, StoreUnavailable
from queueops.job import Claimed, Delivery
from queueops.store import Outcome, Store
from queueops.worker.board import Board, ChildState
from queueops.worker.control import Control, Order
from queueops.worker.databases import watch_connections
from queueops.worker.executor import ALWAYS, NEVER, make_executor
from queueops.worker.feed import Feed, Pace, Request
from queueops.worker.intake import Intake
from queueops.worker.leaving import leave
from queueops.worker.rules import Rules
from queueops.worker.running import Runner, Task
from queueops.worker.waiting import Waiter

logger = logging.getLogger("queueops.worker")

#: Jobs in one claim at most, and outcomes in one settlement: a longer script is everybody's wait.
MAX_BATCH, MIN_BATCH = 100, 50
#: ... and an exchange shall take about so long. Seconds.
TRIP_S = 0.01
#: Outcomes may wait so long for company while claimed jobs keep the slots busy. Seconds.
COMPANY_S = 0.002
#: Brief jobs share one thread until none ended for so long. Seconds.
SPREAD_S = 0.001
#: Claimed jobs that wait for a slot go back when no job ended for so long. Seconds.
STALE_S = 0.01
#: Between two tries to reach Redis, at most, seconds.
LAST_RETRY_S = 2.0
#: A BLPOP that is refused so soon is not sent again for as long. Seconds.
DEAF_S = 1.0
#: The claim thread shares the GIL with handlers that compute. Seconds; Python's own is 5 ms.
SWITCH_S = 0.001


@dataclass
class _Outage:
    """Redis is away: since when, and how the tries go."""

    since: float
    retry_at: float
    is_told: bool  # logged: then its end is too
    pause_s: float = 0.02


class Child:
    """The claim thread of one process."""

    def __init__(self, order: Order, control: Control, board: Board, store: Store) -> None:
        self.name = order.child
        self._is_probation = order.is_probation
        self._slots = 1 if order.is_probation else order.slots
        self._control = control
        self._board = board
        self._store = store
        self._rules = Rules(store.connection)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        runner = Runner(board, self._rules, self._look)
        self._executor = make_executor(order, self._slots, runner, store.connection, self._ring)
        self._waiter = Waiter(store.connection)
        self._feeds: dict[str, Feed] = {}
        self._by_wake: dict[str, Feed] = {}
        self._turn: list[Feed] = []  # in the order of their turns
        self._intake = Intake()
        self._pace = Pace()
        self._batch = MAX_BATCH
        self._last_end = 0.0
        self._finished = 0
        self._outage: _Outage | None = None
        self._cautious_until = 0.0
        self._stopping = self._leaving = False
        self._give_up_at = float("inf")
        self._quiet_until = 0.0
        self._armed_at = 0.0
        self._deaf_until = 0.0  # the wake lists can't be waited on: ask by the clock meanwhile
        self._lease_s = config().lease_s
        self._watch(order.queues)

    # -- life ---------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until told to stop; everything that ended is settled then, or its ids are logged."""
        sys.setswitchinterval(SWITCH_S)
        watch_connections()
        while not self._is_over():
            now = time.monotonic()
            self._board.turned(now)
            self._collect(now)
            if self._executor.waiting:
                self._look_after_waiting(now)
            feed = self._next_feed(now)
            if feed is not None:
                self._exchange(feed, woke=now >= feed.ask_at)
                self._hear(0.0)
            else:
                self._sleep(now)
        left = [outcome.job_id for feed in self._turn for outcome in feed.outcomes]
        left += [o.job_id for feed in self._turn if feed.unanswered for o in feed.unanswered.outcomes]
        if left:
            logger.error(
                "%s ends with %d jobs that it could not settle: %s", self.name, len(left), ", ".join(left)
            )

    def _is_over(self) -> bool:
        if not self._stopping:
            return False
        if time.monotonic() >= self._give_up_at:
            return True
        self._collect(time.monotonic())
        if self._executor.running and not self._leaving:
            return False
        return not any(feed.outcomes or feed.unanswered for feed in self._turn)

    def _stop(self, leave_s: float | None = None) -> None:
        """Claim nothing more and give back what has not started; end when what runs has ended.

        With `leave_s`, end as soon as what ended is settled, at most so many seconds from now: what
        still runs then is given back by the supervisor, after this process.
        """
        now = time.monotonic()
        if leave_s is not None:
            self._leaving = True
            self._give_up_at = now + leave_s
        if not self._stopping:
            self._stopping = True
            self._waiter.close()
            self._board.set_alarm(0)
            for feed in self._turn:
                feed.owes_token = True  # the clock, or a token that came too late
        for task in self._executor.take_back():
            task.feed.add(Outcome.release(task.delivery), now)

    def _watch(self, queues: Iterable[str]) -> None:
        for queue in queues:
            if queue not in self._feeds:
                feed = Feed(queue, len(self._feeds), is_probation=self._is_probation)
                self._feeds[queue] = self._by_wake[feed.wake] = feed
                self._turn.append(feed)
        self._waiter.watch(self._by_wake)
        for feed in self._turn:
            feed.ask_now()

    def _look(self, delivery: Delivery, progress: str) -> str:
        return self._store.look(delivery.queue, self.name, delivery.id, delivery.delivery, progress)

    # -- what ended ---------------------------------------------------------------------

    def _ring(self) -> None:
        os.eventfd_write(self._bell, 1)

    def _collect(self, now: float) -> None:
        finished, count = self._executor.finished, 0
        while finished:
            task, outcome = finished.popleft()
            task.feed.add(outcome, now)
            count += 1
        if count:
            self._pace.add(count, now)
            self._last_end = now
            self._finished += count
            self._board.count(self._finished, self._executor.waiting)

    def _look_after_waiting(self, now: float) -> None:
        """See that what waits starts soon, or goes back: the jobs before it turned out long."""
        silent_s = now - self._last_end
        if silent_s > SPREAD_S:
            self._executor.spread()
        if silent_s > STALE_S:
            for task in self._executor.take_back():
                task.feed.add(Outcome.release(task.delivery, reason="no free slot"), now)

    # -- whose turn it is -----------------------------------------------------------------

    def _room(self, now: float) -> int:
        """How many jobs may be claimed now: the free slots, and as many as will end meanwhile.

        While enough wait for the slots, none: a batch shall be worth its round trip.
        """
        executor = self._executor
        if self._stopping:
            return 0
        if self._is_probation or not executor.starts_at_claim:
            return executor.free  # what a fleet runs ends elsewhere: what came back here makes no room there
        ahead, behind = self._pace.ahead(now), executor.behind
        if not executor.free and 2 * behind > ahead:
            return 0
        return min(self._batch, executor.free + max(0, ahead - behind))

    def _next_feed(self, now: float) -> Feed | None:
        """The queue to talk about with Redis now, if any; it moves to the end of the line."""
        if self._outage is not None and now < self._outage.retry_at:
            return None
        room = self._room(now)
        can_wait = self._executor.behind > 0
        for place, feed in enumerate(self._turn):
            if feed.paused_until > now:
                continue
            if (
                feed.unanswered is not None
                or feed.owes_token
                or (feed.is_keeper and feed.ask_at <= now)
                or (room and (feed.is_hungry or feed.ask_at <= now))
                or (feed.outcomes and self._is_time_to_settle(feed, now, can_wait))
            ):
                self._turn.append(self._turn.pop(place))
                return feed
        return None

    def _is_time_to_settle(self, feed: Feed, now: float, can_wait: bool) -> bool:
        if not can_wait or self._stopping:
            return True
        return len(feed.outcomes) >= self._batch // 2 or now - feed.oldest >= COMPANY_S

    # -- one round trip -----------------------------------------------------------------

    def _request(self, feed: Feed, now: float) -> Request:
        if feed.unanswered is None:
            hungry = max(1, sum(1 for f in self._turn if f.is_hungry or f.ask_at <= now))
            room = self._room(now)
            limit = max(1, room // hungry) if room and (feed.is_hungry or feed.ask_at <= now) else 0
            if limit:
                feed.request += 1
            outcomes, feed.outcomes = feed.outcomes[: self._batch], feed.outcomes[self._batch :]
            feed.unanswered = Request(outcomes, feed.request, limit)
        return feed.unanswered

    def _exchange(self, feed: Feed, *, woke: bool) -> None:
        now = time.monotonic()
        # Without a free slot a claim of 0 passes on what others wait for: a token, or the clock.
        passes_on = feed.owes_token or (feed.is_keeper and feed.ask_at <= now)
        request = self._request(feed, now)
        claims = request.limit > 0 or passes_on
        self._board.set_alarm(0)
        claimed: Claimed | None = None
        try:
            if claims:
                self._board.set_in_flight(now)
                rescuing = now >= max(self._cautious_until, self._board.cautious_until)
                words, claimed = self._store.exchange(
                    feed.queue, self.name, request.outcomes, request=request.number, limit=request.limit,
                    starts=None if self._executor.starts_at_claim else 0, suspects=self._is_probation,
                    rescuing=rescuing,
                )  # fmt: skip
            else:
                words = self._store.settle(feed.queue, self.name, request.outcomes)
            if claimed is not None and claimed.word == "unregistered":
                self._store.renew(feed.queue, [self.name])
        except StoreUnavailable as error:
            self._lost_redis(error)
            return
        except (QueueOpsError, RedisError) as error:
            # Something is wrong with this queue's data or with this server: others may go on.
            self._complain(f"queue {feed.queue}: {error}")
            feed.failed(time.monotonic())
            return
        self._found_redis()
        self._learn(time.monotonic() - now, len(request.outcomes) + (len(claimed.jobs) if claimed else 0))
        self._told(feed, request.outcomes, words)
        feed.unanswered = None
        if claimed is not None:
            self._claimed(feed, request, claimed, sent=now, woke=woke)

    def _learn(self, trip_s: float, records: int) -> None:
        """Size the next exchanges so that none keeps others from Redis for long."""
        self._pace.took(trip_s)
        if records >= MIN_BATCH:
            fitting = int(TRIP_S * records / trip_s / 2)  # half to settle, half to claim
            self._batch = max(MIN_BATCH, min(MAX_BATCH, (3 * self._batch + fitting) // 4))

    def _told(self, feed: Feed, outcomes: list[Outcome], words: list[str]) -> None:
        for outcome, word in zip(outcomes, words, strict=True):
            if word == "lost" and outcome.verb != "release":
                logger.warning(
                    "%s of %s: delivery %d was no longer this child's, its %s was refused",
                    outcome.job_id, feed.queue, outcome.delivery, outcome.verb,
                )  # fmt: skip

    def _claimed(self, feed: Feed, request: Request, claimed: Claimed, *, sent: float, woke: bool) -> None:
        now = time.monotonic()
        feed.owes_token = False
        if claimed.word == "unregistered":
            feed.ask_now()
            self._board.set_in_flight(0)
            return
        if claimed.version != feed.version:
            self._read_settings(feed, claimed.version)
        feed.answered(claimed, request.limit, sent, now, woke=woke)
        tasks = [task for job in claimed.jobs if (task := self._task(feed, job, now)) is not None]
        self._board.fetched(now)
        self._board.set_in_flight(0)
        if not tasks:
            return
        if self._stopping:
            for task in tasks:
                feed.add(Outcome.release(task.delivery), now)
            return
        self._last_end = max(self._last_end, now)
        self._executor.submit(tasks)

    def _read_settings(self, feed: Feed, version: int) -> None:
        try:
            self._rules.load(feed.queue)
        except RedisError as error:  # the next claim asks again
            self._complain(f"queue {feed.queue}: its policies could not be read: {error}")
        else:
            feed.version = version

    def _task(self, feed: Feed, job: Delivery, now: float) -> Task | None:
        """What to run; None when that is settled already."""
        read = self._intake.read(job)
        if isinstance(read, Outcome):
            feed.add(read, now)
            return None
        return Task(job, *read, feed, feed.index)

    # -- Redis away -----------------------------------------------------------------------

    def _lost_redis(self, error: StoreUnavailable) -> None:
        now = time.monotonic()
        if self._outage is None:
            is_told = self._complain(f"Redis is away, what ended waits: {error}")
            self._outage = _Outage(now, now, is_told)  # at once: it may be one lost socket
            for feed in self._turn:
                feed.ask_now()  # so that its return is noticed
            return
        outage = self._outage
        outage.retry_at = now + outage.pause_s * (0.5 + random.random())
        outage.pause_s = min(LAST_RETRY_S, outage.pause_s * 2)

    def _found_redis(self) -> None:
        if self._outage is None:
            return
        if not self._stopping and time.monotonic() >= self._deaf_until:
            try:
                self._waiter.arm()
            except StoreUnavailable as error:  # it answers, and takes no new connection: not back yet
                self._lost_redis(error)
                return
        now = time.monotonic()
        if self._outage.is_told:
            logger.warning("%s: Redis is back after %.1f s", self.name, now - self._outage.since)
        self._outage = None
        # Leases of others may have run out while nobody could renew them.
        self._cautious_until = now + self._lease_s
        for feed in self._turn:
            feed.ask_now()

    def _complain(self, text: str) -> bool:
        """Log, one line a second at most; whether it was logged."""
        now = time.monotonic()
        if now < self._quiet_until:
            return False
        self._quiet_until = now + 1
        logger.warning("%s: %s", self.name, text)
        return True

    # -- waiting --------------------------------------------------------------------------

    def _sleep(self, now: float) -> None:
        """Wait for the first thing that can change what to do."""
        until = self._give_up_at
        executor = self._executor
        alarm = float("inf")
        if self._outage is not None:
            if self._outage.retry_at > now:  # else there is nothing to say, as long as every slot is busy
                until = min(until, self._outage.retry_at)
        else:
            for feed in self._turn:
                if feed.paused_until > now:
                    until = min(until, feed.paused_until)
                    continue
                if feed.outcomes:
                    until = min(until, feed.oldest + COMPANY_S)
                if feed.is_keeper:
                    alarm = min(alarm, feed.ask_at)
                elif executor.free and not self._stopping:
                    until = min(until, feed.ask_at)
        until = min(until, alarm)
        if executor.waiting:
            until = min(until, self._last_end + (STALE_S if executor.behind else SPREAD_S))
            executor.rings_below = executor.waiting // 2
        else:
            executor.rings_below = ALWAYS
        if executor.finished and executor.rings_below == ALWAYS:
            executor.rings_below = NEVER
            return
        if self._outage is None and executor.free and not self._stopping and not self._arm():
            return
        if alarm < float("inf"):
            self._board.set_alarm(alarm)
        until = min(until, self._waiter.next_check())
        if self._deaf_until > now:
            until = min(until, self._deaf_until)
        if self._outage is not None:
            self._board.set_state(ChildState.AWAY)
        else:
            self._board.set_state(ChildState.WAITING if executor.free else ChildState.FULL)
        try:
            ready, tokens = self._waiter.wait((self._bell, self._control.fileno()), until)
            self._waiter.check()
        except StoreUnavailable as error:
            ready, tokens = [], []
            if time.monotonic() - self._armed_at < DEAF_S:
                self._deaf_until = time.monotonic() + DEAF_S
            self._lost_redis(error)
        executor.rings_below = NEVER
        if self._bell in ready:
            os.eventfd_read(self._bell)
        if self._control.fileno() in ready:
            self._hear(0.0)
        for wake in tokens:
            feed = self._by_wake[wake]
            if executor.free:
                feed.is_hungry = True
            else:
                feed.owes_token = True

    def _arm(self) -> bool:
        """Let a BLPOP stand; False when the waiting has to be thought over."""
        was_open, now = self._waiter.is_open, time.monotonic()
        if now < self._deaf_until:
            return True
        try:
            self._waiter.arm()
        except StoreUnavailable as error:
            self._lost_redis(error)
            return False
        if not was_open and self._waiter.is_open:
            # A token may have gone with the socket before: ask once, now that none can be missed.
            self._armed_at = now
            for feed in self._turn:
                feed.ask_now()
            return False
        return True

    def _hear(self, timeout: float) -> None:
        """Take what the supervisor says. Its end is this child's end."""
        if not select.select([self._control], [], [], timeout)[0]:
            return
        message = self._control.receive()
        if message is None:
            logger.error("%s: its supervisor is gone", self.name)
            leave(1)
        if "queues" in message:
            self._watch(message["queues"])
        if "stop" in message:
            self._stop()
        if "leave" in message:
            self._stop(message["leave"])
