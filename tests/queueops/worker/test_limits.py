"""Time limits: soft ones raise in the handler, hard ones end the process, and one job alone is counted."""

from __future__ import annotations

import json

from queueops import JobState, enqueue
from tests.queueops.worker.conftest import QUEUE, Fleet

LONG = 60


def publish_policy(fleet: Fleet, name: str, **fields: object) -> None:
    policy = {"name": name, "max_retries": 1, "delays_s": [3600], **fields}
    fleet.redis.hset("queueops:policies", name, json.dumps(policy))


def test_soft_limit_raises_in_a_plain_handler(fleet: Fleet) -> None:
    publish_policy(fleet, "soft", soft_limit_s=0.3)
    enqueue("test.spin", [LONG], job_id="s", queue=QUEUE, policy="soft")
    fleet.start()
    job = fleet.wait_for("s", JobState.DELAYED)

    assert job.attempts == 1
    assert job.error is not None
    assert "SoftTimeLimit" in job.error["error"]
    assert fleet.notes.effects == {}


def test_soft_limit_raises_in_an_async_handler(fleet: Fleet) -> None:
    publish_policy(fleet, "soft", soft_limit_s=0.3)
    enqueue("test.async_hold", [LONG], job_id="s", queue=QUEUE, policy="soft")
    fleet.start()
    job = fleet.wait_for("s", JobState.DELAYED)

    assert job.error is not None
    assert "SoftTimeLimit" in job.error["error"]


def test_handler_within_its_soft_limit_is_left_alone(fleet: Fleet) -> None:
    publish_policy(fleet, "soft", soft_limit_s=0.2)
    for i in range(20):
        enqueue("test.note", job_id=f"s{i}", queue=QUEUE, policy="soft")
    enqueue("test.sleep", [0.5], job_id="free", queue=QUEUE)
    fleet.start(concurrency=1)
    fleet.wait_for_done(*(f"s{i}" for i in range(20)), "free")


def test_hard_limit_ends_the_process_and_counts_one_attempt_of_the_guilty_job(fleet: Fleet) -> None:
    publish_policy(fleet, "hard", hard_limit_s=0.5)
    worker = fleet.start_ready()
    enqueue("test.hold", job_id="beside", queue=QUEUE)
    fleet.wait_for_start("beside")
    enqueue("test.sleep", [LONG], job_id="guilty", queue=QUEUE, policy="hard")
    job = fleet.wait_for("guilty", JobState.DELAYED)

    assert (job.cause, job.attempts, job.rescues) == ("timeout", 1, 0)
    assert worker.log_lines("past their hard limit are guilty")
    fleet.notes.let_go()
    fleet.wait_for_done("beside")
    beside = fleet.job("beside")
    assert (beside.attempts, beside.rescues) == (0, 0)


def test_hard_limit_ends_a_handler_that_holds_the_gil(fleet: Fleet) -> None:
    publish_policy(fleet, "hard", hard_limit_s=0.5, max_retries=0)
    fleet.start_ready()
    enqueue("test.hog", [LONG], job_id="guilty", queue=QUEUE, policy="hard")
    job = fleet.wait_for("guilty", JobState.DEAD)

    assert (job.cause, job.attempts) == ("timeout", 1)
    fleet.run_one()


def test_neighbours_of_a_job_over_its_limit_may_finish(fleet: Fleet) -> None:
    publish_policy(fleet, "hard", hard_limit_s=0.5)
    fleet.start_ready()
    enqueue("test.sleep", [1.5], job_id="beside", queue=QUEUE)
    enqueue("test.sleep", [LONG], job_id="guilty", queue=QUEUE, policy="hard")
    fleet.wait_for("guilty", JobState.DELAYED)
    fleet.wait_for_done("beside")

    assert len(fleet.notes.starts_of("beside")) == 1
