"""The work that falls due ahead, per queue: delayed jobs and retries by run-at, and slots of schedules."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import DatabaseError

from queueops import models
from queueops.inspector import Inspector
from queueops.job import from_ms, to_ms

#: What a page may show -> minutes ahead and minutes a bar.
RANGES: dict[str, tuple[int, int]] = {"1h": (60, 1), "3h": (180, 3), "12h": (720, 10), "24h": (1_440, 20)}
#: Queues with a colour of their own; the rest are one.
MOST_QUEUES = 6
MOST_SLOTS = 500


@dataclass
class Series:
    """One queue's counts, a number a bar."""

    name: str
    counts: list[int]

    @property
    def total(self) -> int:
        return sum(self.counts)


@dataclass
class Forecast:
    """What is ahead. `peak` is the highest bar: its start, its count, and the queue that has most of it."""

    start: datetime
    now: datetime
    step_min: int
    series: list[Series] = field(default_factory=list)
    retries: dict[str, int] = field(default_factory=dict)  # queue -> jobs that failed and will be tried again
    slots: list[tuple[datetime, str, str]] = field(default_factory=list)  # when, schedule, queue
    record_trouble: str = ""

    @property
    def bars(self) -> int:
        return len(self.series[0].counts) if self.series else 0

    @property
    def totals(self) -> list[int]:
        return [sum(column) for column in zip(*(each.counts for each in self.series), strict=True)]

    @property
    def total(self) -> int:
        return sum(each.total for each in self.series)

    @property
    def peak(self) -> tuple[datetime, int, str] | None:
        totals = self.totals
        if not totals or not max(totals):
            return None
        place = totals.index(max(totals))
        most = max(self.series, key=lambda each: each.counts[place])
        return self.start + timedelta(minutes=place * self.step_min), totals[place], most.name

    def data(self) -> dict[str, Any]:
        """Return what the chart under the pointer is drawn from."""
        first = round(self.start.timestamp())
        times = [first + i * self.step_min * 60 for i in range(self.bars)]
        return {
            "times": times,
            "series": [{"name": each.name, "counts": each.counts} for each in self.series],
        }


def read(span: str) -> Forecast:
    """Return the forecast of a range of RANGES. Raises StoreUnavailable."""
    minutes, step = RANGES[span]
    inspector = Inspector()
    now = from_ms(inspector.now_ms())
    due = inspector.forecast(minutes, step=step)
    start = now.replace(second=0, microsecond=0)
    found = Forecast(start, now, step)
    counts = {queue: [each.count for each in bars] for queue, bars in due.items()}
    _add_slots(found, counts, minutes)
    ranked = sorted(counts.items(), key=lambda pair: -sum(pair[1]))
    found.series = [Series(queue, bars) for queue, bars in ranked[:MOST_QUEUES] if sum(bars)]
    if rest := [bars for _, bars in ranked[MOST_QUEUES:] if sum(bars)]:
        found.series.append(Series("other queues", [sum(column) for column in zip(*rest, strict=True)]))
    for cause in inspector.causes(limit=1_000):
        for at in cause.queues:
            if at.failing:
                found.retries[at.queue] = found.retries.get(at.queue, 0) + at.failing
    return found


def _add_slots(found: Forecast, counts: dict[str, list[int]], minutes: int) -> None:
    """Count each slot that a schedule will fire in this time."""
    end = found.start + timedelta(minutes=minutes)
    try:
        schedules = list(models.Schedule.objects.filter(paused=False, error="", next_slot_at__lt=end)[:200])
    except DatabaseError as error:
        found.record_trouble = type(error).__name__
        return
    bars = minutes // found.step_min
    for each in schedules:
        for at in _slots(each, found.now, end):
            found.slots.append((at, each.key, each.queue))
            place = int((at - found.start).total_seconds() // (60 * found.step_min))
            if 0 <= place < bars:
                counts.setdefault(each.queue, [0] * bars)[place] += 1
    found.slots.sort()


def _slots(schedule: models.Schedule, after: datetime, end: datetime) -> list[datetime]:
    definition = schedule.definition()
    slots = definition.slots_between(to_ms(after), to_ms(end), MOST_SLOTS)
    queued = [at_ms for at_ms in slots if not definition.is_paused_at(at_ms)]
    return [from_ms(at_ms) for at_ms in queued]
