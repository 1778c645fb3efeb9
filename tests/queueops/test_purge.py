"""purge: a discarded job is gone now; its event carries the spec for the record."""

from __future__ import annotations

from queueops import keys
from queueops.states import JobState
from queueops.store import Store
from tests.factories import (
    PERSON,
    QUEUE,
    SPEC,
    Child,
    Clock,
    Redis,
    events,
    ids_in,
    job,
    new,
    seed_dead,
    seed_discarded,
    seed_ready,
    state,
    verbs,
)


def test_purge_leaves_nothing_but_an_event(redis: Redis, store: Store, clock: Clock) -> None:
    seed_discarded(store, "a")

    assert store.purge(QUEUE, ["a"], actor=PERSON, reason="private data") == ["ok"]

    assert job(redis, "a") == {}
    assert ids_in(redis, JobState.DISCARDED) == []
    assert events(redis, "a")[-1] == {
        "verb": "purge", "id": "a", "from": "discarded", "to": "gone", "actor": PERSON,
        "at": str(clock.now_ms), "reason": "private data", "spec": SPEC.decode(),
    }  # fmt: skip


def test_the_whole_spec_of_a_job_that_waited_is_in_the_event(
    redis: Redis, store: Store, clock: Clock
) -> None:
    store.enqueue(QUEUE, [new("a", run_at_ms=clock.now_ms + 5, spec=b"y" * 1000)])
    store.discard(QUEUE, ["a"], actor=PERSON)

    store.purge(QUEUE, ["a"], actor=PERSON)

    assert events(redis, "a")[-1]["spec"] == "y" * 1000


def test_the_id_of_a_purged_job_is_free(redis: Redis, store: Store) -> None:
    seed_discarded(store, "a")
    store.purge(QUEUE, ["a"], actor=PERSON)

    seed_ready(store, "a")

    assert state(redis, "a") == "ready"


def test_a_purged_dead_job_leaves_no_trace_under_its_cause(redis: Redis, store: Store, child: Child) -> None:
    seed_dead(child, "a")
    store.discard(QUEUE, ["a"], actor=PERSON)

    store.purge(QUEUE, ["a"], actor=PERSON)

    assert not redis.exists(keys.dead_of_cause(QUEUE, "boom"))


def test_a_purged_holder_of_a_timed_unique_key_is_taken_over(redis: Redis, store: Store) -> None:
    seed_discarded(store, "a", unique="u", unique_for_ms=600_000)
    store.purge(QUEUE, ["a"], actor=PERSON)

    seed_ready(store, "b", unique="u")

    assert redis.get(keys.unique(QUEUE, "u")) == b"b"


def test_g6_a_repeat_of_an_operation_answers_ok(redis: Redis, store: Store) -> None:
    seed_discarded(store, "a")
    store.purge(QUEUE, ["a"], actor=PERSON, operation="op1")

    assert store.purge(QUEUE, ["a"], actor=PERSON, operation="op1") == ["ok"]
    assert verbs(redis, "a").count("purge") == 1


def test_a_repeat_without_an_operation_finds_nothing(store: Store) -> None:
    seed_discarded(store, "a")
    store.purge(QUEUE, ["a"], actor=PERSON)

    assert store.purge(QUEUE, ["a"], actor=PERSON) == ["missing"]
