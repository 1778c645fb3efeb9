"""ack: the handler returned; the job is a tombstone until its keep time ends."""

from __future__ import annotations

from queueops import keys
from queueops.states import JobState, Lane
from queueops.store import Store
from tests.factories import (
    QUEUE,
    SPEC,
    Child,
    Clock,
    Redis,
    counter,
    events,
    failing,
    holders,
    job,
    new,
    seed_pending,
    seed_ready,
    set_up,
    state,
    verbs,
)
from tests.proxy import Proxy


def test_ack_leaves_a_tombstone_without_the_spec_and_nothing_else(
    redis: Redis, clock: Clock, child: Child
) -> None:
    child.ack(*seed_pending(child, "a"), result='{"n": 1}')

    assert job(redis, "a") == {
        "state": "done", "since": str(clock.now_ms), "child": child.name, "delivery": "1",
        "handler": "tests.work", "result": '{"n": 1}',
    }  # fmt: skip
    assert redis.xlen(keys.ready(QUEUE, Lane.NORMAL)) == 0
    assert redis.zcard(keys.jobs_in(QUEUE, JobState.PENDING)) == 0
    assert holders(redis)[child.name] == 0


def test_a_tombstone_lives_for_the_keep_time(redis: Redis, store: Store, child: Child) -> None:
    jobs = seed_pending(child, "a")
    set_up(store, done_keep_ms=900_000)

    child.ack(*jobs)

    assert 890_000 < redis.pttl(keys.job(QUEUE, "a")) <= 900_000


def test_the_event_carries_the_spec_that_leaves_redis(redis: Redis, clock: Clock, child: Child) -> None:
    child.ack(*seed_pending(child, "a"), result="7")

    assert events(redis, "a")[-1] == {
        "verb": "ack", "id": "a", "from": "pending", "to": "done", "actor": child.name,
        "at": str(clock.now_ms), "delivery": "1", "attempts": "0", "ran_ms": "3",
        "result": "7", "spec": SPEC.decode(),
    }  # fmt: skip


def test_the_event_of_a_job_that_waited_carries_its_whole_spec(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    spec = bytes(b % 26 + 97 for b in range(1000))  # cut into parts while it waits
    store.enqueue(QUEUE, [new("a", run_at_ms=clock.now_ms + 1, spec=spec)])
    clock.advance(1)

    child.ack(*child.take())

    assert events(redis, "a")[-1]["spec"] == spec.decode()


def test_ack_is_counted_with_its_duration(redis: Redis, child: Child) -> None:
    child.ack(*seed_pending(child, "a", "b"))

    assert counter(redis, "done") == 2
    assert counter(redis, "ran:5") == 2


def test_ack_after_failures_takes_the_job_off_its_cause(redis: Redis, child: Child) -> None:
    child.retry(*seed_pending(child, "a"), delay_s=0)
    assert failing(redis) == 1

    child.ack(*child.take())

    assert failing(redis) == 0
    assert job(redis, "a")["attempts"] == "1"


def test_ack_by_another_child_is_lost_and_changes_nothing(redis: Redis, child: Child, other: Child) -> None:
    jobs = seed_pending(child, "a")
    before = job(redis, "a")

    assert other.ack(*jobs) == ["lost"]

    assert {**job(redis, "a"), "late": None} == {**before, "late": None}
    assert holders(redis)[child.name] == 1  # XACK by itself would not have looked whose it is
    assert counter(redis, "late") == 1
    child.ack(*jobs)


def test_ack_of_an_older_delivery_of_the_same_child_is_lost(redis: Redis, store: Store, child: Child) -> None:
    (old,) = seed_pending(child, "a")
    child.die()
    child.register()
    (now,) = child.take()

    assert child.ack(old) == ["lost"]
    assert state(redis, "a") == "pending"
    assert child.ack(now) == ["ok"]


def test_a_late_ack_is_recorded_and_counted_once_however_often_it_is_sent(
    redis: Redis, clock: Clock, child: Child, other: Child
) -> None:
    jobs = seed_pending(child, "a")
    child.die()
    other.take()
    child.register()

    for _ in range(3):
        assert child.ack(*jobs) == ["lost"]

    assert counter(redis, "late") == 1
    assert [event for event in events(redis, "a") if event["verb"] == "late"] == [{
        "verb": "late", "id": "a", "from": "pending", "to": "pending", "actor": child.name,
        "at": str(clock.now_ms), "delivery": "1", "outcome": "ack",
    }]  # fmt: skip


def test_ack_of_a_job_that_is_gone_is_lost_and_counted(redis: Redis, child: Child) -> None:
    jobs = seed_pending(child, "a")
    redis.flushall()

    assert child.ack(*jobs) == ["lost"]
    assert counter(redis, "late") == 1
    assert events(redis, "a")[-1]["from"] == "gone"


def test_g6_a_repeat_answers_ok_and_counts_nothing(redis: Redis, child: Child) -> None:
    jobs = seed_pending(child, "a")

    assert [child.ack(*jobs) for _ in range(3)] == [["ok"]] * 3

    assert verbs(redis, "a") == ["enqueue", "claim", "ack"]
    assert (counter(redis, "done"), counter(redis, "late")) == (1, 0)


def test_g6_a_lost_answer_counts_nothing_twice(
    redis: Redis, store: Store, lossy: Store, proxy: Proxy
) -> None:
    seed_ready(store, "a", "b")
    child = Child(lossy, "host:1:aa/1").register()
    jobs = child.take(2)

    proxy.lose_replies(1)

    assert child.ack(*jobs) == ["ok", "ok"]
    assert proxy.lost == 1
    assert counter(redis, "done") == 2


def test_many_records_of_many_verbs_in_one_settlement_each_get_their_own_answer(
    redis: Redis, store: Store, child: Child, other: Child
) -> None:
    mine = seed_pending(child, "a", "b")
    theirs = seed_pending(other, "c")

    answers = [*child.ack(mine[0], theirs[0], mine[1])]

    assert answers == ["ok", "lost", "ok"]
    assert state(redis, "c") == "pending"


def test_a_hundred_acks_in_one_script_leave_every_lane_clean(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_ready(store, *[f"h{n}" for n in range(40)], lane=Lane.HIGH)
    seed_ready(store, *[f"n{n}" for n in range(40)])
    seed_ready(store, *[f"l{n}" for n in range(20)], lane=Lane.LOW)

    assert child.ack(*child.take(100)) == ["ok"] * 100

    assert holders(redis)[child.name] == 0
    assert all(redis.xlen(keys.ready(QUEUE, lane)) == 0 for lane in Lane)


def test_nothing_to_settle_is_no_command(store: Store) -> None:
    assert store.settle(QUEUE, "host:1:aa/1", []) == []
