"""Waiting: precise, silent when idle, and not at the mercy of a child that is stuck."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import UTC, datetime, timedelta

import pytest

from queueops import JobState, enqueue, enqueue_many, keys
from tests.queueops.worker.conftest import QUEUE, Fleet, eventually


def lateness_ms(fleet: Fleet) -> list[float]:
    return sorted(float(line) for line in fleet.notes.lines("late"))


def test_delayed_jobs_start_at_their_time(fleet: Fleet) -> None:
    fleet.start_ready(concurrency=8)
    begin = datetime.now(UTC) + timedelta(seconds=1)
    due = [begin + timedelta(milliseconds=10 * i) for i in range(200)]
    enqueue_many(
        [{"handler": "test.late", "args": [at.timestamp()], "run_at": at} for at in due], queue=QUEUE
    )
    eventually(lambda: len(lateness_ms(fleet)) == 200)

    late = lateness_ms(fleet)
    assert late[0] >= -1.0  # run-at is whole milliseconds
    assert late[100] < 15.0, "this machine may be busy; polling would show 50 ms and more"


def test_job_enqueued_while_all_wait_starts_at_once(fleet: Fleet) -> None:
    fleet.start_ready(processes=2)
    for i in range(20):
        job_id = f"j{i}"
        enqueue("test.note", job_id=job_id, queue=QUEUE)
        fleet.wait_for_start(job_id, within=5)


def test_four_one_slot_children_start_four_jobs_together(fleet: Fleet) -> None:
    fleet.start_ready(processes=4, concurrency=1)
    enqueue_many([{"handler": "test.sleep", "args": [1.0], "job_id": f"s{i}"} for i in range(4)], queue=QUEUE)
    for i in range(4):
        fleet.wait_for_start(f"s{i}")

    times = [start.at for start in fleet.notes.starts]
    assert max(times) - min(times) < 0.7


@pytest.mark.slow
def test_idle_worker_asks_redis_for_almost_nothing(fleet: Fleet) -> None:
    # Leases are renewed by the shortest.
    fleet.redis.hset(keys.queue_key(QUEUE, "settings"), "lease_ms", 30_000)
    fleet.start_ready(processes=2, QUEUEOPS_LEASE_S="30")
    enqueue("test.noop", delay=3600, queue=QUEUE)
    fleet.run_one()
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > 2)
    before, began = _commands(fleet), time.monotonic()
    eventually(lambda: time.monotonic() - began > 20)

    assert _commands(fleet) - before - 1 <= 20


def _commands(fleet: Fleet) -> int:
    return sum(int(each["calls"]) for each in fleet.redis.info("commandstats").values())


def test_a13_handler_that_holds_the_gil_keeps_its_lease(fleet: Fleet) -> None:
    fleet.start_ready()
    enqueue("test.hog", [7], job_id="hog", queue=QUEUE)
    fleet.wait_for_start("hog")
    fleet.start_ready()  # somebody else who would rescue it
    fleet.wait_for_done("hog")

    assert len(fleet.notes.starts_of("hog")) == 1
    assert fleet.job("hog").rescues == 0


def test_a03_job_longer_than_its_lease_runs_once(fleet: Fleet) -> None:
    fleet.start_ready(processes=2)
    fleet.start_ready()
    enqueue("test.sleep", [6], job_id="long", queue=QUEUE)
    fleet.wait_for_done("long")

    assert len(fleet.notes.starts_of("long")) == 1
    assert fleet.job("long").rescues == 0


def test_stopped_keeper_does_not_make_a_due_job_late(fleet: Fleet) -> None:
    fleet.start_ready(processes=2)
    at = datetime.now(UTC) + timedelta(seconds=2)
    enqueue("test.late", [at.timestamp()], run_at=at, job_id="due", queue=QUEUE)
    keeper = eventually(lambda: fleet.redis.hget("queueops:{work}:clock", "alarm") and _keeper(fleet))
    pid = int(eventually(lambda: _pid_of(fleet, keeper)))
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: lateness_ms(fleet), within=10)
        assert lateness_ms(fleet)[0] < 500
    finally:
        os.kill(pid, signal.SIGCONT)
    fleet.wait_for("due", JobState.DONE)


def _keeper(fleet: Fleet) -> str:
    return (fleet.redis.hget("queueops:{work}:clock", "keeper") or b"").decode()


def _pid_of(fleet: Fleet, child: str) -> str:
    for raw in fleet.redis.hvals("queueops:worker-info"):
        for each in json.loads(raw)["children"]:
            if each["name"] == child:
                return str(each["pid"])
    return ""


def test_token_that_a_stuck_child_swallowed_is_pushed_again(fleet: Fleet) -> None:
    worker = fleet.start_ready(processes=2)
    children = [p for p in worker.tree() if p.pid != worker.pid][1:]
    enqueue("test.hog", [8], job_id="hog", queue=QUEUE)
    stuck = fleet.wait_for_start("hog")
    assert stuck.pid in {child.pid for child in children}
    for i in range(5):
        began = time.monotonic()
        enqueue("test.note", job_id=f"n{i}", queue=QUEUE)
        fleet.wait_for_start(f"n{i}", within=6)
        assert time.monotonic() - began < 5


def test_new_queue_is_found_within_5_seconds(fleet: Fleet) -> None:
    fleet.start(queue=None)
    eventually(lambda: fleet.redis.zcard("queueops:{work}:children") >= 2)
    fleet.run_one()
    job = enqueue("test.note", queue="brand-new")
    eventually(lambda: fleet.state(job.id, "brand-new") == JobState.DONE, within=8)


def test_queue_with_a_shorter_lease_of_its_own_is_renewed_in_time(fleet: Fleet) -> None:
    fleet.start_ready(QUEUEOPS_LEASE_S="60")  # the queue's own is 2 s
    enqueue("test.sleep", [6], job_id="long", queue=QUEUE)
    fleet.wait_for_start("long")
    fleet.start_ready(QUEUEOPS_LEASE_S="60")
    fleet.wait_for_done("long")

    assert len(fleet.notes.starts_of("long")) == 1
    assert fleet.job("long").rescues == 0


def test_keeper_whose_slots_are_full_passes_the_clock_on(fleet: Fleet) -> None:
    fleet.start_ready(processes=2, concurrency=1)
    at = datetime.now(UTC) + timedelta(seconds=1.5)
    enqueue("test.late", [at.timestamp()], run_at=at, queue=QUEUE)
    enqueue("test.hold", job_id="h", queue=QUEUE)
    fleet.wait_for_start("h")
    eventually(lambda: lateness_ms(fleet), within=10)
    fleet.notes.let_go()

    assert lateness_ms(fleet)[0] < 500


def test_worker_that_stops_passes_the_clock_on(fleet: Fleet) -> None:
    first = fleet.start_ready("--grace", "20", processes=1)
    enqueue("test.hold", job_id="h", queue=QUEUE)
    fleet.wait_for_start("h")
    fleet.start_ready()
    first.signal()
    eventually(lambda: first.log_lines("stopping"))
    at = datetime.now(UTC) + timedelta(seconds=1)
    enqueue("test.late", [at.timestamp()], run_at=at, queue=QUEUE)
    eventually(lambda: lateness_ms(fleet), within=10)
    fleet.notes.let_go()

    assert lateness_ms(fleet)[0] < 500
