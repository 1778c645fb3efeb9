"""lift: when a hold is over, the claims bring its jobs back: all of them, in their order."""

from __future__ import annotations

from queueops import doctor, keys
from queueops.holds import Hold, HoldKind
from queueops.states import JobState, Lane
from queueops.store import Store
from tests.factories import QUEUE, Child, Clock, Redis, events, ids_in_lane, job, seed_ready, verbs
from tests.queueops.test_hold import CHARGE, HOUR_MS, MAIL, keep_back, on_handler


def test_what_is_lifted_is_ready_in_its_lane_in_the_order_in_which_it_was_due(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "b", spec=CHARGE)
    clock.advance(1)
    seed_ready(store, "a", spec=CHARGE)
    seed_ready(store, "h", spec=CHARGE, lane=Lane.HIGH)
    keep_back(store, on_handler())
    child.take()

    keep_back(store)
    claimed = child.claim(1)

    assert [each.id for each in claimed.jobs] == ["h"]
    assert ids_in_lane(redis, Lane.NORMAL) == ["b", "a"]
    assert verbs(redis, "b") == ["enqueue", "hold", "lift"]
    assert events(redis, "b")[-1]["run_at"] == str(clock.now_ms - 1)
    assert "held" not in job(redis, "b")
    assert redis.hget(keys.queue_key(QUEUE, "settings"), "held") is None


def test_lifting_one_hold_leaves_the_jobs_of_the_others(redis: Redis, store: Store, child: Child) -> None:
    seed_ready(store, "a", spec=CHARGE)
    seed_ready(store, "b", spec=MAIL)
    keep_back(store, on_handler(1), on_handler(2, "shop.mail"))
    child.take()

    keep_back(store, on_handler(2, "shop.mail"))

    assert [each.id for each in child.take()] == ["a"]
    assert job(redis, "b")["held"] == "2"


def test_a_hold_that_ends_sooner_than_was_said_lets_its_jobs_go_then(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a", spec=CHARGE)
    keep_back(store, on_handler())
    child.take()
    keep_back(store, on_handler(until_ms=clock.now_ms + 10))
    assert child.take() == []

    clock.advance(10)

    assert [each.id for each in child.take()] == ["a"]


def test_a_hold_that_is_prolonged_keeps_its_jobs_back_again(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a", spec=CHARGE)
    keep_back(store, on_handler(until_ms=clock.now_ms + 10))
    child.take()
    keep_back(store, on_handler(until_ms=clock.now_ms + HOUR_MS))
    clock.advance(10)

    assert child.take() == []
    assert verbs(redis, "a") == ["enqueue", "hold", "promote", "hold"]
    assert child.claim(1).wait_us == (HOUR_MS - 10) * 1000


def test_more_than_one_claim_lifts_come_back_with_the_next_ones(
    redis: Redis, store: Store, child: Child
) -> None:
    for first in range(0, 450, 50):
        seed_ready(store, *[f"a{n:03}" for n in range(first, first + 50)], spec=CHARGE)
    keep_back(store, on_handler())
    claims = 0
    while child.claim(1).wait_us == 0:
        claims += 1
        assert claims < 10, "each holds its part, and there is an end"
    assert redis.zcard(keys.held_by(QUEUE, 1)) == 450

    keep_back(store)
    taken = [each.id for _ in range(9) for each in child.take(50)]

    assert taken == [f"a{n:03}" for n in range(450)]
    assert redis.exists(keys.queue_key(QUEUE, "held")) == 0


def test_an_idle_worker_is_told_at_once_when_a_hold_is_lifted(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_ready(store, "a", spec=CHARGE)
    keep_back(store, on_handler())
    child.take()
    assert redis.lpop(keys.queue_key(QUEUE, "wake")) is None

    keep_back(store)

    assert redis.lpop(keys.queue_key(QUEUE, "wake")) is not None


def test_a_paused_queue_lifts_and_starts_nothing(redis: Redis, store: Store, child: Child) -> None:
    seed_ready(store, "a", spec=CHARGE)
    keep_back(store, on_handler())
    child.take()
    keep_back(store)
    redis.hset(keys.queue_key(QUEUE, "settings"), "paused", "1")

    assert child.take() == []
    assert ids_in_lane(redis, Lane.NORMAL) == ["a"]


def test_the_doctor_finds_and_mends_a_held_job_that_nobody_would_lift(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a", "b", "c", spec=CHARGE)
    seed_ready(store, "d", spec=MAIL)
    keep_back(store, on_handler())
    child.take()
    redis.zrem(keys.held_by(QUEUE, 1), "a")
    redis.zadd(keys.held_by(QUEUE, 1), {"d": 5, "nobody": 5})
    redis.zrem(keys.jobs_in(QUEUE, JobState.DELAYED), "c")
    redis.hdel(keys.queue_key(QUEUE, "settings"), "held")

    found = {(each.job_id, each.what) for each in doctor.examine(now_ms=store.now_ms)}
    assert ("a", "is held by 1, which would never lift it") in found
    assert ("d", "is pending and also in held:1") in found
    assert ("nobody", "is in held:1, and its data are missing") in found
    assert ("c", "is delayed and not in delayed") in found

    doctor.examine(mend=True, now_ms=store.now_ms)

    assert [each for each in doctor.examine(now_ms=store.now_ms) if each.severity == "error"] == []
    keep_back(store)
    assert {each.id for each in child.take()} == {"a", "b", "c"}


def test_a_key_of_a_wrong_type_for_one_hold_loses_no_job(redis: Redis, store: Store, child: Child) -> None:
    seed_ready(store, "a", "b", spec=CHARGE)
    redis.set(keys.held_by(QUEUE, 1), "x")
    keep_back(store, on_handler())
    assert child.take() == []
    assert job(redis, "a")["held"] == "1"

    doctor.examine(mend=True, now_ms=store.now_ms)
    redis.delete(*redis.keys(keys.queue_key(QUEUE, "corrupt_prefix") + "*"))
    keep_back(store)

    assert {each.id for each in child.take()} == {"a", "b"}


def test_a_hold_of_a_cause_and_one_of_a_handler_count_once(redis: Redis, store: Store, child: Child) -> None:
    seed_ready(store, "a", spec=CHARGE)
    keep_back(store, on_handler(1), Hold(2, HoldKind.CAUSE, "boom"))
    child.take()

    assert redis.zrange(keys.queue_key(QUEUE, "held"), 0, -1) == [b"1"]
