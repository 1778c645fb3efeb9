"""Waits for the next slot by the server's clock, and has Redis settle what is due.

Any number may run: lua/fire.lua settles a slot once, and refuses a definition that is out of date. A
lease chooses one that goes first; the others look a moment later, so that a slot is hardly late when
that one dies. The database is read every second, so that an edit needs no restart.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable

from django.db import DatabaseError, InterfaceError, close_old_connections, connections

from queueops import keys
from queueops.errors import QueueOpsError, StoreUnavailable
from queueops.inspector import Inspector
from queueops.schedules import backfill, code, ledger
from queueops.schedules.following import ODD, RETRY_MS, Following
from queueops.schedules.takeover import Takeover, resume
from queueops.schedules.watch import Watched
from queueops.scripts import script
from queueops.slots import FIRE_BATCH, Fired, Slot
from queueops.store import Store

log = logging.getLogger(__name__)

ROLE = "schedules"
LEASE_S = 3.0
#: Who does not hold the lease looks at a slot so much later, and reads the database less often.
STANDBY_S = 0.25
TICK_S, STANDBY_REFRESH_S = 1.0, 5.0
#: Lines that a scheduler left in Redis are looked for; jobs are followed; the ledger is pruned.
SWEEP_S, FOLLOW_S, PRUNE_S = 30.0, 2.0, 60.0
#: A slot that waits for the run before it is tried so often.
WAITING_S = 0.2
#: So shortly before a slot nothing else is begun. Ms.
NEAR_MS = 50
#: Schedules asked about in one round trip.
ASK_BATCH = 200


class Scheduler:
    """One scheduler. `run_once` does what is due; `run` also waits for it, until it is stopped.

    Without `uses_lease` it acts as the one that goes first, whoever else does.
    """

    def __init__(self, store: Store | None = None, *, name: str = "", uses_lease: bool = True) -> None:
        self.store = store or Store()
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.uses_lease = uses_lease
        self.is_leader = not uses_lease
        self._takeover = Takeover(self.store, self.name)
        self._following = Following(self._takeover)
        #: Decided and not written down yet, by row: an answer has all that its ledger lacks.
        self._left: dict[int, tuple[Watched, ledger.Entry]] = {}
        #: Monotonic seconds.
        self._at = dict.fromkeys(("tick", "refresh", "sweep", "follow", "prune", "poll"), 0.0)
        self._clock = (0, 0.0)  # the server's µs, and this process's monotonic seconds then
        self._away: dict[str, bool] = {}
        #: In `run` the books are kept by a thread of its own: a slow database must not delay a slot.
        self._books: threading.Thread | None = None
        self._has_news = threading.Event()
        self._lock = threading.Lock()  # over `_left`
        self._is_synced = False

    @property
    def _watched(self) -> dict[int, Watched]:
        return self._following.watched

    # -- waiting --------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Settle slots at their time until `stop` is set. Outlives Redis and the database."""
        self._books = threading.Thread(target=self._keep_books, args=(stop,), name="ledger", daemon=True)
        self._books.start()
        try:
            while not stop.is_set():
                self.run_guarded()
                stop.wait(self.wait_s())
            self._has_news.set()
            self._books.join(2.0)
            if self.uses_lease and self.is_leader:
                try:
                    self.store.give_lease(ROLE, self.name)
                except QueueOpsError:
                    log.debug("the lease of the schedules runs out by itself")
        finally:
            connections.close_all()

    def _keep_books(self, stop: threading.Event) -> None:
        """Write down what was decided, and follow the jobs, until `stop` is set."""
        try:
            while not stop.is_set():
                self._has_news.wait(FOLLOW_S)
                self._has_news.clear()
                close_old_connections()
                try:
                    self._guard_database(self._record)
                    if self.is_leader and self._clock[1]:
                        self._guard_database(self._keep_house)
                except Exception:
                    log.exception("the ledger of the schedules could not be kept")
                    stop.wait(TICK_S)
            self._guard_database(self._record)
        finally:
            connections.close_all()

    def run_guarded(self) -> int:
        """Do what is due; what fails is logged once, and tried again."""
        if time.monotonic() >= self._at["refresh"]:
            close_old_connections()
        try:
            settled = self.run_once()
        except StoreUnavailable as error:
            self._say_away("Redis", error)
            self._put_off(0.5)
            return 0
        except Exception:
            log.exception("a pass over the schedules failed")
            self._put_off(TICK_S)
            return 0
        self._say_away("Redis", None)
        return settled

    def _put_off(self, seconds: float) -> None:
        self._at["tick"] = self._at["refresh"] = self._at["poll"] = time.monotonic() + seconds

    def wait_s(self) -> float:
        """Seconds until something is to be done, by the server's clock."""
        now = time.monotonic()
        if self._away.get("Redis"):
            return max(0.05, self._at["poll"] - now)
        times = [self._at["tick"], self._at["refresh"]]
        due = [at for each in self._watched.values() if (at := each.due_ms()) is not None]
        if due:
            server_us, then = self._clock
            times.append(then + (min(due) * 1000 - server_us) / 1e6 + (0.0 if self.is_leader else STANDBY_S))
        if any(each.waiting for each in self._watched.values()):
            times.append(self._at["poll"])
        return max(0.0, min(times) - now)

    def now_ms(self) -> int:
        """The server's time; remembered, to wait by it."""
        before = time.monotonic()
        now_ms, server_us = self.store.connection.run(script("now"), keys.QUEUES, now_ms=self.store.now_ms)
        self._clock = (now_ms * 1000 + server_us % 1000, (before + time.monotonic()) / 2)
        return int(now_ms)

    # -- one pass -------------------------------------------------------------------------------

    def run_once(self, *, refresh: bool | None = None) -> int:
        """Settle what is due, and read the database when it is time; how many slots were looked at.

        `refresh` overrules the time. Raises StoreUnavailable.
        """
        now_ms = self.now_ms()
        settled = self._settle(now_ms)
        if refresh is None:
            self._clear_the_way(now_ms)
        if self._is_time("tick", TICK_S) and self.uses_lease:
            self.is_leader = bool(self.store.take_lease(ROLE, self.name, LEASE_S))
        is_time = self._is_time("refresh", TICK_S if self.is_leader else STANDBY_REFRESH_S, refresh)
        if is_time and self._guard_database(lambda: self._refresh(now_ms)):
            settled += self._settle(self.now_ms())
            if self.is_leader and (self._is_time("sweep", SWEEP_S) or refresh):
                self._ask([each for each in self._watched.values() if each.retry_ms <= now_ms], now_ms)
            if self._books is None and self.is_leader:
                self._guard_database(lambda: self._keep_house(is_now=True))
        return settled

    def _clear_the_way(self, now_ms: int) -> None:
        """Put off what can wait until after a slot that is near."""
        due = [at for each in self._watched.values() if (at := each.due_ms()) is not None and at > now_ms]
        left_ms = min(due, default=now_ms + NEAR_MS) - now_ms
        if left_ms < NEAR_MS:
            after = time.monotonic() + (left_ms + NEAR_MS / 5) / 1000
            for what in ("tick", "refresh"):
                self._at[what] = max(self._at[what], after)

    def _is_time(self, what: str, every_s: float, overruled: bool | None = None) -> bool:
        now = time.monotonic()
        is_time = now >= self._at[what] if overruled is None else overruled
        if is_time:
            self._at[what] = now + every_s
        return is_time

    def _settle(self, now_ms: int) -> int:
        """Fire what is due, a batch of each schedule a round trip; write down what was decided."""
        due = [
            (each, self._slots_of(each, now_ms))
            for each in list(self._watched.values())
            if each.is_due(now_ms)
        ]
        work = [(each, slots) for each, slots in due if slots]
        settled = sum(len(slots) for _, slots in work)
        while work:
            answers = self._fire([(each, slots[:FIRE_BATCH]) for each, slots in work], now_ms)
            work = [
                (each, slots[FIRE_BATCH:])
                for (each, slots), went_on in zip(work, answers, strict=True)
                if went_on and len(slots) > FIRE_BATCH
            ]
        self._at["poll"] = time.monotonic() + WAITING_S
        self._write_down()
        self._guard_database(lambda: self._resume_due(now_ms))
        return settled

    def _slots_of(self, each: Watched, now_ms: int) -> list[Slot]:
        try:
            return each.slots(now_ms)
        except ODD as error:
            self._fail_alone(each, error, now_ms)
            return []

    def _fire(self, work: list[tuple[Watched, list[Slot]]], now_ms: int) -> list[bool]:
        """Have these slots settled; for each schedule whether it went on. Raises StoreUnavailable."""
        answers = self.store.fire([each.call(slots) for each, slots in work], actor=self.name)
        went_on = []
        away: StoreUnavailable | None = None
        for (each, _), answer in zip(work, answers, strict=True):
            if isinstance(answer, Fired) and answer.word == "lost":
                answer = self._guarded_lose(each, now_ms)
            if isinstance(answer, StoreUnavailable):
                away = answer
            elif isinstance(answer, Exception):
                self._fail_alone(each, answer, now_ms)
            elif answer.word == "stale":
                each.refused(answer.version, now_ms)
                self._at["refresh"] = 0.0  # at once
            else:
                self._go_on(each, answer)
            went_on.append(isinstance(answer, Fired) and answer.word == "ok")
        if away is not None:
            raise away
        return went_on

    def _go_on(self, each: Watched, answer: Fired) -> None:
        each.take(answer)
        if decisions := each.to_record(answer, self.name):
            entry = ledger.Entry(
                each.row.pk, each.definition.queue, each.row.version, decisions, each.last_ms, each.next_ms
            )
            with self._lock:
                self._left[each.row.pk] = (each, entry)

    def _guarded_lose(self, each: Watched, now_ms: int) -> Fired | Exception:
        log.error("schedule %s: Redis lost its state; its due slots are not fired", each.definition.key)
        try:
            return self._takeover.lose(each.row, each.last_ms, each.recorded, now_ms)
        except Exception as error:  # as one of the others' answers
            return error

    def _fail_alone(self, each: Watched, error: Exception, now_ms: int) -> None:
        """Put one schedule off without holding up the others."""
        each.retry_ms = now_ms + RETRY_MS
        self._guard_database(lambda: self._following.give_up(each.row, str(error), is_leader=self.is_leader))

    def _write_down(self) -> None:
        if self._books is None:
            self._guard_database(self._record)
        elif self._left:
            self._has_news.set()

    def _record(self) -> None:
        with self._lock:
            left, self._left = list(self._left.values()), {}  # what can't be written stays in Redis
        ledger.record(entry for _, entry in left)
        for each, entry in left:
            each.recorded = max([each.recorded, *(decision.number for decision in entry.decisions)])

    def _resume_due(self, now_ms: int) -> None:
        for each in self._watched.values():
            resume_ms = each.definition.resume_ms
            if each.definition.paused and resume_ms is not None and resume_ms <= now_ms:
                if each.next_ms is not None and each.next_ms < resume_ms:
                    continue  # its skipped slots come first
                resume(each.row, each.definition)
                each.retry_ms = now_ms + RETRY_MS  # until the row is read again
                self._at["refresh"] = 0.0

    # -- from the database ------------------------------------------------------------------------

    def _refresh(self, now_ms: int) -> None:
        if not self._is_synced:
            code.sync()
            self._is_synced = True
        begun = self._following.refresh(now_ms, is_leader=self.is_leader)
        if self._following.is_to_be_read_again:
            self._at["refresh"] = 0.0
        self._ask(begun, now_ms)

    def _ask(self, watched: list[Watched], now_ms: int) -> None:
        """Ask what Redis says of schedules: slots that wait, lines that nobody wrote down, a lost store."""
        for start in range(0, len(watched), ASK_BATCH):
            self._fire([(each, []) for each in watched[start : start + ASK_BATCH]], now_ms)
        self._write_down()

    def _keep_house(self, *, is_now: bool = False) -> None:
        server_us, then = self._clock
        # A clock that stands still in a test stands still here too.
        passed_ms = 0 if is_now else round((time.monotonic() - then) * 1000)
        now_ms = server_us // 1000 + passed_ms
        if self._is_time("follow", FOLLOW_S) or is_now:
            ledger.follow(now_ms, inspector=Inspector(self.store.connection, now_ms=self.store.now_ms))
        backfill.run_once(now_ms)
        if self._is_time("prune", PRUNE_S):
            ledger.prune(now_ms)

    def _guard_database(self, work: Callable[[], object]) -> bool:
        """Do database work; False when it can't be done now: slots are fired all the same."""
        try:
            work()
        except (DatabaseError, InterfaceError) as error:
            self._say_away("the database", error)
            for each in connections.all(initialized_only=True):
                if not each.in_atomic_block:
                    each.close_if_unusable_or_obsolete()
            return False
        self._say_away("the database", None)
        return True

    def _say_away(self, what: str, error: Exception | None) -> None:
        """Write one line when a server goes, and one when it is back."""
        if error is not None and not self._away.get(what):
            log.warning("schedules wait for %s: %s", what, error)
        elif error is None and self._away.get(what):
            log.warning("schedules have %s again", what)
        self._away[what] = error is not None
