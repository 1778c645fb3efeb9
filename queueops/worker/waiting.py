"""Waiting without polling: a blocked connection that a token wakes, and a timer of our own beside it.

BLPOP's own time-out is only as fine as the server's tick (100 ms late), so one long BLPOP stands on a
socket of its own, and the caller selects on that socket and on its own clock. Nothing is re-sent: a
BLPOP sent twice would swallow a token. See docs/redis.md: waiting.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Sequence
from typing import Any

from redis.exceptions import RedisError

from queueops.connection import Connection
from queueops.errors import StoreUnavailable

#: How long one BLPOP stands. An answer later than that plus the grace: the socket is dead.
BLOCK_S = 60
GRACE_S = 10
#: `select` takes no longer time-out than some years; the loop asks again.
LONGEST_S = 3600.0
#: Linux lets `select` overshoot by 0.1 % of its time-out: the end of a long wait is waited for apart.
LAST_STRETCH_S = 0.05
SLACK = 0.002


class _Blocked:
    """One connection with one BLPOP on some wake lists."""

    def __init__(self, client: Any, keys: Sequence[str]) -> None:
        self._pool = client.connection_pool
        self._connection = self._pool.get_connection()
        self._keys = keys
        self.overdue_at = 0.0  # monotonic; 0 while nothing stands

    def arm(self) -> None:
        if not self.overdue_at:
            self._connection.send_command("BLPOP", *self._keys, BLOCK_S, check_health=False)
            self.overdue_at = time.monotonic() + BLOCK_S + GRACE_S

    def fileno(self) -> int:
        return int(self._connection._get_socket().fileno())

    def token(self) -> str | None:
        answer = self._connection.read_response()
        self.overdue_at = 0.0
        return None if answer is None else answer[0].decode()

    def close(self) -> None:
        self._connection.disconnect()
        self._pool.disconnect()


class Waiter:
    """The blocked connections of one child: one for all its queues, or on a Cluster one a queue.

    Raises StoreUnavailable from any method that touches Redis; the waiter is then closed, and the
    next `arm` opens it again: ask every queue after that, since a token may have gone with the socket.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._keys: tuple[str, ...] = ()
        self._blocked: list[_Blocked] = []

    @property
    def is_open(self) -> bool:
        """Whether tokens can reach this child."""
        return bool(self._blocked)

    def watch(self, keys: Iterable[str]) -> None:
        """Wait on these wake lists from now on. A token may be lost: ask every queue after it."""
        self.close()
        self._keys = tuple(keys)

    def arm(self) -> None:
        """Let a BLPOP stand on every wake list."""
        try:
            if not self._blocked and self._keys:
                self._open()
            for blocked in self._blocked:
                blocked.arm()
        except (RedisError, OSError) as error:
            raise self._failed(error) from error

    def _open(self) -> None:
        client = self._connection.blocking_client(BLOCK_S)
        if not self._connection.is_cluster:
            self._blocked = [_Blocked(client, self._keys)]
            return
        for key in self._keys:  # two queues in one command would be CROSSSLOT
            node = client.get_node_from_key(key)  # type: ignore[attr-defined]  # a RedisCluster
            self._blocked.append(_Blocked(client.get_redis_connection(node), (key,)))  # type: ignore[attr-defined]

    def wait(self, others: Sequence[int], until: float) -> tuple[list[int], list[str]]:
        """Wait for a token, for one of the file descriptors `others`, or until a monotonic time.

        Answers the ready ones of `others` and the wake lists whose token came.
        """
        watched: list[Any] = [*others, *(b for b in self._blocked if b.overdue_at)]
        while True:
            left = min(until - time.monotonic(), LONGEST_S)  # `until` may be infinite, which select refuses
            first = left * (1 - SLACK) - LAST_STRETCH_S
            ready = select.select(watched, [], [], first if first > 0 else max(0.0, left))[0]
            if ready or first <= 0:
                break
        tokens: list[str] = []
        for each in ready:
            if isinstance(each, _Blocked):
                tokens += self._take(each)
        return [each for each in ready if isinstance(each, int)], tokens

    def _take(self, blocked: _Blocked) -> list[str]:
        try:
            token = blocked.token()
        except (RedisError, OSError) as error:
            raise self._failed(error) from error
        return [] if token is None else [token]

    def check(self) -> None:
        """Raise when a BLPOP should have been answered long ago: its server is gone without a word."""
        now = time.monotonic()
        if any(blocked.overdue_at and blocked.overdue_at < now for blocked in self._blocked):
            raise self._failed(TimeoutError("a BLPOP was not answered"))

    def next_check(self) -> float:
        """When to call `check`, monotonic."""
        return min((b.overdue_at for b in self._blocked if b.overdue_at), default=float("inf"))

    def close(self) -> None:
        """Drop the connections."""
        for blocked in self._blocked:
            blocked.close()
        self._blocked = []

    def _failed(self, error: Exception) -> StoreUnavailable:
        self.close()
        return StoreUnavailable(f"waiting for work: {error}")
