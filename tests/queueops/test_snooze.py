"""snooze: the job runs again later and no attempt is burned."""

from __future__ import annotations

from queueops.states import Lane
from queueops.store import Store
from tests.factories import (
    QUEUE,
    Child,
    Clock,
    Redis,
    counter,
    events,
    failing,
    ids_in_lane,
    job,
    run_at,
    seed_pending,
    seed_ready,
    state,
    verbs,
)
from tests.proxy import Proxy


def test_snooze_delays_without_an_attempt(redis: Redis, clock: Clock, child: Child) -> None:
    child.snooze(*seed_pending(child, "a"), delay_s=10)

    stored = job(redis, "a")
    assert (stored["state"], "attempts" in stored) == ("delayed", False)
    assert run_at(redis, "a") == clock.now_ms + 10_000
    assert events(redis, "a")[-1] == {
        "verb": "snooze", "id": "a", "from": "pending", "to": "delayed", "actor": child.name,
        "at": str(clock.now_ms), "delivery": "1", "reason": "later", "delay_ms": "10000",
        "run_at": str(clock.now_ms + 10_000),
    }  # fmt: skip
    assert (counter(redis, "snoozed"), counter(redis, "failed")) == (1, 0)


def test_a_snoozed_job_returns_to_the_lane_of_its_priority(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    child.snooze(*seed_pending(child, "a", lane=Lane.HIGH), delay_s=1)
    clock.advance(1000)

    child.claim(0)

    assert ids_in_lane(redis, Lane.HIGH) == ["a"]


def test_a_failing_job_that_snoozes_stays_under_its_cause(redis: Redis, child: Child) -> None:
    child.retry(*seed_pending(child, "a"), delay_s=0)

    child.snooze(*child.take())

    assert failing(redis) == 1
    assert job(redis, "a")["attempts"] == "1"


def unknown_for(child: Child, clock: Clock, seconds: int) -> None:
    """Let workers that don't know the handler meet the job every 10 s."""
    for _ in range(seconds // 10):
        child.register()
        child.snooze(*child.take(), delay_s=10, unknown=True)
        clock.advance(10_000)
    child.register()


def test_an_unknown_handler_is_waited_for_ten_minutes_and_then_dead(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a")

    unknown_for(child, clock, 600)
    assert state(redis, "a") == "delayed"
    child.snooze(*child.take(), unknown=True)

    assert (state(redis, "a"), job(redis, "a")["cause"]) == ("dead", "unknown-handler")
    assert verbs(redis, "a")[-1] == "bury"
    assert job(redis, "a")["attempts"] == "0"


def test_a_worker_that_knows_the_handler_ends_the_wait(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a")
    unknown_for(child, clock, 590)

    child.snooze(*child.take(), delay_s=700)  # the handler ran, and raised Snooze
    clock.advance(700_000)
    child.register()
    child.snooze(*child.take(), unknown=True)

    assert state(redis, "a") == "delayed"


def test_a_requeue_gives_an_unknown_handler_ten_minutes_again(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a")
    unknown_for(child, clock, 600)
    child.snooze(*child.take(), unknown=True)

    store.requeue(QUEUE, ["a"], actor="user:1")
    child.snooze(*child.take(), unknown=True)

    assert state(redis, "a") == "delayed"


def test_snooze_of_a_lost_delivery_is_refused_and_counted(redis: Redis, child: Child) -> None:
    jobs = seed_pending(child, "a")
    child.die()
    child.register()

    assert child.snooze(*jobs) == ["lost"]
    assert (state(redis, "a"), counter(redis, "late")) == ("ready", 1)


def test_g6_a_repeat_answers_ok_and_moves_nothing(
    redis: Redis, store: Store, lossy: Store, clock: Clock, proxy: Proxy
) -> None:
    seed_ready(store, "a")
    child = Child(lossy, "host:1:aa/1").register()
    jobs = child.take(1)
    proxy.lose_replies(1)

    assert child.snooze(*jobs, delay_s=10) == ["ok"]
    clock.advance(10_000)
    again = Child(store, "host:2:bb/1").register().take()
    assert child.snooze(*jobs, delay_s=10) == ["ok"]

    assert proxy.lost == 1
    assert [j.delivery for j in again] == [2]
    assert counter(redis, "snoozed") == 1
