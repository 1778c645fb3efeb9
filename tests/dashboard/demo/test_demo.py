"""`make demo` and `make run` as processes: what they print, start, survive and leave behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from queueops.local_redis import free_port
from tests.dashboard.conftest import wait_for

ROOT = Path(__file__).parent.parent.parent.parent

pytestmark = pytest.mark.timeout(240)


class Demo:
    """One run of `python -m dashboard.demo` with its own var folder and a bare environment."""

    def __init__(self, tmp_path: Path, *arguments: str) -> None:
        self.var = tmp_path / "var"
        self.port = free_port()
        self.output = tmp_path / "output"
        self._arguments = ["-m", "dashboard.demo", "--port", str(self.port), *arguments]
        self.process = self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def text(self) -> str:
        return self.output.read_text()

    def _start(self) -> subprocess.Popen[bytes]:
        env = {"PATH": os.environ["PATH"], "VAR_DIR": str(self.var), "ENV_FILE": os.devnull}
        with open(self.output, "wb") as output:
            return subprocess.Popen(
                [sys.executable, *self._arguments], cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT
            )

    def again(self) -> None:
        """Start once more after an end."""
        self.process = self._start()

    def wait_until_ready(self) -> None:
        wait_for(lambda: "log in as" in self.text or self.process.poll() is not None, 90)
        assert self.process.poll() is None, self.text

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)

    def left(self) -> dict[int, str]:
        """Command lines, by process id, of the processes of this run.

        They have its var folder in their environment, or, as Redis writes over that, as their working folder.
        """
        mark = f"VAR_DIR={self.var}\0".encode()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                is_ours = (
                    mark in (folder / "environ").read_bytes()
                    or self.var in (folder / "cwd").readlink().parents
                )
            except OSError:
                continue  # it ended, or is not ours
            if command and is_ours:  # an ended one that nobody waited for has no command line
                found[int(folder.name)] = command
        return found


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    yield from _ended(Demo(tmp_path))


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Demo]:
    yield from _ended(Demo(tmp_path, "--no-sample"))


def _ended(demo: Demo) -> Iterator[Demo]:
    yield demo
    if demo.process.poll() is None:
        demo.end(signal.SIGTERM)


def overview(demo: Demo) -> str:
    """The first page after a login with what was printed."""
    name, password = re.findall(r"log in as (\S+) with (\S+)", demo.text)[0]
    with httpx.Client(base_url=demo.url, follow_redirects=True, timeout=20) as browser:
        form = browser.get("/").text
        token = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', form)[0]
        data = {"username": name, "password": password, "csrfmiddlewaretoken": token, "next": "/"}
        page = browser.post("/login/", data=data)
        assert page.status_code == 200
        for link in re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text):
            assert browser.get(link).headers["cache-control"] == "max-age=315360000, public, immutable"
        return page.text


@pytest.mark.slow
def test_demo_runs_jobs_survives_a_kill_of_redis_and_leaves_nothing(demo: Demo) -> None:
    demo.wait_until_ready()
    assert re.search(r"Ready after \d+\.\d s", demo.text)
    for step in ("Redis: ", "Database: ", "Sample: ", demo.url):
        assert step in demo.text
    wait_for(lambda: all(f'id="queue-{name}"' in overview(demo) for name in ("webhooks", "mail")), 60)

    servers = [pid for pid, command in demo.left().items() if re.search("(redis|valkey)-server", command)]
    os.kill(servers[0], signal.SIGKILL)
    wait_for(lambda: "redis ended" in demo.text, 20)
    wait_for(lambda: httpx.get(f"{demo.url}/readyz", timeout=20).status_code == 200, 30)
    assert 'id="queue-webhooks"' in overview(demo)  # the append-only file kept it

    assert demo.end(signal.SIGINT) == 0
    assert "Stopping" in demo.text
    wait_for(lambda: demo.left() == {}, 5)


@pytest.mark.slow
def test_second_start_needs_no_set_up_and_prints_the_same_login(plain: Demo) -> None:
    plain.wait_until_ready()
    first = re.findall(r"log in as \S+ with \S+", plain.text)
    assert "Database: sqlite3, brought up to date" in plain.text
    assert plain.end(signal.SIGTERM) == 0

    plain.again()
    plain.wait_until_ready()

    assert re.findall(r"log in as \S+ with \S+", plain.text) == first
    assert "Database: sqlite3, up to date" in plain.text
    assert "Static files" not in plain.text


@pytest.mark.slow
def test_second_run_in_one_checkout_is_refused_with_a_line(plain: Demo, tmp_path: Path) -> None:
    plain.wait_until_ready()
    env = {"PATH": os.environ["PATH"], "VAR_DIR": str(plain.var), "ENV_FILE": os.devnull}

    other = subprocess.run(
        [sys.executable, "-m", "dashboard.demo"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )

    assert other.returncode == 1
    assert other.stdout.startswith("Stopped: already running from this folder")
    assert plain.url in other.stdout


@pytest.mark.slow
def test_nothing_outlives_a_launcher_that_was_killed(plain: Demo) -> None:
    plain.wait_until_ready()
    started = time.monotonic()

    plain.process.kill()
    plain.process.wait()

    wait_for(lambda: plain.left() == {}, 20)
    assert time.monotonic() - started < 20


def test_port_in_use_is_said_in_a_line(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        env = {"PATH": os.environ["PATH"], "VAR_DIR": str(tmp_path / "var"), "ENV_FILE": os.devnull}
        command = [sys.executable, "-m", "dashboard.demo", "--port", str(taken.getsockname()[1])]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "is in use: choose another with PORT=" in done.stdout


def test_redis_url_is_used_and_when_nothing_answers_there_said_so_without_its_password(
    tmp_path: Path,
) -> None:
    env = {"PATH": os.environ["PATH"], "VAR_DIR": str(tmp_path / "var"), "ENV_FILE": os.devnull}
    env["REDIS_URL"] = "redis://:secret@127.0.0.1:1/0"
    command = [sys.executable, "-m", "dashboard.demo", "--no-sample", "--port", str(free_port())]
    started = time.monotonic()

    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=90, check=False)

    assert done.returncode == 1
    assert done.stdout.startswith("Stopped: no Redis at redis://:***@127.0.0.1:1/0")
    assert "secret" not in done.stdout + done.stderr
    assert time.monotonic() - started < 15
