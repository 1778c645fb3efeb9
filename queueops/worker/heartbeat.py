"""What a worker of `runworkers` says of itself with each heartbeat: for the pages and `workerhealth`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Sequence

from queueops import __version__
from queueops.worker.board import ChildState
from queueops.worker.nursery import Process

_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6


def about(
    children: Sequence[Process],
    living: Iterable[Process],
    *,
    queues: Sequence[str],
    processes: int,
    concurrency: int,
    is_draining: bool,
) -> dict[str, object]:
    """Describe this worker: of its `living` processes `children` run jobs. No `queues`: all of them."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": __version__,
        "queues": list(queues) or "all",
        "processes": processes,
        "concurrency": concurrency,
        "draining": is_draining,
        "rss_mb": sum(rss_mb(pid) for pid in [os.getpid(), *(each.pid for each in living)]),
        "children": [
            {
                "name": each.name,
                "pid": each.pid,
                "state": each.board.state().name.lower(),
                "running": len(each.board.running()),
                "finished": each.board.finished(),
            }
            for each in children
        ],
        # The worst child counts.
        "fetched_s_ago": max((_fetched_s_ago(each) for each in children), default=None),
    }


def _fetched_s_ago(process: Process) -> float:
    """How long ago this child could have been given work, seconds."""
    now, board = time.monotonic(), process.board
    is_able = board.state() in {ChildState.WAITING, ChildState.FULL} and not process.is_stuck(now)
    return 0.0 if is_able else round(now - (board.last_fetch() or process.born), 1)


def rss_mb(pid: int) -> int:
    """Resident memory of a process, MB; 0 when it is gone. Pages shared with the zygote count in each."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return round(int(file.read().split()[1]) * _PAGE_MB)
    except (OSError, ValueError, IndexError):
        return 0
