"""Children come back when they die, and are gone when the supervisor is."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.demo.supervise import RESTARTS, Child, Ended, Supervisor
from tests.dashboard.conftest import wait_for


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def supervisor(said: list[str]) -> Iterator[Supervisor]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    made = Supervisor(said.append)
    yield made
    made.stop()
    made.close()
    for number, handler in before.items():
        signal.signal(number, handler)


def sleeper(tmp_path: Path, program: str = "import time; time.sleep(60)", grace_s: float = 5) -> Child:
    command = [sys.executable, "-c", program]
    return Child("sleeper", command, dict(os.environ), tmp_path / "sleeper.log", grace_s=grace_s)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_child_that_dies_is_started_again_with_a_line(
    supervisor: Supervisor, said: list[str], tmp_path: Path
) -> None:
    child = sleeper(tmp_path)
    supervisor.start(child)
    assert child.process is not None
    first = child.process.pid
    os.kill(first, signal.SIGKILL)

    assert supervisor.wait(lambda: child.process is not None and child.process.pid != first, 10)
    log = os.path.relpath(tmp_path / "sleeper.log")
    assert said == [f"sleeper ended with signal 9; its log is {log}. Starting it again"]


def test_child_that_can_not_be_kept_alive_ends_everything(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(sleeper(tmp_path, "raise SystemExit(3)"))

    with pytest.raises(ChildProcessError, match=f"exit code 3.*{RESTARTS} times within a minute"):
        supervisor.wait(limit_s=30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_wait_at_once(supervisor: Supervisor, tmp_path: Path, number: signal.Signals) -> None:
    supervisor.start(sleeper(tmp_path))
    threading.Timer(0.2, os.kill, (os.getpid(), number)).start()

    with pytest.raises(Ended):
        supervisor.wait(limit_s=20)


def test_stop_leaves_no_grandchild_of_a_child_that_ignores_sigterm(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    program = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(tmp_path / "pid")!r}, "w").write(str(grandchild.pid))
time.sleep(60)
"""
    child = sleeper(tmp_path, program, grace_s=0.3)
    supervisor.start(child)
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    grandchild = int((tmp_path / "pid").read_text())

    supervisor.stop()

    assert not child.is_running()
    wait_for(lambda: not is_alive(grandchild))
