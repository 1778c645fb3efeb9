"""What every test can ask for: the run's own Redis, flushed, and the environment of a child process."""

import os
from collections.abc import Iterator
from typing import cast

import pytest
from redis import Redis

from dashboard.demo.redis_server import Kind, LocalServer, find_binary
from queueops.connection import connection
from tests import settings as run


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
def redis(redis_server: LocalServer) -> Redis:
    """A bytes client of the run's Redis, emptied."""
    redis_server.start()  # does nothing unless a test killed it
    client = connection().client
    client.flushall()
    return client


@pytest.fixture
def site_env() -> dict[str, str]:
    """The environment in which a child process finds this run's Redis and database."""
    return {**os.environ, "DJANGO_SETTINGS_MODULE": "dashboard.settings"}
