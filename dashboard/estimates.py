"""What limits will do: how many tries the next hour brings with them, and without."""

from __future__ import annotations

from dataclasses import dataclass

from queueops.inspector import Inspector
from queueops.inspector.overview import Minute
from queueops.policies import RetryPolicy, preview
from queueops.stats import buckets

HOUR_S = 3_600


@dataclass(frozen=True)
class Hour:
    """A queue's next hour. `wanted`: tries that fall due, if all goes on as in the last hour."""

    due: int  # delayed jobs whose time comes
    ready: int
    coming: int  # new ones, as many as in the last hour
    mean_run_s: float | None  # of the last hour's; None when nothing ran
    failures: int  # of the last hour

    @property
    def wanted(self) -> int:
        return self.due + self.ready + self.coming

    def tries(self, *, concurrency: int | None, rate_per_s: float | None) -> int:
        """Return how many of them can start under these limits; None is no limit."""
        most = float(self.wanted)
        if rate_per_s:
            most = min(most, rate_per_s * HOUR_S)
        if concurrency and self.mean_run_s:
            most = min(most, concurrency / self.mean_run_s * HOUR_S)
        return round(most)


def next_hour(queue: str) -> Hour:
    """Estimate a queue's next hour from its delayed jobs and its last hour. Raises StoreUnavailable."""
    inspector = Inspector()
    minutes = inspector.stats(queue, 60)
    due = sum(each.count for each in inspector.forecast(60, queues=[queue])[queue])
    summary = inspector.summary(queue)
    return Hour(
        due=due,
        ready=summary.ready,
        coming=sum(each.count("enqueued") for each in minutes),
        mean_run_s=mean_run_s(minutes),
        failures=sum(each.count("failed") for each in minutes),
    )


def mean_run_s(minutes: list[Minute]) -> float | None:
    """Return how long a job ran on average, seconds, by the middle of each bucket; None when none did."""
    total, count, low = 0.0, 0, 0.0
    merged: dict[str, int] = {}
    for minute in minutes:
        for name, number in minute.counters.items():
            if name.startswith("ran:"):
                merged[name] = merged.get(name, 0) + number
    for bound, number in buckets(merged, "ran"):
        high = bound if bound != float("inf") else low * 2
        total += number * (low + high) / 2
        count += number
        low = high
    return total / count / 1000 if count else None


def retries_within_an_hour(policy: RetryPolicy) -> int:
    """Return how many retries one failing job makes in its first hour."""
    return sum((each.since_lo_s + each.since_hi_s) / 2 <= HOUR_S for each in preview(policy, 1_000))
