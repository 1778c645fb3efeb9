"""Processes that die while they run jobs: who is counted, who is not, and how soon it goes on."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from queueops import JobState, enqueue, enqueue_many
from tests.queueops.worker.conftest import QUEUE, Fleet, eventually, is_alive


def verbs(fleet: Fleet, job_id: str) -> list[str]:
    """The verbs of one job's events, oldest first."""
    entries = fleet.redis.xrange("queueops:{work}:events")
    return [fields[b"verb"].decode() for _, fields in entries if fields[b"id"] == job_id.encode()]


def test_killed_child_is_replaced_and_its_job_reruns_within_a_second(fleet: Fleet) -> None:
    worker = fleet.start_ready(processes=2)
    enqueue("test.hold", job_id="h", queue=QUEUE)
    first = fleet.wait_for_start("h")
    killed_at = _kill(first.pid)
    second = fleet.wait_for_start("h", number=2)

    assert second.at - killed_at < 1.0
    assert worker.process.poll() is None
    fleet.notes.let_go()
    fleet.wait_for_done("h")
    job = fleet.job("h")
    assert (job.rescues, job.attempts) == (1, 0)
    assert job.child is not None
    assert job.child.endswith("/probation")
    eventually(lambda: len(worker.tree()) == 5, what="two children again, probation, zygote")
    assert worker.log_lines("ended (SIGKILL); it ran: h")


def _kill(pid: int) -> float:
    import time

    os.kill(pid, signal.SIGKILL)
    return time.time()


def test_d01_poison_is_dead_after_four_starts_and_the_queue_moves_on(fleet: Fleet) -> None:
    enqueue("test.kill", job_id="poison", queue=QUEUE)
    enqueue_many([{"handler": "test.note", "job_id": f"good{i}"} for i in range(30)], queue=QUEUE)
    fleet.start(concurrency=4)
    job = fleet.wait_for("poison", JobState.DEAD)

    assert len(fleet.notes.starts_of("poison")) == 4
    assert (job.cause, job.attempts) == ("poison", 0)
    assert job.error is not None
    assert "SIGKILL" in job.error["message"]
    fleet.wait_for_done(*(f"good{i}" for i in range(30)))


def test_exit_code_of_a_lost_process_is_named(fleet: Fleet) -> None:
    enqueue("test.leave", [3], job_id="x", queue=QUEUE)
    fleet.start()
    job = fleet.wait_for("x", JobState.DEAD)

    assert job.error is not None
    assert "exit 3" in job.error["message"]


def test_innocent_neighbours_of_a_poison_job_are_rescued_once_and_finish(fleet: Fleet) -> None:
    worker = fleet.start_ready(concurrency=8)
    held = [f"held{i}" for i in range(5)]
    enqueue_many([{"handler": "test.hold", "job_id": job_id} for job_id in held], queue=QUEUE)
    for job_id in held:
        fleet.wait_for_start(job_id)
    enqueue("test.kill", job_id="poison", queue=QUEUE)
    fleet.notes.let_go("never")
    fleet.wait_for_start("poison")
    fleet.notes.let_go()
    fleet.wait_for_done(*held)
    fleet.wait_for("poison", JobState.DEAD)

    for job_id in held:
        job = fleet.job(job_id)
        assert job.attempts == 0
        assert job.rescues <= 1
    assert worker.process.poll() is None


def test_claimed_and_not_started_counts_as_nothing_when_the_process_dies(fleet: Fleet) -> None:
    enqueue_many([{"handler": "test.noop", "job_id": f"n{i}"} for i in range(300)], queue=QUEUE)
    enqueue("test.hold", job_id="h", queue=QUEUE)
    enqueue_many([{"handler": "test.note", "job_id": f"e{i}"} for i in range(300)], queue=QUEUE)
    fleet.start(concurrency=1)
    start = fleet.wait_for_start("h")
    os.kill(start.pid, signal.SIGKILL)
    fleet.notes.let_go()
    fleet.wait_for_done("h", *(f"e{i}" for i in range(300)))

    assert fleet.job("h").rescues == 1
    assert {fleet.job(f"e{i}").rescues for i in range(300)} == {0}
    assert set(fleet.notes.effects.values()) == {1}


def test_b09_whole_tree_lost_reruns_within_a_lease_and_counts_one_rescue(fleet: Fleet) -> None:
    worker = fleet.start_ready()
    enqueue("test.hold", job_id="h", queue=QUEUE)
    fleet.wait_for_start("h")
    fleet.start_ready()
    killed_at = _kill(worker.pid)
    eventually(lambda: not worker.tree(), within=5, what="children die with their supervisor")
    second = fleet.wait_for_start("h", number=2)

    assert second.at - killed_at <= 2.0 + 1.0
    fleet.notes.let_go()
    fleet.wait_for_done("h")
    assert (fleet.job("h").rescues, fleet.job("h").attempts) == (1, 0)
    worker.process.wait(5)


def test_children_die_with_their_supervisor(fleet: Fleet) -> None:
    worker = fleet.start_ready(processes=2)
    pids = [process.pid for process in worker.tree()]
    worker.process.kill()
    worker.process.wait(5)

    eventually(lambda: not any(map(is_alive, pids)), within=5, what="no process is left")


def test_dead_zygote_is_made_again(fleet: Fleet) -> None:
    worker = fleet.start_ready()
    zygote = psutil.Process(worker.pid).children()[0]
    child = fleet.notes.folder  # kept for the message below
    zygote.kill()
    eventually(lambda: worker.log_lines("the zygote of"), what=f"a new zygote in {child}")
    enqueue("test.kill", job_id="poison", queue=QUEUE, policy="default")
    fleet.wait_for("poison", JobState.DEAD)
    fleet.run_one()


def test_a12_job_without_any_lease_entry_comes_back(fleet: Fleet) -> None:
    worker = fleet.start_ready()
    enqueue("test.hold", job_id="h", queue=QUEUE)
    fleet.wait_for_start("h")
    worker.kill_tree()
    fleet.redis.zrem("queueops:{work}:pending", "h")
    fleet.store.sweep(QUEUE)
    fleet.start()
    fleet.wait_for_start("h", number=2)
    fleet.notes.let_go()
    fleet.wait_for_done("h")


def test_i17_many_held_jobs_come_back_after_a_lost_tree(fleet: Fleet) -> None:
    ids = [f"s{i}" for i in range(250)]
    enqueue_many(
        [{"handler": "test.async_hold", "job_id": job_id, "args": [60]} for job_id in ids], queue=QUEUE
    )
    worker = fleet.start(concurrency=250)
    eventually(lambda: len(fleet.notes.starts) == 250, what="250 starts")
    worker.kill_tree()
    fleet.start(concurrency=4)
    eventually(lambda: len({s.job_id for s in fleet.notes.starts if s.delivery == 2}) >= 1, what="a rerun")
    eventually(
        lambda: fleet.redis.zcard("queueops:{work}:pending") <= 5, what="all but what runs is given back"
    )


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_child_ended_by_any_signal_loses_no_job(fleet: Fleet, number: signal.Signals) -> None:
    fleet.start_ready()
    enqueue("test.hold", job_id="h", queue=QUEUE)
    start = fleet.wait_for_start("h")
    os.kill(start.pid, number)
    fleet.notes.let_go()
    fleet.wait_for_done("h")
