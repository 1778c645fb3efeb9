"""bury: a job is given up: dead, under its cause, until a person requeues or discards it."""

from __future__ import annotations

import pytest

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
    counter,
    error_json,
    events,
    failing,
    holders,
    ids_in,
    job,
    seed_dead,
    seed_pending,
    seed_ready,
    verbs,
)
from tests.proxy import Proxy


def test_bury_keeps_everything_a_person_needs(redis: Redis, clock: Clock, child: Child) -> None:
    child.bury(*seed_pending(child, "a"))

    stored = job(redis, "a")
    assert (stored["state"], stored["cause"], stored["attempts"]) == ("dead", "boom", "1")
    assert (stored["error"], stored["spec"]) == (error_json("boom"), SPEC.decode())
    assert redis.zscore(keys.jobs_in(QUEUE, JobState.DEAD), "a") == clock.now_ms
    assert redis.zscore(keys.dead_of_cause(QUEUE, "boom"), "a") == clock.now_ms
    assert redis.pttl(keys.job(QUEUE, "a")) == -1
    assert holders(redis)[child.name] == 0


def test_bury_is_an_event_with_cause_and_error(redis: Redis, clock: Clock, child: Child) -> None:
    child.bury(*seed_pending(child, "a"))

    assert events(redis, "a")[-1] == {
        "verb": "bury", "id": "a", "from": "pending", "to": "dead", "actor": child.name,
        "at": str(clock.now_ms), "delivery": "1", "attempts": "1", "cause": "boom",
        "error": error_json("boom"), "policy": "default@1", "ran_ms": "3",
    }  # fmt: skip
    assert (counter(redis, "dead"), counter(redis, "failed"), counter(redis, "failed:boom")) == (1, 1, 1)


def test_c12_a_job_with_one_attempt_is_dead_and_not_gone(redis: Redis, child: Child) -> None:
    child.bury(*seed_pending(child, "a"))

    assert ids_in(redis, JobState.DEAD) == ["a"]
    assert ids_in(redis, JobState.DELAYED) == []


def test_bury_without_an_attempt_counts_none(redis: Redis, child: Child) -> None:
    child.bury(*seed_pending(child, "a"), is_attempt=False)

    assert job(redis, "a")["attempts"] == "0"
    assert (counter(redis, "dead"), counter(redis, "failed")) == (1, 0)


def test_a_dead_job_is_no_longer_failing(redis: Redis, child: Child) -> None:
    child.retry(*seed_pending(child, "a"), delay_s=0, cause="flaky")

    child.bury(*child.take(), cause="flaky")

    assert failing(redis, "flaky") == 0


def test_the_dead_are_ordered_by_their_death(redis: Redis, clock: Clock, child: Child) -> None:
    for job_id in ("z", "a", "m"):
        seed_dead(child, job_id)
        clock.advance(5)

    assert ids_in(redis, JobState.DEAD) == ["z", "a", "m"]


# -- causes -------------------------------------------------------------------------------------------


def test_a_cause_remembers_its_text_its_first_and_its_last_time(
    redis: Redis, clock: Clock, child: Child
) -> None:
    first = clock.now_ms
    seed_dead(child, "a")
    clock.advance(5000)
    seed_dead(child, "b")

    kept = redis.hgetall(keys.cause(QUEUE, "boom"))
    assert kept[b"text"] == b"boom: it failed"
    assert int(kept[b"first"]) == first
    assert int(kept[b"failures"]) == 2
    assert redis.zscore(keys.queue_key(QUEUE, "causes"), "boom") == clock.now_ms


def test_a_thousand_causes_are_kept_and_the_next_is_counted_as_other(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    for batch in range(11):
        ids = [f"j{batch}-{n}" for n in range(100)]
        jobs = seed_pending(child, *ids)
        for n, one in enumerate(jobs):
            child.bury(one, cause=f"cause{batch * 100 + n}")

    assert redis.zcard(keys.queue_key(QUEUE, "causes")) == 1001
    assert job(redis, "j9-99")["cause"] == "cause999"
    assert job(redis, "j10-0")["cause"] == "other"
    assert redis.zcard(keys.dead_of_cause(QUEUE, "other")) == 100


def test_the_causes_that_no_job_has_any_more_give_way_however_recent(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    for batch in range(10):
        for n, one in enumerate(seed_pending(child, *[f"j{batch}-{n}" for n in range(100)])):
            clock.advance(1)
            child.bury(one, cause=f"cause{batch * 100 + n}")
    seed_dead(child, "early", cause="early")
    store.discard(QUEUE, ["j9-5"], actor=PERSON)  # nobody is dead of cause905 now
    clock.advance(10_000)

    seed_dead(child, "new", cause="fresh")

    causes = {cause.decode() for cause in redis.zrange(keys.queue_key(QUEUE, "causes"), 0, -1)}
    assert job(redis, "early")["cause"] == "other"
    assert "fresh" in causes
    assert "cause905" not in causes
    assert len(causes) == 1001


def test_a_job_restored_after_its_cause_gave_way_brings_it_back(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_dead(child, "a", cause="gone")
    store.discard(QUEUE, ["a"], actor=PERSON)
    redis.zrem(keys.queue_key(QUEUE, "causes"), "gone")  # as 1,000 others would do
    redis.delete(keys.cause(QUEUE, "gone"))

    assert store.restore(QUEUE, ["a"], actor=PERSON) == ["ok"]

    assert redis.zscore(keys.queue_key(QUEUE, "causes"), "gone") is not None
    assert ids_in(redis, JobState.DEAD) == ["a"]


@pytest.mark.parametrize("cause", ["a b", "ünïcode", "x" * 200, "with:colon", "{brace}"])
def test_any_text_may_be_a_cause(redis: Redis, child: Child, cause: str) -> None:
    seed_dead(child, "a", cause=cause)

    assert job(redis, "a")["cause"] == cause


def test_bury_of_a_lost_delivery_is_refused_and_counted(redis: Redis, child: Child) -> None:
    jobs = seed_pending(child, "a")
    child.die()
    child.register()

    assert child.bury(*jobs) == ["lost"]
    assert ids_in(redis, JobState.DEAD) == []
    assert counter(redis, "late") == 1


def test_g6_a_repeat_answers_ok_also_after_a_person_sent_the_job_again(
    redis: Redis, store: Store, lossy: Store, proxy: Proxy
) -> None:
    seed_ready(store, "a")
    child = Child(lossy, "host:1:aa/1").register()
    jobs = child.take(1)
    proxy.lose_replies(1)

    assert child.bury(*jobs) == ["ok"]
    assert child.bury(*jobs) == ["ok"]
    store.requeue(QUEUE, ["a"], actor=PERSON)
    assert child.bury(*jobs) == ["ok"]

    assert proxy.lost == 1
    assert verbs(redis, "a").count("bury") == 1
    assert (counter(redis, "dead"), counter(redis, "late")) == (1, 0)
    assert int(redis.hget(keys.cause(QUEUE, "boom"), "failures")) == 1
