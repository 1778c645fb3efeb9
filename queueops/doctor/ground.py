"""What every examination stands on: findings, what one walk saw, and the connection."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from queueops.connection import Connection
from queueops.inspector import Inspector
from queueops.store import Store

#: Keys in one round trip.
TRIP = 500


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it must be. `severity`: 'error' breaks a promise, 'warning' does not."""

    severity: str
    queue: str | None
    job_id: str | None
    what: str
    mended: bool = False

    def __str__(self) -> str:
        place = "/".join(part for part in (self.queue, self.job_id) if part) or "store"
        return f"{place}: {self.what}{' (mended)' if self.mended else ''}"


class Scanned:
    """What one walk over the keys saw."""

    def __init__(self) -> None:
        self.queues: set[str] = set()
        #: Ids of live jobs by (queue, cause): those that are failing.
        self.failing: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.causes: dict[str, set[str]] = defaultdict(set)


class Ground:
    """The connection and the findings of one examination."""

    def __init__(self, conn: Connection, *, mend: bool, specs: bool, now_ms: str) -> None:
        self.connection = conn
        self.client: Any = conn.client
        self.store = Store(conn, now_ms=now_ms)
        self.mend = mend
        self.specs = specs
        self.findings: list[Finding] = []
        self.reads = Inspector(conn, now_ms=now_ms)

    def add(
        self, severity: str, queue: str | None, job_id: str | None, what: str, *, mended: bool = False
    ) -> None:
        """Note a finding."""
        self.findings.append(Finding(severity, queue, job_id, what, mended))

    def members(self, key: str) -> Iterator[str]:
        """The members of a sorted set by cursor; none of a key of a wrong type, which is said elsewhere."""
        try:
            for member, _ in self.client.zscan_iter(key, count=1000):
                yield member.decode(errors="replace")
        except RedisError as error:
            if "WRONGTYPE" not in str(error):
                raise


def chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield the items in lists of `size`."""
    part: list[Any] = []
    for item in items:
        part.append(item)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part
