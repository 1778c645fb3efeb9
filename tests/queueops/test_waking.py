"""Who wakes whom: one token, one keeper of the clock, and no lost wake-up (docs/redis.md: waiting).

Each rule and each race has a test that takes it apart step by step: a random stress test did not tell
the good protocol from one without its second rule.
"""

from __future__ import annotations

import pytest

from queueops import keys
from queueops.states import JobState
from queueops.store import Store
from tests.factories import (
    PERSON,
    QUEUE,
    Child,
    Clock,
    Redis,
    clock_of,
    ids_in,
    new,
    seed_delayed,
    seed_pending,
    seed_ready,
    set_up,
    take_token,
    token_waits,
)


@pytest.fixture
def quiet(redis: Redis, store: Store) -> None:
    """A queue whose publishing left no token."""
    store.register(QUEUE)
    redis.delete(keys.queue_key(QUEUE, "wake"), keys.queue_key(QUEUE, "clock"))


def idle(store: Store, *names: str) -> list[Child]:
    """Children that found nothing and wait for a token; the first is the keeper of the clock."""
    children = [Child(store, name).register() for name in names]
    for child in children:
        assert child.take(1) == []
    return children


def tokens(redis: Redis) -> int:
    return int(redis.llen(keys.queue_key(QUEUE, "wake")))


# -- rule 1: enqueue wakes once -------------------------------------------------------------------------


def test_a_ready_job_pushes_one_token(redis: Redis, store: Store, clock: Clock, quiet: None) -> None:
    seed_ready(store, "a")

    assert tokens(redis) == 1
    assert clock_of(redis)["token_at"] == str(clock.now_ms)


def test_many_jobs_push_one_token(redis: Redis, store: Store, quiet: None) -> None:
    for n in range(10):
        seed_ready(store, f"j{n}")

    assert tokens(redis) == 1


