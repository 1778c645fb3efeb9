"""/healthz and /readyz: what an orchestrator is told, also when a server hangs."""

import os
import signal
import time
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from django.test import Client
from redis import Redis

from queueops.local_redis import LocalServer
from tests.dashboard.conftest import Site


def ready(site: Site) -> tuple[int, str]:
    """Status and body of /readyz, asked as a probe does: without a login."""
    try:
        with urlopen(f"{site.url}readyz", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def frozen_redis(redis: Redis, redis_server: LocalServer) -> Iterator[None]:
    """The run's Redis, alive and silent."""
    assert redis_server.process is not None
    os.kill(redis_server.process.pid, signal.SIGSTOP)
    yield
    os.kill(redis_server.process.pid, signal.SIGCONT)


def test_healthz_needs_neither_login_nor_redis(client: Client) -> None:
    answer = client.get("/healthz")

    assert (answer.status_code, answer.content) == (200, b"ok\n")
    assert "no-store" in answer["Cache-Control"]
    assert client.head("/healthz").status_code == 200
    assert client.post("/healthz").status_code == 405


def test_readyz_says_that_both_answer(site: Site) -> None:
    assert ready(site) == (200, '{"redis": "ok", "database": "ok"}')


def test_readyz_without_redis_is_503_and_names_it(site: Site, redis_server: LocalServer) -> None:
    redis_server.kill()
    try:
        status, body = ready(site)
    finally:
        redis_server.start()

    assert status == 503
    assert '"redis": "ConnectionError"' in body
    assert '"database": "ok"' in body
    assert ready(site)[0] == 200


def test_probes_answer_in_time_when_redis_hangs(site: Site, frozen_redis: None) -> None:
    for _ in range(3):  # one question at a time: a probe every second does not pile up threads
        started = time.monotonic()
        status, body = ready(site)
        assert time.monotonic() - started < 4
        assert (status, '"database": "ok"' in body) == (503, True)
        assert "no answer within 2 s" in body
    with urlopen(f"{site.url}healthz", timeout=2) as answer:
        assert answer.status == 200
