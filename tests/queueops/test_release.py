"""release: a child gives back what it did not finish: it keeps its turn and nothing is counted."""

from __future__ import annotations

from queueops.states import Lane
from queueops.store import Store
from tests.factories import (
    Child,
    Clock,
    Redis,
    counter,
    events,
    failing,
    ids_in_lane,
    job,
    seed_pending,
    seed_ready,
    state,
    token_waits,
    verbs,
)
from tests.proxy import Proxy


def test_release_makes_it_ready_before_others_and_counts_nothing(
    redis: Redis, store: Store, clock: Clock, child: Child, other: Child
) -> None:
    jobs = seed_pending(child, "a")
    seed_ready(store, "b", lane=Lane.HIGH)

    assert child.release(*jobs) == ["ok"]

    assert [(j.id, j.delivery, j.attempts, j.rescues) for j in other.take(1)] == [("a", 2, 0, 0)]
    assert events(redis, "a")[2] == {
        "verb": "release", "id": "a", "from": "pending", "to": "ready", "actor": child.name,
        "at": str(clock.now_ms), "delivery": "1", "reason": "stopped",
    }  # fmt: skip
    assert counter(redis, "failed") == counter(redis, "rescued") == 0


def test_release_wakes_another_worker(redis: Redis, child: Child) -> None:
    jobs = seed_pending(child, "a")
    child.claim(5)  # nothing left: it watches

    child.release(*jobs)

    assert token_waits(redis)


def test_a_failing_job_that_is_released_stays_under_its_cause(redis: Redis, child: Child) -> None:
    child.retry(*seed_pending(child, "a"), delay_s=0)

    child.release(*child.take())

    assert failing(redis) == 1


def test_a_released_suspect_stays_a_suspect(redis: Redis, store: Store, child: Child, other: Child) -> None:
    """Nothing has cleared it: in the lane `first` it would take another child's jobs down with it."""
    seed_pending(child, "a")
    child.die(ran=["a"])
    probation = Child(store, "host:1:aa/probation", suspects=True).register()

    probation.release(*probation.take(1))

    assert ids_in_lane(redis, Lane.SUSPECT) == ["a"]
    assert other.take() == []


def test_release_of_a_lost_delivery_changes_nothing_and_is_no_late_result(
    redis: Redis, child: Child, other: Child
) -> None:
    jobs = seed_pending(child, "a")
    child.die()
    other.take()
    child.register()

    assert child.release(*jobs) == ["lost"]

    assert (state(redis, "a"), job(redis, "a")["child"]) == ("pending", other.name)
    assert counter(redis, "late") == 0


def test_g6_a_repeat_answers_ok_and_adds_no_second_entry(
    redis: Redis, store: Store, lossy: Store, proxy: Proxy
) -> None:
    seed_ready(store, "a")
    child = Child(lossy, "host:1:aa/1").register()
    jobs = child.take(1)
    proxy.lose_replies(1)

    assert child.release(*jobs) == ["ok"]
    assert child.release(*jobs) == ["ok"]

    assert proxy.lost == 1
    assert verbs(redis, "a").count("release") == 1
    assert ids_in_lane(redis, Lane.FIRST) == ["a"]
