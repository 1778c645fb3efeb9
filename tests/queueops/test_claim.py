"""claim: ready jobs are delivered to a child, counted before their handlers run; safe to repeat."""

from __future__ import annotations

import pytest

from queueops import keys
from queueops.states import JobState, Lane
from queueops.store import Outcome, Store
from tests.factories import (
    QUEUE,
    SPEC,
    Child,
    Clock,
    Redis,
    counter,
    events,
    holders,
    ids_in,
    job,
    new,
    seed_delayed,
    seed_pending,
    seed_ready,
    set_up,
    state,
    verbs,
)
from tests.proxy import Proxy


def test_a_claim_delivers_with_a_number_and_what_the_handler_needs(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a")
    clock.advance(40)

    (delivery,) = child.claim(1).jobs

    assert (delivery.queue, delivery.id, delivery.spec) == (QUEUE, "a", SPEC)
    assert (delivery.delivery, delivery.attempts, delivery.rescues, delivery.edition) == (1, 0, 0, 0)
    assert delivery.is_started
    assert delivery.due_ms == clock.now_ms - 40
    assert delivery.idempotency_key == "a"
    stored = job(redis, "a")
    assert (stored["state"], stored["child"], stored["delivery"]) == ("pending", child.name, "1")
    assert stored["started"] == stored["since"] == str(clock.now_ms)
    assert holders(redis)[child.name] == 1


def test_a_claim_is_an_event_and_counted(redis: Redis, store: Store, clock: Clock, child: Child) -> None:
    seed_pending(child, "a", "b")

    assert events(redis, "a")[-1] == {
        "verb": "claim", "id": "a", "from": "ready", "to": "pending", "actor": child.name,
        "at": str(clock.now_ms), "delivery": "1",
    }  # fmt: skip
    assert counter(redis, "claimed") == 2
    assert counter(redis, "lateness:1") == 2


def test_a_claim_takes_no_more_than_its_limit_in_order(store: Store, child: Child) -> None:
    seed_ready(store, "a", "b", "c")

    assert [j.id for j in child.take(2)] == ["a", "b"]
    assert [j.id for j in child.take(2)] == ["c"]
    assert child.take(2) == []


def test_only_the_first_of_a_batch_start_the_others_wait_for_their_mark(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_ready(store, "a", "b")

    a, b = child.claim(2, starts=1).jobs

    assert (a.is_started, b.is_started) == (True, False)
    assert job(redis, "b")["started"] == "0"
    assert child.settle(Outcome.start(b)) == ["ok"]
    assert job(redis, "b")["started"] != "0"


def test_a_child_that_nobody_registered_gets_nothing(redis: Redis, store: Store) -> None:
    seed_ready(store, "a")

    answer = Child(store, "host:9:zz/1").claim(5)

    assert (answer.word, answer.jobs) == ("unregistered", [])
    assert state(redis, "a") == "ready"


def test_a_child_whose_lease_is_over_gets_nothing_until_it_is_renewed(
    store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a")
    clock.advance(30_000)

    assert child.claim(1).word == "unregistered"

    child.register()
    assert [j.id for j in child.take(1)] == ["a"]


def test_two_children_never_get_the_same_job(store: Store, child: Child, other: Child) -> None:
    seed_ready(store, *[f"j{n}" for n in range(10)])

    first, second = child.take(6), other.take(6)

    assert [j.id for j in first + second] == [f"j{n}" for n in range(10)]


def test_deliveries_only_grow_through_every_way_back(
    store: Store, clock: Clock, child: Child, other: Child
) -> None:
    (first,) = seed_pending(child, "a")
    child.release(first)
    (second,) = child.take()
    child.retry(second, delay_s=0)
    (third,) = other.take()
    other.die(ran=["a"])
    probation = Child(store, "host:1:aa/probation", suspects=True).register()
    (fourth,) = probation.take(1)
    probation.bury(fourth)
    store.requeue(QUEUE, ["a"], actor="user:1")
    (fifth,) = child.take()

    assert [d.delivery for d in (first, second, third, fourth, fifth)] == [1, 2, 3, 4, 5]
    child.ack(fifth)


# -- lanes --------------------------------------------------------------------------------------------


def test_lanes_are_read_in_their_order(store: Store, child: Child) -> None:
    seed_ready(store, "low", lane=Lane.LOW)
    seed_ready(store, "normal")
    seed_ready(store, "high", lane=Lane.HIGH)
    seed_ready(store, "now", lane=Lane.LOW)
    store.run_now(QUEUE, ["now"], actor="user:1")

    assert [j.id for j in child.take(4)] == ["now", "high", "normal", "low"]


def test_a_batch_over_several_lanes_keeps_to_its_limit(store: Store, child: Child) -> None:
    """XREADGROUP COUNT 10 over three streams would return 30."""
    for lane in (Lane.HIGH, Lane.NORMAL, Lane.LOW):
        seed_ready(store, *[f"{lane}-{n}" for n in range(20)], lane=lane)

    taken = child.take(30)

    assert [j.id for j in taken] == [f"high-{n}" for n in range(20)] + [f"normal-{n}" for n in range(10)]


def test_low_is_served_at_every_16th_claim_however_much_is_above_it(store: Store, child: Child) -> None:
    seed_ready(store, *[f"high-{n}" for n in range(40)], lane=Lane.HIGH)
    seed_ready(store, *[f"low-{n}" for n in range(5)], lane=Lane.LOW)

    order = [child.take(1)[0].id for _ in range(32)]

    assert [n for n, job_id in enumerate(order, 1) if job_id.startswith("low")] == [16, 32]


def test_first_comes_before_low_at_the_16th_claim_too(store: Store, child: Child) -> None:
    child.request = 15
    seed_ready(store, "low", lane=Lane.LOW)
    seed_ready(store, "first")
    store.run_now(QUEUE, ["first"], actor="user:1")

    assert [j.id for j in child.take(2)] == ["first", "low"]


def test_a_normal_child_never_gets_a_suspect_and_a_probation_child_nothing_else(
    store: Store, child: Child, other: Child
) -> None:
    seed_pending(child, "suspect")
    child.die(ran=["suspect"])
    seed_ready(store, "normal")
    probation = Child(store, "host:1:aa/probation", suspects=True).register()

    assert [j.id for j in other.take(5)] == ["normal"]
    assert [j.id for j in probation.take(1)] == ["suspect"]
    assert probation.take(1) == []


# -- repeats ------------------------------------------------------------------------------------------


def test_g6_the_same_request_gets_the_same_batch(redis: Redis, store: Store, child: Child) -> None:
    seed_ready(store, "a", "b", "c")
    first = child.claim(2)

    again = child.claim(2, again=True)

    assert again.jobs == first.jobs
    assert state(redis, "c") == "ready"
    assert verbs(redis).count("claim") == 2


def test_g6_a_lost_answer_gives_the_same_batch(
    redis: Redis, store: Store, lossy: Store, proxy: Proxy
) -> None:
    seed_ready(store, "a", "b", "c")
    child = Child(lossy, "host:1:aa/1").register()

    proxy.lose_replies(1)
    jobs = child.claim(2, starts=1).jobs

    assert proxy.lost == 1
    assert [(j.id, j.delivery, j.is_started) for j in jobs] == [("a", 1, True), ("b", 1, False)]
    assert state(redis, "c") == "ready"


def test_g6_a_lost_answer_to_settle_and_claim_repeats_both(
    redis: Redis, store: Store, lossy: Store, proxy: Proxy
) -> None:
    seed_ready(store, "a", "b", "c")
    child = Child(lossy, "host:1:aa/1").register()
    (a,) = child.claim(1).jobs

    proxy.lose_replies(1)
    words, claimed = lossy.exchange(
        QUEUE, child.name, [Outcome.ack(a, handler="tests.work")], request=2, limit=1
    )

    assert proxy.lost == 1
    assert words == ["ok"]
    assert [j.id for j in claimed.jobs] == ["b"]
    assert counter(redis, "done") == 1
    assert counter(redis, "late") == 0


def test_g6_a_repeat_gives_only_what_is_still_the_child_s(redis: Redis, store: Store, child: Child) -> None:
    seed_ready(store, "a", "b")
    a, b = child.take(2)
    child.ack(a)

    assert child.claim(2, again=True).jobs == [b]


def test_g6_a_repeat_of_a_batch_that_was_handed_back_meanwhile_is_no_batch(
    redis: Redis, store: Store, child: Child, other: Child
) -> None:
    seed_ready(store, "a")
    child.take(1)
    child.die()
    other.take(1)
    child.register()  # its supervisor was wrong about it

    assert child.claim(1, again=True).jobs == []
    assert job(redis, "a")["child"] == other.name


def test_g6_a_repeat_of_an_empty_claim_may_find_something(store: Store, child: Child) -> None:
    assert child.take(1) == []
    seed_ready(store, "a")

    jobs = child.claim(1, again=True).jobs + child.take(1)

    assert [j.id for j in jobs] == ["a"]


def test_a_late_copy_of_an_older_request_takes_nothing(redis: Redis, store: Store, child: Child) -> None:
    """A copy that hung in a dead connection would take jobs that nobody runs and everybody renews."""
    seed_ready(store, "a", "b")
    child.take(1)  # request 1
    child.take(1)  # request 2
    seed_ready(store, "c")

    late = store.claim(QUEUE, child.name, request=1, limit=5)

    assert late.jobs == []
    assert state(redis, "c") == "ready"


def test_a_late_copy_of_an_older_empty_request_takes_nothing(
    redis: Redis, store: Store, child: Child
) -> None:
    for _ in range(3):
        child.take(1)
    seed_ready(store, "a")

    assert store.claim(QUEUE, child.name, request=2, limit=5).jobs == []
    assert state(redis, "a") == "ready"


def test_request_numbers_are_compared_as_numbers(store: Store, child: Child) -> None:
    child.request = 8
    for n in range(4):  # 9, 10, 11, 12
        seed_ready(store, f"j{n}")
        assert len(child.take(1)) == 1


# -- the answer ----------------------------------------------------------------------------------------


def test_the_answer_carries_the_version_of_the_settings(store: Store, child: Child) -> None:
    before = child.claim(1).version
    set_up(store, concurrency=3)

    assert child.claim(1).version == before + 1


def test_the_answer_tells_the_exact_time_until_the_next_due_job(
    store: Store, clock: Clock, child: Child
) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 1234)

    answer = child.claim(1)

    assert answer.wait_us == 1_234_000
    assert answer.server_us == clock.now_ms * 1000


def test_the_answer_of_an_empty_queue_names_no_time(store: Store, child: Child) -> None:
    assert child.claim(1).wait_us is None


def test_the_answer_tells_the_time_until_a_lease_has_to_be_looked_at(
    store: Store, child: Child, other: Child
) -> None:
    seed_pending(child, "a")

    assert other.claim(1).wait_us == 30_000_000


def test_an_exchange_without_outcomes_is_a_claim(store: Store, child: Child) -> None:
    seed_ready(store, "a")

    words, claimed = store.exchange(QUEUE, child.name, [], request=1, limit=1)

    assert words == []
    assert [j.id for j in claimed.jobs] == ["a"]


# -- what it finds that is not in order ------------------------------------------------------------------


def test_an_entry_added_by_hand_for_a_ready_job_without_one_is_delivered(
    redis: Redis, store: Store, child: Child
) -> None:
    redis.hset(keys.job(QUEUE, "a"), mapping={"state": "ready", "since": 1, "spec": "x"})
    redis.xadd(keys.ready(QUEUE, Lane.NORMAL), {"id": "a"})

    (a,) = child.take()

    assert a.id == "a"
    child.ack(a)


def test_a_second_entry_for_a_ready_job_is_dropped(redis: Redis, store: Store, child: Child) -> None:
    seed_ready(store, "a")
    redis.xadd(keys.ready(QUEUE, Lane.NORMAL), {"id": "a"})

    assert [j.id for j in child.take()] == ["a"]
    assert redis.xlen(keys.ready(QUEUE, Lane.NORMAL)) == 1


@pytest.mark.parametrize("field", ["since", "delivery", "attempts", "rescues", "edition", "parts", "run_at"])
def test_a_number_that_is_none_does_not_stop_the_queue(
    redis: Redis, store: Store, child: Child, field: str
) -> None:
    seed_ready(store, "a", "b")
    redis.hset(keys.job(QUEUE, "a"), field, "garbage")

    jobs = child.take()

    assert [j.id for j in jobs] == ["a", "b"]
    redis.hset(keys.job(QUEUE, "a"), "delivery", 1)  # what the one-place check reads as a number


def test_many_entries_that_need_repair_do_not_hide_what_is_behind_them(
    redis: Redis, store: Store, child: Child, other: Child
) -> None:
    """A group made again at 0 delivers what live children run before what waits."""
    running = [f"run-{n}" for n in range(30)]
    seed_pending(other, *running)
    redis.xgroup_destroy(keys.ready(QUEUE, Lane.NORMAL), keys.GROUP)
    seed_ready(store, "waits")

    for _ in range(20):
        answer = child.claim(1)
        if answer.jobs:
            break
        assert answer.wait_us == 0  # come again at once
    assert [j.id for j in child.held.values()] == ["waits"]
    child.claim(1)
    assert {job(redis, job_id)["child"] for job_id in running} == {other.name}


def test_ready_ids_stay_in_the_order_of_the_lane(redis: Redis, store: Store) -> None:
    store.enqueue(QUEUE, [new("b"), new("a")])

    assert ids_in(redis, JobState.READY) == ["b", "a"]
