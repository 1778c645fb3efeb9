"""retry: an attempt ended in an error; the job is delayed, its error and cause kept."""

from __future__ import annotations

from itertools import pairwise

import pytest

from queueops import keys
from queueops.causes import Failure, failure_of
from queueops.policies import DEFAULT_POLICY, Bury, decide
from queueops.states import JobState
from queueops.store import Outcome, Store
from tests.factories import (
    QUEUE,
    SPEC,
    Child,
    Clock,
    Redis,
    counter,
    error_json,
    events,
    failing,
    job,
    run_at,
    seed_pending,
    seed_ready,
    state,
    verbs,
)
from tests.proxy import Proxy


def test_retry_delays_by_the_given_time_and_counts_the_attempt(
    redis: Redis, clock: Clock, child: Child
) -> None:
    child.retry(*seed_pending(child, "a"), delay_s=5)

    stored = job(redis, "a")
    assert run_at(redis, "a") == clock.now_ms + 5000
    assert (stored["state"], stored["attempts"], stored["cause"]) == ("delayed", "1", "boom")
    assert stored["error"] == error_json("boom")
    assert stored["spec"] == SPEC.decode()
    assert not stored.keys() & {"entry", "started"}


def test_retry_is_an_event_with_all_that_a_page_shows(redis: Redis, clock: Clock, child: Child) -> None:
    child.retry(*seed_pending(child, "a"), delay_s=5)

    assert events(redis, "a")[-1] == {
        "verb": "retry", "id": "a", "from": "pending", "to": "delayed", "actor": child.name,
        "at": str(clock.now_ms), "delivery": "1", "attempts": "1", "cause": "boom",
        "error": error_json("boom"), "delay_ms": "5000", "run_at": str(clock.now_ms + 5000),
        "policy": "default@1", "ran_ms": "3",
    }  # fmt: skip
    assert counter(redis, "failed") == counter(redis, "failed:boom") == 1


def test_a_failing_job_is_counted_under_its_last_cause_only(redis: Redis, clock: Clock, child: Child) -> None:
    child.retry(*seed_pending(child, "a"), delay_s=0, cause="first")
    child.retry(*child.take(), delay_s=0, cause="second")

    assert (failing(redis, "first"), failing(redis, "second")) == (0, 1)
    assert job(redis, "a")["attempts"] == "2"


def test_whole_milliseconds_of_a_fraction(redis: Redis, clock: Clock, child: Child) -> None:
    child.retry(*seed_pending(child, "a"), delay_s=0.0005000001)
    child.retry(*seed_pending(child, "b"), delay_s=1.23456)

    assert run_at(redis, "a") == clock.now_ms + 1
    assert run_at(redis, "b") == clock.now_ms + 1235


