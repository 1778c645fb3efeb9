"""prune: discarded jobs whose keep time is over are gone."""

from __future__ import annotations

from queueops import keys
from queueops.states import JobState
from queueops.store import Store
from tests.factories import (
    PERSON,
    QUEUE,
    SPEC,
    Clock,
    Redis,
    events,
    ids_in,
    job,
    seed_discarded,
    seed_ready,
    set_up,
    state,
)

KEEP_MS = 86_400_000


def test_a_job_is_kept_until_its_time_is_over(redis: Redis, store: Store, clock: Clock) -> None:
    seed_discarded(store, "a")

    clock.advance(KEEP_MS - 1)
    assert store.prune(QUEUE) == 0
    assert state(redis, "a") == "discarded"

    clock.advance(1)
    assert store.prune(QUEUE) == 1
    assert job(redis, "a") == {}
    assert events(redis, "a")[-1] == {
        "verb": "prune", "id": "a", "from": "discarded", "to": "gone", "actor": "queueops",
        "at": str(clock.now_ms), "reason": "keep time over", "spec": SPEC.decode(),
    }  # fmt: skip


def test_the_keep_time_is_the_one_of_when_it_was_discarded(redis: Redis, store: Store, clock: Clock) -> None:
    set_up(store, discarded_keep_ms=1000)
    seed_discarded(store, "a")
    set_up(store, discarded_keep_ms=KEEP_MS)
    clock.advance(1000)

    assert store.prune(QUEUE) == 1


def test_prune_takes_the_oldest_and_no_more_than_its_limit(redis: Redis, store: Store, clock: Clock) -> None:
    for n in range(5):
        seed_discarded(store, f"j{n}")
        clock.advance(1)
    clock.advance(KEEP_MS)

    assert store.prune(QUEUE, limit=3) == 3
    assert ids_in(redis, JobState.DISCARDED) == ["j3", "j4"]


def test_a_restored_job_is_not_pruned(redis: Redis, store: Store, clock: Clock) -> None:
    seed_discarded(store, "a")
    store.restore(QUEUE, ["a"], actor=PERSON)
    clock.advance(KEEP_MS)

    assert store.prune(QUEUE) == 0
    assert state(redis, "a") == "ready"


def test_a_stale_id_goes_and_the_job_stays(redis: Redis, store: Store, clock: Clock) -> None:
    seed_ready(store, "a")
    redis.zadd(keys.jobs_in(QUEUE, JobState.DISCARDED), {"a": clock.now_ms - 1, "ghost": clock.now_ms - 1})

    assert store.prune(QUEUE) == 2

    assert ids_in(redis, JobState.DISCARDED) == []
    assert state(redis, "a") == "ready"


def test_prune_twice_prunes_once(redis: Redis, store: Store, clock: Clock) -> None:
    seed_discarded(store, "a")
    clock.advance(KEEP_MS)

    assert [store.prune(QUEUE), store.prune(QUEUE)] == [1, 0]
    assert [event["verb"] for event in events(redis, "a")].count("prune") == 1
