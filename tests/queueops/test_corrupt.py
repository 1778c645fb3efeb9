"""Bad data in Redis never stops a queue: the job is dead with a cause that says so, or the call is
refused whole, naming what is wrong."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

import pytest

from queueops import keys
from queueops.causes import Failure
from queueops.errors import WrongKeyType
from queueops.states import JobState, Lane
from queueops.store import Store
from tests.factories import (
    PERSON,
    QUEUE,
    Child,
    Clock,
    Redis,
    events,
    ids_in,
    job,
    new,
    seed_delayed,
    seed_pending,
    seed_ready,
    set_up,
    state,
)

NORMAL = keys.ready(QUEUE, Lane.NORMAL)


def dead_ids(redis: Redis) -> list[str]:
    return ids_in(redis, JobState.DEAD)


# -- d03: what hands and older versions leave in a lane ---------------------------------------------

BY_HAND = {
    "bytes that are no UTF-8": {"payload": b"\xff\xfe"},
    "invalid JSON": {"payload": b"{"},
    "JSON nested 100,000 deep": {"payload": b"[" * 100_000},
    "an unknown codec": {"payload": b'{"codec": "zlib9"}'},
    "a field that is missing": {"priority": b"5"},
}


def test_d03_bad_entries_are_dead_and_the_good_job_behind_them_runs(
    redis: Redis, store: Store, child: Child
) -> None:
    store.register(QUEUE)
    for fields in BY_HAND.values():
        redis.xadd(NORMAL, fields)
    seed_ready(store, "good")

    taken = [j.id for _ in range(5) for j in child.take(5)]

    assert taken == ["good"]
    assert len(dead_ids(redis)) == len(BY_HAND)
    assert {job(redis, job_id)["cause"] for job_id in dead_ids(redis)} == {"corrupt"}
    assert all(keys.check_job_id(job_id) for job_id in dead_ids(redis))  # a page can link to each


@pytest.mark.parametrize("fields", BY_HAND.values(), ids=BY_HAND)
def test_d03_the_raw_bytes_are_kept(
    redis: Redis, store: Store, child: Child, fields: dict[str, bytes]
) -> None:
    store.register(QUEUE)
    (raw,) = fields.values()
    redis.xadd(NORMAL, fields)

    child.take()

    (dead,) = dead_ids(redis)
    kept = redis.hget(keys.job(QUEUE, dead), "spec")
    assert kept == raw or dead.encode() == raw


def test_the_same_bad_bytes_twice_are_one_dead_job(redis: Redis, store: Store, child: Child) -> None:
    store.register(QUEUE)
    for _ in range(2):
        redis.xadd(NORMAL, {"payload": b"\xff\xfe"})

    child.take()

    assert len(dead_ids(redis)) == 1
    assert len(events(redis)) == 1


def test_bad_bytes_in_the_sorted_sets_are_dead_too(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    store.register(QUEUE)
    redis.zadd(keys.jobs_in(QUEUE, JobState.DELAYED), {b"\xff\xfe": clock.now_ms, b"a b": clock.now_ms})
    redis.zadd(keys.jobs_in(QUEUE, JobState.PENDING), {b"\xfe\xff": clock.now_ms})

    child.take()

    assert len(dead_ids(redis)) == 3
    assert ids_in(redis, JobState.DELAYED) == ids_in(redis, JobState.PENDING) == []


# -- a hash that is none, or is gone ------------------------------------------------------------------


def test_an_id_in_a_lane_without_a_hash_is_dead_and_says_so(redis: Redis, store: Store, child: Child) -> None:
    seed_ready(store, "gone", "good")
    redis.delete(keys.job(QUEUE, "gone"))

    assert [j.id for j in child.take()] == ["good"]

    assert dead_ids(redis) == ["gone"]
    assert "missing" in job(redis, "gone")["error"]


def test_a_hash_without_a_state_is_dead_and_keeps_what_it_had(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_ready(store, "a")
    redis.hdel(keys.job(QUEUE, "a"), "state")

    assert child.take() == []

    assert dead_ids(redis) == ["a"]
    assert "spec" in job(redis, "a")


@pytest.mark.parametrize("lane_or_set", ["ready", "delayed", "pending"])
def test_a_wrong_type_under_a_job_s_key_is_dead_and_what_stood_there_is_kept(
    redis: Redis, store: Store, clock: Clock, child: Child, lane_or_set: str
) -> None:
    seed_ready(store, "good")
    redis.set(keys.job(QUEUE, "bad"), "foreign")
    if lane_or_set == "ready":
        redis.xadd(NORMAL, {"id": "bad"})
    else:
        redis.zadd(keys.queue_key(QUEUE, lane_or_set), {"bad": clock.now_ms})

    assert [j.id for j in child.take()] == ["good"]

    assert dead_ids(redis) == ["bad"]
    assert job(redis, "bad")["cause"] == "corrupt"
    kept = keys.queue_key(QUEUE, "corrupt_prefix") + "bad"
    assert redis.get(kept) == b"foreign"
    assert kept in job(redis, "bad")["error"]


def test_the_error_of_a_corrupt_job_can_be_read_as_a_failure(
    redis: Redis, store: Store, child: Child
) -> None:
    store.register(QUEUE)
    redis.xadd(NORMAL, {"id": "ghost"})
    child.take()

    assert "missing" in Failure.from_json(job(redis, "ghost")["error"]).message


def test_a_job_without_a_spec_is_delivered_with_none_and_buried_by_its_worker(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_ready(store, "a", "good")
    redis.hdel(keys.job(QUEUE, "a"), "spec")

    jobs = child.take()

    assert [(j.id, bool(j.spec)) for j in jobs] == [("a", False), ("good", True)]
    child.bury(jobs[0], cause="corrupt", is_attempt=False)
    assert dead_ids(redis) == ["a"]


def test_a_spec_of_which_a_part_is_missing_counts_as_none(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    store.enqueue(QUEUE, [new("a", run_at_ms=clock.now_ms + 1, spec=b"x" * 500)])
    redis.hdel(keys.job(QUEUE, "a"), "spec3")
    clock.advance(1)

    assert [j.spec for j in child.take()] == [b""]
    child.bury(*child.held.values(), cause="corrupt", is_attempt=False)


@pytest.mark.parametrize("parts", ["0", "-5", "999999999", "nan", "2.5"])
def test_a_number_of_parts_that_is_nonsense_stops_nothing(
    redis: Redis, store: Store, child: Child, parts: str
) -> None:
    seed_ready(store, "a", "good")
    redis.hset(keys.job(QUEUE, "a"), "parts", parts)

    jobs = child.take()

    assert [j.id for j in jobs] == ["a", "good"]
    assert child.ack(*jobs) == ["ok", "ok"]


def test_a_spec_that_is_no_utf8_does_not_break_its_batch(redis: Redis, store: Store, child: Child) -> None:
    seed_ready(store, "a", spec=b"\xff\xfe")
    seed_ready(store, "b", spec=json.dumps({"n": 1}).encode())

    assert [j.spec for j in child.take()] == [b"\xff\xfe", b'{"n": 1}']


# -- i07: a wrong type under a structure --------------------------------------------------------------

#: Structures, and the scripts that must refuse before they write.
STRUCTURES = [
    "delayed", "pending", "dead", "discarded", "causes", "events", "children", "wake", "clock",
    "ready_prefix",
]  # fmt: skip


def damage(redis: Redis, name: str) -> str:
    key = keys.queue_key(QUEUE, name) + ("normal" if name == "ready_prefix" else "")
    if redis.exists(key):
        redis.rename(key, "{mail}kept")
    redis.set(key, "foreign")
    return key


def mend(redis: Redis, key: str) -> None:
    redis.delete(key)
    if redis.exists("{mail}kept"):
        redis.rename("{mail}kept", key)


def snapshot(redis: Redis) -> dict[bytes, bytes]:
    return {key: redis.dump(key) for key in redis.scan_iter() if b"stats" not in key}


CALLS: dict[str, Callable[[Store, Child, Child], object]] = {
    "claim": lambda store, child, other: other.claim(5),
    "settle": lambda store, child, other: child.retry(*child.held.values()),
    "hand_back": lambda store, child, other: store.hand_back(QUEUE, child.name, why="x", running=["running"]),
    "requeue": lambda store, child, other: store.requeue(QUEUE, ["running"], actor=PERSON),
    "discard": lambda store, child, other: store.discard(QUEUE, ["ready", "delayed"], actor=PERSON),
    "prune": lambda store, child, other: store.prune(QUEUE),
    "sweep": lambda store, child, other: store.sweep(QUEUE),
}


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("call", CALLS)
def test_i07_a_wrong_type_under_a_structure_refuses_the_whole_call(
    redis: Redis, store: Store, clock: Clock, child: Child, other: Child, call: str, name: str
) -> None:
    running = seed_pending(child, "running", "failing")
    seed_delayed(store, "delayed", run_at_ms=clock.now_ms + 1)
    seed_ready(store, "ready")
    clock.advance(1)
    key = damage(redis, name)
    before = snapshot(redis)

    with pytest.raises(WrongKeyType):
        CALLS[call](store, child, other)

    assert snapshot(redis) == before
    mend(redis, key)
    assert child.ack(*running) == ["ok", "ok"]


@pytest.mark.parametrize("name", ["stats_total", "rate", "sweep"])
def test_a_wrong_type_under_what_only_helps_loses_no_job(
    redis: Redis, store: Store, child: Child, name: str
) -> None:
    set_up(store, rate="" if name != "rate" else 100)
    seed_ready(store, "a", "b")
    key = keys.queue_key(QUEUE, name)
    redis.delete(key)
    redis.set(key, "foreign")

    for call in (lambda: child.take(), lambda: store.sweep(QUEUE)):
        try:
            call()
        except WrongKeyType:
            assert name in {"rate", "sweep"}
    redis.delete(key)
    child.take()

    assert {state(redis, "a"), state(redis, "b")} == {"pending"}


def test_a_wrong_type_under_the_settings_is_refused(redis: Redis, store: Store, child: Child) -> None:
    redis.rename(keys.queue_key(QUEUE, "settings"), "{mail}kept")
    redis.set(keys.queue_key(QUEUE, "settings"), "foreign")

    with pytest.raises(WrongKeyType):
        seed_ready(store, "a")
    with pytest.raises(WrongKeyType):
        child.take()

    redis.rename("{mail}kept", keys.queue_key(QUEUE, "settings"))


@pytest.mark.parametrize("value", ["", "nonsense", "-1", "nan"])
@pytest.mark.parametrize(
    "name", ["lease_ms", "events_max", "concurrency", "rate", "done_keep_ms", "paused_until"]
)
def test_settings_that_are_nonsense_lose_no_job(
    redis: Redis, store: Store, child: Child, name: str, value: str
) -> None:
    seed_ready(store, "a")
    good = redis.hget(keys.queue_key(QUEUE, "settings"), name)
    redis.hset(keys.queue_key(QUEUE, "settings"), name, value)

    with contextlib.suppress(Exception):  # refused is right, too
        child.register().take()
    if good is None:
        redis.hdel(keys.queue_key(QUEUE, "settings"), name)
    else:
        redis.hset(keys.queue_key(QUEUE, "settings"), name, good)

    child.register().take()
    assert state(redis, "a") == "pending"
