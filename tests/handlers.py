"""Handlers for tests that run real workers. What they did stands in files of `HANDLERS_DIR`.

A line is one `write` to a file opened for appending: whole, whatever is killed when.
"""

import asyncio
import math
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from celery import shared_task

from queueops import Dead, Discard, RetryLater, Snooze, current_job


def note(name: str, *words: object) -> None:
    """Append a line to the file of this name."""
    path = Path(os.environ["HANDLERS_DIR"]) / name
    line = " ".join(map(str, words)) + "\n"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def started() -> None:
    """Note that this job started, where, and when."""
    job = current_job()
    note("starts", job.id, os.getpid(), job.attempt, job.delivery, f"{time.time():.6f}")


def _wait_for(name: str, limit_s: float) -> None:
    path = Path(os.environ["HANDLERS_DIR"]) / name
    deadline = time.monotonic() + limit_s
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.005)


@shared_task(name="test.noop")
def noop(*_args: Any) -> None:
    """Do nothing."""


@shared_task(name="test.note")
def effect(value: object = "") -> str:
    """Note a start and an effect."""
    started()
    note("effects", current_job().id, value)
    return f"did {value}"


@shared_task(name="test.hold")
def hold(name: str = "go", limit_s: float = 30.0) -> None:
    """Run until the file `name` is there."""
    started()
    _wait_for(name, limit_s)
    note("effects", current_job().id)


@shared_task(name="test.obey")
def obey(limit_s: float = 30.0) -> None:
    """Run until it is asked to stop."""
    started()
    deadline = time.monotonic() + limit_s
    while not current_job().cancelled and time.monotonic() < deadline:
        time.sleep(0.01)
    raise Discard("asked to stop")


@shared_task(name="test.hold_and_fail")
def hold_and_fail(name: str = "go", limit_s: float = 30.0) -> None:
    """Run until the file `name` is there, then fail."""
    started()
    _wait_for(name, limit_s)
    raise ConnectionError("the far end is gone")


@shared_task(name="test.sleep")
def sleep(seconds: float) -> None:
    """Sleep."""
    started()
    time.sleep(seconds)
    note("effects", current_job().id)


@shared_task(name="test.nap")
def nap(seconds: float) -> None:
    """Sleep, and write nothing."""
    time.sleep(seconds)


@shared_task(name="test.async_note")
async def async_note(value: object = "") -> str:
    """Note a start and an effect, on the event loop."""
    started()
    await asyncio.sleep(0)
    note("effects", current_job().id, value)
    return f"did {value}"


@shared_task(name="test.async_nap")
async def async_nap(seconds: float) -> None:
    """Sleep on the event loop, and write nothing."""
    await asyncio.sleep(seconds)


@shared_task(name="test.async_hold")
async def async_hold(seconds: float = 30.0) -> None:
    """Wait on the event loop, long."""
    started()
    await asyncio.sleep(seconds)
    note("effects", current_job().id)


@shared_task(name="test.fail")
def fail(message: str = "no") -> None:
    """Fail always."""
    started()
    raise ValueError(message)


@shared_task(name="test.fail_until")
def fail_until(attempt: int) -> None:
    """Fail before this attempt."""
    started()
    if current_job().attempt < attempt:
        raise ConnectionError("not yet")
    note("effects", current_job().id)


@shared_task(name="test.kill")
def kill() -> None:
    """Kill the process that runs this."""
    started()
    os.kill(os.getpid(), signal.SIGKILL)


@shared_task(name="test.leave")
def leave(code: int = 3) -> None:
    """End the process with an exit code, without a word."""
    started()
    os._exit(code)


@shared_task(name="test.system_exit")
def system_exit() -> None:
    """Raise SystemExit, as sys.exit() does."""
    started()
    raise SystemExit(4)


@shared_task(name="test.say")
def say(word: str, delay: float = 0.0) -> None:
    """Say how the job goes on, the first time; then succeed."""
    started()
    if current_job().delivery == 1:
        raise {"discard": Discard("not wanted"), "dead": Dead("hopeless"), "snooze": Snooze(delay)}.get(
            word, RetryLater(delay)
        )
    note("effects", current_job().id)


@shared_task(name="test.hog")
def hog(seconds: float) -> None:
    """Hold the GIL for about so long: one regular expression that backtracks, in C."""
    started()
    size, took = 16, 0.0
    while took < 0.02:  # a letter more takes twice as long
        size += 1
        began = time.process_time()
        re.match(r"(a+)+$", "a" * size + "b")
        took = time.process_time() - began
    re.match(r"(a+)+$", "a" * (size + round(math.log2(seconds / took))) + "b")
    note("effects", current_job().id)


@shared_task(name="test.spin")
def spin(seconds: float) -> None:
    """Compute in Python."""
    started()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pass
    note("effects", current_job().id)


def _ask_database() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        found: tuple[int] = cursor.fetchone()
    return found[0]


@shared_task(name="test.query")
def query() -> int:
    """Ask the database."""
    return _ask_database()


@shared_task(name="test.async_query")
async def async_query() -> int:
    """Ask the database, from the event loop."""
    return await sync_to_async(_ask_database)()


@shared_task(name="test.query_twice")
def query_twice(name: str = "go", limit_s: float = 30.0) -> None:
    """Ask the database, and again once the file `name` is there."""
    _ask_database()
    started()
    _wait_for(name, limit_s)
    _ask_database()


@shared_task(name="test.program")
def program() -> int:
    """Start a program, end it by SIGTERM, and return its exit code."""
    process = subprocess.Popen(["sleep", "60"])
    process.terminate()
    return process.wait(10)


@shared_task(name="test.late")
def late(run_at: float) -> None:
    """Note how late after `run_at` (Unix seconds) this started, in ms."""
    now = time.time()
    note("late", f"{(now - run_at) * 1000:.3f}")
