"""How fast jobs go in, one at a time and many, and what a waiting one costs."""

from __future__ import annotations

import time

from bench.ground import PAYLOAD, Run, median_of


def run(run: Run) -> None:
    """Measure single and bulk enqueue, and the memory of a delayed job."""
    from bench.handlers import noop
    from queueops import JobSpec, enqueue, enqueue_many

    n, bulk = run.n(8000), run.n(40000)

    def single() -> float:
        run.flush()
        start = time.perf_counter()
        for _ in range(n):
            enqueue(noop, [PAYLOAD])
        return n / (time.perf_counter() - start)

    def many() -> float:
        run.flush()
        start = time.perf_counter()
        for _ in range(0, bulk, 500):
            enqueue_many(JobSpec(noop, [PAYLOAD]) for _ in range(500))
        return bulk / (time.perf_counter() - start)

    run.add("enqueue, one at a time", median_of(3, single), "jobs/s", bare="single", bar=">= 0.55 x bare")
    run.add("enqueue_many, 500 a round trip", median_of(3, many), "jobs/s", bare="bulk", bar=">= 0.5 x bare")
    _memory(run)


def _memory(run: Run) -> None:
    from bench.handlers import noop
    from queueops import JobSpec, enqueue_many

    n = run.n(100_000)
    run.flush()
    enqueue_many([JobSpec(noop, [PAYLOAD], delay=3600)])
    client = run.client
    before = client.info("memory")["used_memory"]
    for _ in range(0, n, 500):
        enqueue_many(JobSpec(noop, [PAYLOAD], delay=3600) for _ in range(500))
    each = (client.info("memory")["used_memory"] - before) / n
    client.delete("queueops:{default}:events")
    mirrored = (client.info("memory")["used_memory"] - before) / n
    limit = 600 if run.server.binary.kind == "redis" else 560
    run.add("memory of a delayed job, event mirrored", mirrored, "bytes", bar=f"<= {limit}")
    run.add("memory of a delayed job, event waiting", each, "bytes")
