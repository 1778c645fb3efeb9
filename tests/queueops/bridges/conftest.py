"""Two workers for one set of tasks: Celery's own, and QueueOps'. Both on a Redis of their own, which no
test empties, so that they serve a whole run of tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from dashboard.demo.redis_server import LocalServer, find_binary
from queueops.job import new_job_id
from tests import settings as run
from tests.queueops.bridges import cases

FOLDER, _SOCKET = run.RUN_DIR / "cases", run.RUN_DIR / "cases.sock"
FOLDER.mkdir(exist_ok=True)
os.environ |= {"NOTES_DIR": str(FOLDER), "CASES_SOCKET": str(_SOCKET)}  # before the apps are imported


def eventually(condition: Callable[[], Any], *, within: float = 20.0, what: Any = "") -> Any:
    """Return the first true answer of `condition`; fail after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        if found := condition():
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within:g} s: {what() if callable(what) else what or condition}")
        time.sleep(0.01)


@dataclass
class Started:
    """A process that a test started, with its log."""

    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def stop(self, within: float = 20.0) -> int:
        """End it kindly; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def start(log_path: Path, env: dict[str, str], *command: str) -> Started:
    """Start a process of this interpreter."""
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", *command], env=env, stdout=log, stderr=subprocess.STDOUT
        )
    return Started(process, log_path)


@dataclass
class Ground:
    """The Redis of the two workers, and where their tasks note what they see."""

    server: LocalServer
    folder: Path
    env: dict[str, str]

    @property
    def url(self) -> str:
        return f"unix://{self.server.unix_socket}?db=0"

    def notes(self, app: str, key: str) -> list[dict[str, Any]]:
        return cases.notes(self.folder, app, key)

    def let_go(self, key: str) -> None:
        """Let a task that holds for this key end."""
        (self.folder / f"go-{key}").touch()


@pytest.fixture(scope="session")
def ground(django_db_setup: None) -> Iterator[Ground]:
    """A Redis for Celery and for QueueOps."""
    folder, socket = FOLDER, _SOCKET
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