def test_a_token_on_its_way_is_enough_for_50_ms(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    seed_ready(store, "a")
    take_token(redis)  # a worker has it, and has not claimed yet
    clock.advance(50)

    seed_ready(store, "b")

    assert tokens(redis) == 0


def test_a_token_that_nobody_answers_is_replaced_by_the_next_enqueue_after_50_ms(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    seed_ready(store, "a")
    take_token(redis)  # by a worker that was just stopped
    clock.advance(51)

    seed_ready(store, "b")

    assert tokens(redis) == 1


def test_a_token_that_nobody_answers_is_pushed_again_by_a_heartbeat_after_a_second(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    """Else it would be a black hole until the next enqueue or re-check."""
    (child,) = idle(store, "host:1:aa/1")
    seed_ready(store, "a")
    take_token(redis)

    clock.advance(1000)
    child.register()
    assert tokens(redis) == 0

    clock.advance(1)
    child.register()
    assert tokens(redis) == 1


def test_a_delayed_job_wakes_when_nobody_keeps_the_clock(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 60_000)

    assert token_waits(redis)


def test_a_delayed_job_before_the_alarm_wakes(redis: Redis, store: Store, clock: Clock, quiet: None) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 60_000)
    idle(store, "host:1:aa/1")
    assert not token_waits(redis)

    seed_delayed(store, "b", run_at_ms=clock.now_ms + 59_999)

    assert token_waits(redis)


@pytest.mark.parametrize("after_ms", [0, 1])
def test_a_delayed_job_at_or_after_the_alarm_wakes_nobody(
    redis: Redis, store: Store, clock: Clock, quiet: None, after_ms: int
) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 60_000)
    idle(store, "host:1:aa/1")

    seed_delayed(store, "b", run_at_ms=clock.now_ms + 60_000 + after_ms)

    assert not token_waits(redis)


def test_a_delayed_job_wakes_when_the_keeper_knows_of_nothing(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    idle(store, "host:1:aa/1")
    assert "alarm" not in clock_of(redis)

    seed_delayed(store, "a", run_at_ms=clock.now_ms + 60_000)

    assert token_waits(redis)


def test_the_earliest_of_a_batch_wakes(redis: Redis, store: Store, clock: Clock, quiet: None) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 60_000)
    idle(store, "host:1:aa/1")
    store.enqueue(QUEUE, [new(f"j{n}", run_at_ms=clock.now_ms + 90_000 - n * 10_000) for n in range(5)])

    assert token_waits(redis)


def test_a_known_job_wakes_too_since_its_first_token_may_be_lost(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    seed_ready(store, "a")
    take_token(redis)
    clock.advance(51)

    seed_ready(store, "a")

    assert token_waits(redis)


# -- rule 2: each woken worker wakes the next ------------------------------------------------------------


def test_four_one_slot_workers_start_four_jobs_at_0(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    """Without the rule they start at 0, 1, 2 and 3 s."""
    children = idle(store, "host:1:a/1", "host:2:b/1", "host:3:c/1", "host:4:d/1")
    seed_ready(store, "a", "b", "c", "d")

    for child in children:
        assert take_token(redis), "no token woke this worker"
        assert len(child.take(1)) == 1

    assert not token_waits(redis)


def test_four_one_slot_workers_start_four_due_jobs_at_their_millisecond(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    seed_delayed(store, "a", "b", "c", "d", run_at_ms=clock.now_ms + 1000)
    keeper, *others = idle(store, "host:1:a/1", "host:2:b/1", "host:3:c/1", "host:4:d/1")
    assert clock_of(redis)["keeper"] == keeper.name
    clock.advance(1000)

    assert len(keeper.take(1)) == 1  # its own timer
    for child in others:
        assert take_token(redis), "no token woke this worker"
        assert len(child.take(1)) == 1


def test_a_worker_that_took_all_there_was_wakes_nobody(redis: Redis, store: Store, quiet: None) -> None:
    _, child = idle(store, "host:1:a/1", "host:2:b/1")
    seed_ready(store, "a")
    take_token(redis)

    child.take(1)

    assert not token_waits(redis)


def test_a_worker_that_leaves_work_wakes_the_next_though_more_is_due_than_one_script_promotes(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    seed_delayed(store, *[f"j{n:03}" for n in range(450)], run_at_ms=clock.now_ms + 10)
    (child,) = idle(store, "host:1:a/1")
    clock.advance(10)

    child.take(1)

    assert take_token(redis)


# -- rule 3: one keeper of the clock ----------------------------------------------------------------------


def test_the_first_idle_child_keeps_the_clock_and_only_it(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 1234)
    first = Child(store, "host:1:a/1").register().claim(1)
    second = Child(store, "host:2:b/1").register().claim(1)

    assert (first.is_keeper, second.is_keeper) == (True, False)
    assert first.wait_us == 1_234_000
    assert clock_of(redis) == {"keeper": "host:1:a/1", "alarm": str(clock.now_ms + 1234)}


def test_who_sees_an_earlier_head_takes_the_clock_over(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 60_000)
    idle(store, "host:1:a/1")
    seed_delayed(store, "b", run_at_ms=clock.now_ms + 5_000)

    answer = Child(store, "host:2:b/1").register().claim(1)

    assert answer.is_keeper
    assert clock_of(redis)["keeper"] == "host:2:b/1"


def test_a_keeper_stays_keeper_and_moves_its_alarm(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 1000)
    seed_delayed(store, "b", run_at_ms=clock.now_ms + 2000)
    (child,) = idle(store, "host:1:a/1")
    clock.advance(1000)

    answer = child.claim(2)

    assert answer.is_keeper
    assert clock_of(redis)["alarm"] == str(clock.now_ms + 1000)


def test_an_alarm_over_a_second_past_has_no_keeper(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 1000)
    seed_delayed(store, "far", run_at_ms=clock.now_ms + 600_000)
    idle(store, "host:1:a/1")  # and then its host is gone
    late = Child(store, "host:2:b/1").register()

    clock.advance(2001)
    answer = late.claim(5)

    assert [j.id for j in answer.jobs] == ["a"]
    assert answer.is_keeper


def test_a_keeper_that_is_gone_with_its_host_is_noticed_by_the_next_heartbeat(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    """The others wait for a token that nobody would push."""
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 5000)
    idle(store, "host:1:a/1")
    survivor = Child(store, "host:2:b/1").register()
    survivor.claim(1)

    clock.advance(6001)
    survivor.register()

    assert take_token(redis)
    assert [j.id for j in survivor.take(1)] == ["a"]


def test_a_job_after_the_alarm_of_a_keeper_that_is_gone_wakes(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 1000)
    idle(store, "host:1:a/1")
    clock.advance(2001)

    seed_delayed(store, "b", run_at_ms=clock.now_ms + 60_000)

    assert token_waits(redis)


def test_a_claim_with_free_slots_voids_the_token(redis: Redis, store: Store, quiet: None) -> None:
    seed_ready(store, "a")
    child = Child(store, "host:1:a/1").register()

    child.claim(5)  # it sees everything that the token stood for

    assert not token_waits(redis)
    assert "token_at" not in clock_of(redis)


# -- rule 4: who has no free slot passes it on --------------------------------------------------------------


def test_a_keeper_without_a_free_slot_resigns_and_pushes_a_token(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    seed_delayed(store, "far", run_at_ms=clock.now_ms + 60_000)
    (child,) = idle(store, "host:1:a/1")
    seed_ready(store, "a")
    take_token(redis)

    child.take(1)

    assert "keeper" not in clock_of(redis)
    assert token_waits(redis)  # for whoever watches the clock now
    assert Child(store, "host:2:b/1").register().claim(1).is_keeper


def test_a_claim_of_nothing_passes_the_token_on(redis: Redis, store: Store, quiet: None) -> None:
    busy = Child(store, "host:1:a/1")
    seed_pending(busy, "x")
    seed_ready(store, "a")
    take_token(redis)  # it reached a worker that had just filled its last slot

    busy.claim(0)

    assert token_waits(redis)


def test_a_claim_of_nothing_by_the_keeper_resigns(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 60_000)
    (child,) = idle(store, "host:1:a/1")

    child.claim(0)

    assert "keeper" not in clock_of(redis)
    assert token_waits(redis)


def test_a_claim_of_nothing_where_nothing_is_pushes_nothing(redis: Redis, store: Store, quiet: None) -> None:
    Child(store, "host:1:a/1").register().claim(0)

    assert not token_waits(redis)


# -- probation children have a list of their own ---------------------------------------------------------


def test_a_probation_child_does_not_void_the_token_of_the_others(
    redis: Redis, store: Store, quiet: None
) -> None:
    seed_ready(store, "a")
    probation = Child(store, "host:1:a/probation", suspects=True).register()

    assert probation.take(1) == []

    assert token_waits(redis)


def test_a_probation_child_never_keeps_the_clock(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 1000)

    answer = Child(store, "host:1:a/probation", suspects=True).register().claim(1)

    assert not answer.is_keeper
    assert "keeper" not in clock_of(redis)


def test_a_suspect_s_token_that_was_lost_with_a_tree_is_pushed_again_by_a_heartbeat(
    redis: Redis, store: Store, quiet: None
) -> None:
    child = Child(store, "host:1:a/1")
    seed_pending(child, "suspect")
    child.die(ran=["suspect"])
    wake = keys.queue_key(QUEUE, "wake_suspect")
    redis.delete(wake)  # a probation child had it, and its host went

    child.register()

    assert redis.llen(wake) == 1
    Child(store, "host:2:b/probation", suspects=True).register().take(1)


def test_a_heartbeat_without_suspects_wakes_no_probation_child(
    redis: Redis, store: Store, quiet: None
) -> None:
    Child(store, "host:1:a/1").register()

    assert redis.llen(keys.queue_key(QUEUE, "wake_suspect")) == 0


# -- a stuck keeper -----------------------------------------------------------------------------------------


def test_a_nudge_takes_the_clock_from_a_stuck_keeper_and_wakes_two(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 10)
    stuck, other = idle(store, "host:1:a/1", "host:2:b/1")
    clock.advance(20)

    assert store.nudge(QUEUE, stuck.name)

    assert tokens(redis) == 2  # the stuck one may swallow the first
    assert "keeper" not in clock_of(redis)
    take_token(redis)
    take_token(redis)
    assert [j.id for j in other.take(1)] == ["a"]


def test_a_nudge_of_another_than_the_keeper_does_nothing(redis: Redis, store: Store, quiet: None) -> None:
    idle(store, "host:1:a/1", "host:2:b/1")

    assert not store.nudge(QUEUE, "host:2:b/1")
    assert not token_waits(redis)
    assert clock_of(redis)["keeper"] == "host:1:a/1"


def test_a_nudge_twice_wakes_two_and_not_four(redis: Redis, store: Store, quiet: None) -> None:
    idle(store, "host:1:a/1")

    assert [store.nudge(QUEUE, "host:1:a/1"), store.nudge(QUEUE, "host:1:a/1")] == [True, False]
    assert tokens(redis) == 2


# -- what else lets work go on --------------------------------------------------------------------


def test_new_settings_wake(redis: Redis, store: Store, quiet: None) -> None:
    idle(store, "host:1:a/1")

    set_up(store, concurrency=5)

    assert token_waits(redis)


def test_a_retry_before_the_alarm_wakes(redis: Redis, store: Store, clock: Clock, quiet: None) -> None:
    runs = Child(store, "host:1:a/1")
    jobs = seed_pending(runs, "a")
    seed_delayed(store, "far", run_at_ms=clock.now_ms + 10_000)
    idle(store, "host:2:b/1")

    runs.retry(*jobs, delay_s=5)

    assert token_waits(redis)


def test_a_settlement_that_frees_a_slot_of_the_queue_s_limit_wakes(
    redis: Redis, store: Store, quiet: None
) -> None:
    set_up(store, concurrency=1)
    runs = Child(store, "host:1:a/1")
    jobs = seed_pending(runs, "a")
    seed_ready(store, "b")
    blocked = Child(store, "host:2:b/1").register()
    assert blocked.take(1) == []
    assert not token_waits(redis)

    runs.ack(*jobs)

    assert take_token(redis)
    assert [j.id for j in blocked.take(1)] == ["b"]


def test_a_settlement_of_a_queue_without_a_limit_wakes_nobody(
    redis: Redis, store: Store, quiet: None
) -> None:
    runs = Child(store, "host:1:a/1")
    jobs = seed_pending(runs, "a")
    idle(store, "host:2:b/1")

    runs.ack(*jobs)

    assert not token_waits(redis)


def test_a_hand_back_of_nothing_does_not_lose_a_token_that_the_dead_child_took(
    redis: Redis, store: Store, quiet: None
) -> None:
    idle(store, "host:1:a/1", "host:2:b/1")
    seed_ready(store, "a")
    take_token(redis)  # by the second, which dies of it

    store.hand_back(QUEUE, "host:2:b/1", why="SIGKILL")

    assert token_waits(redis)


def test_a_restore_and_a_delayed_requeue_wake_as_an_enqueue_does(
    redis: Redis, store: Store, clock: Clock, quiet: None
) -> None:
    child = Child(store, "host:1:a/1")
    child.bury(*seed_pending(child, "a"))
    idle(store, "host:2:b/1")

    store.requeue(QUEUE, ["a"], actor=PERSON, delay_s=10)

    assert token_waits(redis)
    assert ids_in(redis, JobState.DELAYED) == ["a"]
