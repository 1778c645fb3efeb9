"""The check that ends each engine test finds what it is there for, and the doctor finds the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queueops import doctor, keys
from queueops.states import JobState, Lane
from queueops.store import Store
from tests.factories import (
    QUEUE,
    Child,
    Clock,
    Redis,
    job,
    seed_dead,
    seed_delayed,
    seed_discarded,
    seed_pending,
    seed_ready,
)
from tests.one_place import examine

NORMAL = keys.ready(QUEUE, Lane.NORMAL)


def of(name: str) -> str:
    return keys.queue_key(QUEUE, name)


Damage = Callable[[Redis], object]
DAMAGES: dict[str, Damage] = {
    "a delayed job is in no set": lambda r: r.zrem(of("delayed"), "delayed"),
    "a delayed job is dead as well": lambda r: r.zadd(of("dead"), {"delayed": 1}),
    "a ready job's entry is gone": lambda r: r.xdel(NORMAL, job(r, "ready")["entry"].partition("/")[2]),
    "a ready job has two entries": lambda r: r.xadd(NORMAL, {"id": "ready"}),
    "a ready job names another entry": lambda r: r.hset(keys.job(QUEUE, "ready"), "entry", "normal/1-1"),
    "a pending job is under no lease": lambda r: r.zrem(of("pending"), "pending"),
    "a pending job's entry is nobody's": lambda r: r.xgroup_destroy(NORMAL, keys.GROUP),
    "a pending job is another's": lambda r: r.hset(keys.job(QUEUE, "pending"), "child", "nobody"),
    "a state that there is not": lambda r: r.hset(keys.job(QUEUE, "ready"), "state", "sleeping"),
    "a hash is gone": lambda r: r.delete(keys.job(QUEUE, "delayed")),
    "an id without a hash": lambda r: r.zadd(of("delayed"), {"ghost": 5}),
    "an entry without a hash": lambda r: r.xadd(NORMAL, {"id": "ghost"}),
    "a job that would vanish": lambda r: r.expire(keys.job(QUEUE, "ready"), 100),
    "a tombstone that never leaves": lambda r: r.persist(keys.job(QUEUE, "done")),
    "a cause that counts too many": lambda r: r.hincrby(keys.cause(QUEUE, "flaky"), "failing", 1),
    "a dead job under no cause": lambda r: r.zrem(keys.dead_of_cause(QUEUE, "boom"), "dead"),
    "a cause on no index": lambda r: r.zrem(of("causes"), "boom"),
    "a unique key of a job that has ended": lambda r: r.set(keys.unique(QUEUE, "u"), "done"),
    "a job without a spec": lambda r: r.hdel(keys.job(QUEUE, "ready"), "spec"),
}  # fmt: skip


def one_in_each_state(store: Store, clock: Clock, child: Child) -> None:
    seed_dead(child, "dead")
    child.retry(*seed_pending(child, "failing"), delay_s=60, cause="flaky")
    child.ack(*seed_pending(child, "done"))
    seed_pending(child, "pending")
    seed_delayed(store, "delayed", run_at_ms=clock.now_ms + 60_000)
    seed_discarded(store, "discarded")
    seed_ready(store, "ready")


def test_a_healthy_store_is_found_healthy(redis: Redis, store: Store, clock: Clock, child: Child) -> None:
    one_in_each_state(store, clock, child)

    assert examine(redis) == []
    doctor.assert_each_job_in_one_place(now_ms=store.now_ms)
    assert {job(redis, state)["state"] for state in JobState} == set(JobState)


@pytest.mark.damages("that is what it is about")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_is_found_damaged_by_both(
    redis: Redis, store: Store, clock: Clock, child: Child, damage: str
) -> None:
    one_in_each_state(store, clock, child)

    DAMAGES[damage](redis)

    assert examine(redis) != []
    found = doctor.examine(server=False, now_ms=store.now_ms)
    assert [f for f in found if f.severity == "error"], "the doctor sees nothing"
