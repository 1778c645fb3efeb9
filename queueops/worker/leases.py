"""The supervisor's talk with Redis: leases of its children, what dead ones held, its heartbeat.

Every method either does its work or raises StoreUnavailable; nothing is lost by trying again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import RedisError

from queueops import keys
from queueops.conf import config
from queueops.errors import QueueOpsError, StoreFull, StoreUnavailable, WrongKeyType
from queueops.inspector import Inspector
from queueops.states import Lane
from queueops.stops import Stop
from queueops.store import Store
from queueops.worker.board import Running
from queueops.worker.stopping import Stops, stopped
from queueops.worker.timeouts import Declared, timed_out

logger = logging.getLogger("queueops.worker")

#: Jobs given back in one script: more would be everybody's wait.
HAND_BACK_BATCH = 100


@dataclass
class Grave:
    """A dead child whose jobs are to be given back."""

    child: str
    why: str
    queues: list[str]  # not done yet; those with running jobs first
    running: dict[str, list[str]] = field(default_factory=dict)  # queue -> ids whose handlers ran
    #: queue -> handlers that were over their hard limit
    late: dict[str, list[Running]] = field(default_factory=dict)
    #: queue -> handlers that a person wanted stopped, and that did not stop when asked
    stopped: dict[str, list[tuple[Running, Stop]]] = field(default_factory=dict)
    given_back: int = 0


class Leases:
    """What one worker says in Redis about its children."""

    def __init__(self, store: Store, worker: str, declared: Declared) -> None:
        self._store = store
        self._declared = declared
        self.worker = worker
        self._server_us = 0  # the server's time at the last renewal
        self._versions: dict[str, int] = {}
        self._lease_s: dict[str, float] = {}
        self._started_ms = 0
        self.stops = Stops()

    @property
    def _client(self) -> Any:
        return self._store.connection.client

    def queues(self) -> set[str]:
        """The index of queues."""
        try:
            return {raw.decode(errors="replace") for raw in self._client.smembers(keys.QUEUES)}
        except RedisError as error:
            raise self._store.connection.translated(error) from error

    def renew(self, queues: Iterable[str], children: Sequence[str]) -> None:
        """Register or renew the children in every queue."""
        for queue in queues:
            try:
                renewed = self._store.renew(queue, children)
                self._server_us = renewed.server_us
                self.stops.told(queue, children, renewed)
                if self._versions.get(queue) != renewed.version:
                    self._read_lease(queue, renewed.version)
            except (WrongKeyType, StoreFull) as error:
                logger.error("queue %s: the leases can't be renewed: %s", queue, error)

    def _read_lease(self, queue: str, version: int) -> None:
        with self._store.connection.translating():
            told = self._client.hget(keys.queue_key(queue, "settings"), "lease_ms")
        try:
            self._lease_s[queue] = max(0.1, int(told or 0) / 1000) if told else config().lease_s
        except ValueError:
            self._lease_s[queue] = config().lease_s
        self._versions[queue] = version

    @property
    def shortest_s(self) -> float:
        """The shortest lease of a queue here, seconds: what must be renewed in time."""
        return min(self._lease_s.values(), default=config().lease_s)

    def server_uptime_s(self) -> float:
        """How long the server has been up, in seconds; the shortest of a Cluster's nodes."""
        try:
            info = self._client.info("server")
        except RedisError as error:
            raise self._store.connection.translated(error) from error
        nodes = [info] if "uptime_in_seconds" in info else info.values()
        return float(min(node["uptime_in_seconds"] for node in nodes))

    # -- the dead -------------------------------------------------------------------------

    def bury(self, grave: Grave) -> None:
        """Give back everything a dead child held."""
        while grave.queues:
            queue = grave.queues[0]
            try:
                if late := grave.late.get(queue):
                    outcomes = timed_out(self._store, queue, late, self._declared)
                    self._store.settle(queue, grave.child, outcomes)
                if ended := grave.stopped.get(queue):
                    self._store.settle(queue, grave.child, stopped(queue, ended))
                running = grave.running.get(queue, [])
                while True:
                    given = self._store.hand_back(
                        queue, grave.child, why=grave.why, running=running, limit=HAND_BACK_BATCH
                    )
                    grave.given_back += given
                    if given < HAND_BACK_BATCH:
                        break
            except StoreUnavailable:
                raise
            except (QueueOpsError, RedisError) as error:
                logger.error("queue %s: what %s held can't be given back: %s", queue, grave.child, error)
            grave.queues.pop(0)

    # -- the heartbeat ----------------------------------------------------------------------

    def beat(self, about: Mapping[str, object]) -> bool:
        """Tell Redis that this worker lives and what it is; whether a person asked it to stop.

        Call it right after a renewal: the time of the heartbeat is the one that the server answered there.
        `started_at` and `last_fetch_at` are added, Unix ms by that clock.
        """
        try:
            now_ms = self._server_us // 1000 or self._now_ms()
            self._started_ms = self._started_ms or now_ms
            ago_s = about.get("fetched_s_ago")
            fetched_ms = now_ms - round(ago_s * 1000) if isinstance(ago_s, (int, float)) else None
            about = {**about, "started_at": self._started_ms, "last_fetch_at": fetched_ms}
            pipe = self._client.pipeline(transaction=False)
            pipe.zadd(keys.WORKERS, {self.worker: now_ms})
            pipe.hset(keys.WORKER_INFO, self.worker, json.dumps(about))
            pipe.exists(keys.drain(self.worker))
            *_, is_drained = pipe.execute(raise_on_error=False)
        except RedisError as error:
            raise self._store.connection.translated(error) from error
        if isinstance(is_drained, RedisError):
            raise self._store.connection.translated(is_drained) from is_drained
        # At `maxmemory` the heartbeat itself is refused: jobs go on, and pages say that Redis is full.
        return bool(is_drained)

    def leave(self) -> None:
        """Take this worker off the list, after a clean stop."""
        try:
            pipe = self._client.pipeline(transaction=False)
            pipe.zrem(keys.WORKERS, self.worker)
            pipe.hdel(keys.WORKER_INFO, self.worker)
            pipe.delete(keys.drain(self.worker))
            pipe.execute()
        except RedisError as error:
            raise self._store.connection.translated(error) from error

    def _now_ms(self) -> int:
        return Inspector(self._store.connection, now_ms=self._store.now_ms).now_ms()

    # -- the end of a burst -----------------------------------------------------------------

    def is_idle(self, queues: Iterable[str]) -> bool:
        """Whether nothing is ready, pending or due. A paused queue's ready jobs are not waited for."""
        try:
            now_ms = self._now_ms()
            for queue in queues:
                pipe = self._client.pipeline(transaction=False)
                pipe.hget(keys.queue_key(queue, "settings"), "paused")
                pipe.zcard(keys.queue_key(queue, "pending"))
                for lane in Lane:
                    pipe.xlen(keys.ready(queue, lane))
                pipe.zcount(keys.queue_key(queue, "delayed"), "-inf", now_ms)
                paused, pending, *waiting = pipe.execute()
                if pending or (paused != b"1" and any(waiting)):
                    return False
        except RedisError as error:
            raise self._store.connection.translated(error) from error
        return True
