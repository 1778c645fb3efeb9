"""Leases of children and of single runners, and the sweep for what no lease covers."""

from __future__ import annotations

import pytest

from queueops import keys
from queueops.states import JobState, Lane
from queueops.store import Store
from tests.factories import (
    QUEUE,
    Child,
    Clock,
    Redis,
    holders,
    ids_in,
    job,
    seed_pending,
    seed_ready,
    set_up,
    state,
    token_waits,
)

LEASE_MS = 30_000
NORMAL = keys.ready(QUEUE, Lane.NORMAL)


# -- children -------------------------------------------------------------------------------------


def test_renewing_registers_for_one_lease(redis: Redis, store: Store, clock: Clock) -> None:
    renewed = store.renew(QUEUE, ["host:1:aa/1", "host:1:aa/2"])

    assert renewed == (0, clock.now_ms * 1000, [])
    assert redis.zrange(keys.queue_key(QUEUE, "children"), 0, -1, withscores=True) == [
        (b"host:1:aa/1", clock.now_ms + LEASE_MS),
        (b"host:1:aa/2", clock.now_ms + LEASE_MS),
    ]


def test_a_renewal_is_one_write_a_child_whatever_it_holds(redis: Redis, store: Store, child: Child) -> None:
    seed_pending(child, *[f"j{n}" for n in range(100)])
    before = redis.info("commandstats")["cmdstat_zadd"]["calls"]

    store.renew(QUEUE, [child.name])

    assert redis.info("commandstats")["cmdstat_zadd"]["calls"] - before == 1


