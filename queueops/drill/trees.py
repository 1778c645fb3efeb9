"""Workers as trees of processes: started apart from each other, killed whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from queueops.local_redis import tied_to_parent


class Tree:
    """One worker with all its children. `command` names a Python module and its arguments."""

    def __init__(self, name: str, command: list[str], *, env: Mapping[str, str], log: Path) -> None:
        self.name = name
        with open(log, "ab") as out:
            self.process = subprocess.Popen(
                tied_to_parent([sys.executable, "-m", *command]),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The supervisor's."""
        return self.process.pid

    @property
    def is_up(self) -> bool:
        """Whether the supervisor lives."""
        return self.process.poll() is None

    def pids(self) -> list[int]:
        """Every process of the tree, the supervisor first."""
        children: dict[int, list[int]] = defaultdict(list)
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, ValueError):  # it ended meanwhile
                # After the name, which may hold spaces and brackets: state, then the parent.
                children[int(entry.read_text().rpartition(")")[2].split()[1])].append(int(entry.parent.name))
        found, todo = [], [self.pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            todo += children[pid]
        return found

    def kill(self) -> int:
        """End the whole tree with SIGKILL; how many processes it had."""
        pids = self.pids()
        # Stopped first, so that none is born meanwhile.
        for pid in pids:
            _send(pid, signal.SIGSTOP)
        pids = sorted({*pids, *self.pids()})
        for pid in pids:
            _send(pid, signal.SIGKILL)
        self.process.wait()
        return len(pids)

    def stop(self, timeout_s: float) -> int | None:
        """Ask it to end and wait; its exit code, None when it had to be killed."""
        if self.is_up:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return None


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
