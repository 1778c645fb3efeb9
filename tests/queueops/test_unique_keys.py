"""Unique keys, per queue: held while the job wants to run, or for a time of their own."""

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
    ids_in,
    job,
    new,
    seed_delayed,
    seed_pending,
    seed_ready,
    state,
)


def holder(redis: Redis, digest: str = "u") -> str | None:
    found = redis.get(keys.unique(QUEUE, digest))
    return found.decode() if found else None


def test_a_second_enqueue_answers_the_holder_and_adds_nothing(redis: Redis, store: Store) -> None:
    seed_ready(store, "a", unique="u")

    answer = store.enqueue(QUEUE, [new("b", unique="u")])[0]

    assert (answer.state, answer.there) == ("ready", "a")
    assert job(redis, "b") == {}
    assert holder(redis) == "a"


@pytest.mark.parametrize("where", [JobState.DELAYED, JobState.READY, JobState.PENDING])
def test_the_key_is_held_while_the_job_wants_to_run(
    redis: Redis, store: Store, clock: Clock, child: Child, where: JobState
) -> None:
    if where is JobState.DELAYED:
        seed_delayed(store, "a", run_at_ms=clock.now_ms + 5, unique="u")
    elif where is JobState.READY:
        seed_ready(store, "a", unique="u")
    else:
        seed_pending(child, "a", unique="u")

    answer = store.enqueue(QUEUE, [new("b", unique="u")])[0]

    assert (answer.state, answer.there) == (where, "a")


def test_the_key_is_held_through_retries_and_rescues(redis: Redis, store: Store, child: Child) -> None:
    child.retry(*seed_pending(child, "a", unique="u"), delay_s=0)
    child.release(*child.take())
    child.take()
    child.die(ran=["a"])

    assert store.enqueue(QUEUE, [new("b", unique="u")])[0].there == "a"


@pytest.mark.parametrize("end", ["ack", "bury", "discard"])
def test_the_key_is_free_when_the_job_has_ended(redis: Redis, child: Child, end: str) -> None:
    jobs = seed_pending(child, "a", unique="u")

    getattr(child, end)(*jobs)

    assert holder(redis) is None
    seed_ready(child.store, "b", unique="u")
    assert (state(redis, "b"), holder(redis)) == ("ready", "b")


def test_the_same_id_with_the_same_key_is_the_same_job(redis: Redis, store: Store) -> None:
    seed_ready(store, "a", unique="u")

    assert store.enqueue(QUEUE, [new("a", unique="u")])[0].there == "a"
    assert ids_in(redis, JobState.READY) == ["a"]


def test_one_batch_with_one_key_adds_one_job(redis: Redis, store: Store) -> None:
    answers = store.enqueue(QUEUE, [new("a", unique="u"), new("b", unique="u"), new("c", unique="v")])

    assert [a.there for a in answers] == [None, "a", None]
    assert ids_in(redis, JobState.READY) == ["a", "c"]


def test_another_queue_has_keys_of_its_own(redis: Redis, store: Store) -> None:
    seed_ready(store, "a", unique="u")
    seed_ready(store, "b", unique="u", queue="other")

    assert state(redis, "b", "other") == "ready"


def test_a_key_held_for_a_time_outlives_its_job(redis: Redis, store: Store, child: Child) -> None:
    child.ack(*seed_pending(child, "a", unique="u", unique_for_ms=600_000))

    answer = store.enqueue(QUEUE, [new("b", unique="u", unique_for_ms=600_000)])[0]

    assert (answer.state, answer.there) == ("done", "a")
    assert job(redis, "b") == {}


def test_the_tombstone_of_a_holder_lives_as_long_as_its_key(redis: Redis, child: Child) -> None:
    child.ack(*seed_pending(child, "a", unique="u", unique_for_ms=3_600_000))

    assert redis.pttl(keys.job(QUEUE, "a")) > 3_590_000


def test_a_key_whose_time_is_over_is_free_though_its_job_runs(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_pending(child, "a", unique="u", unique_for_ms=60_000)
    redis.delete(keys.unique(QUEUE, "u"))  # as its TTL does

    seed_ready(store, "b", unique="u", unique_for_ms=60_000)
    child.ack(*child.held.values())

    assert holder(redis) == "b"  # the end of `a` frees nothing of another


@pytest.mark.parametrize("left", ["nothing", "done", "dead", "discarded"])
def test_a_holder_that_does_not_want_to_run_any_more_is_taken_over(
    redis: Redis, store: Store, child: Child, left: str
) -> None:
    if left == "done":
        child.ack(*seed_pending(child, "ghost"))
    elif left == "dead":
        child.bury(*seed_pending(child, "ghost"))
    elif left == "discarded":
        child.discard(*seed_pending(child, "ghost"))
    redis.set(keys.unique(QUEUE, "u"), "ghost")

    seed_ready(store, "a", unique="u")

    assert (state(redis, "a"), holder(redis)) == ("ready", "a")


def test_two_requeues_of_one_key_give_it_to_the_first(redis: Redis, store: Store, child: Child) -> None:
    child.bury(*seed_pending(child, "a", unique="u"))
    child.bury(*seed_pending(child, "b", unique="u"))

    assert store.requeue(QUEUE, ["a", "b"], actor=PERSON) == ["ok", "held:a"]
    assert holder(redis) == "a"


def test_g6_a_repeat_of_an_enqueue_with_a_key_is_the_same_job(redis: Redis, store: Store) -> None:
    seed_ready(store, "a", unique="u", unique_for_ms=60_000)
    ttl = redis.pttl(keys.unique(QUEUE, "u"))

    seed_ready(store, "a", unique="u", unique_for_ms=600_000)

    assert redis.pttl(keys.unique(QUEUE, "u")) <= ttl


def test_a_wrong_type_under_a_key_s_name_adds_nothing(redis: Redis, store: Store) -> None:
    store.register(QUEUE)
    redis.rpush(keys.unique(QUEUE, "u"), "foreign")

    with pytest.raises(Exception, match="type"):
        seed_ready(store, "a", unique="u")

    assert job(redis, "a") == {}
    redis.delete(keys.unique(QUEUE, "u"))
