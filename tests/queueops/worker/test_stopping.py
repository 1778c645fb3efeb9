"""SIGTERM: what runs may finish, what does not goes back uncounted, and the exit code is 0."""

from __future__ import annotations

import signal
import time

from queueops import JobState, enqueue, enqueue_many
from tests.queueops.worker.conftest import QUEUE, Fleet, eventually


def test_sigterm_lets_a_running_job_finish_and_exits_0(fleet: Fleet) -> None:
    worker = fleet.start_ready("--grace", "20")
    enqueue("test.hold", job_id="h", queue=QUEUE)
    fleet.wait_for_start("h")
    worker.signal()
    eventually(lambda: worker.log_lines("stopping"), what="it hears")
    enqueue("test.note", job_id="later", queue=QUEUE)
    fleet.notes.let_go()

    assert worker.wait() == 0
    assert fleet.state("h") == JobState.DONE
    assert fleet.state("later") == JobState.READY
    assert fleet.redis.zcard("queueops:workers") == 0
    assert not fleet.redis.hexists("queueops:worker-info", "x")
    assert fleet.redis.zcard("queueops:{work}:children") == 0


def test_job_that_outlasts_the_grace_goes_back_uncounted(fleet: Fleet) -> None:
    worker = fleet.start_ready("--grace", "0.5")
    enqueue("test.hold", job_id="h", queue=QUEUE)
    fleet.wait_for_start("h")
    began = time.monotonic()

    assert worker.stop() == 0
    assert 0.5 <= time.monotonic() - began < 6
    job = fleet.job("h")
    assert (job.state, job.attempts, job.rescues) == (JobState.READY, 0, 0)
    assert fleet.redis.xlen("queueops:{work}:ready:first") == 1


def test_second_signal_stops_at_once(fleet: Fleet) -> None:
    worker = fleet.start_ready("--grace", "60")
    enqueue("test.hold", job_id="h", queue=QUEUE)
    enqueue("test.async_hold", job_id="a", queue=QUEUE)
    fleet.wait_for_start("h")
    fleet.wait_for_start("a")
    worker.signal(signal.SIGINT)
    eventually(lambda: worker.log_lines("stopping"), what="it hears")
    began = time.monotonic()
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert time.monotonic() - began < 5
    assert fleet.job("h").rescues == fleet.job("a").rescues == 0
    assert {fleet.state("h"), fleet.state("a")} == {JobState.READY}


def test_handler_that_holds_the_gil_does_not_hold_up_the_stop(fleet: Fleet) -> None:
    worker = fleet.start_ready("--grace", "0.2")
    enqueue("test.hog", [60], job_id="hog", queue=QUEUE)
    fleet.wait_for_start("hog")
    began = time.monotonic()

    assert worker.stop() == 0
    assert time.monotonic() - began < 10
    assert fleet.job("hog").rescues == 0


def test_a07_jobs_that_fail_as_the_grace_ends_are_each_in_one_place(fleet: Fleet) -> None:
    worker = fleet.start_ready("--grace", "1", concurrency=50)
    ids = [f"f{i}" for i in range(50)]
    enqueue_many([{"handler": "test.hold_and_fail", "job_id": job_id} for job_id in ids], queue=QUEUE)
    for job_id in ids:
        fleet.wait_for_start(job_id)
    worker.signal()
    sent = time.monotonic()
    while time.monotonic() < sent + 0.99:
        pass  # all fail just as the grace ends
    fleet.notes.let_go()

    assert worker.wait() == 0
    states = {fleet.state(job_id) for job_id in ids}
    assert states <= {JobState.READY, JobState.DELAYED}
    for job_id in ids:
        job = fleet.job(job_id)
        assert job.attempts == (1 if job.state == JobState.DELAYED else 0)


def test_h07_slow_redis_at_the_stop_loses_and_doubles_nothing(fleet: Fleet) -> None:
    worker = fleet.start_ready("--grace", "1", concurrency=20)
    ids = [f"h{i}" for i in range(20)]
    enqueue_many([{"handler": "test.hold", "job_id": job_id} for job_id in ids], queue=QUEUE)
    for job_id in ids:
        fleet.wait_for_start(job_id)
    fleet.redis.execute_command("CLIENT", "PAUSE", 800)
    assert worker.stop() == 0

    jobs = [fleet.job(job_id) for job_id in ids]
    assert {job.state for job in jobs} == {JobState.READY}
    assert {(job.attempts, job.rescues) for job in jobs} == {(0, 0)}


def test_stop_without_redis_is_bounded_and_names_the_jobs(fleet: Fleet, redis_server: object) -> None:
    worker = fleet.start_ready("--grace", "0.5")
    enqueue("test.hold", job_id="h", queue=QUEUE)
    fleet.wait_for_start("h")
    stop = getattr(redis_server, "kill")  # noqa: B009 - a LocalServer
    stop()
    began = time.monotonic()
    try:
        assert worker.stop(within=60) == 0
        assert time.monotonic() - began < 20
        assert worker.log_lines("Redis is away")
        assert worker.log_lines("comes back when its lease ends", "h")
    finally:
        getattr(redis_server, "start")()  # noqa: B009


def test_drain_asked_by_a_person_ends_the_worker(fleet: Fleet) -> None:
    worker = fleet.start_ready()
    [name] = fleet.redis.zrange("queueops:workers", 0, -1)
    fleet.redis.set("queueops:drain:" + name.decode(), "user:1")

    assert worker.wait(10) == 0
    assert worker.log_lines("asked to drain")
    assert not fleet.redis.exists("queueops:drain:" + name.decode())
