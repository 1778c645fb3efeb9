"""restore: a discarded job goes back to the state it had."""

from __future__ import annotations

import pytest

from queueops import keys
from queueops.states import JobState, Lane
from queueops.store import Store
from tests.factories import (
    PERSON,
    QUEUE,
    Child,
    Clock,
    Redis,
    events,
    failing,
    ids_in,
    ids_in_lane,
    job,
    run_at,
    seed_dead,
    seed_delayed,
    seed_discarded,
    seed_pending,
    seed_ready,
    state,
    token_waits,
    verbs,
)


def discard_and_restore(store: Store) -> list[str]:
    assert store.discard(QUEUE, ["a"], actor=PERSON) == ["ok"]
    return store.restore(QUEUE, ["a"], actor=PERSON, reason="a mistake")


def test_a_delayed_job_gets_its_run_at_back(redis: Redis, store: Store, clock: Clock) -> None:
    due = clock.now_ms + 5000
    seed_delayed(store, "a", run_at_ms=due)

    assert discard_and_restore(store) == ["ok"]

    assert run_at(redis, "a") == due
    assert events(redis, "a")[-1] == {
        "verb": "restore", "id": "a", "from": "discarded", "to": "delayed", "actor": PERSON,
        "at": str(clock.now_ms), "reason": "a mistake",
    }  # fmt: skip
    assert not job(redis, "a").keys() & {"was", "was_at", "reason"}


def test_a_delayed_job_whose_time_passed_meanwhile_runs_at_the_next_claim(
    store: Store, clock: Clock, child: Child
) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 5000)
    store.discard(QUEUE, ["a"], actor=PERSON)
    clock.advance(20_000)

    store.restore(QUEUE, ["a"], actor=PERSON)

    assert [j.id for j in child.take()] == ["a"]


def test_a_ready_job_returns_to_its_lane_and_wakes(redis: Redis, store: Store, child: Child) -> None:
    seed_ready(store, "a", lane=Lane.HIGH)
    store.discard(QUEUE, ["a"], actor=PERSON)
    child.claim(1)
    assert not token_waits(redis)

    store.restore(QUEUE, ["a"], actor=PERSON)

    assert ids_in_lane(redis, Lane.HIGH) == ["a"]
    assert token_waits(redis)


def test_a_dead_job_is_dead_again_since_its_death(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_dead(child, "a")
    died = clock.now_ms
    clock.advance(9000)

    assert discard_and_restore(store) == ["ok"]

    assert redis.zscore(keys.jobs_in(QUEUE, JobState.DEAD), "a") == died
    assert redis.zscore(keys.dead_of_cause(QUEUE, "boom"), "a") == died
    assert job(redis, "a")["cause"] == "boom"


def test_a_failing_job_is_failing_again(redis: Redis, store: Store, child: Child) -> None:
    child.retry(*seed_pending(child, "a"))

    assert discard_and_restore(store) == ["ok"]

    assert failing(redis) == 1
    assert state(redis, "a") == "delayed"


def test_what_its_handler_discarded_runs_again(redis: Redis, store: Store, child: Child) -> None:
    child.discard(*seed_pending(child, "a"))

    assert store.restore(QUEUE, ["a"], actor=PERSON) == ["ok"]

    assert [j.delivery for j in child.take()] == [2]


def test_restore_takes_the_unique_key_again(redis: Redis, store: Store) -> None:
    seed_ready(store, "a", unique="u")

    discard_and_restore(store)

    assert redis.get(keys.unique(QUEUE, "u")) == b"a"


def test_restore_that_meets_another_holder_is_skipped_and_names_it(redis: Redis, store: Store) -> None:
    seed_discarded(store, "a", unique="u")
    seed_ready(store, "b", unique="u")

    assert store.restore(QUEUE, ["a"], actor=PERSON) == ["held:b"]

    assert state(redis, "a") == "discarded"
    assert ids_in(redis, JobState.DISCARDED) == ["a"]


def test_a_dead_job_is_restored_whoever_holds_its_key(redis: Redis, store: Store, child: Child) -> None:
    seed_dead(child, "a", unique="u")
    store.discard(QUEUE, ["a"], actor=PERSON)
    seed_ready(store, "b", unique="u")

    assert store.restore(QUEUE, ["a"], actor=PERSON) == ["ok"]
    assert redis.get(keys.unique(QUEUE, "u")) == b"b"


@pytest.mark.parametrize("operation", ["", "op1"])
def test_g6_a_second_restore_does_nothing(redis: Redis, store: Store, operation: str) -> None:
    seed_discarded(store, "a")
    store.restore(QUEUE, ["a"], actor=PERSON, operation=operation)

    answer = store.restore(QUEUE, ["a"], actor=PERSON, operation=operation)

    assert answer == ["ok" if operation else "wrong:ready"]
    assert verbs(redis, "a").count("restore") == 1
