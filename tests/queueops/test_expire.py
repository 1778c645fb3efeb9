"""expire: a ready job whose time is over is set aside instead of delivered."""

from __future__ import annotations

from queueops.states import JobState
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
    job,
    seed_delayed,
    seed_ready,
    state,
)


def test_a_job_is_delivered_until_its_expiry_and_not_at_it(store: Store, clock: Clock, child: Child) -> None:
    seed_ready(store, "a", expires_ms=clock.now_ms + 1000)
    seed_ready(store, "b", expires_ms=clock.now_ms + 1001)
    clock.advance(1000)

    assert [j.id for j in child.take()] == ["b"]


def test_an_expired_job_is_discarded_and_says_why(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a", expires_ms=clock.now_ms + 1)
    clock.advance(5)

    child.take()

    assert (state(redis, "a"), job(redis, "a")["reason"]) == ("discarded", "expired")
    assert events(redis, "a")[-1] == {
        "verb": "expire", "id": "a", "from": "ready", "to": "discarded", "actor": "queueops",
        "at": str(clock.now_ms), "reason": "expired",
    }  # fmt: skip
    assert (counter(redis, "expired"), counter(redis, "discarded")) == (1, 1)


def test_expired_jobs_do_not_use_up_a_claim(store: Store, clock: Clock, child: Child) -> None:
    seed_ready(store, "old", expires_ms=clock.now_ms + 1)
    seed_ready(store, "fresh")
    clock.advance(5)

    assert [j.id for j in child.take(1)] == ["fresh"]


def test_a_thousand_expired_jobs_do_not_hide_what_is_behind_them(
    store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, *[f"old{n}" for n in range(1000)], expires_ms=clock.now_ms + 1)
    seed_ready(store, "fresh")
    clock.advance(5)

    for _ in range(600):
        answer = child.claim(1)
        if answer.jobs:
            break
        assert answer.wait_us == 0  # come again at once

    assert [j.id for j in answer.jobs] == ["fresh"]


def test_a_delayed_job_whose_expiry_passes_first_is_never_delivered(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 1000, expires_ms=clock.now_ms + 500)
    clock.advance(1000)

    assert child.take() == []
    assert state(redis, "a") == "discarded"


def test_an_expired_job_frees_its_unique_key(redis: Redis, store: Store, clock: Clock, child: Child) -> None:
    seed_ready(store, "a", expires_ms=clock.now_ms + 1, unique="u")
    clock.advance(5)
    child.take()

    seed_ready(store, "b", unique="u")

    assert state(redis, "b") == "ready"


def test_a_restored_job_has_no_expiry_any_more(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a", expires_ms=clock.now_ms + 1)
    clock.advance(5)
    child.take()

    assert store.restore(QUEUE, ["a"], actor=PERSON) == ["ok"]

    assert [j.id for j in child.take()] == ["a"]
    assert ids_in(redis, JobState.DISCARDED) == []
