"""requeue: a person sends a dead job again: a new cycle under the same id."""

from __future__ import annotations

from queueops import keys
from queueops.policies import DEFAULT_POLICY, Bury, decide
from queueops.states import JobState, Lane
from queueops.store import Store
from tests.factories import (
    PERSON,
    QUEUE,
    Child,
    Clock,
    Redis,
    counter,
    events,
    ids_in,
    ids_in_lane,
    job,
    run_at,
    seed_dead,
    seed_pending,
    seed_ready,
    state,
    verbs,
)


def test_requeue_starts_a_new_cycle_and_the_delivery_goes_on(
    redis: Redis, store: Store, child: Child
) -> None:
    child.retry(*seed_pending(child, "a"), delay_s=0)
    child.bury(*child.take())

    assert store.requeue(QUEUE, ["a"], actor=PERSON) == ["ok"]

    (again,) = child.take()
    assert (again.delivery, again.attempts, again.rescues, again.edition) == (3, 0, 0, 0)
    assert not job(redis, "a").keys() & {"cause"}
    assert job(redis, "a")["requeues"] == "1"


def test_requeue_leaves_both_lists_of_the_dead(redis: Redis, store: Store, child: Child) -> None:
    seed_dead(child, "a")

    store.requeue(QUEUE, ["a"], actor=PERSON)

    assert ids_in(redis, JobState.DEAD) == []
    assert not redis.exists(keys.dead_of_cause(QUEUE, "boom"))


def test_requeue_is_an_event_with_who_and_why(redis: Redis, store: Store, clock: Clock, child: Child) -> None:
    seed_dead(child, "a")

    store.requeue(QUEUE, ["a"], actor=PERSON, reason="the API is back")

    assert events(redis, "a")[-1] == {
        "verb": "requeue", "id": "a", "from": "dead", "to": "ready", "actor": PERSON,
        "at": str(clock.now_ms), "reason": "the API is back",
    }  # fmt: skip
    assert counter(redis, "requeued") == 1


def test_requeue_with_a_delay_is_delayed(redis: Redis, store: Store, clock: Clock, child: Child) -> None:
    seed_dead(child, "a")

    store.requeue(QUEUE, ["a"], actor=PERSON, delay_s=2.5)

    assert run_at(redis, "a") == clock.now_ms + 2500
    assert events(redis, "a")[-1]["run_at"] == str(clock.now_ms + 2500)


def test_requeue_returns_to_the_lane_of_its_priority(redis: Redis, store: Store, child: Child) -> None:
    seed_dead(child, "a", lane=Lane.LOW)

    store.requeue(QUEUE, ["a"], actor=PERSON)

    assert ids_in_lane(redis, Lane.LOW) == ["a"]


def test_c07_each_requeue_gives_a_whole_cycle(redis: Redis, store: Store, clock: Clock, child: Child) -> None:
    seed_ready(store, "a")
    starts = 0
    for _ in range(3):
        fate = None
        while not isinstance(fate, Bury):
            child.register()
            (attempt,) = child.take()
            starts += 1
            fate = decide(DEFAULT_POLICY, attempt.attempts + 1, rand=lambda: 0.0)
            if isinstance(fate, Bury):
                child.bury(attempt)
            else:
                child.retry(attempt, delay_s=fate.delay_s)
                clock.advance(round(fate.delay_s * 1000))
        store.requeue(QUEUE, ["a"], actor=PERSON)

    assert starts == 15
    assert job(redis, "a")["requeues"] == "3"
    assert job(redis, "a")["delivery"] == "15"


