"""What the pages show, read from the engine. Every read is O(what the page shows)."""

import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

from django.http import HttpRequest
from redis.exceptions import RedisError

from queueops.connection import connection
from queueops.errors import QueueOpsError
from queueops.inspector import Inspector, QueueSummary


@dataclass(frozen=True)
class Problem:
    """One line of "what is wrong now"."""

    severity: str  # "bad" or "warn": also names the icon
    text: str
    why: str
    anchor: str  # id of the row that shows it


@dataclass(frozen=True)
class Snapshot:
    """The figures of all queues at one instant."""

    queues: tuple[QueueSummary, ...]
    taken: float = field(default_factory=time.monotonic)  # seconds on this process's clock, for `age_s` only
    away: str = ""  # why the engine's Redis did not answer when this was asked for last; else ""

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.taken

    @property
    def is_known(self) -> bool:
        """Whether Redis has answered at all since this process started."""
        return self.taken > 0


_last = Snapshot(queues=(), taken=0.0)
_asked = 0.0  # when Redis was asked last, answered or not; seconds on this process's clock
_asking = threading.Lock()

ASK_AGAIN_S = 2.0  # after a failure, so that pages open fast while Redis is away
WAIT_S = 2.0  # for another thread's question, before the last known figures are shown


def take_snapshot() -> Snapshot:
    """Read the figures now and remember them. Raises what the engine raises when Redis is away."""
    global _last
    _last = Snapshot(queues=tuple(sorted(Inspector(connection()).overview(), key=lambda each: each.queue)))
    return _last


def snapshot(max_age_s: float = 1.0) -> Snapshot:
    """Return figures at most `max_age_s` old, or the last known ones, marked `away`, when Redis does not answer.

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


def _is_fresh(max_age_s: float) -> bool:
    if _last.away:
        return time.monotonic() - _asked < ASK_AGAIN_S
    return _last.age_s <= max_age_s


def problems(shown: Snapshot) -> list[Problem]:
    """Return what an operator should look at first, worst first."""
    found = []
    for each in shown.queues:
        row = f"queue-{each.queue}"
        if each.ready and not each.workers:
            why = f"{each.ready:,} jobs are ready; start 'manage.py runworkers'"
            found.append(Problem("bad", f"{each.queue}: no worker", why, row))
        if each.dead:
            why = "each waits for a person: requeue it or discard it"
            found.append(Problem("bad", f"{each.queue}: {each.dead:,} dead", why, row))
    for each in shown.queues:
        if each.paused:
            found.append(Problem("warn", f"{each.queue}: paused", "nothing of it starts", f"queue-{each.queue}"))
    return found


def overview_context(shown: Snapshot) -> dict[str, Any]:
    """Return what the overview page and its live fragment are rendered from."""
    queues = shown.queues
    waits = [each.oldest_ready_s for each in queues if each.oldest_ready_s is not None]
    done_per_s = sum(each.done_per_s for each in queues)
    failed_per_s = sum(each.failed_per_s for each in queues)
    attempts_per_s = done_per_s + failed_per_s
    return {
        "snapshot": shown,
        "problems": problems(shown),
        "done_per_s": done_per_s,
        "failed_percent": 100 * failed_per_s / attempts_per_s if attempts_per_s else 0.0,
        "oldest_ready_s": max(waits, default=None),
        "pending": sum(each.pending for each in queues),
        "dead": sum(each.dead for each in queues),
    }


def navigation(request: HttpRequest) -> dict[str, Any]:
    """Give every page the queues of the side bar; read only when a template prints them."""
    return {"snapshot": snapshot} if getattr(request, "user", None) and request.user.is_authenticated else {}
