"""Pause, rate limit and concurrency limit of a queue: kept in the claim, over all workers."""

from __future__ import annotations

import pytest

from queueops import keys
from queueops.states import JobState
from queueops.store import Outcome, Store
from tests.factories import (
    PERSON,
    QUEUE,
    Child,
    Clock,
    Redis,
    ids_in,
    seed_delayed,
    seed_pending,
    seed_ready,
    set_up,
    state,
    take_token,
    token_waits,
)

# -- pause ----------------------------------------------------------------------------------------


def test_a_paused_queue_delivers_nothing_and_says_so(redis: Redis, store: Store, child: Child) -> None:
    seed_ready(store, "a")
    set_up(store, paused="1", paused_reason="the API is down")

    answer = child.claim(5)

    assert (answer.word, answer.jobs) == ("paused", [])
    assert state(redis, "a") == "ready"


def test_a_paused_queue_takes_jobs_in_and_lets_running_ones_finish(
    redis: Redis, store: Store, child: Child
) -> None:
    jobs = seed_pending(child, "a")
    set_up(store, paused="1")

    seed_ready(store, "b")
    assert child.ack(*jobs) == ["ok"]

    assert (state(redis, "a"), state(redis, "b")) == ("done", "ready")


def test_a_resumed_queue_goes_on_and_wakes(redis: Redis, store: Store, child: Child) -> None:
    seed_ready(store, "a")
    set_up(store, paused="1")
    child.claim(1)
    redis.delete(keys.queue_key(QUEUE, "wake"))

    set_up(store, paused="")

    assert take_token(redis)
    assert [j.id for j in child.take(1)] == ["a"]


