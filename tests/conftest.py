"""What every test can ask for: the run's own Redis, flushed, and the environment of a child process."""

import os
from collections.abc import Iterator
from typing import cast

import pytest

from queueops import doctor
from queueops.connection import Connection, connection
from queueops.local_redis import Kind, LocalServer, find_binary
from queueops.store import Store, publish_defaults
from tests import settings as run
from tests.factories import Child, Clock, Redis
from tests.one_place import assert_each_job_in_one_place
from tests.proxy import Address, Proxy


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--on-redis", action="store_true", help="only what runs on the Redis of the run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--on-redis"):
        others = [each for each in items if "redis_server" not in getattr(each, "fixturenames", ())]
        config.hook.pytest_deselected(items=others)
        items[:] = [each for each in items if each not in set(others)]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "damages(why): leaves a store that the one-place check would refuse")


@pytest.fixture(scope="session")
def redis_server() -> Iterator[LocalServer]:
    """The Redis or Valkey of this run, on a Unix socket in its own folder."""
    kind = run.REDIS_CHOICE.removesuffix("-cluster")
    server = LocalServer(
        run.RUN_DIR / "redis",
        binary=find_binary(cast(Kind, kind) if kind else None),
        port=run.REDIS_PORT,
        unix_socket=run.REDIS_SOCKET,
        cluster=run.REDIS_PORT is not None,
        options={"appendonly": "no"},
    )
    with server:
        yield server


@pytest.fixture
def redis(redis_server: LocalServer, request: pytest.FixtureRequest) -> Iterator[Redis]:
    """A bytes client of the run's Redis, emptied; at the end each job must be in exactly one place."""
    redis_server.start()  # does nothing unless a test killed it
    connection()  # the client of the code under test; this one is the test's own, and plain on a Cluster too
    with redis_server.client() as client:
        client.flushall()
        yield client
        if request.node.get_closest_marker("damages") is None:
            assert_each_job_in_one_place(client)
            clock = request.node.funcargs.get("clock")
            doctor.assert_each_job_in_one_place(now_ms=str(clock.now_ms) if clock else "")


@pytest.fixture
def clock(redis: Redis) -> Clock:
    """The time of `store`: real at first, and then still until the test moves it."""
    seconds, us = redis.time()
    return Clock(seconds * 1000 + us // 1000)


@pytest.fixture
def store(clock: Clock) -> Store:
    """The engine on the run's Redis, with default settings, whose time is `clock`."""
    return clock.drive(Store(publish=publish_defaults))


@pytest.fixture
def child(store: Store) -> Child:
    """A registered child."""
    return Child(store, "host:1:aa/1").register()


@pytest.fixture
def other(store: Store) -> Child:
    """A registered child of another worker."""
    return Child(store, "host:2:bb/1").register()


@pytest.fixture
def proxy(redis_server: LocalServer, redis: Redis) -> Iterator[Proxy]:
    """A proxy before the run's Redis, that loses what a test asks it to."""
    port = redis_server.port
    server: Address = run.REDIS_SOCKET if port is None else ("127.0.0.1", port)
    with Proxy(server, run.RUN_DIR) as between:
        yield between


@pytest.fixture
def lossy(clock: Clock, proxy: Proxy) -> Store:
    """The engine behind `proxy`."""
    return clock.drive(Store(Connection(proxy.url), publish=publish_defaults))


@pytest.fixture
def site_env() -> dict[str, str]:
    """The environment in which a child process finds this run's Redis and database."""
    return {**os.environ, "DJANGO_SETTINGS_MODULE": "dashboard.settings"}


@pytest.fixture(scope="session")
def django_db_modify_db_settings_parallel_suffix() -> None:
    """Leave names alone: `tests.settings` gives each process of a parallel run a folder of its own."""
