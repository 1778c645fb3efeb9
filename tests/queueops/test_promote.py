"""promote: what is due becomes ready, by Redis TIME and in the order of its run-at."""

from __future__ import annotations

import threading

import pytest

from queueops import keys
from queueops.errors import WrongKeyType
from queueops.job import new_job_id
from queueops.states import JobState, Lane
from queueops.store import Store, publish_defaults
from tests.factories import (
    QUEUE,
    Child,
    Clock,
    Redis,
    events,
    ids_in,
    job,
    new,
    seed_delayed,
    seed_ready,
    verbs,
)


def test_a_job_is_due_at_its_millisecond_and_not_one_before(store: Store, clock: Clock, child: Child) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 1000)

    clock.advance(999)
    assert child.take() == []

    clock.advance(1)
    assert [due.id for due in child.take()] == ["a"]


def test_a_claim_of_nothing_promotes_too(redis: Redis, store: Store, clock: Clock, child: Child) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 1)
    clock.advance(1)

    child.claim(0)

    assert ids_in(redis, JobState.READY) == ["a"]
    assert events(redis, "a")[-1] == {
        "verb": "promote", "id": "a", "from": "delayed", "to": "ready", "actor": "queueops",
        "at": str(clock.now_ms),
    }  # fmt: skip


def test_promotion_keeps_the_run_at_as_what_the_job_is_late_by(
    store: Store, clock: Clock, child: Child
) -> None:
    due = clock.now_ms + 10
    seed_delayed(store, "a", run_at_ms=due)
    clock.advance(500)

    assert child.take()[0].due_ms == due


def test_earlier_run_ats_come_first_whatever_was_enqueued_first(
    store: Store, clock: Clock, child: Child
) -> None:
    for job_id, ms in (("c", 3), ("a", 1), ("b", 2)):
        seed_delayed(store, job_id, run_at_ms=clock.now_ms + ms)
    clock.advance(10)

    assert [due.id for due in child.take()] == ["a", "b", "c"]


def test_i10_jobs_of_one_millisecond_run_in_the_order_of_their_enqueue(
    store: Store, clock: Clock, child: Child
) -> None:
    ids = [new_job_id() for _ in range(20)]
    for job_id in ids:
        seed_delayed(store, job_id, run_at_ms=clock.now_ms + 7)
    clock.advance(7)

    taken = [child.take(1)[0].id for _ in ids]

    assert taken == ids


def test_more_than_one_script_promotes_is_due_at_once(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    ids = [new_job_id() for _ in range(450)]
    seed_delayed(store, *ids, run_at_ms=clock.now_ms + 1)
    clock.advance(1)

    child.claim(0)
    assert redis.zcard(keys.jobs_in(QUEUE, JobState.DELAYED)) == 250  # 200 a script

    child.claim(0)
    child.claim(0)
    assert ids_in(redis, JobState.READY) == ids


def test_a_child_that_found_only_promotions_is_told_to_come_again_at_once(
    store: Store, clock: Clock, child: Child
) -> None:
    seed_delayed(store, *[new_job_id() for _ in range(300)], run_at_ms=clock.now_ms + 1)
    store.publish(QUEUE, 1, {"concurrency": 0})
    clock.advance(1)

    assert child.claim(5).wait_us is not None


def test_a01_50_000_due_in_one_millisecond_and_3_promoters_make_50_000_ready(
    redis: Redis, store: Store, clock: Clock
) -> None:
    total = 50_000
    ids = [new_job_id() for _ in range(total)]
    for start in range(0, total, 500):
        store.enqueue(QUEUE, [new(job_id, run_at_ms=clock.now_ms + 1) for job_id in ids[start : start + 500]])
    redis.delete(keys.queue_key(QUEUE, "events"))
    clock.advance(1)

    def promote(name: str) -> None:
        promoter = Child(Store(publish=publish_defaults, now_ms=store.now_ms), name).register()
        while redis.zcard(keys.jobs_in(QUEUE, JobState.DELAYED)):
            promoter.claim(0)

    threads = [threading.Thread(target=promote, args=(f"host:{n}:a/1",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    entries = [fields[b"id"].decode() for _, fields in redis.xrange(keys.ready(QUEUE, Lane.NORMAL))]
    assert entries == ids  # each once, in their order


def test_a_wrong_type_under_the_lane_promotes_nothing_until_it_is_gone(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    ids = [f"job-{n}" for n in range(10)]
    seed_delayed(store, *ids, run_at_ms=clock.now_ms + 1)
    clock.advance(1)
    redis.set(keys.ready(QUEUE, Lane.NORMAL), "foreign")

    with pytest.raises(WrongKeyType, match=r"ready:normal holds a string where a stream belongs"):
        child.claim(5)
    assert ids_in(redis, JobState.DELAYED) == ids

    redis.delete(keys.ready(QUEUE, Lane.NORMAL))
    assert [due.id for due in child.take()] == ids


def test_a_stale_id_in_the_delayed_set_is_dropped_and_runs_nothing_twice(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a")
    redis.zadd(keys.jobs_in(QUEUE, JobState.DELAYED), {"a": clock.now_ms - 1})

    assert [due.id for due in child.take()] == ["a"]
    assert ids_in(redis, JobState.DELAYED) == []
    assert "promote" not in verbs(redis, "a")


def test_an_id_without_a_job_is_dead_and_says_so(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_delayed(store, "good", run_at_ms=clock.now_ms)
    redis.zadd(keys.jobs_in(QUEUE, JobState.DELAYED), {"ghost": clock.now_ms})

    assert [due.id for due in child.take()] == ["good"]
    assert job(redis, "ghost")["state"] == "dead"
    assert job(redis, "ghost")["cause"] == "corrupt"


def test_a_clock_that_went_back_promotes_nothing_early(store: Store, clock: Clock, child: Child) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 1000)

    clock.advance(-60_000)
    assert child.take() == []

    clock.advance(61_000)
    child.register()
    assert [due.id for due in child.take()] == ["a"]
