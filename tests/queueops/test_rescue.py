"""rescue: a job whose process is lost comes back; started ones are counted and become suspects."""

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
    clock_of,
    counter,
    events,
    failing,
    holders,
    ids_in,
    ids_in_lane,
    job,
    seed_pending,
    seed_ready,
    set_up,
    state,
    token_waits,
    verbs,
)
from tests.proxy import Proxy

LEASE_MS = 30_000


# -- a lease that ran out -----------------------------------------------------------------------------


def test_b09_a_job_of_a_lost_worker_is_rescued_when_its_lease_ends(
    redis: Redis, store: Store, clock: Clock, child: Child, other: Child
) -> None:
    seed_pending(child, "a")

    clock.advance(LEASE_MS - 1)
    other.register()
    other.claim(0)
    assert state(redis, "a") == "pending"

    clock.advance(1)
    other.claim(0)
    stored = job(redis, "a")
    assert (stored["state"], stored["rescues"], stored.get("attempts", "0")) == ("ready", "1", "0")
    assert ids_in_lane(redis, Lane.SUSPECT) == ["a"]
    assert events(redis, "a")[-1] == {
        "verb": "rescue", "id": "a", "from": "pending", "to": "ready", "actor": "queueops",
        "at": str(clock.now_ms), "delivery": "1", "child": child.name, "rescues": "1",
        "reason": f"the lease of {child.name} ran out",
    }  # fmt: skip
    assert counter(redis, "rescued") == 1


