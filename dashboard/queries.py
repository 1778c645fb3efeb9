"""What the pages show, read from the engine. Every read is O(what the page shows)."""

import math
import threading
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from django.http import HttpRequest
from redis.exceptions import RedisError

from dashboard import conditions
from dashboard.conditions import Fleet, Problem
from queueops.connection import connection
from queueops.errors import QueueOpsError
from queueops.holds import Hold
from queueops.inspector import Inspector, QueueSummary


@dataclass(frozen=True)
class Snapshot:
    """The figures of all queues at one instant."""

    queues: tuple[QueueSummary, ...]
    taken: float = field(default_factory=time.monotonic)  # seconds on this process's clock, for `age_s` only
    server_warnings: tuple[str, ...] = ()  # what endangers jobs, as sentences
    fleet: Fleet = field(default_factory=Fleet)
    away: str = ""  # why the engine's Redis did not answer when this was asked for last; else ""

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.taken

    @property
    def is_known(self) -> bool:
        """Whether Redis has answered at all since this process started."""
        return self.taken > 0

    @cached_property
    def problems(self) -> list[Problem]:
        """What an operator should look at, the worst first."""
        return conditions.problems(state(self))

    @property
    def bad(self) -> int:
        """How many of them are more than a warning."""
        return sum(problem.severity == "bad" for problem in self.problems)

    @property
    def cause_count(self) -> int:
        """Causes that dead jobs have; failing ones stand on their own page."""
        return sum(cause.dead > 0 for cause in self.fleet.causes)

    @property
    def paused(self) -> list[QueueSummary]:
        """The queues that are paused."""
        return [each for each in self.queues if each.paused]

    @property
    def held(self) -> list[tuple[QueueSummary, Hold]]:
        """What keeps a part of a queue back."""
        return [(each, hold) for each in self.queues for hold in each.holds]


_last = Snapshot(queues=(), taken=0.0)
_asked = 0.0  # when Redis was asked last, answered or not; seconds on this process's clock
_asking = threading.Lock()
_server_warnings: tuple[str, ...] = ()
_server_asked = -math.inf
_fleet: Fleet | None = None

ASK_AGAIN_S = 2.0  # after a failure, so that pages open fast while Redis is away
SERVER_EVERY_S = 30.0  # what the server says of itself changes seldom
FLEET_EVERY_S = 5.0  # workers, the mirror, schedules and operations
WAIT_S = 2.0  # for another thread's question, before the last known figures are shown


def take_snapshot() -> Snapshot:
    """Read the figures now and remember them. Raises what the engine raises when Redis is away."""
    global _last, _server_warnings, _server_asked, _fleet
    inspector = Inspector(connection())
    queues = tuple(inspector.overview())
    if time.monotonic() - _server_asked > SERVER_EVERY_S:
        _server_warnings, _server_asked = inspector.server().warnings, time.monotonic()
    if _fleet is None or time.monotonic() - _fleet.taken > FLEET_EVERY_S:
        _fleet = conditions.read_fleet(queues)
    _last = Snapshot(queues=queues, server_warnings=_server_warnings, fleet=_fleet)
    return _last


def snapshot(max_age_s: float = 1.0) -> Snapshot:
    """Return figures at most `max_age_s` old, or the last known ones marked `away` when Redis is silent.

    One thread asks Redis at a time: a slow server gets one question from this process, not one a visitor.
    """
    global _last, _asked
    if _is_fresh(max_age_s):
        return _last
    if not _asking.acquire(timeout=WAIT_S):
        return replace(_last, away="Redis has not answered yet")
    try:
        if not _is_fresh(max_age_s):
            try:
                take_snapshot()
            except (QueueOpsError, RedisError, OSError) as error:
                _last = replace(_last, away=str(error))
            _asked = time.monotonic()
        return _last
    finally:
        _asking.release()


def summary_of(queue: str) -> QueueSummary | None:
    """Return the figures of one queue, or None for one that nobody knows."""
    return next((each for each in snapshot().queues if each.queue == queue), None)


def expire() -> None:
    """Have the next page of this process ask Redis anew."""
    global _last
    if not _last.away and _last.is_known:
        _last = replace(_last, taken=min(_last.taken, time.monotonic() - 2.0))


def last_fleet() -> Fleet:
    """Return what was last known of the fleet."""
    return _last.fleet


def _is_fresh(max_age_s: float) -> bool:
    if _last.away:
        return time.monotonic() - _asked < ASK_AGAIN_S
    return _last.age_s <= max_age_s


def state(shown: Snapshot) -> conditions.State:
    """Return what the checks look at."""
    return conditions.State(shown.queues, shown.fleet, shown.server_warnings, shown.away)


def overview_context(shown: Snapshot) -> dict[str, Any]:
    """Return what the overview page and its live fragment are rendered from."""
    queues = shown.queues
    done_per_s = sum(each.done_per_s for each in queues)
    failed_per_s = sum(each.failed_per_s for each in queues)
    attempts_per_s = done_per_s + failed_per_s
    return {
        "snapshot": shown,
        "problems": shown.problems,
        "checks": len(conditions.CHECKS),
        "done_per_s": done_per_s,
        "failed_percent": 100 * failed_per_s / attempts_per_s if attempts_per_s else 0.0,
        "oldest_ready_s": max((w for each in queues if (w := each.oldest_ready_s) is not None), default=None),
        "lateness_p99_ms": max(
            (w for each in queues if (w := each.lateness_p99_ms) is not None), default=None
        ),
        "pending": sum(each.pending for each in queues),
    }


def navigation(request: HttpRequest) -> dict[str, Any]:
    """Give every page the queues of the side bar; read only when a template prints them."""
    return {"snapshot": snapshot} if getattr(request, "user", None) and request.user.is_authenticated else {}
