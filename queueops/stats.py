"""The statistics of a queue: names of its counters, and what follows from them. Pure.

Counters stand in `Q:stats:<minute>` and `Q:stats:total`: enqueued, claimed, done, failed,
`failed:<cause>`, dead, discarded, requeued, rescued, expired, snoozed, late, rebuilt,
and the buckets `lateness:<bound>` (start less run-at) and `ran:<bound>`, `<bound>` in ms or `more`.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Upper bounds of the buckets, ms, inclusive.
BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000, 3_600_000)


def buckets(counters: Mapping[str, int], name: str) -> list[tuple[float, int]]:
    """The buckets of `name` ('lateness' or 'ran') as (upper bound in ms, count), ascending."""
    found = [(float(bound), counters.get(f"{name}:{bound}", 0)) for bound in BOUNDS_MS]
    return [*found, (float("inf"), counters.get(f"{name}:more", 0))]


def quantile_ms(counters: Mapping[str, int], name: str, q: float) -> float | None:
    """The `q` quantile (0..1) of a bucketed duration in ms, linear within its bucket; None when empty.

    Beyond the last bound it answers that bound.
    """
    counts = buckets(counters, name)
    total = sum(count for _, count in counts)
    if not total:
        return None
    rank, below, low = q * total, 0, 0.0
    for bound, count in counts:
        if count and below + count >= rank:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (rank - below) / count
        below += count
        low = bound if bound != float("inf") else low
    return low
