"""The client for the configured URL, and scripts on it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import SentinelConnectionPool

from queueops import keys
from queueops.connection import Connection, connection, masked
from queueops.errors import ConfigError, StoreFull, StoreUnavailable, WrongKeyType
from queueops.local_redis import LocalServer
from queueops.scripts import script
from queueops.states import JobState
from queueops.store import Store, publish_defaults
from tests.factories import QUEUE, Child, Redis, ids_in, seed_ready, state


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://:secret@h:6379/0", "redis://:***@h:6379/0"),
        ("rediss://me:s%40cret@h/1?x=1", "rediss://me:***@h/1?x=1"),
        ("sentinel://me:secret@a:1,b:2/main/0", "sentinel://me:***@a:1,b:2/main/0"),
        ("redis+cluster://:secret@h:7000", "redis+cluster://:***@h:7000"),
        ("unix:///tmp/r.sock?db=0", "unix:///tmp/r.sock?db=0"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert masked(url) == shown


@pytest.mark.parametrize("url", ["nonsense", "http://h", "redis://h:port", "sentinel://h:26379/"])
def test_a_url_that_is_none_is_one_line(url: str) -> None:
    with pytest.raises(ConfigError, match=r"REDIS_URL "):
        Connection(url).client  # noqa: B018


def test_no_server_is_one_line_that_hides_the_password() -> None:
    with pytest.raises(StoreUnavailable, match=r"no Redis at redis://:\*\*\*@127\.0\.0\.1:1/0") as refused:
        Connection("redis://:secret@127.0.0.1:1/0").run(script("lease"), "k", holder="a", ttl_ms=1)
    assert "secret" not in str(refused.value)


def test_no_cluster_is_the_same_line() -> None:
    with pytest.raises(StoreUnavailable, match=r"no Redis at redis\+cluster://127\.0\.0\.1:1"):
        Connection("redis+cluster://127.0.0.1:1").run(script("lease"), "k", holder="a", ttl_ms=1)


def test_a_sentinel_url_names_hosts_service_login_and_database() -> None:
    url = "sentinel://me:secret@a:26379,b/main/3?sentinel_password=other"

    pool = Connection(url).client.connection_pool

    assert isinstance(pool, SentinelConnectionPool)
    assert pool.service_name == "main"
    options = pool.connection_kwargs
    assert (options["username"], options["password"], options["db"]) == ("me", "secret", 3)
    watchers = [s.connection_pool.connection_kwargs for s in pool.sentinel_manager.sentinels]
    assert [(w["host"], w["port"]) for w in watchers] == [("a", 26379), ("b", 26379)]
    assert {w["password"] for w in watchers} == {"other"}


def test_a_server_below_6_2_is_refused_with_one_clear_line(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis, "info", lambda *section: {"redis_version": "6.0.16"})

    with pytest.raises(ConfigError, match=r"Redis 6\.0\.16 at .* is too old: 6\.2 or newer is needed"):
        Connection("redis://h:6379/0", client=redis).run(script("lease"), "k", holder="a", ttl_ms=1)


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (OutOfMemoryError("used memory > 'maxmemory'", status_code="OOM"), StoreFull, "at its maxmemory"),
        (ResponseError("Error running script: @user_script: 7: -OOM command not allowed", status_code="ERR"),
         StoreFull, "at its maxmemory"),
        (ReadOnlyError("can't write", status_code="READONLY"), StoreUnavailable, "can't write"),
        (ResponseError("Error running script: -READONLY You can't write", status_code="ERR"),
         StoreUnavailable, "can't write"),
        (MasterDownError("Link with MASTER is down", status_code="MASTERDOWN"), StoreUnavailable, "is down"),
        (ClusterDownError("Hash slot not served", status_code="CLUSTERDOWN"), StoreUnavailable, "not served"),
        (NoPermissionError("no permissions", status_code="NOPERM"), StoreUnavailable, "no permissions"),
        (BusyLoadingError("loading", status_code="LOADING"), StoreUnavailable, "loading"),
        (ResponseError("BUSY Redis is busy running a script"), StoreUnavailable, "busy"),
        (ResponseError("MISCONF Redis is configured to save RDB snapshots"), StoreUnavailable, "MISCONF"),
        (ResponseError("NOREPLICAS Not enough good replicas"), StoreUnavailable, "NOREPLICAS"),
        (RedisClusterException("no node can be reached"), StoreUnavailable, "no node"),
        (RedisTimeoutError("Timeout reading"), StoreUnavailable, "Timeout"),
        (RedisTimeoutError(), StoreUnavailable, "TimeoutError"),
        (ResponseError("QUEUEOPS-WRONGTYPE q holds a string where a zset belongs"), WrongKeyType,
         "^q holds a string where a zset belongs"),
        (ResponseError("WRONGTYPE Operation against a key"), WrongKeyType, "manage.py doctor"),
        (ResponseError("unknown command", status_code="ERR"), ResponseError, "unknown command"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)  # fmt: skip
def test_an_error_reads_as_what_it_means(
    redis: Redis, error: Exception, expected: type[Exception], text: str
) -> None:
    with pytest.raises(expected, match=text):
        raise connection().translated(error)


def test_h05_a_fork_after_use_shares_no_socket(redis: Redis, store: Store) -> None:
    seed_ready(store, "before")
    pids = []
    for n in range(4):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                mine = Child(Store(publish=publish_defaults), f"host:1:aa/{n}").register()
                for i in range(200):
                    assert seed_ready(mine.store, f"{n}-{i}") == [f"{n}-{i}"]
                    assert mine.store.look(QUEUE, mine.name, f"{n}-{i}", 1) == "lost"
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)

    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    seed_ready(store, "after")
    assert len(ids_in(redis, JobState.READY)) == 802


def test_threads_share_a_connection_and_no_answer_gets_to_another(redis: Redis, store: Store) -> None:
    store.register(QUEUE)
    wrong: list[str] = []

    def work(n: int) -> None:
        for i in range(200):
            term = store.take_lease(f"role{n}", f"w{n}-{i}", 30)
            again = store.take_lease(f"role{n}", f"w{n}-{i}", 30)
            if not term or term != again:
                wrong.append(f"{n}-{i}: {term}, {again}")
            store.give_lease(f"role{n}", f"w{n}-{i}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert wrong == []


def test_threads_that_come_and_go_leave_no_socket_and_use_nothing_up(redis: Redis, store: Store) -> None:
    """A web server has a thread a request: redis-py's pool counts what it made, and ends at 100."""
    refused: list[Exception] = []
    others = len(redis.client_list())

    def ask() -> None:
        try:
            store.enqueue(QUEUE, [])
            store.connection.run(script("lease"), "k", holder="a", ttl_ms=60_000)
        except StoreUnavailable as error:
            refused.append(error)

    for _ in range(250):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()

    assert refused == []
    assert len(redis.client_list()) < others + 20


