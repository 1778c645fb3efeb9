"""discard: a job is set aside, by a person or by its handler; it keeps what it was."""

from __future__ import annotations

from queueops import keys
from queueops.states import JobState, Lane
from queueops.store import Store
from tests.factories import (
    PERSON,
    QUEUE,
    SPEC,
    Child,
    Clock,
    Redis,
    counter,
    events,
    failing,
    holders,
    ids_in,
    job,
    seed_dead,
    seed_delayed,
    seed_pending,
    seed_ready,
    set_up,
    state,
    verbs,
)


def test_discard_keeps_the_spec_and_what_the_job_was(redis: Redis, store: Store, clock: Clock) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 5000)

    assert store.discard(QUEUE, ["a"], actor=PERSON, reason="duplicate") == ["ok"]

    stored = job(redis, "a")
    assert (stored["state"], stored["was"], stored["reason"]) == ("discarded", "delayed", "duplicate")
    assert stored["was_at"] == str(clock.now_ms + 5000)
    assert stored["spec"] == SPEC.decode()
    assert events(redis, "a")[-1] == {
        "verb": "discard", "id": "a", "from": "delayed", "to": "discarded", "actor": PERSON,
        "at": str(clock.now_ms), "reason": "duplicate",
    }  # fmt: skip
    assert counter(redis, "discarded") == 1


def test_discarded_jobs_are_listed_by_the_end_of_their_keep_time(
    redis: Redis, store: Store, clock: Clock
) -> None:
    set_up(store, discarded_keep_ms=1000)
    seed_ready(store, "a")

    store.discard(QUEUE, ["a"], actor=PERSON)

    assert redis.zscore(keys.jobs_in(QUEUE, JobState.DISCARDED), "a") == clock.now_ms + 1000


def test_a_discarded_ready_job_leaves_its_lane(redis: Redis, store: Store, child: Child) -> None:
    seed_ready(store, "a", "b")

    store.discard(QUEUE, ["a"], actor=PERSON)

    assert redis.xlen(keys.ready(QUEUE, Lane.NORMAL)) == 1
    assert [j.id for j in child.take()] == ["b"]


def test_a_discarded_dead_job_leaves_both_lists_of_the_dead(redis: Redis, store: Store, child: Child) -> None:
    seed_dead(child, "a")

    store.discard(QUEUE, ["a"], actor=PERSON)

    assert ids_in(redis, JobState.DEAD) == []
    assert not redis.exists(keys.dead_of_cause(QUEUE, "boom"))


def test_a_discarded_failing_job_is_failing_no_more(redis: Redis, store: Store, child: Child) -> None:
    child.retry(*seed_pending(child, "a"))

    store.discard(QUEUE, ["a"], actor=PERSON)

    assert failing(redis) == 0


def test_a_person_can_t_discard_what_runs(redis: Redis, store: Store, child: Child) -> None:
    seed_pending(child, "a")

    assert store.discard(QUEUE, ["a"], actor=PERSON) == ["wrong:pending"]


def test_a_handler_discards_its_own_job(redis: Redis, clock: Clock, child: Child) -> None:
    assert child.discard(*seed_pending(child, "a")) == ["ok"]

    assert (state(redis, "a"), job(redis, "a")["reason"]) == ("discarded", "not wanted")
    assert events(redis, "a")[-1]["actor"] == child.name
    assert holders(redis)[child.name] == 0


def test_discard_frees_the_unique_key(redis: Redis, store: Store) -> None:
    seed_ready(store, "a", unique="u")

    store.discard(QUEUE, ["a"], actor=PERSON)
    seed_ready(store, "b", unique="u")

    assert redis.get(keys.unique(QUEUE, "u")) == b"b"


def test_g6_a_repeat_by_the_handler_answers_ok_also_after_a_restore(
    redis: Redis, store: Store, child: Child
) -> None:
    jobs = seed_pending(child, "a")
    assert child.discard(*jobs) == child.discard(*jobs) == ["ok"]

    store.restore(QUEUE, ["a"], actor=PERSON)

    assert child.discard(*jobs) == ["ok"]
    assert state(redis, "a") == "ready"
    assert (verbs(redis, "a").count("discard"), counter(redis, "late")) == (1, 0)


def test_g6_a_repeat_of_an_operation_discards_once(redis: Redis, store: Store) -> None:
    seed_ready(store, "a")
    store.discard(QUEUE, ["a"], actor=PERSON, operation="op1")

    assert store.discard(QUEUE, ["a"], actor=PERSON, operation="op1") == ["ok"]
    assert verbs(redis, "a").count("discard") == 1