def test_a_pause_with_an_end_ends_by_itself_at_its_millisecond(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a")
    set_up(store, paused="1", paused_until=clock.now_ms + 5000)

    answer = child.claim(1)
    assert (answer.word, answer.wait_us, answer.is_keeper) == ("paused", 5_000_000, True)

    clock.advance(4999)
    assert child.claim(1).word == "paused"

    clock.advance(1)
    assert [j.id for j in child.take(1)] == ["a"]
    assert not redis.hmget(keys.queue_key(QUEUE, "settings"), "paused")[0]


def test_rescue_goes_on_in_a_paused_queue(
    redis: Redis, store: Store, clock: Clock, child: Child, other: Child
) -> None:
    seed_pending(child, "a")
    set_up(store, paused="1")
    clock.advance(30_000)
    other.register()

    other.claim(1)

    assert state(redis, "a") == "ready"


def test_due_jobs_of_a_paused_queue_are_no_hot_loop(store: Store, clock: Clock, child: Child) -> None:
    seed_delayed(store, *[f"j{n}" for n in range(500)], run_at_ms=clock.now_ms + 1)
    set_up(store, paused="1")
    clock.advance(1)

    assert child.claim(5).wait_us is None


# -- concurrency ----------------------------------------------------------------------------------


def test_the_concurrency_limit_holds_over_all_children(store: Store, child: Child, other: Child) -> None:
    set_up(store, concurrency=3)
    seed_ready(store, *[f"j{n}" for n in range(10)])

    taken = [len(child.take(2)), len(other.take(5)), len(child.take(5))]

    assert taken == [2, 1, 0]


def test_a_settled_job_frees_exactly_its_slot(store: Store, child: Child, other: Child) -> None:
    set_up(store, concurrency=2)
    seed_ready(store, *[f"j{n}" for n in range(10)])
    a, b = child.take(2)

    child.ack(a)
    assert [len(other.take(5)), len(other.take(5))] == [1, 0]

    child.retry(b)
    assert [len(other.take(5)), len(other.take(5))] == [1, 0]


def test_a_rescued_job_frees_its_slot(store: Store, clock: Clock, child: Child, other: Child) -> None:
    set_up(store, concurrency=1)
    seed_pending(child, "a")
    seed_ready(store, "b")
    clock.advance(30_000)
    other.register()

    assert [j.id for j in other.take(5)] == ["b"]


def test_a_limit_of_0_delivers_nothing(store: Store, child: Child) -> None:
    set_up(store, concurrency=0)
    seed_ready(store, "a")

    assert child.take(1) == []


def test_a_lower_limit_waits_for_those_that_run(store: Store, child: Child) -> None:
    seed_ready(store, *[f"j{n}" for n in range(10)])
    running = child.take(5)
    set_up(store, concurrency=2)

    child.ack(*running[:3])
    assert child.take(5) == []

    child.ack(running[3])
    assert len(child.take(5)) == 1


def test_a_claim_that_the_limit_stopped_is_no_chain_of_tokens(
    redis: Redis, store: Store, child: Child
) -> None:
    set_up(store, concurrency=1)
    seed_ready(store, "a", "b")
    redis.delete(keys.queue_key(QUEUE, "wake"))

    child.take(1)
    child.claim(1)

    assert not token_waits(redis)


def test_suspects_count_for_the_limit(store: Store, child: Child, other: Child) -> None:
    set_up(store, concurrency=1)
    seed_pending(child, "suspect")
    child.die(ran=["suspect"])
    seed_ready(store, "a")
    assert len(other.take(1)) == 1

    probation = Child(store, "host:1:aa/probation", suspects=True).register()

    assert probation.take(1) == []


# -- rate -----------------------------------------------------------------------------------------


def test_the_rate_limit_is_exact_over_children_and_time(
    store: Store, clock: Clock, child: Child, other: Child
) -> None:
    set_up(store, rate=10, rate_burst=10)
    seed_ready(store, *[f"j{n:04}" for n in range(500)])
    delivered = 0

    for tick in range(200):  # 20 s in steps of 100 ms
        child.register()
        other.register()
        for each in (child, other, child):
            jobs = each.take(7)
            delivered += len(jobs)
            each.ack(*jobs)
        assert delivered == 10 + tick, f"after {tick * 100} ms"
        clock.advance(100)


def test_a_burst_of_one_spaces_jobs_evenly(store: Store, clock: Clock, child: Child) -> None:
    set_up(store, rate=4, rate_burst=1)
    seed_ready(store, *[f"j{n}" for n in range(10)])

    assert len(child.take(5)) == 1
    assert child.claim(5).wait_us == 250_000
    clock.advance(249)
    assert child.take(5) == []
    clock.advance(1)
    assert len(child.take(5)) == 1


def test_without_a_burst_a_second_s_worth_is_the_burst(store: Store, child: Child) -> None:
    set_up(store, rate=5)
    seed_ready(store, *[f"j{n}" for n in range(10)])

    assert len(child.take(10)) == 5


def test_a_rate_below_one_a_second(store: Store, clock: Clock, child: Child) -> None:
    set_up(store, rate=0.1)
    seed_ready(store, "a", "b")

    assert len(child.take(5)) == 1
    clock.advance(9_999)
    child.register()
    assert child.take(5) == []
    clock.advance(1)
    assert len(child.take(5)) == 1


def test_an_idle_queue_saves_up_no_more_than_its_burst(store: Store, clock: Clock, child: Child) -> None:
    set_up(store, rate=10, rate_burst=3)
    clock.advance(3_600_000)
    child.register()
    seed_ready(store, *[f"j{n}" for n in range(10)])

    assert len(child.take(10)) == 3


def test_what_a_claim_did_not_find_costs_no_rate(store: Store, child: Child) -> None:
    set_up(store, rate=1, rate_burst=5)
    for _ in range(20):
        child.take(5)
    seed_ready(store, *[f"j{n}" for n in range(10)])

    assert len(child.take(10)) == 5


def test_a_repeat_of_a_claim_costs_no_rate(store: Store, child: Child) -> None:
    set_up(store, rate=1, rate_burst=5)
    seed_ready(store, *[f"j{n}" for n in range(10)])
    child.claim(3)

    child.claim(3, again=True)

    assert len(child.take(10)) == 2


def test_a_clock_that_goes_back_gives_no_tokens_and_takes_none(
    store: Store, clock: Clock, child: Child
) -> None:
    set_up(store, rate=1, rate_burst=2)
    seed_ready(store, *[f"j{n}" for n in range(10)])
    child.take(2)

    clock.advance(-10_000)
    assert child.take(5) == []


def test_jobs_of_a_limited_queue_wait_ready_and_are_not_lost(
    redis: Redis, store: Store, child: Child
) -> None:
    set_up(store, rate=1, rate_burst=1, concurrency=5)
    seed_ready(store, "a", "b", "c")

    child.take(5)

    assert ids_in(redis, JobState.READY) == ["b", "c"]


@pytest.mark.parametrize(("rate", "concurrency", "expected"), [(2, 5, 2), (5, 2, 2)])
def test_the_narrower_limit_counts(
    store: Store, child: Child, rate: int, concurrency: int, expected: int
) -> None:
    set_up(store, rate=rate, concurrency=concurrency)
    seed_ready(store, *[f"j{n}" for n in range(10)])

    assert len(child.take(10)) == expected


def test_an_exchange_frees_its_slot_before_it_claims(store: Store, child: Child) -> None:
    set_up(store, concurrency=1)
    (a,) = seed_pending(child, "a")
    child.settle(Outcome.start(a))  # the server knows both scripts: what it forgot is sent again, last
    seed_ready(store, "b")

    words, claimed = store.exchange(
        QUEUE, child.name, [Outcome.ack(a, handler="tests.work")], request=child.request + 1, limit=1
    )

    assert words == ["ok"]
    assert [j.id for j in claimed.jobs] == ["b"]


def test_a_person_can_run_now_only_within_the_limit(store: Store, child: Child) -> None:
    set_up(store, concurrency=0)
    seed_ready(store, "a")
    store.run_now(QUEUE, ["a"], actor=PERSON)

    assert child.take(1) == []