def test_a03_a_job_of_a_live_child_is_never_rescued_however_long_it_runs(
    redis: Redis, store: Store, clock: Clock, child: Child, other: Child
) -> None:
    jobs = seed_pending(child, "a")

    for _ in range(50):
        clock.advance(LEASE_MS // 3)
        child.register()  # its supervisor renews, whatever holds the GIL
        other.register()
        assert other.take() == []

    assert job(redis, "a")["delivery"] == "1"
    assert child.ack(*jobs) == ["ok"]
    assert counter(redis, "rescued") == 0


def test_a10_a_claimed_job_that_has_not_started_is_left_alone_while_its_child_lives(
    redis: Redis, store: Store, clock: Clock, child: Child, other: Child
) -> None:
    seed_ready(store, "a")
    child.claim(1, starts=0)

    for _ in range(5):
        clock.advance(10_000)
        child.register()
        other.register()
        store.sweep(QUEUE)
        other.claim(1)

    assert verbs(redis, "a") == ["enqueue", "claim"]


def test_a_prefetched_job_of_a_lost_child_keeps_its_turn_and_counts_as_nothing(
    redis: Redis, store: Store, clock: Clock, child: Child, other: Child
) -> None:
    seed_ready(store, "runs", "waits")
    child.claim(2, starts=1)
    clock.advance(LEASE_MS)
    other.register()

    (waits,) = other.take()

    assert (waits.id, waits.rescues, waits.attempts) == ("waits", 0, 0)
    assert ids_in_lane(redis, Lane.SUSPECT) == ["runs"]
    assert verbs(redis, "waits") == ["enqueue", "claim", "release", "claim"]


def test_right_after_an_outage_nothing_is_rescued(
    redis: Redis, clock: Clock, child: Child, other: Child
) -> None:
    seed_pending(child, "a")
    clock.advance(LEASE_MS * 10)  # Redis was away, and with it every renewal
    other.register()

    answer = other.claim(5, rescuing=False)

    assert state(redis, "a") == "pending"
    assert answer.wait_us is not None
    assert answer.wait_us >= 100_000  # not in a hot loop
    child.register()
    assert child.ack(*child.held.values()) == ["ok"]


def test_many_lost_leases_right_after_an_outage_are_no_hot_loop(
    redis: Redis, store: Store, clock: Clock, child: Child, other: Child
) -> None:
    for n in range(3):
        seed_pending(child, *[f"j{n}-{i}" for i in range(100)])
    clock.advance(LEASE_MS * 10)
    other.register()

    wait_us = other.claim(5, rescuing=False).wait_us

    assert wait_us is not None
    assert wait_us >= 100_000


def test_i17_2500_jobs_of_a_lost_tree_come_back_in_25_claims(
    redis: Redis, store: Store, clock: Clock, child: Child, other: Child
) -> None:
    for n in range(25):
        seed_pending(child, *[f"j{n}-{i}" for i in range(100)])
    clock.advance(LEASE_MS)
    other.register()

    for _ in range(25):
        other.claim(0)

    assert redis.zcard(keys.jobs_in(QUEUE, JobState.PENDING)) == 0
    assert len(ids_in(redis, JobState.READY)) == 2500
    assert holders(redis)[child.name] == 0


def test_a_child_that_finds_many_lost_leases_is_told_to_come_again_at_once(
    store: Store, clock: Clock, child: Child, other: Child
) -> None:
    for n in range(2):
        seed_pending(child, *[f"j{n}-{i}" for i in range(100)])
    clock.advance(LEASE_MS)
    other.register()

    assert other.claim(5).wait_us == 0


# -- a child whose supervisor saw it die ----------------------------------------------------------------


def test_hand_back_is_at_once_and_tells_running_from_waiting(
    redis: Redis, clock: Clock, store: Store, child: Child, other: Child
) -> None:
    seed_pending(child, "runs", "waits")

    assert child.die(ran=["runs"], why="SIGKILL") == 2

    assert ids_in_lane(redis, Lane.SUSPECT) == ["runs"]
    assert ids_in_lane(redis, Lane.FIRST) == ["waits"]
    assert events(redis, "runs")[-1]["reason"] == "SIGKILL"
    assert (job(redis, "runs")["rescues"], "rescues" in job(redis, "waits")) == ("1", False)
    assert token_waits(redis)


def test_hand_back_forgets_the_child_and_its_consumers(redis: Redis, child: Child) -> None:
    seed_pending(child, "a")

    child.die()

    assert child.name not in holders(redis)
    assert redis.zscore(keys.queue_key(QUEUE, "children"), child.name) is None
    assert not redis.exists(keys.child(QUEUE, child.name))


def test_hand_back_goes_a_hundred_at_a_time_until_none_is_left(
    redis: Redis, store: Store, child: Child
) -> None:
    for n in range(3):
        seed_pending(child, *[f"j{n}-{i}" for i in range(100)])

    given = [store.hand_back(QUEUE, child.name, why="SIGKILL") for _ in range(4)]

    assert given == [100, 100, 100, 0]
    assert child.name not in holders(redis)


def test_hand_back_over_several_lanes_finds_all(redis: Redis, store: Store, child: Child) -> None:
    for lane in (Lane.HIGH, Lane.NORMAL, Lane.LOW):
        seed_ready(store, *[f"{lane}{n}" for n in range(60)], lane=lane)
    child.take(100)
    child.take(100)

    assert [store.hand_back(QUEUE, child.name, why="SIGKILL") for _ in range(2)] == [100, 80]
    assert child.name not in holders(redis)


def test_hand_back_twice_gives_nothing_twice(redis: Redis, store: Store, child: Child) -> None:
    seed_pending(child, "a")
    assert child.die(ran=["a"]) == 1

    assert child.die(ran=["a"]) == 0

    assert job(redis, "a")["rescues"] == "1"
    assert verbs(redis, "a").count("rescue") == 1


def test_g6_a_lost_answer_to_hand_back_counts_one_rescue(
    redis: Redis, store: Store, lossy: Store, child: Child, proxy: Proxy
) -> None:
    seed_pending(child, "a")
    proxy.lose_replies(1)

    lossy.hand_back(QUEUE, child.name, why="SIGKILL", running=["a"])

    assert proxy.lost == 1
    assert job(redis, "a")["rescues"] == "1"


def test_hand_back_of_a_claim_whose_answer_was_lost_gives_what_redis_says(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_ready(store, "a", "b")
    store.claim(QUEUE, child.name, request=1, limit=2)  # the child died before it read the answer

    assert child.die() == 2
    assert ids_in_lane(redis, Lane.FIRST) == ["a", "b"]


def test_hand_back_leaves_the_jobs_of_others_alone(redis: Redis, child: Child, other: Child) -> None:
    seed_pending(child, "mine")
    seed_pending(other, "theirs")

    child.die()

    assert job(redis, "theirs")["child"] == other.name


def test_hand_back_drops_stale_entries(redis: Redis, store: Store, child: Child) -> None:
    seed_pending(child, "a")
    lane = keys.ready(QUEUE, Lane.NORMAL)
    gone = redis.xadd(lane, {"id": "nobody"})
    redis.xreadgroup(keys.GROUP, child.name, {lane: ">"})
    redis.xadd(lane, {"id": "nobody"})
    redis.xreadgroup(keys.GROUP, child.name, {lane: ">"})
    redis.xdel(lane, gone)

    child.die()

    assert redis.xlen(lane) == 0
    assert ids_in(redis, JobState.READY) == ["a"]


def test_hand_back_keeps_a_ready_job_whose_entry_the_child_holds(
    redis: Redis, store: Store, child: Child
) -> None:
    """Read by hand, or by a claim that failed half-way: nobody runs it, and its only entry is here."""
    seed_pending(child, "a")
    seed_ready(store, "b")
    redis.xreadgroup(keys.GROUP, child.name, {keys.ready(QUEUE, Lane.NORMAL): ">"})

    child.die()

    assert sorted(ids_in(redis, JobState.READY)) == ["a", "b"]


def test_hand_back_of_a_job_with_a_second_stale_entry_leaves_one(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_pending(child, "a")
    lane = keys.ready(QUEUE, Lane.NORMAL)
    redis.xadd(lane, {"id": "a"})
    redis.xreadgroup(keys.GROUP, child.name, {lane: ">"})

    child.die()

    assert sum(redis.xlen(keys.ready(QUEUE, each)) for each in Lane) == 1


def test_hand_back_takes_the_clock_from_a_dead_keeper(redis: Redis, child: Child) -> None:
    child.claim(1)
    assert clock_of(redis)["keeper"] == child.name

    child.die()

    assert "keeper" not in clock_of(redis)
    assert token_waits(redis)


def test_hand_back_of_a_child_nobody_knows_is_nothing(redis: Redis, store: Store) -> None:
    store.register(QUEUE)

    assert store.hand_back(QUEUE, "host:9:zz/1", why="SIGKILL") == 0


# -- poison -------------------------------------------------------------------------------------------


def run_to_death(store: Store, name: str = "host:1:aa/probation") -> int:
    """Let a probation child claim the suspect and die of it."""
    probation = Child(store, name, suspects=True).register()
    taken = probation.take(1)
    probation.die(ran=[j.id for j in taken], why="SIGSEGV")
    return len(taken)


def test_d01_a_job_that_kills_its_process_is_started_four_times_and_dead_as_poison(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_pending(child, "a")
    child.die(ran=["a"], why="SIGSEGV")

    starts = 1 + sum(run_to_death(store) for _ in range(10))

    stored = job(redis, "a")
    assert starts == 4  # and three rescues
    assert (stored["state"], stored["cause"], stored["attempts"], stored["rescues"]) == (
        "dead", "poison", "0", "4",
    )  # fmt: skip
    assert "SIGSEGV" in stored["error"]
    assert events(redis, "a")[-1]["child"] == "host:1:aa/probation"
    assert counter(redis, "rescued") == 4


@pytest.mark.parametrize("max_rescues", [0, 1, 5])
def test_the_limit_of_rescues_is_the_queue_s(
    redis: Redis, store: Store, child: Child, max_rescues: int
) -> None:
    set_up(store, max_rescues=max_rescues)
    seed_pending(child, "a")
    child.die(ran=["a"])

    starts = 1 + sum(run_to_death(store) for _ in range(10))

    assert starts == max_rescues + 1
    assert state(redis, "a") == "dead"


def test_a_poison_job_that_was_failing_leaves_its_cause(redis: Redis, store: Store, child: Child) -> None:
    set_up(store, max_rescues=0)
    child.retry(*seed_pending(child, "a"), delay_s=0)
    child.take()

    child.die(ran=["a"])

    assert failing(redis) == 0
    assert job(redis, "a")["cause"] == "poison"


def test_c07_a_requeue_of_poison_gives_its_rescues_back(redis: Redis, store: Store, child: Child) -> None:
    set_up(store, max_rescues=1)
    seed_pending(child, "a")
    child.die(ran=["a"])
    run_to_death(store)

    store.requeue(QUEUE, ["a"], actor="user:1")
    child.register()
    (a,) = child.take()

    assert a.rescues == 0
    child.die(ran=["a"])
    assert state(redis, "a") == "ready"


# -- which of a lost tree is guilty ------------------------------------------------------------------------


def test_when_a_tree_is_lost_while_its_probation_child_ran_only_the_suspect_is_counted(
    redis: Redis, store: Store, clock: Clock, child: Child, other: Child
) -> None:
    seed_pending(child, "guilty")
    child.die(ran=["guilty"])
    child.register()
    probation = Child(store, "host:1:aa/probation", suspects=True).register()
    seed_pending(child, "innocent-1", "innocent-2")
    assert [j.id for j in probation.take(1)] == ["guilty"]
    bystander = Child(store, "host:3:cc/1")
    seed_pending(bystander, "elsewhere")

    clock.advance(LEASE_MS)  # the host is gone, and another one with it
    other.register()
    other.claim(0)

    assert job(redis, "guilty")["rescues"] == "2"
    assert "rescues" not in job(redis, "innocent-1")
    assert ids_in_lane(redis, Lane.FIRST) == ["innocent-1", "innocent-2"]
    assert job(redis, "elsewhere")["rescues"] == "1"  # another tree, where no suspect ran


def test_when_a_tree_is_lost_after_its_suspect_settled_all_that_ran_are_counted(
    redis: Redis, store: Store, clock: Clock, child: Child, other: Child
) -> None:
    seed_pending(child, "suspect")
    child.die(ran=["suspect"])
    child.register()
    probation = Child(store, "host:1:aa/probation", suspects=True).register()
    probation.ack(*probation.take(1))
    seed_pending(child, "a")

    clock.advance(LEASE_MS)
    other.register()
    other.claim(0)

    assert job(redis, "a")["rescues"] == "1"


def test_an_innocent_suspect_finishes_without_a_burned_attempt(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_pending(child, "guilty", "innocent")
    child.die(ran=["guilty", "innocent"])
    probation = Child(store, "host:1:aa/probation", suspects=True).register()

    (guilty,) = probation.take(1)
    probation.die(ran=[guilty.id])
    probation.register()
    probation.request = 0
    (innocent,) = probation.take(1)
    probation.ack(innocent)

    assert (guilty.id, innocent.id) == ("guilty", "innocent")
    assert (job(redis, "innocent")["attempts"], job(redis, "innocent")["state"]) == ("0", "done")


def test_a_suspect_wakes_a_probation_child(redis: Redis, child: Child) -> None:
    seed_pending(child, "a")
    assert not redis.llen(keys.queue_key(QUEUE, "wake_suspect"))

    child.die(ran=["a"])

    assert redis.llen(keys.queue_key(QUEUE, "wake_suspect")) == 1


def test_a_second_suspect_wakes_a_second_probation_child(redis: Redis, store: Store, child: Child) -> None:
    seed_pending(child, "a", "b")
    child.die(ran=["a", "b"])
    redis.delete(keys.queue_key(QUEUE, "wake_suspect"))  # the first woke of it

    Child(store, "host:1:aa/probation", suspects=True).register().take(1)

    assert redis.llen(keys.queue_key(QUEUE, "wake_suspect")) == 1


def test_a_late_settlement_after_a_rescue_is_refused_and_counted(
    redis: Redis, clock: Clock, child: Child, other: Child
) -> None:
    jobs = seed_pending(child, "a")
    clock.advance(LEASE_MS)
    other.register()
    other.claim(0)
    child.register()

    assert child.ack(*jobs) == ["lost"]
    assert (state(redis, "a"), counter(redis, "late"), counter(redis, "done")) == ("ready", 1, 0)


# -- what nobody's lease covers --------------------------------------------------------------------------


def test_a12_a_job_whose_child_s_lease_was_deleted_by_hand_is_rescued(
    redis: Redis, store: Store, clock: Clock, child: Child, other: Child
) -> None:
    seed_pending(child, "a")
    redis.delete(keys.queue_key(QUEUE, "children"))
    clock.advance(LEASE_MS)
    other.register()

    other.claim(0)

    assert state(redis, "a") == "ready"
    store.sweep(QUEUE)
    assert child.name not in holders(redis)


def test_a12_a_job_whose_entry_was_deleted_by_hand_is_rescued(
    redis: Redis, store: Store, clock: Clock, child: Child, other: Child
) -> None:
    seed_pending(child, "a")
    redis.delete(keys.ready(QUEUE, Lane.NORMAL))
    clock.advance(LEASE_MS)
    other.register()

    other.claim(0)

    assert state(redis, "a") == "ready"


def test_an_id_without_a_job_in_the_pending_set_is_dead_and_says_so(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    store.register(QUEUE)
    redis.zadd(keys.jobs_in(QUEUE, JobState.PENDING), {"ghost": clock.now_ms - 1})

    child.claim(0)

    assert (state(redis, "ghost"), job(redis, "ghost")["cause"]) == ("dead", "corrupt")


def test_a_stale_id_in_the_pending_set_is_dropped(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a")
    redis.zadd(keys.jobs_in(QUEUE, JobState.PENDING), {"a": clock.now_ms - 1})

    child.claim(0)

    assert (state(redis, "a"), ids_in(redis, JobState.PENDING)) == ("ready", [])
