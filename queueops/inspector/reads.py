"""The ground of all reads: the clock, one round trip for many commands, and what an answer may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from queueops import keys
from queueops.conf import config
from queueops.connection import Connection, connection
from queueops.errors import StoreUnavailable
from queueops.scripts import script

Answer = Any


class Reads:
    """Reads of one Redis. Nothing here writes, scans the keyspace or grows with the number of jobs.

    `now_ms` moves the clock as Store's does: '' for Redis TIME; '+N', '-N' or 'N' in tests only.
    Every method may raise StoreUnavailable.
    """

    def __init__(self, conn: Connection | None = None, *, now_ms: str = "") -> None:
        self.connection = conn or connection()
        self.clock = now_ms or config().test_now_ms

    def now(self) -> tuple[int, int]:
        """Unix ms by the scripts' clock, and by the server's own, which stream ids are made of."""
        now_ms, server_us = self.connection.run(script("now"), keys.QUEUES, now_ms=self.clock)
        return int(now_ms), int(server_us) // 1000

    def now_ms(self) -> int:
        """Unix ms by the scripts' clock."""
        return self.now()[0]

    def queues(self) -> list[str]:
        """Every queue on the index, by name; a few round trips however large the index is.

        What another hand put there and no queue can be named is left out: it has no address.
        """
        found: set[Any] = set()
        cursor = 0
        try:
            while True:
                cursor, names = self.connection.client.sscan(keys.QUEUES, cursor, count=1000)
                found.update(names)
                if not cursor:
                    given = [name.decode(errors="replace") for name in found]
                    return sorted(name for name in given if keys.is_queue(name))
        except RedisError as error:
            raise self.connection.translated(error) from error

    def pipe(self) -> Any:
        """A pipeline; on a Cluster its commands may touch any slot."""
        return self.connection.client.pipeline(transaction=False)

    def answers(self, pipe: Any) -> list[Answer]:
        """Send it. An answer is an exception where one key holds a wrong type or a group is missing."""
        try:
            found: list[Answer] = pipe.execute(raise_on_error=False)
        except RedisError as error:
            raise self.connection.translated(error) from error
        for answer in found:
            if isinstance(answer, RedisError):
                told = self.connection.translated(answer)
                if isinstance(told, StoreUnavailable):
                    raise told from answer
        return found


def number(value: Answer) -> int:
    """A count, or 0 for what is none: a page shows the rest."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0


def optional(value: Answer, kind: type[int] | type[float] = int) -> Any:
    """A number of this kind, or None."""
    try:
        return kind(value)
    except (TypeError, ValueError):
        return None


def text(value: Answer) -> str | None:
    """Bytes from Redis as text, whatever they hold, or None."""
    return value.decode(errors="replace") if isinstance(value, bytes) else None


def listed(value: Answer) -> Sequence[Any]:
    """A list, or an empty one for an error."""
    return value if isinstance(value, list) else ()
