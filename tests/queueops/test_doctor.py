"""The doctor finds each kind of damage, names the job, and mends it; a sound store has no finding."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from queueops import doctor, keys
from queueops.states import JobState, Lane
from queueops.store import Store
from tests import factories as f
from tests.factories import QUEUE, Child, Clock, Redis

SPEC = b'["tests.work"]'


def errors(store: Store, **options: Any) -> list[doctor.Finding]:
    found = doctor.examine(server=False, now_ms=store.now_ms, **options)
    return [finding for finding in found if finding.severity == "error" and not finding.mended]


@pytest.fixture
def whole(store: Store, child: Child, clock: Clock) -> Store:
    f.seed_delayed(store, "later-1", "later-2", run_at_ms=clock.now_ms + 60_000, spec=SPEC)
    f.seed_dead(child, "dead-1", "dead-2", spec=SPEC)
    f.seed_discarded(store, "gone-1", spec=SPEC)
    child.retry(*f.seed_pending(child, "failing-1", spec=SPEC))
    child.ack(*f.seed_pending(child, "done-1", spec=SPEC, unique="free", unique_for_ms=60_000))
    f.seed_pending(child, "held-1", spec=SPEC, unique="taken")
    f.seed_ready(store, "ready-1", spec=SPEC)
    f.seed_ready(store, "ready-2", spec=SPEC, lane=Lane.HIGH)
    return store


def test_examine_a_sound_store_finds_nothing(whole: Store) -> None:
    assert doctor.examine(server=False, now_ms=whole.now_ms) == []
    doctor.assert_each_job_in_one_place(now_ms=whole.now_ms)


def q(name: str) -> str:
    return keys.queue_key(QUEUE, name)


def job(job_id: str) -> str:
    return keys.job(QUEUE, job_id)


def _drop_entry(redis: Redis) -> None:
    lane, _, at = f.job(redis, "ready-1")["entry"].partition("/")
    redis.xdel(keys.ready(QUEUE, lane), at)


def _deliver_and_forget(redis: Redis) -> None:
    stream = keys.ready(QUEUE, Lane.NORMAL)
    [[_, entries]] = redis.xreadgroup(keys.GROUP, "somebody", {stream: ">"}, count=1)
    redis.xack(stream, keys.GROUP, entries[0][0])


#: What is done to the store -> (the job or None, a piece of what is said of it).
DAMAGE: dict[str, tuple[Callable[[Redis], object], str | None, str]] = {
    "delayed, not in delayed": (lambda r: r.zrem(q("delayed"), "later-1"), "later-1", "not in delayed"),
    "dead, not in dead": (lambda r: r.zrem(q("dead"), "dead-1"), "dead-1", "not in dead"),
    "dead, not in its cause": (
        lambda r: r.zrem(keys.dead_of_cause(QUEUE, "boom"), "dead-1"),
        "dead-1",
        "not listed under its cause",
    ),
    "discarded, not in discarded": (lambda r: r.zrem(q("discarded"), "gone-1"), "gone-1", "not in discarded"),
    "pending, not in pending": (lambda r: r.zrem(q("pending"), "held-1"), "held-1", "not in pending"),
    "pending, no owner": (lambda r: r.hdel(job("held-1"), "child"), "held-1", "no child owns it"),
    "ready, entry gone": (_drop_entry, "ready-1", "is gone"),
    "ready, no entry": (lambda r: r.hdel(job("ready-1"), "entry"), "ready-1", "in no lane"),
    "ready, delivered and forgotten": (_deliver_and_forget, "ready-1", "nobody would run it"),
    "in two sets": (lambda r: r.zadd(q("delayed"), {"dead-1": 5}), "dead-1", "also in delayed"),
    "in a lane too": (
        lambda r: r.xadd(keys.ready(QUEUE, "low"), {"id": "later-1"}),
        "later-1",
        "also in low/",
    ),
    "twice in lanes": (
        lambda r: r.xadd(keys.ready(QUEUE, "normal"), {"id": "ready-1"}),
        "ready-1",
        "also in normal/",
    ),
    "in another cause": (
        lambda r: (
            r.zadd(q("causes"), {"else": 5}),
            r.hset(keys.cause(QUEUE, "else"), "text", "else"),
            r.zadd(keys.dead_of_cause(QUEUE, "else"), {"dead-1": 5}),
        ),
        "dead-1",
        "also in dead:else",
    ),
    "no hash, in delayed": (lambda r: r.delete(job("later-1")), "later-1", "data are missing"),
    "no hash, in dead": (lambda r: r.delete(job("dead-1")), "dead-1", "data are missing"),
    "no hash, in discarded": (lambda r: r.delete(job("gone-1")), "gone-1", "data are missing"),
    "no hash, in a lane": (lambda r: r.delete(job("ready-1")), "ready-1", "data are missing"),
    "no hash, in pending": (lambda r: r.delete(job("held-1")), "held-1", "data are missing"),
    "a bare entry": (
        lambda r: r.xadd(keys.ready(QUEUE, "normal"), {"who": "me"}),
        None,
        "names no job",
    ),
    "no hash but a string": (
        lambda r: (r.delete(job("later-1")), r.set(job("later-1"), "x")),
        "later-1",
        "holds a string",
    ),
    "no state": (lambda r: r.hdel(job("later-1"), "state"), "later-1", "no state"),
    "an unknown state": (lambda r: r.hset(job("ready-1"), "state", "lost"), "ready-1", "unknown state"),
    "a wrong state": (lambda r: r.hset(job("later-1"), "state", "dead"), "later-1", "dead without a cause"),
    "no since": (lambda r: r.hdel(job("ready-1"), "since"), "ready-1", "since when"),
    "no spec": (lambda r: r.hdel(job("ready-1"), "spec"), "ready-1", "its spec"),
    "dead, no spec": (lambda r: r.hdel(job("dead-1"), "spec"), "dead-1", "its spec"),
    "a TTL on a live job": (lambda r: r.expire(job("later-1"), 9), "later-1", "would vanish"),
    "no TTL on a done job": (lambda r: r.persist(job("done-1")), "done-1", "stay for ever"),
    "a TTL on a set": (lambda r: r.expire(q("delayed"), 9), None, "would vanish"),
    "no TTL on a minute": (
        lambda r: r.hset(keys.stats(QUEUE, 1), "done", 1),
        None,
        "stay for ever",
    ),
    "delayed is a string": (
        lambda r: (r.delete(q("delayed")), r.set(q("delayed"), "x")),
        None,
        "holds a string where a zset belongs",
    ),
    "a lane is a list": (
        lambda r: (r.delete(keys.ready(QUEUE, "high")), r.rpush(keys.ready(QUEUE, "high"), "x")),
        None,
        "holds a list where a stream belongs",
    ),
    "a cause too many": (
        lambda r: r.hset(keys.cause(QUEUE, "lost"), "text", "lost"),
        None,
        "on no list",
    ),
    "a cause without data": (lambda r: r.zadd(q("causes"), {"bare": 5}), None, "has no data"),
    "a cause not listed": (lambda r: r.zrem(q("causes"), "boom"), "dead-1", "no known cause"),
    "failing miscounted": (
        lambda r: r.hincrby(keys.cause(QUEUE, "boom"), "failing", 3),
        None,
        "3 too many failing",
    ),
    "failing below 0": (
        lambda r: r.hset(keys.cause(QUEUE, "boom"), "failing", -4),
        None,
        "5 too few failing",
    ),
    "a stale unique key": (lambda r: r.set(keys.unique(QUEUE, "abc"), "dead-1"), "dead-1", "unique key"),
    "a unique key of nobody": (lambda r: r.set(keys.unique(QUEUE, "abc"), "never"), "never", "unique key"),
    "not on the index": (lambda r: r.srem(keys.QUEUES, QUEUE), None, "index of queues"),
    "a role for ever": (lambda r: r.set(keys.lease("mirror"), "me 5"), None, "stay for ever"),
}


@pytest.mark.damages("that is what it is about")
@pytest.mark.parametrize("what", DAMAGE)
def test_each_damage_is_found_named_and_mended(what: str, whole: Store, redis: Redis) -> None:
    damage, job_id, said = DAMAGE[what]
    damage(redis)

    found = errors(whole)
    assert any(said in each.what and each.job_id == job_id for each in found), found

    mended = [each for each in doctor.examine(server=False, mend=True, now_ms=whole.now_ms) if each.mended]
    assert any(said in each.what for each in mended), mended
    assert errors(whole) == []


@pytest.mark.damages("keeps what stood in the way")
def test_mend_puts_jobs_back_whose_set_was_of_a_wrong_type(whole: Store, redis: Redis) -> None:
    redis.delete(q("delayed"))
    redis.set(q("delayed"), "what somebody wrote")

    doctor.examine(server=False, mend=True, now_ms=whole.now_ms)

    assert sorted(f.ids_in(redis, JobState.DELAYED)) == ["failing-1", "later-1", "later-2"]
    [aside] = list(redis.scan_iter(match=q("corrupt_prefix") + "*"))
    assert redis.get(aside) == b"what somebody wrote"


def test_mend_gives_a_pending_job_without_lease_to_the_next_claim(
    whole: Store, redis: Redis, child: Child
) -> None:
    redis.zrem(q("pending"), "held-1")

    doctor.examine(server=False, mend=True, now_ms=whole.now_ms)
    child.claim(0)

    assert f.state(redis, "held-1") == "pending", "its owner lives: it keeps the job"
    assert child.ack(child.held["held-1"]) == ["ok"]


def test_a_job_that_died_without_data_is_dead_and_says_so(whole: Store, redis: Redis) -> None:
    redis.delete(job("later-1"))

    doctor.examine(server=False, mend=True, now_ms=whole.now_ms)

    assert f.job(redis, "later-1")["cause"] == "corrupt"
    assert errors(whole) == [], "what is known to be corrupt is not reported again"


@pytest.mark.parametrize("raw", [b"{", b"\xff\xfe", b"[]", b'{"a": 1}', b"[" * 5000])
def test_a_spec_that_cannot_be_read_is_reported(raw: bytes, store: Store, redis: Redis) -> None:
    f.seed_ready(store, "bad", spec=raw)

    [found] = errors(store)

    assert (found.queue, found.job_id) == (QUEUE, "bad")
    assert "can't be run" in found.what
    assert errors(store, specs=False) == []
    doctor.assert_each_job_in_one_place(now_ms=store.now_ms)


def test_assert_each_job_in_one_place_names_the_job(store: Store, redis: Redis) -> None:
    f.seed_ready(store, "here")
    redis.zadd(q("dead"), {"here": 5})

    with pytest.raises(AssertionError, match="mail/here: is ready and also in dead"):
        doctor.assert_each_job_in_one_place(now_ms=store.now_ms)

    redis.zrem(q("dead"), "here")


def test_what_heals_by_itself_is_a_warning(whole: Store, redis: Redis) -> None:
    redis.xgroup_destroy(keys.ready(QUEUE, Lane.NORMAL), keys.GROUP)

    assert errors(whole) == []
    # Makes the group again, and gives entries to their owners.
    Child(whole, "host:9:zz/1").register().claim(10)


def test_examine_beside_moving_jobs_finds_nothing(redis: Redis) -> None:
    """Whatever moves meanwhile: a finding would be a lie."""
    store = Store()
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(n: int) -> None:
        try:
            child = Child(store, f"host:{n}:cc/1").register()
            for i in itertools.count():
                if stop.is_set():
                    break
                f.seed_ready(store, *[f"{n}-{i}-{k}" for k in range(4)], spec=SPEC, unique=f"u{n}-{i}")
                jobs = child.take(4)
                child.settle(*[(f.retrying(job, delay_s=0), f.burying(job))[i % 2] for job in jobs])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    try:
        found = [finding for _ in range(5) for finding in doctor.examine(server=False)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert [str(each) for each in found if each.severity == "error"] == []


def test_a_server_that_evicts_is_a_warning(store: Store, redis: Redis) -> None:
    redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        found = doctor.examine(now_ms=store.now_ms)
    finally:
        redis.config_set("maxmemory-policy", "noeviction")
    assert any("maxmemory-policy is allkeys-lru" in each.what for each in found)
    assert all(each.severity == "warning" for each in found)
