"""Figures: a summary of every queue, statistics by the minute, and the work that will fall due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from queueops import keys
from queueops.errors import StoreUnavailable
from queueops.holds import Hold, of_setting
from queueops.inspector.pages import COUNTS, Pages, ask_counts, last_delivered, read_counts
from queueops.inspector.reads import listed, number, optional, text
from queueops.scripts import script
from queueops.states import JobState, Lane
from queueops.stats import BOUNDS_MS, quantile_ms

HISTORY_MINUTES = 60
_SETTINGS = (
    "paused",
    "paused_until",
    "paused_reason",
    "concurrency",
    "rate",
    "events_lost",
    "version",
    "audit",
    "events_max",
    "holds",
)
_LATENESS = [f"lateness:{bound}" for bound in (*BOUNDS_MS, "more")]
_RAN = [f"ran:{bound}" for bound in (*BOUNDS_MS, "more")]
#: The counters of a minute but those by cause.
COUNTERS = [
    "enqueued",
    "claimed",
    "done",
    "failed",
    "dead",
    "discarded",
    "requeued",
    "rescued",
    "expired",
    "snoozed",
    "late",
    *_LATENESS,
    *_RAN,
]
_RECENT = ["done", "failed", *_LATENESS]
#: Most children of one queue that are looked at; a fleet is smaller.
MOST_CHILDREN = 1_000


@dataclass(frozen=True)
class QueueSummary:
    """One queue now. Rates are per second over the last minute; `_s` seconds, `_ms` milliseconds."""

    queue: str
    delayed: int
    ready: int
    pending: int
    dead: int
    discarded: int
    oldest_ready_s: float | None
    paused: bool
    paused_until_ms: int | None
    paused_reason: str | None
    concurrency: int | None
    rate: float | None
    done_per_s: float
    failed_per_s: float
    lateness_p99_ms: float | None
    workers: int
    events: int
    #: How old the oldest event is that no mirror has taken yet.
    events_age_s: float | None
    events_lost: int
    #: (done, failed) of each of the last 60 minutes, oldest first; the last one is not over.
    history: tuple[tuple[int, int], ...]
    audit: str = "full"
    #: What keeps a part of its jobs back.
    holds: tuple[Hold, ...] = ()
    #: What keeps this queue from being read in full, such as a key of a wrong type.
    broken: str | None = None

    @property
    def total(self) -> int:
        """Jobs in all listed states."""
        return self.delayed + self.ready + self.pending + self.dead + self.discarded


@dataclass(frozen=True)
class Minute:
    """The counters of one minute; `minute` is in Unix minutes."""

    minute: int
    counters: dict[str, int]

    def count(self, name: str) -> int:
        """One counter."""
        return self.counters.get(name, 0)

    def quantile_ms(self, name: str, q: float) -> float | None:
        """A quantile of `lateness` or `ran`, ms; None when nothing was counted."""
        return quantile_ms(self.counters, name, q)


@dataclass(frozen=True)
class Due:
    """Jobs that fall due from `at_ms` (Unix ms) on, within `minutes`."""

    at_ms: int
    minutes: int
    count: int


@dataclass
class _Past:
    """Minutes of one queue that are over, so that a summary reads two minutes and not sixty."""

    epoch: bytes
    by_minute: dict[int, tuple[int, int]]


_past: dict[tuple[str, str], _Past] = {}


class Overview(Pages):
    """Summaries and statistics; a constant number of round trips however many queues there are."""

    def overview(self, queues: Sequence[str] | None = None) -> list[QueueSummary]:
        """A summary of each queue (default: all), by name."""
        names = self.queues() if queues is None else list(queues)
        if not names:
            return []
        now_ms, server_ms = self.now()
        minute = now_ms // 60_000
        pipe = self.pipe()
        pipe.get(keys.EPOCH)
        for queue in names:
            _ask_summary(pipe, queue, minute, now_ms)
        epoch, *answers = self.answers(pipe)
        parts = [answers[i : i + _ASKED] for i in range(0, len(answers), _ASKED)]
        oldest = self._oldest_ready(names, parts, server_ms)
        past = self._past_minutes(names, minute, epoch if isinstance(epoch, bytes) else b"")
        summaries = [
            _summary(queue, part, waits, history, now_ms, server_ms)
            for queue, part, waits, history in zip(names, parts, oldest, past, strict=True)
        ]
        return self._with_held(summaries) if any(each.holds for each in summaries) else summaries

    def _with_held(self, summaries: list[QueueSummary]) -> list[QueueSummary]:
        """The same, with how many jobs each hold keeps back."""
        pipe = self.pipe()
        for each in summaries:
            for hold in each.holds:
                pipe.zcard(keys.held_by(each.queue, hold.id))
        counts = iter(self.answers(pipe))
        return [
            replace(each, holds=tuple(replace(hold, jobs=number(next(counts))) for hold in each.holds))
            for each in summaries
        ]

    def summary(self, queue: str) -> QueueSummary:
        """The summary of one queue."""
        return self.overview([queue])[0]

    def _oldest_ready(self, names: list[str], parts: list[list[Any]], server_ms: int) -> list[float | None]:
        """Seconds that the longest waiting entry of each queue has been ready."""
        pipe = self.pipe()
        for queue, part in zip(names, parts, strict=True):
            for lane, groups in zip(Lane, part[_GROUPS], strict=True):
                pipe.xrange(keys.ready(queue, lane), min=b"(" + last_delivered(groups), max="+", count=1)
        answers = self.answers(pipe)
        waits: list[float | None] = []
        for i in range(len(names)):
            firsts = answers[i * len(Lane) : (i + 1) * len(Lane)]
            since = [int(found[0][0].split(b"-")[0]) for found in map(listed, firsts) if found]
            # The id's time may be ahead of the clock when that was set back.
            waits.append(max(0.0, (server_ms - min(since)) / 1000) if since else None)
        return waits

    def _past_minutes(self, names: list[str], minute: int, epoch: bytes) -> list[list[tuple[int, int]]]:
        """(done, failed) of the minutes before the last two, from memory where this process has them."""
        wanted = range(minute - HISTORY_MINUTES + 1, minute - 1)
        known: list[_Past] = []
        asked: list[tuple[_Past, int]] = []
        pipe = self.pipe()
        for queue in names:
            past = _past.get((self.connection.url, queue))
            if past is None or past.epoch != epoch or self.clock:
                past = _Past(epoch, {})
                _past[self.connection.url, queue] = past
            for old in past.by_minute.keys() - set(wanted):
                past.by_minute.pop(old, None)
            known.append(past)
            for each in wanted:
                if each not in past.by_minute:
                    asked.append((past, each))
                    pipe.hmget(keys.stats(queue, each), "done", "failed")
        answers = self.answers(pipe) if asked else []
        for (past, each), answer in zip(asked, answers, strict=True):
            done, failed = listed(answer) or (0, 0)
            past.by_minute[each] = (number(done), number(failed))
        return [[past.by_minute.get(each, (0, 0)) for each in wanted] for past in known]

    def stats(self, queue: str, minutes: int = HISTORY_MINUTES) -> list[Minute]:
        """The counters of the last `minutes` (at most 1,500: they are kept 25 h), oldest first."""
        last = self.now_ms() // 60_000
        wanted = range(last - min(max(minutes, 1), 1_500) + 1, last + 1)
        pipe = self.pipe()
        for minute in wanted:
            pipe.hmget(keys.stats(queue, minute), COUNTERS)
        return [
            Minute(minute, _counters(COUNTERS, answer))
            for minute, answer in zip(wanted, self.answers(pipe), strict=True)
        ]

    def totals(self, queues: Sequence[str] | None = None) -> dict[str, Minute]:
        """The counters since ever, by queue; `minute` is 0."""
        names = self.queues() if queues is None else list(queues)
        pipe = self.pipe()
        for queue in names:
            pipe.hmget(keys.queue_key(queue, "stats_total"), COUNTERS)
        answers = self.answers(pipe) if names else []
        return {q: Minute(0, _counters(COUNTERS, a)) for q, a in zip(names, answers, strict=True)}

    def forecast(
        self, minutes: int = 60, *, queues: Sequence[str] | None = None, step: int = 1
    ) -> dict[str, list[Due]]:
        """How many delayed jobs fall due in each step (minutes) ahead, by queue.

        The first step also has what is due already. At most 1,500 steps.
        """
        names = self.queues() if queues is None else list(queues)
        step = max(1, step)
        steps = min(max(minutes // step, 1), 1_500)
        start = self.now_ms() // 60_000 * 60_000
        found = script("due")
        calls = [
            (
                found,
                queue,
                found.arguments(
                    keys.jobs_in(queue, JobState.DELAYED), from_ms=start, step_ms=step * 60_000, steps=steps
                ),
            )
            for queue in names
        ]
        answers = self.connection.run_many(calls) if names else []
        return {
            queue: [
                Due(start + i * step * 60_000, step, number(n)) for i, n in enumerate(_counts(answer, steps))
            ]
            for queue, answer in zip(names, answers, strict=True)
        }


def _counts(answer: Any, steps: int) -> Sequence[Any]:
    """The counts of one queue; none where its key holds a wrong type."""
    if isinstance(answer, StoreUnavailable):
        raise answer
    return listed(answer) or [0] * steps


def _ask_summary(pipe: Any, queue: str, minute: int, now_ms: int) -> None:
    ask_counts(pipe, queue)
    for lane in Lane:
        pipe.xinfo_groups(keys.ready(queue, lane))
    pipe.hmget(keys.queue_key(queue, "settings"), _SETTINGS)
    pipe.hmget(keys.stats(queue, minute), _RECENT)
    pipe.hmget(keys.stats(queue, minute - 1), _RECENT)
    pipe.zrangebyscore(keys.queue_key(queue, "children"), f"({now_ms}", "+inf", start=0, num=MOST_CHILDREN)
    pipe.xlen(keys.queue_key(queue, "events"))
    pipe.xrange(keys.queue_key(queue, "events"), count=1)


_GROUPS = slice(COUNTS, COUNTS + len(Lane))
_ASKED = COUNTS + len(Lane) + 6


def _summary(
    queue: str,
    part: list[Any],
    oldest_s: float | None,
    past: list[tuple[int, int]],
    now_ms: int,
    server_ms: int,
) -> QueueSummary:
    settings, this, last, children, events, first = part[-6:]
    counts = read_counts(part[:COUNTS])
    conf = dict(zip(_SETTINGS, listed(settings) or [None] * len(_SETTINGS), strict=True))
    now, before = _counters(_RECENT, this), _counters(_RECENT, last)
    left = 1 - now_ms % 60_000 / 60_000  # of the minute before, what is within the last 60 s
    both = {name: now.get(name, 0) + before.get(name, 0) for name in _LATENESS}
    until = optional(conf["paused_until"])
    failures = [a for a in part if isinstance(a, Exception) and "no such key" not in str(a).lower()]
    return QueueSummary(
        queue=queue,
        delayed=counts[JobState.DELAYED],
        ready=counts[JobState.READY],
        pending=counts[JobState.PENDING],
        dead=counts[JobState.DEAD],
        discarded=counts[JobState.DISCARDED],
        oldest_ready_s=oldest_s,
        paused=conf["paused"] == b"1" and (until is None or until > now_ms),
        paused_until_ms=until,
        paused_reason=text(conf["paused_reason"]),
        concurrency=optional(conf["concurrency"]),
        rate=optional(conf["rate"], float),
        done_per_s=(now.get("done", 0) + left * before.get("done", 0)) / 60,
        failed_per_s=(now.get("failed", 0) + left * before.get("failed", 0)) / 60,
        lateness_p99_ms=quantile_ms(both, "lateness", 0.99),
        workers=len({child.rpartition(b"/")[0] for child in listed(children)}),
        events=number(events),
        events_age_s=_age_s(first, server_ms),
        events_lost=number(conf["events_lost"]),
        history=(
            *past,
            (before.get("done", 0), before.get("failed", 0)),
            (now.get("done", 0), now.get("failed", 0)),
        ),
        audit=text(conf["audit"]) or "full",
        holds=tuple(of_setting(conf["holds"], now_ms=now_ms)),
        broken=f"a key of this queue can't be read: {failures[0]}" if failures else None,
    )


def _age_s(first: Any, server_ms: int) -> float | None:
    entries = listed(first)
    return max(0.0, (server_ms - int(entries[0][0].split(b"-")[0])) / 1000) if entries else None


def _counters(names: Sequence[str], answer: Any) -> dict[str, int]:
    return {
        name: number(value) for name, value in zip(names, listed(answer), strict=False) if value is not None
    }