def test_d10_requeue_of_a_frozen_set_sends_each_job_once_though_they_die_again(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    ids = [f"j{n}" for n in range(100)]
    seed_dead(child, *ids)
    frozen = clock.now_ms
    clock.advance(1)

    for _ in range(3):  # a runner that walks the list as it is now
        dead = ids_in(redis, JobState.DEAD)
        store.act(
            "requeue", QUEUE, [(i, 0) for i in dead], actor=PERSON, operation="op1", frozen_ms=frozen,
            from_state="dead",
        )  # fmt: skip
        child.bury(*child.take())

    assert len(ids_in(redis, JobState.DEAD)) == 100
    assert verbs(redis).count("requeue") == 100


def test_requeue_forgets_an_expiry_that_has_passed_since_a_person_wants_it(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_dead(child, "a", expires_ms=clock.now_ms + 1000)
    clock.advance(2000)

    store.requeue(QUEUE, ["a"], actor=PERSON)

    assert [j.id for j in child.take()] == ["a"]


def test_requeue_keeps_an_expiry_that_is_still_ahead(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_dead(child, "a", expires_ms=clock.now_ms + 5000)

    store.requeue(QUEUE, ["a"], actor=PERSON)
    clock.advance(5000)

    assert child.take() == []
    assert state(redis, "a") == "discarded"


def test_requeue_takes_its_unique_key_again(redis: Redis, store: Store, child: Child) -> None:
    seed_dead(child, "a", unique="u")
    assert not redis.exists(keys.unique(QUEUE, "u"))

    store.requeue(QUEUE, ["a"], actor=PERSON)

    assert redis.get(keys.unique(QUEUE, "u")) == b"a"


def test_requeue_that_meets_another_holder_is_skipped_and_names_it(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_dead(child, "a", unique="u")
    seed_ready(store, "b", unique="u")

    assert store.requeue(QUEUE, ["a"], actor=PERSON) == ["held:b"]

    assert state(redis, "a") == "dead"
    assert redis.get(keys.unique(QUEUE, "u")) == b"b"


def test_requeue_does_not_shorten_a_key_held_for_a_time_of_its_own(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_dead(child, "a", unique="u", unique_for_ms=600_000)

    store.requeue(QUEUE, ["a"], actor=PERSON)
    child.ack(*child.take())

    assert redis.pttl(keys.unique(QUEUE, "u")) > 500_000


def test_requeue_wakes_a_worker(redis: Redis, store: Store, child: Child) -> None:
    seed_dead(child, "a")
    child.claim(1)
    redis.delete(keys.queue_key(QUEUE, "wake"))

    store.requeue(QUEUE, ["a"], actor=PERSON)

    assert redis.llen(keys.queue_key(QUEUE, "wake")) == 1


def test_many_answers_in_their_order(redis: Redis, store: Store, child: Child) -> None:
    seed_dead(child, "dead")
    seed_ready(store, "ready")

    assert store.requeue(QUEUE, ["missing", "dead", "ready", "dead"], actor=PERSON) == [
        "missing", "ok", "wrong:ready", "ok",
    ]  # fmt: skip


def test_g6_an_operation_that_is_repeated_sends_no_job_twice(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_dead(child, "a", "b")

    first = store.requeue(QUEUE, ["a", "b"], actor=PERSON, operation="op1")
    child.bury(*child.take())  # both die again before the repeat
    again = store.requeue(QUEUE, ["a", "b"], actor=PERSON, operation="op1")

    assert first == again == ["ok", "ok"]
    assert ids_in(redis, JobState.DEAD) == ["a", "b"]
    assert counter(redis, "requeued") == 2


def test_another_operation_sends_it_again(redis: Redis, store: Store, child: Child) -> None:
    seed_dead(child, "a")
    store.requeue(QUEUE, ["a"], actor=PERSON, operation="op1")
    child.bury(*child.take())

    assert store.requeue(QUEUE, ["a"], actor=PERSON, operation="op2") == ["ok"]
    assert state(redis, "a") == "ready"


def test_a_frozen_set_leaves_out_what_came_into_the_state_later(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_dead(child, "before")
    frozen = clock.now_ms
    clock.advance(1)
    seed_dead(child, "after")

    answers = store.act(
        "requeue", QUEUE, [("before", 0), ("after", 0)], actor=PERSON, operation="op1", frozen_ms=frozen,
        from_state="dead",
    )  # fmt: skip

    assert answers == ["ok", "later"]
    assert state(redis, "after") == "dead"
