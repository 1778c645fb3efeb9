"""reschedule: a delayed job gets another run-at; one that is ready already is too late."""

from __future__ import annotations

import threading

from queueops import keys
from queueops.states import JobState
from queueops.store import Store, publish_defaults
from tests.factories import (
    PERSON,
    QUEUE,
    Child,
    Clock,
    Redis,
    clock_of,
    events,
    ids_in,
    run_at,
    seed_delayed,
    seed_ready,
    token_waits,
    verbs,
)


def test_a_later_run_at(redis: Redis, store: Store, clock: Clock, child: Child) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 10)
    later = clock.now_ms + 500

    assert store.reschedule(QUEUE, ["a"], run_at_ms=later, actor=PERSON, reason="not yet") == ["ok"]

    assert run_at(redis, "a") == later
    assert events(redis, "a")[-1] == {
        "verb": "reschedule", "id": "a", "from": "delayed", "to": "delayed", "actor": PERSON,
        "at": str(clock.now_ms), "reason": "not yet", "run_at": str(later),
    }  # fmt: skip
    clock.advance(499)
    assert child.take() == []
    clock.advance(1)
    assert [j.due_ms for j in child.take()] == [later]


def test_an_earlier_run_at_wakes_before_the_alarm(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 60_000)
    child.claim(1)
    assert clock_of(redis)["alarm"] == str(clock.now_ms + 60_000)

    store.reschedule(QUEUE, ["a"], run_at_ms=clock.now_ms + 5_000, actor=PERSON)

    assert token_waits(redis)


def test_a_later_run_at_wakes_nobody(redis: Redis, store: Store, clock: Clock, child: Child) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 60_000)
    child.claim(1)

    store.reschedule(QUEUE, ["a"], run_at_ms=clock.now_ms + 90_000, actor=PERSON)

    assert not token_waits(redis)


def test_a_run_at_in_the_past_is_due_at_the_next_claim(store: Store, clock: Clock, child: Child) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 60_000)

    store.reschedule(QUEUE, ["a"], run_at_ms=clock.now_ms - 1, actor=PERSON)

    assert [j.id for j in child.take()] == ["a"]


def test_a_ready_job_is_too_late_and_says_so(redis: Redis, store: Store, clock: Clock) -> None:
    seed_ready(store, "a")

    answer = store.reschedule(QUEUE, ["a"], run_at_ms=clock.now_ms + 500, actor=PERSON)

    assert answer == ["wrong:ready"]
    assert ids_in(redis, JobState.READY) == ["a"]


def test_a05_a_reschedule_in_a_race_with_promotion_is_either_done_or_refused(
    redis: Redis, store: Store, clock: Clock
) -> None:
    ids = [f"j{n}" for n in range(500)]
    seed_delayed(store, *ids, run_at_ms=clock.now_ms)  # ready at once ...
    seed_delayed(store, *[f"d{n}" for n in range(500)], run_at_ms=clock.now_ms + 1)
    clock.advance(1)  # ... and due now
    answers: dict[str, str] = {}
    late = clock.now_ms + 500

    def reschedule() -> None:
        mine = Store(publish=publish_defaults, now_ms=store.now_ms)
        for n in range(500):
            answers[f"d{n}"] = mine.reschedule(QUEUE, [f"d{n}"], run_at_ms=late, actor=PERSON)[0]

    def promote() -> None:
        promoter = Child(Store(publish=publish_defaults, now_ms=store.now_ms), "host:1:aa/1").register()
        for _ in range(20):
            promoter.claim(0)

    threads = [threading.Thread(target=reschedule), threading.Thread(target=promote)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    delayed = set(ids_in(redis, JobState.DELAYED))
    assert set(answers.values()) <= {"ok", "wrong:ready"}
    assert delayed == {job_id for job_id, answer in answers.items() if answer == "ok"}
    assert all(redis.zscore(keys.jobs_in(QUEUE, JobState.DELAYED), job_id) == late for job_id in delayed)


def test_g6_a_repeat_of_an_operation_is_done_once(redis: Redis, store: Store, clock: Clock) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 60_000)
    at = clock.now_ms + 5_000
    store.reschedule(QUEUE, ["a"], run_at_ms=at, actor=PERSON, operation="op1")

    assert store.reschedule(QUEUE, ["a"], run_at_ms=at, actor=PERSON, operation="op1") == ["ok"]

    assert verbs(redis, "a").count("reschedule") == 1
