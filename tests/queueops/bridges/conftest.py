"""Two workers for one set of tasks: Celery's own, and QueueOps'. Both on a Redis of their own, which no
test empties, so that they serve a whole run of tests. And a fleet of Celery workers that run jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pytest_django import Settings

from queueops import doctor, keys
from queueops.job import new_job_id
from queueops.local_redis import LocalServer, find_binary
from tests.queueops.bridges.fleet import LEASE_S, QUEUE, Fleet, begun
from tests.queueops.bridges.ground import FOLDER, SOCKET, Ground, Started, eventually, start


@pytest.fixture(scope="session")
def ground(django_db_setup: None) -> Iterator[Ground]:
    """A Redis for Celery and for QueueOps."""
    folder, socket = FOLDER, SOCKET
    binary = find_binary("redis")
    with LocalServer(
        folder / "redis", binary=binary, port=None, unix_socket=socket, options={"appendonly": "no"}
    ) as server:
        env = {
            **os.environ,
            "REDIS_URL": f"unix://{socket}?db=0",
            "DJANGO_SETTINGS_MODULE": "tests.queueops.bridges.no_retries",
            "QUEUEOPS_HANDLERS": "tests.queueops.bridges.queue_app,tests.queueops.bridges.django_cases",
            "PYTHONPATH": os.getcwd(),
        }
        yield Ground(server, folder, env)


@pytest.fixture(scope="session")
def celery_worker(ground: Ground) -> Iterator[Started]:
    """Celery's own worker, of two processes."""
    worker = start(
        ground.folder / "celery.log", ground.env,
        "-m", "celery", "-A", "tests.queueops.bridges.plain_app", "worker", "-c", "2", "-O", "fair",
        "--without-mingle", "--without-gossip", "--loglevel", "INFO", "-n", "plain@%h",
    )  # fmt: skip
    eventually(lambda: " ready." in worker.log, what=lambda: worker.log)
    yield worker
    worker.stop()


@pytest.fixture(scope="session")
def queue_worker(ground: Ground) -> Iterator[Started]:
    """A worker of QueueOps, whose default policy retries nothing, as Celery does."""
    worker = start(
        ground.folder / "runworkers.log", ground.env,
        "manage.py", "runworkers", "--processes", "1", "--concurrency", "4", "--no-housekeeping",
    )  # fmt: skip
    yield worker
    worker.stop()


@pytest.fixture
def here(ground: Ground, settings: Settings) -> Ground:
    """Callers in this process use the same Redis."""
    settings.QUEUEOPS = {**settings.QUEUEOPS, "REDIS_URL": ground.url}
    return ground


@pytest.fixture
def key() -> str:
    """What a test's notes are found by."""
    return new_job_id()


@pytest.fixture(scope="module")
def _fleet(ground: Ground) -> Iterator[Fleet]:
    with begun(ground) as fleet:
        yield fleet


@pytest.fixture
def fleet(_fleet: Fleet, settings: Settings, key: str) -> Iterator[Fleet]:
    """A queue without jobs, with a short lease; whole() gives it its workers."""
    settings.QUEUEOPS = {**settings.QUEUEOPS, "REDIS_URL": _fleet.ground.url, "LEASE_S": LEASE_S}
    _fleet.store.register(QUEUE)
    _fleet.clear_broker()
    _fleet.connection.client.xtrim(keys.queue_key(QUEUE, "events"), maxlen=0, approximate=False)
    yield _fleet
    for each in (key, f"{key}-2"):  # of a test that failed: the next one shall not see its jobs
        _fleet.ground.let_go(each)
    eventually(_fleet.is_idle, what=lambda: f"{_fleet.inspector.counts(QUEUE)}\n{_fleet.logs()}", within=60)
    findings = doctor.examine(_fleet.connection, server=False)
    assert [str(finding) for finding in findings if finding.severity == "error"] == []
