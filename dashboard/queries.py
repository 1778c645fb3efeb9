"""What the pages show, read from the engine. Every read is O(what the page shows)."""

import math
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
    anchor: str  # id of the row that shows it, or ""


@dataclass(frozen=True)
class Snapshot:
    """The figures of all queues at one instant."""

    queues: tuple[QueueSummary, ...]
    taken: float = field(default_factory=time.monotonic)  # seconds on this process's clock, for `age_s` only
    server_warnings: tuple[str, ...] = ()  # what endangers jobs, as sentences
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
_server_warnings: tuple[str, ...] = ()
_server_asked = -math.inf

ASK_AGAIN_S = 2.0  # after a failure, so that pages open fast while Redis is away
SERVER_EVERY_S = 30.0  # what the server says of itself changes seldom
LONG_WAIT_S = 30.0  # for a job that could start
WAIT_S = 2.0  # for another thread's question, before the last known figures are shown


def take_snapshot() -> Snapshot:
    """Read the figures now and remember them. Raises what the engine raises when Redis is away."""
    global _last, _server_warnings, _server_asked
    inspector = Inspector(connection())
    queues = tuple(inspector.overview())
    if time.monotonic() - _server_asked > SERVER_EVERY_S:
        _server_warnings, _server_asked = inspector.server().warnings, time.monotonic()
    _last = Snapshot(queues=queues, server_warnings=_server_warnings)
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


def _is_fresh(max_age_s: float) -> bool:
    if _last.away:
        return time.monotonic() - _asked < ASK_AGAIN_S
    return _last.age_s <= max_age_s


def problems(shown: Snapshot) -> list[Problem]:
    """Return what an operator should look at first, worst first."""
    bad, warn = [], []
    for each in shown.queues:
        row = f"queue-{each.queue}"
        if each.broken:
            bad.append(Problem("bad", f"{each.queue}: can't be read in full", each.broken, row))
        if each.ready and not each.workers:
            why = f"{each.ready:,} ready; start 'manage.py runworkers'"
            bad.append(Problem("bad", f"{each.queue}: no worker", why, row))
        if each.dead:
            why = "each waits for a person: requeue or discard it"
            bad.append(Problem("bad", f"{each.queue}: {each.dead:,} dead", why, row))
        if each.events_lost:
            why = "the event stream was full: the record of what happened has a gap"
            bad.append(Problem("bad", f"{each.queue}: {each.events_lost:,} events lost", why, row))
        if each.paused:
            why = each.paused_reason or "nothing of it starts"
            warn.append(Problem("warn", f"{each.queue}: paused", why, row))
        elif each.workers and (each.oldest_ready_s or 0) > LONG_WAIT_S:
            text = f"{each.queue}: oldest ready job waits {each.oldest_ready_s:.0f} s"
            busy = f"{each.pending:,} running" + (
                f" of at most {each.concurrency:,}" if each.concurrency else ""
            )
            warn.append(Problem("warn", text, busy, row))
    warn += [Problem("warn", "Redis", warning, "") for warning in shown.server_warnings]
    return bad + warn


def overview_context(shown: Snapshot) -> dict[str, Any]:
    """Return what the overview page and its live fragment are rendered from."""
    queues = shown.queues
    done_per_s = sum(each.done_per_s for each in queues)
    failed_per_s = sum(each.failed_per_s for each in queues)
    attempts_per_s = done_per_s + failed_per_s
    return {
        "snapshot": shown,
        "problems": problems(shown),
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
