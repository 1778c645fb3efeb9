"""Where tests of the bridges stand: a Redis of their own, processes that they start, notes of their tasks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from queueops.local_redis import LocalServer
from tests import settings as run
from tests.queueops.bridges import cases

FOLDER, SOCKET = run.RUN_DIR / "cases", run.RUN_DIR / "cases.sock"
FOLDER.mkdir(exist_ok=True)
os.environ |= {"NOTES_DIR": str(FOLDER), "CASES_SOCKET": str(SOCKET)}  # before the apps are imported


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
