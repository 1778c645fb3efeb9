"""What a server does to its clients: scripts forgotten, groups and data gone, memory full, restarts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queueops import keys
from queueops.connection import Connection
from queueops.errors import StoreFull, StoreUnavailable
from queueops.job import new_job_id
from queueops.local_redis import LocalServer
from queueops.states import JobState, Lane
from queueops.store import Outcome, Store, publish_defaults
from tests.factories import (
    PERSON,
    QUEUE,
    Child,
    Clock,
    Redis,
    counter,
    holders,
    ids_in,
    job,
    new,
    seed_dead,
    seed_delayed,
    seed_discarded,
    seed_pending,
    seed_ready,
    state,
)
from tests.one_place import examine
from tests.proxy import Proxy

NORMAL = keys.ready(QUEUE, Lane.NORMAL)


# -- b01: scripts that the server forgot -----------------------------------------------------------

Call = Callable[[Store, Clock, Child], object]
#: Each way into Redis, on a store that has one job in each state.
CALLS: dict[str, Call] = {
    "enqueue": lambda store, clock, child: seed_ready(store, "new"),
    "enqueue many": lambda store, clock, child: seed_ready(store, *[new_job_id() for _ in range(300)]),
    "renew": lambda store, clock, child: store.renew(QUEUE, [child.name]),
    "claim": lambda store, clock, child: child.claim(1),
    "settle": lambda store, clock, child: child.retry(*child.held.values()),
    "exchange": lambda store, clock, child: store.exchange(
        QUEUE, child.name, [Outcome.release(j) for j in child.held.values()], request=9, limit=1
    ),
    "hand_back": lambda store, clock, child: child.die(),
    "nudge": lambda store, clock, child: store.nudge(QUEUE, child.name),
    "look": lambda store, clock, child: store.look(QUEUE, child.name, "pending", 1, "1/2"),
    "requeue": lambda store, clock, child: store.requeue(QUEUE, ["dead"], actor=PERSON),
    "run_now": lambda store, clock, child: store.run_now(QUEUE, ["delayed"], actor=PERSON),
    "reschedule": lambda store, clock, child: store.reschedule(
        QUEUE, ["delayed"], run_at_ms=clock.now_ms + 9000, actor=PERSON
    ),
    "cancel": lambda store, clock, child: store.cancel(QUEUE, ["pending"], actor=PERSON),
    "edit": lambda store, clock, child: store.edit(QUEUE, "dead", b"{}", actor=PERSON),
    "discard": lambda store, clock, child: store.discard(QUEUE, ["dead"], actor=PERSON),
    "restore": lambda store, clock, child: store.restore(QUEUE, ["discarded"], actor=PERSON),
    "purge": lambda store, clock, child: store.purge(QUEUE, ["discarded"], actor=PERSON),
    "prune": lambda store, clock, child: store.prune(QUEUE),
    "sweep": lambda store, clock, child: store.sweep(QUEUE),
    "publish": lambda store, clock, child: store.publish(QUEUE, 5, {"concurrency": 9}),
    "take_lease": lambda store, clock, child: store.take_lease("mirror", "w1", 9),
}


def one_in_each_state(store: Store, clock: Clock, child: Child) -> None:
    seed_dead(child, "dead")
    seed_discarded(store, "discarded")
    child.held.clear()
    seed_pending(child, "pending")
    seed_delayed(store, "delayed", run_at_ms=clock.now_ms + 60_000)
    seed_ready(store, "ready")


@pytest.mark.parametrize("call", CALLS)
def test_b01_every_call_succeeds_at_once_after_script_flush(
    redis: Redis, store: Store, clock: Clock, child: Child, call: str
) -> None:
    one_in_each_state(store, clock, child)
    redis.script_flush()

    answer = CALLS[call](store, clock, child)

    assert answer not in (["missing"], ["wrong:dead"])


def test_b01_the_half_of_a_round_trip_that_was_applied_is_not_applied_again(
    redis: Redis, store: Store, child: Child
) -> None:
    """In a pipeline the script that is still known has run when the other answers NOSCRIPT."""
    (a,) = seed_pending(child, "a")
    seed_ready(store, "b")
    redis.script_flush()
    child.claim(0)  # loads claim and not settle

    words, claimed = store.exchange(
        QUEUE, child.name, [Outcome.ack(a, handler="tests.work")], request=child.request + 1, limit=1
    )

    assert (words, [j.id for j in claimed.jobs]) == (["ok"], ["b"])
    assert (counter(redis, "done"), counter(redis, "claimed")) == (1, 2)


def test_b01_a_flush_in_the_middle_of_a_bulk_enqueue_loses_and_doubles_nothing(
    redis: Redis, store: Store
) -> None:
    ids = [new_job_id() for _ in range(5000)]
    stop = threading.Event()

    def flush() -> None:
        with Connection().client as client:
            while not stop.is_set():
                client.script_flush()

    flusher = threading.Thread(target=flush)
    flusher.start()
    try:
        store.enqueue(QUEUE, [new(job_id) for job_id in ids])
    finally:
        stop.set()
        flusher.join(10)

    assert sorted(ids_in(redis, JobState.READY)) == sorted(ids)


# -- b07: groups, streams and data that vanish -----------------------------------------------------


def test_b07_a_lost_group_is_made_again_from_the_start(
    redis: Redis, store: Store, child: Child, other: Child
) -> None:
    jobs = seed_pending(child, "runs")
    redis.xgroup_destroy(NORMAL, keys.GROUP)
    seed_ready(store, *[f"j{n}" for n in range(5)])

    assert [j.id for j in other.take(10)] == [f"j{n}" for n in range(5)]

    assert holders(redis) == {child.name: 1, other.name: 5}  # and what ran goes on
    assert child.ack(*jobs) == ["ok"]


def test_b07_a_deleted_stream_is_made_again_and_what_comes_next_runs(
    redis: Redis, store: Store, child: Child, other: Child
) -> None:
    jobs = seed_pending(child, "runs")
    redis.delete(NORMAL)
    # Not in the same millisecond: a new stream's first entry would have the id of the old one's.
    redis.execute_command("BLPOP", "nobody's", 0.002)

    seed_ready(store, *[f"j{n}" for n in range(5)])

    assert [j.id for j in other.take(10)] == [f"j{n}" for n in range(5)]
    assert child.ack(*jobs) == ["ok"]


def test_b07_a_stream_deleted_while_nothing_waits_costs_no_error(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_pending(child, "a")
    redis.delete(NORMAL)

    assert child.claim(5).jobs == []
    assert child.retry(*child.held.values()) == ["ok"]


def test_b07_after_flushall_the_queue_is_registered_and_goes_on(
    redis: Redis, store: Store, child: Child
) -> None:
    jobs = seed_pending(child, "before")
    redis.flushall()

    seed_ready(store, *[f"j{n}" for n in range(5)])

    assert child.ack(*jobs) == ["lost"]  # late, and counted
    assert child.claim(5).word == "unregistered"
    assert [j.id for j in child.register().take(10)] == [f"j{n}" for n in range(5)]


@pytest.mark.parametrize("call", CALLS)
def test_b07_every_call_survives_flushall(
    redis: Redis, store: Store, clock: Clock, child: Child, call: str
) -> None:
    one_in_each_state(store, clock, child)
    redis.flushall()

    CALLS[call](store, clock, child)

    assert redis.sismember(keys.QUEUES, QUEUE) or call in {"nudge", "look", "take_lease"}


def test_an_epoch_lasts_as_long_as_the_data(redis: Redis, store: Store) -> None:
    first = store.epoch()
    assert store.epoch() == first

    redis.flushall()

    assert store.epoch() != first


def test_settings_that_vanish_as_soon_as_they_are_published_are_one_clear_error(redis: Redis) -> None:
    store = Store(publish=lambda store, queue: None)

    with pytest.raises(StoreUnavailable, match="settings of queue mail vanish"):
        seed_ready(store, "a")


# -- i01: memory full ------------------------------------------------------------------------------


@pytest.fixture
def full(redis: Redis) -> Iterator[Callable[[], None]]:
    """Call it to set `maxmemory` below what is used."""

    def fill() -> None:
        redis.config_set("maxmemory", 1_000_000)

    yield fill
    redis.config_set("maxmemory", 0)


def test_i01_enqueue_is_refused_clearly_and_whole(
    redis: Redis, store: Store, clock: Clock, full: Callable[[], None]
) -> None:
    store.register(QUEUE)
    full()

    with pytest.raises(StoreFull, match="maxmemory"):
        store.enqueue(QUEUE, [new("a", unique="u"), new("b", run_at_ms=clock.now_ms + 5)])
    with pytest.raises(StoreFull, match="maxmemory"):
        store.enqueue(QUEUE, [new(new_job_id()) for _ in range(300)])

    assert [key for key in redis.scan_iter() if b":job:" in key or b":unique:" in key] == []


def test_i01_a_queue_that_is_new_at_maxmemory_is_refused_clearly(
    redis: Redis, store: Store, full: Callable[[], None]
) -> None:
    full()

    with pytest.raises(StoreFull, match="maxmemory"):
        store.register("brand-new")
    with pytest.raises(StoreFull, match="maxmemory"):
        store.renew("brand-new", ["host:1:aa/1"])


def test_i01_what_is_there_runs_to_its_end(
    redis: Redis, store: Store, clock: Clock, full: Callable[[], None]
) -> None:
    seed_delayed(store, *[f"due{n:04}" for n in range(1000)], run_at_ms=clock.now_ms + 1)
    child = Child(store, "host:1:aa/1").register()
    full()
    clock.advance(1)

    done = 0
    for _ in range(30):
        assert child.register().claim(0).word == "ok"
        jobs = child.take(100)
        if not jobs:
            break
        store.settle(QUEUE, child.name, [Outcome.start(j) for j in jobs])
        child.ack(*jobs)
        done += len(jobs)

    assert done == 1000


#: What must run at maxmemory, each from its own first write.
RUNS_WHEN_FULL = {
    "renew", "claim", "settle", "exchange", "hand_back", "nudge", "look", "publish", "take_lease",
    "discard", "purge",
}  # fmt: skip


@pytest.mark.parametrize("call", sorted(RUNS_WHEN_FULL))
def test_i01_claim_renew_settle_release_and_making_room_run_at_maxmemory(
    redis: Redis, store: Store, clock: Clock, child: Child, full: Callable[[], None], call: str
) -> None:
    one_in_each_state(store, clock, child)
    child.claim(0)
    full()

    CALLS[call](store, clock, child)


@pytest.mark.parametrize("settle", ["ack", "retry", "snooze", "release", "bury", "discard"])
def test_i01_every_way_to_settle_runs_at_maxmemory(
    child: Child, full: Callable[[], None], settle: str
) -> None:
    jobs = seed_pending(child, "a")
    full()

    assert getattr(child, settle)(*jobs) == ["ok"]


@pytest.mark.parametrize("call", sorted(CALLS.keys() - RUNS_WHEN_FULL))
def test_i01_what_is_refused_at_maxmemory_is_refused_whole(
    redis: Redis, store: Store, clock: Clock, child: Child, full: Callable[[], None], call: str
) -> None:
    one_in_each_state(store, clock, child)
    full()

    try:
        CALLS[call](store, clock, child)
    except StoreFull:
        pass

    assert examine(redis) == []


def test_d12_a_last_failure_while_redis_refuses_writes_is_settled_when_it_takes_them(
    redis: Redis, redis_server: LocalServer, store: Store, child: Child
) -> None:
    jobs = seed_pending(child, "a")
    redis.execute_command("CLIENT", "PAUSE", 400, "WRITE")

    assert child.bury(*jobs) == ["ok"]  # it waits as long as the socket does, and repeats are safe

    assert ids_in(redis, JobState.DEAD) == ["a"]


# -- a server that is away, or another -------------------------------------------------------------


@pytest.fixture
def second(tmp_path: Path, redis_server: LocalServer) -> Iterator[LocalServer]:
    """Another server of the same kind."""
    socket = tmp_path / "r.sock"
    with LocalServer(
        tmp_path / "data",
        binary=redis_server.binary,
        port=None,
        unix_socket=socket,
        options={"appendonly": "yes", "appendfsync": "always"},
    ) as server:
        yield server


@pytest.fixture
def elsewhere(second: LocalServer, clock: Clock) -> Store:
    """The engine on `second`."""
    return clock.drive(Store(Connection(second.url), publish=publish_defaults))


def test_no_redis_is_one_line_with_the_url(tmp_path: Path) -> None:
    store = Store(Connection(f"unix:///{tmp_path}/nothing.sock"))

    with pytest.raises(StoreUnavailable, match=r"no Redis at unix:///.*nothing.sock"):
        store.renew(QUEUE, ["host:1:aa/1"])


def test_g1_a_restart_with_aof_always_loses_nothing(
    second: LocalServer, elsewhere: Store, clock: Clock
) -> None:
    child = Child(elsewhere, "host:1:aa/1")
    one_in_each_state(elsewhere, clock, child)

    second.kill()
    with pytest.raises(StoreUnavailable):
        elsewhere.enqueue(QUEUE, [new("refused")])
    second.start()

    with second.client() as client:
        assert examine(client) == []
        assert {name: job(client, name)["state"] for name in JobState if name is not JobState.DONE} == {
            state: state for state in JobState if state is not JobState.DONE
        }
        assert child.ack(*child.held.values()) == ["ok"]
        assert job(client, "refused") == {}


def test_b01_every_call_succeeds_at_once_after_a_restart(
    second: LocalServer, elsewhere: Store, clock: Clock
) -> None:
    child = Child(elsewhere, "host:1:aa/1")
    one_in_each_state(elsewhere, clock, child)

    for call in ("enqueue", "claim", "exchange", "enqueue many", "requeue", "sweep"):
        second.kill()
        second.start()
        CALLS[call](elsewhere, clock, child)

    with second.client() as client:
        assert examine(client) == []


def test_b05_connections_that_are_cut_three_times_are_only_a_delay(
    redis: Redis, lossy: Store, proxy: Proxy
) -> None:
    child = Child(lossy, "host:1:aa/1")
    for n in range(3):
        child.register()
        proxy.cut()
        seed_ready(lossy, f"j{n}")
        proxy.cut()
        child.ack(*child.take())
        proxy.cut()

    assert [state(redis, f"j{n}") for n in range(3)] == ["done"] * 3


def test_i05_a_replica_s_refusal_lets_go_of_its_sockets_and_the_new_primary_is_used(
    redis: Redis, second: LocalServer, lossy: Store, proxy: Proxy
) -> None:
    """As when an address moves to another host: open sockets, of both kinds, still lead to the old one."""
    if redis.info("cluster")["cluster_enabled"]:
        pytest.skip("a Cluster node takes no REPLICAOF; there MOVED does this")
    lossy.register(QUEUE)
    seed_ready(lossy, "before")
    many = [new_job_id() for _ in range(300)]
    seed_ready(lossy, *many)
    redis.replicaof("127.0.0.1", 1)
    try:
        with pytest.raises(StoreUnavailable, match="read only replica"):
            seed_ready(lossy, "a")
        with pytest.raises(StoreUnavailable, match="read only replica"):
            seed_ready(lossy, *many, "a")
        assert second.unix_socket is not None
        proxy.move(second.unix_socket)

        seed_ready(lossy, "a")
        seed_ready(lossy, *many)
    finally:
        redis.replicaof("no", "one")

    with second.client() as client:
        assert len(ids_in(client, JobState.READY)) == 301


def test_a_server_without_enough_replicas_is_unavailable_and_no_bug_of_ours(
    redis: Redis, store: Store
) -> None:
    store.register(QUEUE)
    if redis.info("server")["redis_version"] < "7":
        pytest.skip("before Redis 7 scripts write all the same")
    redis.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
            seed_ready(store, "a")
    finally:
        redis.config_set("min-replicas-to-write", 0)


# -- nothing left behind ---------------------------------------------------------------------------


def test_i13_when_all_is_done_the_lanes_are_empty_and_the_memory_is_back(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    for lane in (Lane.HIGH, Lane.NORMAL, Lane.LOW):
        seed_ready(store, f"warm-{lane}", lane=lane)
    child.ack(*child.take())
    before = redis.info("memory")["used_memory"]

    for batch in range(50):
        ids = [f"{batch}-{n}" for n in range(100)]
        seed_ready(store, *ids, lane=(Lane.HIGH, Lane.NORMAL, Lane.LOW)[batch % 3])
        jobs = child.register().take(100)
        child.ack(*jobs[:40])
        child.retry(*jobs[40:60], delay_s=0)
        child.bury(*jobs[60:80])
        child.discard(*jobs[80:])
        store.discard(QUEUE, [j.id for j in jobs[60:80]], actor=PERSON)
        store.purge(QUEUE, [j.id for j in jobs[60:]], actor=PERSON)
        child.ack(*child.take(100))
    for key in redis.scan_iter(count=1000):
        if b":job:" in key:
            assert redis.pttl(key) > 0
            redis.delete(key)  # as its TTL does
    redis.delete(keys.queue_key(QUEUE, "events"))  # as the mirror does

    assert all(redis.xlen(keys.ready(QUEUE, lane)) == 0 for lane in Lane)
    assert set(holders(redis).values()) == {0}
    assert redis.info("memory")["used_memory"] < before * 1.1 + 300_000


def test_i03_no_key_of_a_job_that_is_not_done_carries_a_ttl(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    one_in_each_state(store, clock, child)

    expiring = {key for key in redis.scan_iter() if redis.pttl(key) >= 0}

    assert all(b":stats:" in key for key in expiring)
