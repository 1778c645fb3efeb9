"""A real web server of the site, and people with rights."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from redis import Redis

from dashboard import queries
from queueops.local_redis import LocalServer, free_port, tied_to_parent
from tests import settings as run

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def forget_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of this process know nothing from the test before."""
    monkeypatch.setattr(queries, "_last", queries.Snapshot(queues=(), taken=0.0))
    monkeypatch.setattr(queries, "_asked", 0.0)
    monkeypatch.setattr(queries, "_server_asked", -1e9)
    monkeypatch.setattr(queries, "_fleet", None)


@pytest.fixture
def member() -> Callable[..., User]:
    """Make a user of a group: `member("Viewer")`; without one, a user without rights."""

    def make(group: str | None = None, name: str = "alice") -> User:
        user = User.objects.create_user(name, password="sesame")
        if group is not None:
            user.groups.add(Group.objects.get(name=group))
        return user

    return make


@pytest.fixture
def viewer_client(db: None, member: Callable[..., User]) -> Client:
    """A browser of somebody in the group Viewer."""
    client = Client()
    client.force_login(member("Viewer"))
    return client


@dataclass
class Site:
    """A running web server."""

    port: int
    log_path: Path
    env: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def socket_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws/live/?topic=overview"

    def start(self) -> None:
        """Start and wait until it answers."""
        command = [sys.executable, "-m", "uvicorn", "dashboard.asgi:application", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--lifespan", "off", "--timeout-graceful-shutdown", "2"]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                tied_to_parent(command), env=self.env, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + 30
        while True:
            try:
                with urlopen(f"{self.url}healthz", timeout=2):
                    return
            except (URLError, OSError):
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise AssertionError(self.log_path.read_text()) from None
                time.sleep(0.05)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None


@pytest.fixture(scope="session")
def running_site(redis_server: LocalServer, django_db_setup: None) -> Iterator[Site]:
    import os

    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "dashboard.settings"}
    site = Site(free_port(), run.RUN_DIR / "web.log", env)
    site.start()
    yield site
    site.stop()


@pytest.fixture
def site(running_site: Site, transactional_db: None, redis: Redis) -> Site:
    """The site on the run's Redis, emptied, and the test database, committed to."""
    if running_site.process is None:
        running_site.start()
    return running_site


def wait_for(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Wait until `condition()` holds. Fails after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.02)
