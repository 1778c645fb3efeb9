"""run_now: a person lets a delayed or ready job run before all others."""

from __future__ import annotations

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
    seed_delayed,
    seed_pending,
    seed_ready,
    token_waits,
    verbs,
)


def test_a_delayed_job_is_ready_before_all_others(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "high", lane=Lane.HIGH)
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 3_600_000)

    assert store.run_now(QUEUE, ["a"], actor=PERSON, reason="now") == ["ok"]

    assert ids_in(redis, JobState.DELAYED) == []
    assert [j.id for j in child.take(1)] == ["a"]
    assert events(redis, "a")[1] == {
        "verb": "run_now", "id": "a", "from": "delayed", "to": "ready", "actor": PERSON,
        "at": str(clock.now_ms), "reason": "now",
    }  # fmt: skip


def test_a_ready_job_changes_its_lane_and_leaves_no_second_entry(redis: Redis, store: Store) -> None:
    seed_ready(store, "a", "b", lane=Lane.LOW)

    store.run_now(QUEUE, ["b"], actor=PERSON)

    assert ids_in_lane(redis, Lane.FIRST) == ["b"]
    assert ids_in_lane(redis, Lane.LOW) == ["a"]


def test_lateness_counts_from_the_click(store: Store, clock: Clock, child: Child) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 3_600_000)
    clock.advance(1000)
    store.run_now(QUEUE, ["a"], actor=PERSON)

    assert child.take()[0].due_ms == clock.now_ms


def test_a_failing_job_stays_under_its_cause(redis: Redis, store: Store, child: Child) -> None:
    child.retry(*seed_pending(child, "a"), delay_s=3600)

    store.run_now(QUEUE, ["a"], actor=PERSON)

    assert failing(redis) == 1


def test_run_now_wakes_a_worker(redis: Redis, store: Store, clock: Clock, child: Child) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 3_600_000)
    child.claim(1)

    store.run_now(QUEUE, ["a"], actor=PERSON)

    assert token_waits(redis)


def test_g6_a_repeat_of_an_operation_leaves_it_where_it_is(redis: Redis, store: Store, child: Child) -> None:
    seed_ready(store, "a")
    store.run_now(QUEUE, ["a"], actor=PERSON, operation="op1")
    child.retry(*child.take(), delay_s=60)

    assert store.run_now(QUEUE, ["a"], actor=PERSON, operation="op1") == ["ok"]

    assert ids_in(redis, JobState.DELAYED) == ["a"]
    assert verbs(redis, "a").count("run_now") == 1
