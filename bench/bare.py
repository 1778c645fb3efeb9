"""The bare client: the least that a queue on Redis must do, measured in the same run."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from bench.ground import PAYLOAD, Run, median_of

_SPEC = json.dumps(["bench.noop", [PAYLOAD]], separators=(",", ":")).encode()


def run(run: Run) -> None:
    """Measure XADD, pipelined XADD, and XREADGROUP 100 + XACK + XDEL."""
    client: Any = run.client
    singles, bulk = run.n(8000), run.n(40000)

    def single() -> float:
        client.flushall()
        start = time.perf_counter()
        for _ in range(singles):
            client.xadd("s", {"d": _SPEC})
        return singles / (time.perf_counter() - start)

    def piped() -> float:
        client.flushall()
        start = time.perf_counter()
        for _ in range(0, bulk, 100):
            with client.pipeline(transaction=False) as pipe:
                for _ in range(100):
                    pipe.xadd("s", {"d": _SPEC})
                pipe.execute()
        return bulk / (time.perf_counter() - start)

    def drain() -> float:
        piped()
        client.xgroup_create("s", "g", id="0")
        start, left = time.perf_counter(), bulk
        while left > 0:
            entries = client.xreadgroup("g", "c", {"s": ">"}, count=100)[0][1]
            ids = [entry_id for entry_id, _ in entries]
            for _, fields in entries:
                json.loads(fields[b"d"])
            with client.pipeline(transaction=False) as pipe:
                pipe.xack("s", "g", *ids)
                pipe.xdel("s", *ids)
                pipe.execute()
            left -= len(ids)
        return bulk / (time.perf_counter() - start)

    for name, measure in (("single", single), ("bulk", piped), ("drain", drain)):
        run.bare[name] = median_of(3, measure)
        run.add(f"bare client: {name}", run.bare[name], "jobs/s")
    run.bare["io"] = run.n(6400) / asyncio.run(_sleeps(run.n(6400)))
    run.add("bare asyncio: 20 ms waits, 64 wide", run.bare["io"], "jobs/s")


async def _sleeps(n: int) -> float:
    left = n

    async def line() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await asyncio.sleep(0.02)

    start = time.perf_counter()
    await asyncio.gather(*(line() for _ in range(64)))
    return time.perf_counter() - start