def test_a_blocking_client_outlasts_its_block_and_sends_nothing_twice(redis: Redis) -> None:
    client: Redis = connection().blocking_client(1.2)
    key = keys.queue_key(QUEUE, "wake")

    try:
        assert client.blpop([key], timeout=1.1) is None
        if connection().is_cluster:  # who waits uses the sockets of its nodes, which send nothing twice
            client = client.get_redis_connection(client.get_default_node())
        options = client.connection_pool.connection_kwargs
        assert options["socket_timeout"] > 1.2
        assert connection().is_cluster or options["retry"].get_retries() == 0
    finally:
        client.close()


def test_replies_are_bytes_whatever_they_hold(redis: Redis) -> None:
    redis.set("x", b"\xff\xfe")

    assert connection().client.get("x") == b"\xff\xfe"


def test_the_shared_connection_is_one_for_its_url(redis: Redis) -> None:
    assert connection() is connection()


def test_an_interrupted_call_does_not_leave_its_answer_to_the_next(
    redis: Redis, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, or a soft time limit raised into the thread, between the command and its answer."""
    if connection().is_cluster:
        pytest.skip("redis-py's own path there")
    store.take_lease("first", "w1", 30)
    own = connection()._own.socket
    real = own.read_response

    def interrupted() -> None:
        monkeypatch.setattr(own, "read_response", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(own, "read_response", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.take_lease("second", "w1", 30)

    assert store.look(QUEUE, "c", "a", 1) == "lost"


def test_a_server_that_restarts_is_used_again_by_the_same_connection(
    tmp_path: Path, redis_server: LocalServer
) -> None:
    socket = tmp_path / "r.sock"
    server = LocalServer(tmp_path / "d", binary=redis_server.binary, port=None, unix_socket=socket)
    with server:
        store = Store(Connection(server.url), publish=publish_defaults)
        for n in range(3):
            seed_ready(store, f"j{n}")
            server.stop()
            server.start()
        assert store.enqueue(QUEUE, []) == []
        seed_ready(store, "last")
        with server.client() as client:
            assert len(ids_in(client, JobState.READY)) == 4


def test_a_cluster_whose_node_is_down_is_unavailable_as_any_server_and_used_again_when_it_is_back(
    tmp_path: Path, redis_server: LocalServer
) -> None:
    with LocalServer(tmp_path / "d", binary=redis_server.binary, cluster=True) as server:
        store = Store(Connection(server.url), publish=publish_defaults)
        seed_ready(store, "before")
        server.kill()

        with pytest.raises(RedisConnectionError):  # what `except RedisError` catches
            store.connection.client.get("x")
        with pytest.raises(StoreUnavailable, match="no Redis at"):
            seed_ready(store, "a")
        with pytest.raises(StoreUnavailable, match="no Redis at"):
            seed_ready(store, *[f"j{n}" for n in range(300)])

        server.start()
        seed_ready(store, "after")
        with server.client() as client:
            assert state(client, "after") == "ready"
        store.connection.client.close()
