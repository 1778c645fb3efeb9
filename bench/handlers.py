"""What the jobs of a benchmark do. They count themselves in files, so that nothing asks Redis meanwhile.

A line of work costs one `write` of 8 bytes to a file opened O_APPEND, about 1 µs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from celery import shared_task

from queueops import current_job

_pack = struct.Struct("<d").pack


@cache
def _file(name: str) -> int:
    return os.open(Path(os.environ["BENCH_DIR"]) / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def note(name: str, value: float) -> None:
    """Append one number to a file of the run."""
    os.write(_file(name), _pack(value))


@shared_task
def noop(payload: Any) -> None:
    """Count itself."""
    note("done", time.time())


@shared_task
def io(payload: Any) -> None:
    """Wait 20 ms as an API would, on a thread."""
    time.sleep(0.02)
    note("done", time.time())


@shared_task
async def aio(payload: Any) -> None:
    """Wait 20 ms as an API would, on the event loop."""
    await asyncio.sleep(0.02)
    note("done", time.time())


@shared_task
def late(run_at: float) -> None:
    """Note how long after `run_at` (Unix s) it started."""
    note("late", time.time() - run_at)


@shared_task
def slot() -> None:
    """Note how long after its schedule's slot it started."""
    at = datetime.strptime(current_job().id.rpartition(":")[2], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    note("slots", time.time() - at.timestamp())


@shared_task
def hang(payload: Any) -> None:
    """The first start hangs until it is killed; a later one ends at once."""
    path = Path(os.environ["BENCH_DIR"]) / "starts"
    is_first = not path.exists()
    note("starts", time.time())
    (Path(os.environ["BENCH_DIR"]) / "pid").write_text(str(os.getpid()))
    if is_first:
        time.sleep(600)


@shared_task
def poison(payload: Any) -> None:
    """Kill its own process."""
    note("starts", time.time())
    os.kill(os.getpid(), signal.SIGKILL)
