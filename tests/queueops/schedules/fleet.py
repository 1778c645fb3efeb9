"""Scheduler processes that are killed at random. Run as a program, with the site's environment.

    python -m tests.queueops.schedules.fleet --processes 10 --seconds 60 --shifted 2 --seed 7

Forks most of them from one process with Django loaded; `--shifted` more are started under libfaketime,
with clocks one hour ahead or behind. Prints one JSON object: how many were killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import django


def serve(name: str) -> None:
    """Be one scheduler until killed."""
    from queueops.schedules.scheduler import Scheduler

    Scheduler(name=name).run(threading.Event())


def fork(name: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        serve(name)
    finally:
        os._exit(1)


def find_faketime() -> str | None:
    """The library that moves a process's clock, where it is installed (Debian: libfaketime)."""
    found = [path for path in Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1") if path.exists()]
    return str(found[0]) if found and shutil.which("faketime") else None


def start_shifted(name: str, shift: str) -> int:
    """A scheduler whose every clock says another hour; its process number."""
    environment = {**os.environ, "LD_PRELOAD": find_faketime() or "", "FAKETIME": shift}
    command = [sys.executable, "-m", __spec__.name, "--one", name]
    return subprocess.Popen(command, env=environment).pid


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--shifted", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", default="")
    given = parser.parse_args()
    if given.one:
        print(f"{given.one} believes that it is {time.time():.0f}", file=sys.stderr)
        django.setup()
        serve(given.one)
        return
    django.setup()
    chance = random.Random(given.seed)
    running: dict[int, str] = {}
    for n in range(given.shifted):
        name = f"shifted-{n}"
        running[start_shifted(name, "+1h" if n % 2 else "-1h")] = name
    for n in range(given.processes - given.shifted):
        running[fork(f"plain-{n}-0")] = f"plain-{n}-0"
    killed = 0
    end = time.monotonic() + given.seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, chance.uniform(0.1, 0.9)))
        victim = chance.choice(sorted(running))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        killed += 1
        name = running.pop(victim)
        if name.startswith("shifted"):
            running[start_shifted(name, "+1h" if name.endswith("1") else "-1h")] = name
        else:
            again = f"{name.rpartition('-')[0]}-{killed}"
            running[fork(again)] = again
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print(json.dumps({"killed": killed}))


if __name__ == "__main__":
    main()
