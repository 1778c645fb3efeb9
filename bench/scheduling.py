"""How soon after its slot a schedule's job starts, on workers with nothing else to do."""

from __future__ import annotations

from bench.ground import Run, quantile, wait_until

SLOTS = 60
TREES = 2


def run(run: Run) -> None:
    """A schedule of every second, and workers that all could fire it."""
    from queueops import models

    n = run.n(SLOTS)
    run.flush()
    schedule = models.Schedule.objects.create(
        key="tick", queue="default", handler="bench.handlers.slot", kind="interval", rule="1"
    )
    try:
        with run.workers("--processes", "1", "--concurrency", "4", count=TREES, housekeeping=True):
            wait_until(lambda: run.count("slots") >= n + 2, 60 + 2 * n, "the schedule did not fire")
    finally:
        schedule.delete()
    late = run.noted("slots")[2:]  # not those of the start
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        run.add(
            f"slot of a schedule to its job's start, {name}",
            quantile(late, q) * 1000,
            "ms",
            bar="< 50 ms" if q > 0.5 else "",
        )
