"""Whether a claim, an enqueue or a settlement costs more with a million jobs than with ten thousand."""

from __future__ import annotations

import time

from bench.ground import PAYLOAD, Run
from queueops.store import Outcome, Store


def run(run: Run) -> None:
    """Measure each at three sizes of the delayed set, and report the worst ratio to the smallest."""
    from bench.handlers import noop
    from queueops import JobSpec, enqueue_many

    run.flush()
    store, have = Store(), 0
    enqueue_many([JobSpec(noop, [PAYLOAD])])
    costs: dict[str, list[float]] = {"enqueue": [], "claim": [], "settle": []}
    for size in (run.n(10_000), run.n(100_000), run.n(1_000_000)):
        while have < size:
            enqueue_many(JobSpec(noop, [PAYLOAD], delay=36_000) for _ in range(5000))
            have += 5000
        start = time.perf_counter()
        enqueue_many(JobSpec(noop, [PAYLOAD]) for _ in range(2000))
        costs["enqueue"].append(time.perf_counter() - start)
        claim_s, settle_s = _drain(store, f"bench:{size}:x/1")
        costs["claim"].append(claim_s)
        costs["settle"].append(settle_s)
    for name, seconds in costs.items():
        run.add(f"{name} at 1,000,000 jobs against 10,000", max(seconds) / seconds[0], "x", bar="<= 1.3 x")


def _drain(store: Store, child: str) -> tuple[float, float]:
    """Claim and settle what is ready; the seconds of each."""
    store.renew("default", [child])
    request, claim_s, settle_s = 0, 0.0, 0.0
    while True:
        request += 1
        start = time.perf_counter()
        claimed = store.claim("default", child, request=request, limit=100)
        claim_s += time.perf_counter() - start
        if not claimed.jobs:
            return claim_s, settle_s
        outcomes = [Outcome.ack(job, handler="noop") for job in claimed.jobs]
        start = time.perf_counter()
        store.settle("default", child, outcomes)
        settle_s += time.perf_counter() - start
