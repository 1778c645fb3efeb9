"""The executor of `runworkers --executor celery`: a child hands its jobs to Celery workers.

No more are handed over than a worker is free to run, so that nothing waits in the broker and a pause, a
priority or a limit acts at once. Until a job has started it is the child's, under the child's lease;
one that does not start in time is taken back, and its message, should it come late, is refused.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from queueops import keys
from queueops.bridges.celery import fleet
from queueops.bridges.celery.fleet.presence import LOOK, Member, Presence
from queueops.bridges.celery.handlers import site_app
from queueops.connection import Connection
from queueops.errors import StoreUnavailable
from queueops.states import JobState
from queueops.store import Outcome
from queueops.worker.executor import NEVER
from queueops.worker.running import Task

logger = logging.getLogger("queueops.worker")

#: A job that was handed over and has not started after this is taken back. Seconds.
START_S = 3.0
#: How often the workers are looked for, and the jobs handed over: reports say the rest at once.
LOOK_EVERY_S = 1.0
#: One blocked read of the reports; its end is only as fine as the server's tick.
BLOCK_S = 0.5
#: After an error of the broker nothing is handed over for so long; doubled each time.
FIRST_PAUSE_S, LAST_PAUSE_S = 0.25, 5.0

Key = tuple[str, str, int]  # queue, id, delivery


@dataclass
class _Handed:
    """A job that a Celery worker has, or should get."""

    task: Task
    member: str
    at: float  # monotonic
    has_started: bool = False


class CeleryExecutor:
    """Hands jobs to the Celery workers that live; two threads of its own, none of which runs a handler."""

    #: A claimed job has not started before its process says so.
    starts_at_claim = False

    def __init__(
        self, hand: str, connection: Connection, ring: Callable[[], None], *, is_probation: bool = False
    ) -> None:
        self.finished: deque[tuple[Task, Outcome]] = deque()
        self.rings_below = NEVER
        self._hand = hand
        self._connection = connection
        self._presence = Presence(connection)
        self._ring = ring
        self._is_probation = is_probation
        self._lock = threading.Lock()
        self._members: dict[str, Member] = {}
        self._hands: list[str] = []
        self._handed: dict[Key, _Handed] = {}
        self._waiting: deque[Task] = deque()
        self._to_send: SimpleQueue[Key] = SimpleQueue()
        self._broker_away_until = 0.0
        self._broker_pause_s = FIRST_PAUSE_S
        self._wrapper: Any = site_app().tasks[fleet.WRAPPER]  # of this app, whatever thread sends it
        for work in (self._send_all, self._watch):
            threading.Thread(target=self._forever, args=(work,), name=work.__name__, daemon=True).start()

    # -- what the child asks ----------------------------------------------------------------

    @property
    def free(self) -> int:
        """How many more jobs a Celery worker would start at once."""
        with self._lock:
            return sum(self._rooms().values())

    @property
    def waiting(self) -> int:
        """How many found no worker; the child gives them back in a moment."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """None: what has started is its Celery worker's, and goes on without this child."""
        return 0

    def submit(self, tasks: Iterable[Task]) -> None:
        """Hand jobs over; never blocks."""
        with self._lock:
            self._waiting.extend(tasks)
            self._fill()

    @property
    def behind(self) -> int:
        """The same: none waits while a worker is free."""
        return len(self._waiting)

    def spread(self) -> None:
        """Do nothing: what waits has no place."""

    def take_back(self) -> list[Task]:
        """Give up what found no worker. What was handed over comes back when it does not start in time, or
        with the end of the child; its message then finds its job gone."""
        with self._lock:
            tasks = list(self._waiting)
            self._waiting.clear()
        return tasks

    # -- whom to give what, under the lock ----------------------------------------------------

    def _rooms(self) -> dict[str, int]:
        """Free places by worker."""
        if time.monotonic() < self._broker_away_until:
            return {}
        held: dict[str, int] = defaultdict(int)
        for handed in self._handed.values():
            held[handed.member] += 1
        if self._is_probation:  # one suspect at a time, beside what the others hand over
            free = {name: m.slots - sum(m.busy.values()) for name, m in self._members.items() if m.slots}
            return {max(free, key=free.__getitem__): 1} if free and not self._handed else {}
        return {
            name: room
            for name, member in self._members.items()
            if (room := member.room_for(self._hand, self._hands) - held[name]) > 0
        }

    def _fill(self) -> None:
        rooms = self._rooms()
        while self._waiting and rooms:
            member = max(rooms, key=rooms.__getitem__)
            rooms[member] -= 1
            if not rooms[member]:
                del rooms[member]
            task = self._waiting.popleft()
            key = _key(task)
            self._handed[key] = _Handed(task, member, time.monotonic())
            self._to_send.put(key)

    def _release(self, key: Key, why: str) -> None:
        handed = self._handed.pop(key, None)
        if handed is not None:
            self.finished.append((handed.task, Outcome.release(handed.task.delivery, reason=why)))

    # -- the threads ----------------------------------------------------------------------------

    def _forever(self, work: Callable[[], None]) -> None:
        while True:
            try:
                work()
            except Exception:
                logger.exception("%s: an error that was not foreseen; it goes on", self._hand)
                time.sleep(1)

    def _send_all(self) -> None:
        """Send a message for each job that a worker was chosen for."""
        key = self._to_send.get()
        with self._lock:
            handed = self._handed.get(key)
        if handed is None or handed.has_started:
            return  # taken back meanwhile
        queue, job_id, delivery = key
        try:
            self._wrapper.apply_async(
                (queue, self._hand, job_id, delivery),
                queue=fleet.own_queue(handed.member),
                task_id=f"{job_id}.{delivery}",
                shadow=handed.task.spec.handler,
                reply_to=self._hand,
                retry=False,
            )
        except (OperationalError, OSError) as error:
            self._lost_broker(key, error)
        else:
            if self._broker_away_until:
                logger.warning("%s: the broker is back", self._hand)
                self._broker_away_until, self._broker_pause_s = 0.0, FIRST_PAUSE_S

    def _lost_broker(self, key: Key, error: Exception) -> None:
        if not self._broker_away_until:
            logger.warning("%s: the broker is away, nothing is handed over: %s", self._hand, error)
        with self._lock:
            self._broker_away_until = time.monotonic() + self._broker_pause_s
            self._broker_pause_s = min(LAST_PAUSE_S, self._broker_pause_s * 2)
            self._release(key, "the broker took no message")
        self._ring()

    def _watch(self) -> None:
        """Hear which jobs ended; now and then look at the workers and at what was handed over."""
        client: Any = self._connection.blocking_client(BLOCK_S)
        look_at = 0.0
        is_away = False
        while True:
            try:
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + LOOK_EVERY_S
                    self._look()
                said = client.blpop([keys.ended(self._hand)], timeout=BLOCK_S)
                if said is not None:
                    more = client.lpop(keys.ended(self._hand), 1000) or []
                    if self._hear([said[1], *more]):
                        look_at = 0.0
                is_away = False
            except (StoreUnavailable, RedisError) as error:
                if not is_away:
                    logger.warning("%s: Redis is away, the fleet is not looked at: %s", self._hand, error)
                    is_away = True
                with self._lock:
                    self._members = {}
                time.sleep(0.5)

    def _hear(self, reports: list[bytes]) -> bool:
        """Note jobs that ended; whether somebody asks to look who is there."""
        ended = [report.decode(errors="replace").split(" ") for report in reports if report != LOOK.encode()]
        with self._lock:
            for queue, job_id, delivery in ended:
                self._handed.pop((queue, job_id, int(delivery)), None)
            self._fill()
        self._ring()
        return len(ended) < len(reports)

    def _look(self) -> None:
        if not self._is_probation:
            self._presence.say(keys.HANDS, self._hand, "{}")
        members, hands = self._presence.members(), self._presence.hands()
        with self._lock:
            before = set(self._members)
            self._members, self._hands = members, hands
        for name in sorted(before ^ members.keys()):
            what = "joined the fleet" if name in members else "left the fleet"
            logger.info("%s: %s %s", self._hand, name, what)
        self._look_after()
        with self._lock:
            self._fill()
        self._ring()

    def _look_after(self) -> None:
        """Ask Redis about jobs of which nothing was heard for long, or whose worker is gone."""
        now = time.monotonic()
        with self._lock:
            asked = [
                (key, handed)
                for key, handed in self._handed.items()
                if now - handed.at >= START_S or handed.member not in self._members
            ]
        if not asked:
            return
        pipe = self._connection.client.pipeline(transaction=False)
        for (queue, job_id, _), _handed in asked:
            pipe.hmget(keys.job(queue, job_id), "state", "child", "delivery")
        try:
            answers = pipe.execute()
        except RedisError as error:
            raise self._connection.translated(error) from error
        pending = JobState.PENDING.encode()
        with self._lock:
            for (key, handed), (state, child, delivery) in zip(asked, answers, strict=True):
                if state != pending or delivery != str(key[2]).encode():
                    self._handed.pop(key, None)  # it ended, and the report was lost
                elif child == self._hand.encode():
                    gone = handed.member not in self._members
                    self._release(key, f"{handed.member} {'is gone' if gone else 'did not start it in time'}")
                else:
                    handed.has_started = True
                    handed.at = now  # and look again later


def _key(task: Task) -> Key:
    delivery = task.delivery
    return delivery.queue, delivery.id, delivery.delivery
