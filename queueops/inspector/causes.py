"""What fails, by cause: failing jobs (to be tried again) and dead ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from queueops import keys
from queueops.inspector.overview import Overview
from queueops.inspector.reads import listed, number, optional, text

#: Causes looked at over all queues, the last seen first; one queue keeps no more than this.
MOST = 1_000


#: (server, epoch, queue, cause) -> failed attempts by minute.
_past: dict[tuple[str, Any, str, str], dict[int, int]] = {}
_MOST_PAST = 5_000


@dataclass(frozen=True)
class CauseInQueue:
    """One cause in one queue. Times are Unix ms; `failures` counts attempts since ever."""

    queue: str
    failing: int
    dead: int
    failures: int
    first_ms: int | None
    last_ms: int
    sample: str | None  # the id of its last dead job


@dataclass(frozen=True)
class CauseSummary:
    """One cause over the queues that know it, the queue with most of its jobs first."""

    cause: str
    text: str
    queues: list[CauseInQueue] = field(default_factory=list)

    @property
    def failing(self) -> int:
        """Jobs that will be tried again."""
        return sum(each.failing for each in self.queues)

    @property
    def dead(self) -> int:
        """Jobs that wait for a person."""
        return sum(each.dead for each in self.queues)

    @property
    def failures(self) -> int:
        """Attempts that ended so, since ever."""
        return sum(each.failures for each in self.queues)

    @property
    def first_ms(self) -> int | None:
        """When it was first seen, Unix ms."""
        return min((each.first_ms for each in self.queues if each.first_ms is not None), default=None)

    @property
    def last_ms(self) -> int:
        """When it was last seen, Unix ms."""
        return max(each.last_ms for each in self.queues)

    @property
    def sample(self) -> tuple[str, str] | None:
        """(queue, id) of a dead job of it."""
        return next(((each.queue, each.sample) for each in self.queues if each.sample), None)


class Causes(Overview):
    """Failing and dead jobs by cause: O(causes), never O(jobs)."""

    def causes(
        self, queue: str | None = None, *, limit: int = MOST, with_gone: bool = False
    ) -> list[CauseSummary]:
        """Causes of one queue or of all, those with most jobs first.

        `with_gone` adds causes that no job has any more. Over all queues the `limit` last seen count.
        """
        names = self.queues() if queue is None else [queue]
        seen = self._last_seen(names, min(max(limit, 1), MOST))
        pipe = self.pipe()
        for _, name, cause in seen:
            pipe.hmget(keys.cause(name, cause), "text", "first", "failures", "failing")
            pipe.zcard(keys.dead_of_cause(name, cause))
            pipe.zrevrange(keys.dead_of_cause(name, cause), 0, 0)
        answers = self.answers(pipe) if seen else []
        found: dict[str, CauseSummary] = {}
        for i, (last_ms, name, cause) in enumerate(seen):
            fields, dead, sample = answers[3 * i : 3 * i + 3]
            told, first, failures, failing = listed(fields) or (None,) * 4
            here = CauseInQueue(
                name,
                max(0, number(failing)),
                number(dead),
                number(failures),
                optional(first),
                int(last_ms),
                text(sample[0]) if listed(sample) else None,
            )
            if here.failing or here.dead or with_gone:
                found.setdefault(cause, CauseSummary(cause, text(told) or cause)).queues.append(here)
        for each in found.values():
            each.queues.sort(key=lambda at: -(at.dead + at.failing))
        return sorted(found.values(), key=lambda each: (-(each.dead + each.failing), -each.last_ms))

    def _last_seen(self, names: Sequence[str], limit: int) -> list[tuple[float, str, str]]:
        pipe = self.pipe()
        for name in names:
            pipe.zrevrange(keys.queue_key(name, "causes"), 0, limit - 1, withscores=True)
        answers: list[Any] = self.answers(pipe) if names else []
        seen = [
            (at, name, cause.decode(errors="replace"))
            for name, pairs in zip(names, answers, strict=True)
            for cause, at in listed(pairs)
        ]
        return sorted(seen, reverse=True)[:limit]

    def cause_histories(
        self, wanted: Sequence[tuple[str, str]], minutes: int = 60
    ) -> dict[tuple[str, str], list[int]]:
        """As cause_history for many (queue, cause) at once; minutes that are over come from memory."""
        last = self.now_ms() // 60_000
        epoch = self.connection.client.get(keys.EPOCH)
        first = last - minutes + 1
        found: dict[tuple[str, str], dict[int, int]] = {}
        by_queue: dict[str, list[str]] = {}
        for queue, cause in dict.fromkeys(wanted):
            known = _past.get((self.connection.url, epoch, queue, cause), {}) if not self.clock else {}
            found[queue, cause] = {minute: n for minute, n in known.items() if first <= minute < last - 1}
            by_queue.setdefault(queue, []).append(cause)
        pipe, asked = self.pipe(), []
        for queue, causes in by_queue.items():
            for minute in range(first, last + 1):
                missing = [cause for cause in causes if minute not in found[queue, cause]]
                if missing:
                    asked.append((queue, minute, missing))
                    pipe.hmget(keys.stats(queue, minute), [f"failed:{cause}" for cause in missing])
        for (queue, minute, missing), answer in zip(asked, self.answers(pipe) if asked else [], strict=True):
            for cause, value in zip(missing, listed(answer) or [0] * len(missing), strict=True):
                found[queue, cause][minute] = number(value)
        if len(_past) > _MOST_PAST:
            _past.clear()
        for (queue, cause), counts in found.items():
            _past[self.connection.url, epoch, queue, cause] = counts
        return {key: [counts[minute] for minute in range(first, last + 1)] for key, counts in found.items()}

    def cause_history(self, queue: str, cause: str, minutes: int = 60) -> list[int]:
        """Failed attempts of a cause in each of the last minutes, oldest first."""
        last = self.now_ms() // 60_000
        pipe = self.pipe()
        for minute in range(last - minutes + 1, last + 1):
            pipe.hget(keys.stats(queue, minute), f"failed:{cause}")
        return [number(answer) for answer in self.answers(pipe)]