def test_c10_thirty_hours_between_attempts_forget_nothing(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    child.retry(*seed_pending(child, "a"), delay_s=30 * 3600)
    clock.advance(25 * 3_600_000)
    assert redis.pttl(keys.job(QUEUE, "a")) == -1

    clock.advance(5 * 3_600_000)
    child.register()
    (second,) = child.take()
    assert second.attempts == 1
    child.retry(second)

    assert job(redis, "a")["attempts"] == "2"


def test_the_classic_an_always_failing_job_is_tried_five_times_and_dead_with_its_cause(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    """At 0, +5 s, +30 s, +5 min, +1 h: the default policy's delays, each at the middle of its jitter."""
    seed_ready(store, "a")
    started = []

    for _ in range(10):  # more than it may take
        child.register()
        tried = child.take()
        if not tried:
            break
        started.append(clock.now_ms)
        fate = decide(DEFAULT_POLICY, tried[0].attempts + 1, rand=lambda: 0.5)
        if isinstance(fate, Bury):
            child.bury(*tried)
            break
        child.retry(*tried, delay_s=fate.delay_s)
        clock.advance(round(fate.delay_s * 1000) - 1)
        child.register()
        assert child.take() == []  # not one millisecond early
        clock.advance(1)

    assert [round((b - a) / 1000) for a, b in pairwise(started)] == [5, 30, 300, 3600]
    stored = job(redis, "a")
    assert (stored["state"], stored["attempts"], stored["cause"]) == ("dead", "5", "boom")
    assert redis.zscore(keys.dead_of_cause(QUEUE, "boom"), "a") == clock.now_ms
    assert verbs(redis, "a").count("retry") == 4


def test_c03_a_job_with_2000_attempts_behind_it_fails_like_any_other(
    redis: Redis, clock: Clock, child: Child
) -> None:
    jobs = seed_pending(child, "a")
    redis.hset(keys.job(QUEUE, "a"), "attempts", 2000)

    child.retry(*jobs, delay_s=3600)

    assert job(redis, "a")["attempts"] == "2001"
    assert run_at(redis, "a") == clock.now_ms + 3_600_000


def test_retry_with_no_delay_runs_again_at_once(store: Store, child: Child) -> None:
    child.retry(*seed_pending(child, "a"), delay_s=0)

    assert [(j.delivery, j.attempts) for j in child.take()] == [(2, 1)]


def test_a_real_failure_fits_and_comes_back(redis: Redis, child: Child) -> None:
    (a,) = seed_pending(child, "a")
    try:
        raise RuntimeError("x" * 5_000_000 + "\N{PILE OF POO}")
    except RuntimeError as error:
        failure = failure_of(error)
    cause, text = failure.cause, failure.cause_text

    child.settle(Outcome.retry(a, delay_s=1, cause=cause, cause_text=text, error=failure.to_json()))

    assert redis.hstrlen(keys.job(QUEUE, "a"), "error") <= 65_536
    assert Failure.from_json(job(redis, "a")["error"]) == failure


def test_retry_of_a_lost_delivery_changes_nothing_and_is_counted(
    redis: Redis, child: Child, other: Child
) -> None:
    jobs = seed_pending(child, "a")
    child.die(ran=["a"])
    child.register()

    assert child.retry(*jobs) == ["lost"]

    assert state(redis, "a") == "ready"
    assert counter(redis, "late") == 1
    assert counter(redis, "failed") == 0


def test_g6_a_repeat_answers_ok_and_counts_nothing(redis: Redis, child: Child) -> None:
    jobs = seed_pending(child, "a")

    assert [child.retry(*jobs) for _ in range(3)] == [["ok"]] * 3

    assert job(redis, "a")["attempts"] == "1"
    assert counter(redis, "failed") == 1
    assert failing(redis) == 1


def test_g6_a_repeat_after_the_job_was_delivered_again_answers_ok(
    redis: Redis, child: Child, other: Child
) -> None:
    jobs = seed_pending(child, "a")
    child.retry(*jobs, delay_s=0)
    (again,) = other.take()

    assert child.retry(*jobs, delay_s=0) == ["ok"]
    assert job(redis, "a")["child"] == other.name
    assert counter(redis, "late") == 0

    other.ack(again)
    assert child.retry(*jobs, delay_s=0) == ["ok"]  # the tombstone knows too
    assert counter(redis, "late") == 0


def test_g6_a_repeat_after_a_later_delivery_was_lost_answers_ok(
    redis: Redis, child: Child, other: Child
) -> None:
    jobs = seed_pending(child, "a")
    child.retry(*jobs, delay_s=0)
    lost = other.take()
    other.die()
    other.register()
    child.take()

    assert child.retry(*jobs, delay_s=0) == ["ok"]
    assert other.retry(*lost) == ["lost"]
    assert counter(redis, "late") == 1


def test_g6_a_lost_answer_counts_one_attempt(redis: Redis, store: Store, lossy: Store, proxy: Proxy) -> None:
    seed_ready(store, "a")
    child = Child(lossy, "host:1:aa/1").register()
    jobs = child.take(1)
    proxy.lose_replies(1)

    assert child.retry(*jobs) == ["ok"]

    assert proxy.lost == 1
    assert job(redis, "a")["attempts"] == "1"


@pytest.mark.damages("the cause's own key stays of a wrong type")
@pytest.mark.parametrize("name", ["cause", "dead"])
def test_a_wrong_type_under_a_cause_loses_no_job(redis: Redis, clock: Clock, child: Child, name: str) -> None:
    jobs = seed_pending(child, "a", "b")
    redis.set({"cause": keys.cause, "dead": keys.dead_of_cause}[name](QUEUE, "boom"), "foreign")

    assert child.retry(jobs[0]) == ["ok"]
    assert child.bury(jobs[1]) == ["ok"]

    assert run_at(redis, "a") == clock.now_ms + 5000
    assert redis.zscore(keys.jobs_in(QUEUE, JobState.DEAD), "b") == clock.now_ms
    assert redis.zcard(keys.jobs_in(QUEUE, JobState.PENDING)) == 0
