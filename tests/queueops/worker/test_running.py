"""What becomes of a job whose handler ran, by what the handler did."""

from __future__ import annotations

import pytest

from queueops import JobState, enqueue
from queueops.job import NewJob
from tests.queueops.worker.conftest import QUEUE, Fleet


def test_job_that_returns_is_done_with_its_result(fleet: Fleet) -> None:
    enqueue("test.note", ["x"], job_id="a", queue=QUEUE)
    fleet.start("--burst").wait()

    job = fleet.job("a")
    assert (job.state, job.result, job.attempts) == (JobState.DONE, "did x", 0)
    assert fleet.notes.effects == {"a": 1}


def test_async_job_runs_on_the_loop_and_is_done(fleet: Fleet) -> None:
    for i in range(30):
        enqueue("test.async_note", [i], job_id=f"a{i}", queue=QUEUE)
    fleet.start("--burst").wait()

    assert fleet.job("a7").result == "did 7"
    assert len(fleet.notes.effects) == 30


def test_mixed_jobs_share_the_slots(fleet: Fleet) -> None:
    for i in range(40):
        enqueue("test.async_note" if i % 2 else "test.note", [i], job_id=f"m{i}", queue=QUEUE)
    fleet.start("--burst", concurrency=3).wait()

    assert sorted(fleet.notes.effects.values()) == [1] * 40


def test_job_that_raises_is_delayed_by_its_policy(fleet: Fleet) -> None:
    enqueue("test.fail", ["boom 17"], job_id="f", queue=QUEUE)
    worker = fleet.start("--burst")
    assert worker.wait() == 0

    job = fleet.job("f")
    assert (job.state, job.attempts) == (JobState.DELAYED, 1)
    assert job.error is not None
    assert job.error["message"] == "boom 17"
    assert job.run_at is not None
    assert job.since is not None
    assert 4.0 <= (job.run_at - job.since).total_seconds() <= 6.0
    assert worker.log_lines("f of work (test.fail) failed, attempt 1")


@pytest.mark.parametrize("word", ["snooze", "retry"])
@pytest.mark.parametrize(
    ("delay", "message"),
    [("nan", "delay must be finite, got nan"), (1e30, "delay ends past the year 9999")],
)
def test_a_delay_that_is_none_fails_the_attempt_and_says_why(
    fleet: Fleet, word: str, delay: object, message: str
) -> None:
    enqueue("test.say", [word, delay], job_id="s", queue=QUEUE)
    fleet.start("--burst").wait()

    job = fleet.job("s")
    assert (job.state, job.attempts) == (JobState.DELAYED, 1)
    assert job.error is not None
    assert (job.error["error"], job.error["message"]) == ("ValueError", message)


@pytest.mark.parametrize(
    ("word", "state", "attempts"),
    [("discard", JobState.DISCARDED, 0), ("dead", JobState.DEAD, 1)],
)
def test_handler_says_the_end(fleet: Fleet, word: str, state: JobState, attempts: int) -> None:
    enqueue("test.say", [word], job_id="s", queue=QUEUE)
    fleet.start("--burst").wait()

    job = fleet.job("s")
    assert (job.state, job.attempts) == (state, attempts)


@pytest.mark.parametrize(("word", "attempts"), [("snooze", 0), ("retry", 1)])
def test_handler_asks_for_another_time(fleet: Fleet, word: str, attempts: int) -> None:
    enqueue("test.say", [word, 0.2], job_id="s", queue=QUEUE, policy="quick")
    fleet.redis.hset("queueops:policies", "quick", '{"name": "quick", "delays_s": [0.2], "jitter": "none"}')
    fleet.start()
    fleet.wait_for_done("s")

    assert fleet.job("s").attempts == attempts
    assert [start.delivery for start in fleet.notes.starts] == [1, 2]


def test_c01_three_attempts_then_dead_with_the_gaps_of_its_policy(fleet: Fleet) -> None:
    policy = '{"name": "three", "max_retries": 2, "base_s": 0.5, "factor": 2, "jitter": "none"}'
    fleet.redis.hset("queueops:policies", "three", policy)
    enqueue("test.fail", job_id="f", queue=QUEUE, policy="three")
    fleet.start()
    job = fleet.wait_for("f", JobState.DEAD)

    times = [start.at for start in fleet.notes.starts]
    assert len(times) == 3
    assert job.attempts == 3
    # The upper bounds are a busy machine's; a third delay, or one of the wrong length, breaks them too.
    assert 0.45 <= times[1] - times[0] < 1.0
    assert 0.95 <= times[2] - times[1] < 2.0


def test_system_exit_in_a_handler_fails_its_job_and_not_its_worker(fleet: Fleet) -> None:
    enqueue("test.system_exit", job_id="x", queue=QUEUE)
    enqueue("test.note", job_id="after", queue=QUEUE)
    worker = fleet.start(concurrency=1)
    fleet.wait_for_done("after")

    assert fleet.state("x") == JobState.DELAYED
    assert fleet.job("x").attempts == 1
    assert len({start.pid for start in fleet.notes.starts}) == 1
    assert not worker.log_lines("ended")


def test_unknown_handler_is_snoozed_and_burns_no_attempt(fleet: Fleet) -> None:
    enqueue("no.such.handler", job_id="u", queue=QUEUE)
    worker = fleet.start("--burst")
    worker.wait()

    job = fleet.job("u")
    assert (job.state, job.attempts) == (JobState.DELAYED, 0)
    assert job.run_at is not None
    assert job.since is not None
    assert 9.9 <= (job.run_at - job.since).total_seconds() <= 10.1
    assert worker.log_lines("no handler is named no.such.handler")


def test_d03_specs_that_cannot_be_read_are_dead_and_the_good_job_runs(fleet: Fleet) -> None:
    bad = [b"\xff\xfe", b"{", b"[" * 100_000 + b"]" * 100_000, b'["test.note"', b"[]", b"17", b"[null, []]"]
    fleet.store.enqueue(QUEUE, [NewJob(f"bad{i}", spec) for i, spec in enumerate(bad)])
    enqueue("test.note", job_id="good", queue=QUEUE)
    worker = fleet.start()
    fleet.wait_for_done("good")

    for i in range(len(bad)):
        job = fleet.wait_for(f"bad{i}", JobState.DEAD)
        assert (job.cause, job.attempts) == ("corrupt", 0)
    assert not worker.log_lines("ended")


def test_current_job_says_who_it_is(fleet: Fleet) -> None:
    enqueue("test.fail_until", [2], job_id="c", queue=QUEUE, policy="quick")
    fleet.redis.hset("queueops:policies", "quick", '{"name": "quick", "delays_s": [0.05]}')
    fleet.start()
    fleet.wait_for_done("c")

    assert [(s.attempt, s.delivery) for s in fleet.notes.starts_of("c")] == [(1, 1), (2, 2)]


def test_program_of_a_handler_obeys_sigterm(fleet: Fleet) -> None:
    enqueue("test.program", job_id="p", queue=QUEUE)
    fleet.start("--burst").wait()

    assert fleet.job("p").result == -15
