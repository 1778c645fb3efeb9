"""Keep child processes running, and end them all, in order, whatever ends this process."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from queueops.local_redis import LocalServer, tied_to_parent

RESTARTS, RESTARTS_WITHIN_S = 5, 60.0  # more often than this, a child is broken and everything stops


class Ended(Exception):
    """A signal asked this process to end."""


class Supervised(Protocol):
    """What the supervisor keeps alive."""

    name: str

    def start(self) -> None: ...
    def is_running(self) -> bool: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def trouble(self) -> str: ...


@dataclass
class Child:
    """One command, in its own process group, its output in a log file."""

    name: str
    command: list[str]
    env: dict[str, str]
    log_path: Path
    grace_s: float = 5.0
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                tied_to_parent(self.command),
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only us; we end the children in order
            )

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        """SIGTERM, and after `grace_s` SIGKILL to the whole group."""
        if self.process is None:
            return
        if self.is_running():
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(self.grace_s)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the group, so that grandchildren go too."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # all gone
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def trouble(self) -> str:
        code = self.process.returncode if self.process else None
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return f"{self.name} ended with {how}; its log is {os.path.relpath(self.log_path)}"


@dataclass
class RedisChild:
    """The local Redis among the children: it comes back on the same port, with its data."""

    server: LocalServer
    name: str = "redis"

    def start(self) -> None:
        self.server.start()

    def is_running(self) -> bool:
        return self.server.process is not None and self.server.process.poll() is None

    def stop(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        self.server.kill()

    def trouble(self) -> str:
        return f"redis ended; its log is {os.path.relpath(self.server.log_path)}"


class Supervisor:
    """Children in the order of their start; they end in the opposite order."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._children: list[Supervised] = []
        self._restarts: dict[str, deque[float]] = {}
        self._signals = 0
        self._wake, waker = socket.socketpair()
        for end in (self._wake, waker):
            end.setblocking(False)
        self._waker = waker
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note_signal)

    def start(self, child: Supervised) -> None:
        """Start a child and keep it from now on."""
        self.check()
        self._children.append(child)
        child.start()

    def wait(self, until: Callable[[], bool] | None = None, limit_s: float | None = None) -> bool:
        """Keep the children running until `until()` holds or `limit_s` is over; tell whether it held.

        Raises Ended on SIGINT, SIGTERM or SIGHUP, ChildProcessError when a child can't be kept alive.
        """
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while deadline is None or time.monotonic() < deadline:
            self.check()
            if until is not None and until():
                return True
            for child in self._children:
                if not child.is_running():
                    self._restart(child)
            select.select([self._wake], [], [], 0.1 if until else 0.5)
        return False

    def check(self) -> None:
        """Raise Ended if a signal came."""
        if self._signals:
            raise Ended

    def stop(self) -> None:
        """End every child, last one first. Another signal meanwhile ends them at once."""
        seen = self._signals
        for child in reversed(self._children):
            if self._signals > seen:
                child.kill()
            else:
                child.stop()
        self._children.clear()

    def close(self) -> None:
        """Give back what watches for signals; for a process that goes on afterwards."""
        signal.set_wakeup_fd(-1)
        self._wake.close()
        self._waker.close()

    def _note_signal(self, number: int, frame: object) -> None:
        self._signals += 1

    def _restart(self, child: Supervised) -> None:
        times = self._restarts.setdefault(child.name, deque(maxlen=RESTARTS))
        now = time.monotonic()
        if len(times) == RESTARTS and now - times[0] < RESTARTS_WITHIN_S:
            raise ChildProcessError(f"{child.trouble()}. It was started {RESTARTS} times within a minute")
        times.append(now)
        self._say(f"{child.trouble()}. Starting it again")
        child.start()
