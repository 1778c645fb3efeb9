"""How late jobs start, and what waiting costs."""

from __future__ import annotations

import os
import statistics
import time
from datetime import UTC, datetime

import psutil

from bench.ground import PAYLOAD, Run, quantile, tree_of, wait_until


def run(run: Run) -> None:
    """Measure lateness, alone and beside a million delayed jobs, and an idle worker."""
    rounds = [_lateness(run, others=0) for _ in range(3 if run.scale >= 1 else 1)]
    _report(run, "lateness of 2,000 jobs over 20 s", rounds)
    others = run.n(1_000_000)
    _report(run, f"the same with {others:,} others delayed", [_lateness(run, others=others)])
    _idle(run)


def _report(run: Run, name: str, rounds: list[list[float]]) -> None:
    for label, q, bar in (("p50", 0.5, "<= 1 ms"), ("p99", 0.99, "<= 5 ms"), ("p99.9", 0.999, "<= 10 ms")):
        run.add(f"{name}, {label}", statistics.median(quantile(r, q) for r in rounds) * 1000, "ms", bar=bar)
    run.add(f"{name}, max", statistics.median(max(r) for r in rounds) * 1000, "ms")


def _delay(run: Run, n: int) -> None:
    from bench.handlers import noop
    from queueops import JobSpec, enqueue_many

    for start in range(0, n, 5000):
        enqueue_many(JobSpec(noop, [PAYLOAD], delay=36_000) for _ in range(min(5000, n - start)))


def _lateness(run: Run, *, others: int) -> list[float]:
    """Start less run-at of each job, in seconds."""
    from bench.handlers import late, noop
    from queueops import JobSpec, enqueue, enqueue_many

    run.flush()
    _delay(run, others)
    run.client.delete("queueops:{default}:events")
    enqueue(noop, [PAYLOAD])
    with run.workers("--processes", "1", "--concurrency", "16"):
        run.wait_ready(1)
        wait_until(lambda: run.count("done") == 1, 30, "the first job did not run")
        first, n = time.time() + 2, 2000
        times = [first + i * 20 / n for i in range(n)]
        enqueue_many(JobSpec(late, [at], run_at=datetime.fromtimestamp(at, UTC)) for at in times)
        wait_until(lambda: run.count("late") >= n, 60, "not every delayed job ran")
    return run.noted("late")


def _idle(run: Run) -> None:
    from bench.handlers import noop
    from queueops import enqueue

    run.flush()
    _delay(run, run.n(100_000))
    with run.workers("--processes", "1", "--concurrency", "16") as trees:
        run.wait_ready(1)
        enqueue(noop, [PAYLOAD])
        wait_until(lambda: run.count("done") == 1, 30, "the first job did not run")
        time.sleep(3)
        seconds = 30 if run.scale >= 1 else 10
        client = run.client
        client.config_resetstat()
        before, start = _cpu_s(trees[0].pid), time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - start
        cpu = (_cpu_s(trees[0].pid) - before) / passed
        stats = client.info("commandstats")
        sent = sum(row["calls"] for name, row in stats.items() if name in _SENT)
        memory = sum(psutil.Process(pid).memory_full_info().uss for pid in tree_of(trees[0].pid))
    run.add("idle worker, 100,000 delayed: commands", sent / passed, "a second", bar="<= 1")
    run.add("idle worker: CPU", cpu * 100, "%", bar="<= 0.5 %")
    run.add("idle worker: memory of its processes (USS)", memory / 2**20, "MiB")


#: What a client sends; the rest are commands inside scripts.
_SENT = {
    f"cmdstat_{name}" for name in ("evalsha", "eval", "blpop", "zadd", "hset", "sscan", "info", "ping", "get")
}


def _cpu_s(pid: int) -> float:
    ticks = 0
    for member in tree_of(pid):
        with open(f"/proc/{member}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