def test_a_shorter_lease_counts_from_the_next_renewal(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    set_up(store, lease_ms=2000)

    child.register()

    assert redis.zscore(keys.queue_key(QUEUE, "children"), child.name) == clock.now_ms + 2000


def test_renew_registers_a_queue_that_a_flush_took_away(redis: Redis, store: Store) -> None:
    store.renew(QUEUE, ["host:1:aa/1"])
    redis.flushall()

    store.renew(QUEUE, ["host:1:aa/1"])

    assert redis.sismember(keys.QUEUES, QUEUE)


def test_no_lease_moves_the_pending_zset_of_a_live_child_only_when_it_is_looked_at(
    redis: Redis, store: Store, clock: Clock, child: Child, other: Child
) -> None:
    seed_pending(child, "a")
    looked_at = redis.zscore(keys.jobs_in(QUEUE, JobState.PENDING), "a")
    clock.advance(LEASE_MS - 1)
    child.register()
    other.register()
    assert redis.zscore(keys.jobs_in(QUEUE, JobState.PENDING), "a") == looked_at

    clock.advance(1)
    other.claim(0)

    assert redis.zscore(keys.jobs_in(QUEUE, JobState.PENDING), "a") == clock.now_ms + LEASE_MS - 1


# -- the sweep ------------------------------------------------------------------------------------


def test_a_sweep_of_a_healthy_queue_does_nothing(redis: Redis, store: Store, child: Child) -> None:
    seed_pending(child, "a")
    seed_ready(store, "b")

    assert store.sweep(QUEUE) == (0, 0, 0, True)


def test_an_entry_whose_job_is_in_no_lease_is_adopted_and_rescued(
    redis: Redis, store: Store, clock: Clock, child: Child, other: Child
) -> None:
    seed_pending(child, "a")
    redis.delete(keys.jobs_in(QUEUE, JobState.PENDING))
    redis.zrem(keys.queue_key(QUEUE, "children"), child.name)  # and nobody renews it

    adopted, *_ = store.sweep(QUEUE)
    assert adopted == 1

    other.claim(0)
    assert state(redis, "a") == "ready"
    store.sweep(QUEUE)


def test_an_adopted_job_whose_child_lives_goes_on(
    redis: Redis, store: Store, child: Child, other: Child
) -> None:
    jobs = seed_pending(child, "a")
    redis.delete(keys.jobs_in(QUEUE, JobState.PENDING))

    store.sweep(QUEUE)
    other.claim(0)

    assert job(redis, "a")["child"] == child.name
    assert child.ack(*jobs) == ["ok"]


def test_what_is_behind_a_thousand_live_entries_is_found(redis: Redis, store: Store, child: Child) -> None:
    """XAUTOCLAIM … COUNT 100 from a fixed cursor looks at 1,000 and never at the next."""
    for n in range(13):
        seed_pending(child, *[f"j{n}-{i}" for i in range(100)])
    redis.zrem(keys.jobs_in(QUEUE, JobState.PENDING), "j12-50")

    answers = [store.sweep(QUEUE, limit=200) for _ in range(7)]

    assert [a[0] for a in answers] == [0, 0, 0, 0, 0, 0, 1]
    assert [a[3] for a in answers] == [False] * 6 + [True]


def test_a_sweep_begins_anew_after_its_last_lane(redis: Redis, store: Store, child: Child) -> None:
    seed_pending(child, *[f"j{n}" for n in range(10)])
    for _ in range(3):
        store.sweep(QUEUE, limit=4)
    redis.zrem(keys.jobs_in(QUEUE, JobState.PENDING), "j0")

    assert store.sweep(QUEUE, limit=4)[0] == 1


def test_an_entry_delivered_by_hand_comes_back_to_its_lane(
    redis: Redis, store: Store, child: Child, other: Child
) -> None:
    seed_pending(child, "x")
    seed_ready(store, "a", lane=Lane.NORMAL)
    redis.xreadgroup(keys.GROUP, "a-person", {NORMAL: ">"})
    assert other.take() == []

    store.sweep(QUEUE)

    assert token_waits(redis)
    assert [j.id for j in other.take()] == ["a"]
    assert "a-person" not in holders(redis)


def test_an_entry_that_another_consumer_took_by_hand_goes_back_to_its_owner(
    redis: Redis, store: Store, child: Child
) -> None:
    """XCLAIM by a non-owner succeeds; and hand_back looks at what its child's consumer holds."""
    seed_pending(child, "a")
    ((entry, _),) = redis.xrange(NORMAL)
    redis.xclaim(NORMAL, keys.GROUP, "a-person", 0, [entry])
    assert holders(redis)["a-person"] == 1

    store.sweep(QUEUE)

    assert holders(redis)[child.name] == 1
    assert child.die() == 1


def test_entries_without_a_job_are_dropped(redis: Redis, store: Store, child: Child) -> None:
    seed_pending(child, "a")
    redis.xadd(NORMAL, {"id": "ghost"})
    redis.xreadgroup(keys.GROUP, child.name, {NORMAL: ">"})

    assert store.sweep(QUEUE)[1] == 1
    assert redis.xlen(NORMAL) == 1


def test_entries_deleted_from_the_stream_leave_the_pending_list(
    redis: Redis, store: Store, child: Child, clock: Clock, other: Child
) -> None:
    seed_pending(child, "a")
    redis.xtrim(NORMAL, maxlen=0)

    assert store.sweep(QUEUE)[1] == 1

    clock.advance(LEASE_MS)
    other.register()
    other.claim(0)
    assert state(redis, "a") == "ready"


def test_a_dead_child_that_holds_nothing_is_forgotten_one_lease_later(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    child.ack(*seed_pending(child, "a"))

    clock.advance(2 * LEASE_MS - 1)
    assert store.sweep(QUEUE)[2] == 0

    clock.advance(1)
    assert store.sweep(QUEUE)[2] == 1
    assert child.name not in holders(redis)
    assert not redis.exists(keys.child(QUEUE, child.name))
    assert redis.zcard(keys.queue_key(QUEUE, "children")) == 0


def test_a_dead_child_that_still_holds_jobs_is_kept_until_they_are_rescued(
    redis: Redis, store: Store, clock: Clock, child: Child, other: Child
) -> None:
    seed_pending(child, "a")
    clock.advance(2 * LEASE_MS)
    other.register()

    assert store.sweep(QUEUE)[2] == 0
    assert holders(redis)[child.name] == 1

    other.claim(0)
    assert store.sweep(QUEUE)[2] == 1
    assert state(redis, "a") == "ready"


def test_consumers_of_children_on_no_list_are_removed(redis: Redis, store: Store, child: Child) -> None:
    child.ack(*seed_pending(child, "a"))
    redis.delete(keys.queue_key(QUEUE, "children"))

    assert store.sweep(QUEUE)[2] == 1
    assert holders(redis) == {}


def test_i15_a_live_quiet_child_is_never_deleted_however_often_the_sweep_runs(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    """An empty XREADGROUP does not reset a consumer's idle time: the lease counts, not idleness."""
    child.take(1)
    for n in range(200):
        clock.advance(LEASE_MS // 3)
        child.register()
        if n % 2:
            store.sweep(QUEUE)
        seed_ready(store, f"j{n}")
        if not n % 2:
            store.sweep(QUEUE)
        jobs = child.take(1)
        store.sweep(QUEUE)
        assert child.ack(*jobs) == ["ok"]

    assert sum(1 for name in holders(redis) if name == child.name) == 1


def test_dead_children_do_not_pile_up(redis: Redis, store: Store, clock: Clock) -> None:
    for n in range(50):
        gone = Child(store, f"host:{n}:aa/1").register()
        seed_ready(store, f"j{n}")
        gone.ack(*gone.take())
    clock.advance(2 * LEASE_MS)

    store.sweep(QUEUE)

    assert holders(redis) == {}
    assert [key for key in redis.scan_iter() if b":child:" in key] == []


@pytest.mark.parametrize("lane", list(Lane))
def test_a_sweep_of_lanes_without_a_group_or_stream_is_through(
    store: Store, redis: Redis, lane: Lane
) -> None:
    store.register(QUEUE)
    if lane is not Lane.FIRST:
        seed_ready(store, "a", lane=Lane.NORMAL)

    assert store.sweep(QUEUE) == (0, 0, 0, True)
    assert len(ids_in(redis, JobState.READY)) == (lane is not Lane.FIRST)


# -- single-runner leases -------------------------------------------------------------------------


def test_one_holder_at_a_time_with_a_term_that_only_grows(redis: Redis, store: Store) -> None:
    first = store.take_lease("mirror", "w1", 30)

    assert first > 0
    assert store.take_lease("mirror", "w2", 30) == 0
    store.give_lease("mirror", "w1")
    assert store.take_lease("mirror", "w2", 30) > first


def test_g6_taking_a_lease_again_keeps_its_term_and_renews_it(redis: Redis, store: Store) -> None:
    term = store.take_lease("mirror", "w1", 5)
    assert store.take_lease("mirror", "w1", 30) == term
    assert redis.pttl(keys.lease("mirror")) > 20_000


def test_a_lease_is_given_up_by_its_holder_only(store: Store) -> None:
    term = store.take_lease("mirror", "w1", 30)
    store.give_lease("mirror", "w2")

    assert store.take_lease("mirror", "w1", 30) == term


def test_roles_do_not_disturb_each_other(store: Store) -> None:
    assert store.take_lease("mirror", "w1", 30)
    assert store.take_lease("relay", "w2", 30)


@pytest.mark.parametrize("left", ["w0 1", "w0", "locked", ""])
def test_i17_a_lock_without_a_ttl_as_a_crashed_holder_leaves_it_heals_itself(
    redis: Redis, store: Store, left: str
) -> None:
    redis.set(keys.lease("mirror"), left)

    assert store.take_lease("mirror", "w1", 30) == 0

    assert 0 < redis.pttl(keys.lease("mirror")) <= 30_000
    redis.delete(keys.lease("mirror"))  # as its time does
    assert store.take_lease("mirror", "w1", 30) > 0


def test_a_holder_with_spaces_in_its_name(store: Store) -> None:
    term = store.take_lease("mirror", "host with spaces 7", 30)

    assert store.take_lease("mirror", "host with spaces 7", 30) == term
