"""How fast workers run what is ready, and what that does to other clients."""

from __future__ import annotations

import threading
import time

from bench.ground import PAYLOAD, Run, quantile, wait_until


def run(run: Run) -> None:
    """Measure no-ops with one and two processes, 20 ms jobs 64 wide, commands a job and PING meanwhile."""
    from bench.handlers import aio, io, noop

    n = run.n(60_000)
    rate, commands, ping_ms = _drain(run, noop, n, processes=1, concurrency=16)
    run.add("drain of no-ops, 1 process", rate, "jobs/s", bare="drain", bar=">= 0.25 x bare")
    run.add("Redis commands a drained job", commands, "commands", bar="<= 12")
    run.add("PING p99 of another client meanwhile", ping_ms, "ms", bar="<= 10 ms")
    rate, _, _ = _drain(run, noop, n, processes=2, concurrency=16)
    run.add("drain of no-ops, 2 processes", rate, "jobs/s", bare="drain", bar=">= 0.35 x bare")
    n = run.n(12_800)
    rate, _, _ = _drain(run, io, n, processes=1, concurrency=64)
    run.add("20 ms jobs, 64 threads, of the ideal 3,200", rate / 32, "%", bar=">= 95 %")
    rate, _, _ = _drain(run, aio, n, processes=1, concurrency=64)
    run.add("20 ms async jobs, 64 wide", rate, "jobs/s", bare="io", bar=">= 0.95 x bare asyncio")


def _drain(
    run: Run, handler: object, n: int, *, processes: int, concurrency: int
) -> tuple[float, float, float]:
    """Jobs a second from the first tenth to the last job, commands a job, PING p99 in ms."""
    from queueops import JobSpec, enqueue, enqueue_many

    run.flush()
    enqueue(handler, [PAYLOAD])
    options = ("--processes", str(processes), "--concurrency", str(concurrency))
    with run.workers(*options):
        run.wait_ready(processes)
        wait_until(lambda: run.count("done") == 1, 30, "the first job did not run")
        run.client.hset("queueops:{default}:settings", mapping={"paused": "1"})
        for start in range(0, n, 500):
            enqueue_many(JobSpec(handler, [PAYLOAD]) for _ in range(min(500, n - start)))
        pings: list[float] = []
        stop = threading.Event()
        pinger = threading.Thread(target=_ping, args=(run, pings, stop))
        run.client.config_resetstat()
        pinger.start()
        run.client.hdel("queueops:{default}:settings", "paused")
        enqueue(handler, [PAYLOAD])  # wakes them
        try:
            wait_until(lambda: run.count("done") >= n + 2, 120, "the workers did not drain the queue")
        finally:
            stop.set()
            pinger.join()
        times = sorted(run.noted("done")[1:])
        skip = len(times) // 10
        rate = (len(times) - skip - 1) / (times[-1] - times[skip])
        stats = run.client.info("commandstats")
        calls = sum(row["calls"] for name, row in stats.items() if name != "cmdstat_ping")
        return rate, calls / n, quantile(pings, 0.99) * 1000


def _ping(run: Run, pings: list[float], stop: threading.Event) -> None:
    client = run.client
    while not stop.is_set():
        start = time.perf_counter()
        client.ping()
        pings.append(time.perf_counter() - start)
        time.sleep(0.002)
