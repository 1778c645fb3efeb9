"""How long after kill −9 a job runs again, and how long a poison job keeps coming back."""

from __future__ import annotations

import os
import signal
import statistics
import time

from bench.ground import PAYLOAD, Run, kill_tree, wait_until

_LEASE_S = 3


def run(run: Run) -> None:
    """Measure the rerun after the loss of a child and of a whole tree, and a poison job's life."""
    children = [_child(run) for _ in range(3)]
    run.add("kill -9 of the child: rerun after", statistics.median(children) * 1000, "ms", bar="<= 200 ms")
    run.add(
        f"kill -9 of the whole tree, lease {_LEASE_S} s: rerun after",
        _tree(run),
        "s",
        bar=f"<= {_LEASE_S + 1} s",
    )
    starts, seconds = _poison(run)
    run.add("poison job: starts before it is dead", starts, "starts", bar="4")
    run.add("poison job: dead after", seconds, "s", bar="< 10 s")


def _child(run: Run) -> float:
    from bench.handlers import hang
    from queueops import enqueue

    run.flush()
    with run.workers("--processes", "2", "--concurrency", "1", "--queue", "default"):
        run.wait_ready(2)
        enqueue(hang, [PAYLOAD])
        wait_until(
            lambda: run.count("starts") == 1 and (run.folder / "pid").exists(), 30, "the job did not start"
        )
        killed = time.time()
        os.kill(int((run.folder / "pid").read_text()), signal.SIGKILL)
        wait_until(lambda: run.count("starts") == 2, 60, "the job did not run again")
    return run.noted("starts")[1] - killed


def _tree(run: Run) -> float:
    from bench.handlers import hang
    from queueops import enqueue

    run.flush()
    with run.workers(
        "--processes",
        "1",
        "--concurrency",
        "1",
        "--queue",
        "default",
        count=2,
        QUEUEOPS_LEASE_S=str(_LEASE_S),
    ) as trees:
        run.wait_ready(2)
        run.client.hset("queueops:{default}:settings", "lease_ms", _LEASE_S * 1000)
        enqueue(hang, [PAYLOAD])
        wait_until(
            lambda: run.count("starts") == 1 and (run.folder / "pid").exists(), 30, "the job did not start"
        )
        pid = int((run.folder / "pid").read_text())
        from bench.ground import tree_of

        tree = next(tree for tree in trees if pid in tree_of(tree.pid))
        killed = time.time()
        kill_tree(tree.pid)
        wait_until(lambda: run.count("starts") == 2, 60, "the job did not run again")
    return run.noted("starts")[1] - killed


def _poison(run: Run) -> tuple[int, float]:
    from bench.handlers import poison
    from queueops import enqueue

    run.flush()
    with run.workers("--processes", "1", "--concurrency", "4", "--queue", "default"):
        run.wait_ready(1)
        start = time.time()
        enqueue(poison, [PAYLOAD])
        key = "queueops:{default}:dead"
        wait_until(lambda: int(run.client.zcard(key)) == 1, 60, "the poison job did not die")
        return run.count("starts"), time.time() - start
