"""The plot of a storm: what many jobs that fail in the same second send downstream afterwards."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random

from queueops.policies import Jitter, RetryPolicy, storm

JOBS = 10_000
HORIZON_S = 3_600
#: Size of the drawing, in its own units.
WIDTH, HEIGHT = 720, 120
_TICKS = (
    (1, "1 s"),
    (5, "5 s"),
    (15, "15 s"),
    (60, "1 min"),
    (300, "5 min"),
    (900, "15 min"),
    (3_600, "1 h"),
)


@dataclass(frozen=True)
class Plot:
    """One policy's curve: an SVG path, and its highest second in words."""

    path: str
    peak: float
    total: float


@dataclass(frozen=True)
class Storm:
    """The policy's curve beside the same without jitter, on the same scales."""

    ours: Plot
    without: Plot
    scale: float  # tries a second at the top
    ticks: list[tuple[float, str]]
    jobs: int = JOBS
    width: int = WIDTH
    height: int = HEIGHT


def storm_of(policy: RetryPolicy) -> Storm:
    """Draw it. The same policy gives the same picture."""
    ours = storm(policy, JOBS, HORIZON_S, Random(7).random)
    without = storm(replace(policy, jitter=Jitter.NONE), JOBS, HORIZON_S, Random(7).random)
    top = max(*ours, *without, 1.0)
    return Storm(
        _plot(ours, top), _plot(without, top), top, [(round(_x(at), 1), label) for at, label in _TICKS]
    )


def _x(at_s: float) -> float:
    """Time runs by its logarithm: the first retry after 5 s and the last after 1 h both show."""
    return WIDTH * math.log1p(at_s) / math.log1p(HORIZON_S)


def _plot(tries: list[float], top: float) -> Plot:
    steps, last = [f"M0 {HEIGHT}"], ""
    columns: dict[int, float] = {}
    for second, count in enumerate(tries):
        for column in range(int(_x(second)), max(int(_x(second + 1)), int(_x(second)) + 1)):
            columns[column] = max(columns.get(column, 0.0), count)
    for column in range(WIDTH):
        count = columns.get(column, 0.0)
        # A second with any try in it is a line that can be seen.
        y = HEIGHT if not count else min(HEIGHT - 1.0, HEIGHT * (1 - count / top))
        step = f"V{y:.1f}"
        if step != last:
            steps += [f"H{column}", step]
            last = step
    return Plot(" ".join([*steps, f"H{WIDTH}", f"V{HEIGHT}", "Z"]), max(tries, default=0.0), sum(tries))
