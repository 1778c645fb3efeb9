"""Real workers: `runworkers` in processes of its own, handlers that note what they did in files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from queueops import JobState, enqueue
from queueops.inspector import Inspector
from queueops.job import Job
from queueops.store import Store, publish_defaults
from tests.factories import Redis

QUEUE = "work"


def eventually(
    condition: Callable[[], Any], *, within: float = 40.0, what: str = "", logs: Callable[[], str] = str
) -> Any:
    """Return the first true answer of `condition`; fail after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        if found := condition():
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within:g} s: {what or condition}\n{logs()}")
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that waits for its parent to take its status does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@dataclass
class Start:
    """One start of a handler, as it noted it itself."""

    job_id: str
    pid: int
    attempt: int
    delivery: int
    at: float  # Unix seconds


@dataclass
class Notes:
    """What handlers wrote."""

    folder: Path

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    @property
    def starts(self) -> list[Start]:
        found = []
        for line in self.lines("starts"):
            job_id, pid, attempt, delivery, at = line.split()
            found.append(Start(job_id, int(pid), int(attempt), int(delivery), float(at)))
        return found

    def starts_of(self, job_id: str) -> list[Start]:
        return [start for start in self.starts if start.job_id == job_id]

    @property
    def effects(self) -> Counter[str]:
        return Counter(line.split()[0] for line in self.lines("effects"))

    def let_go(self, name: str = "go") -> None:
        """Let handlers that hold for this file end."""
        (self.folder / name).touch()


@dataclass
class Worker:
    """One `runworkers` process tree."""

    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def log_lines(self, *words: str) -> list[str]:
        return [line for line in self.log.splitlines() if all(word in line for word in words)]

    def tree(self) -> list[psutil.Process]:
        """The supervisor, the zygote and the children, as long as they live."""
        self.process.poll()
        try:
            supervisor = psutil.Process(self.pid)
            return [each for each in (supervisor, *supervisor.children(recursive=True)) if is_alive(each.pid)]
        except psutil.NoSuchProcess:
            return []

    def kill_tree(self) -> None:
        """Kill −9 all of it, the supervisor first."""
        for process in self.tree():
            with suppress(psutil.NoSuchProcess):  # it followed its parent already
                process.kill()
        self.process.wait(10)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, within: float = 40.0) -> int:
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the worker did not end within {within:g} s\n{self.log}")

    def stop(self, within: float = 40.0) -> int:
        """End it kindly; its exit code."""
        self.signal()
        return self.wait(within)


@dataclass
class Fleet:
    """Starts workers on the test's queue and ends what is left of them."""

    redis: Redis
    notes: Notes
    env: dict[str, str]
    store: Store
    workers: list[Worker] = field(default_factory=list)

    def start(
        self,
        *arguments: str,
        processes: int = 1,
        concurrency: int = 4,
        queue: str | None = QUEUE,
        housekeeping: bool = False,
        **env: str,
    ) -> Worker:
        """Start a worker, without waiting for it."""
        command = [sys.executable, "manage.py", "runworkers"]
        command += [] if housekeeping else ["--no-housekeeping"]
        command += ["--processes", str(processes), "--concurrency", str(concurrency), *arguments]
        if queue is not None:
            command += ["--queue", queue]
        log_path = self.notes.folder / f"worker-{len(self.workers)}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, env={**self.env, **env}, stdout=log, stderr=subprocess.STDOUT)
        worker = Worker(process, log_path)
        self.workers.append(worker)
        return worker

    def start_ready(self, *arguments: str, **given: Any) -> Worker:
        """Start a worker and wait until each of its children has asked for work."""
        processes = given.get("processes", 1)
        before = self._children()
        worker = self.start(*arguments, **given)
        eventually(
            lambda: len(self._children() - before) >= processes + 1, what="its children", logs=self.logs
        )
        self.run_one(given.get("queue") or QUEUE)
        return worker

    def run_one(self, queue: str = QUEUE) -> None:
        """Run one job through, so that somebody waits now."""
        job = enqueue("test.noop", queue=queue)
        eventually(lambda: self.state(job.id, queue) == JobState.DONE, what="a first job", logs=self.logs)

    def _children(self) -> set[bytes]:
        return set(self.redis.zrange("queueops:{work}:children", 0, -1))

    def job(self, job_id: str, queue: str = QUEUE) -> Job:
        found = Inspector().job(queue, job_id)
        assert found is not None, f"{job_id} is gone"
        return found

    def state(self, job_id: str, queue: str = QUEUE) -> str | None:
        return self.job(job_id, queue).state

    def wait_for(self, job_id: str, state: JobState, *, within: float = 40.0) -> Job:
        eventually(
            lambda: self.state(job_id) == state, within=within, what=f"{job_id} {state}", logs=self.logs
        )
        return self.job(job_id)

    def wait_for_start(self, job_id: str, *, number: int = 1, within: float = 40.0) -> Start:
        eventually(
            lambda: len(self.notes.starts_of(job_id)) >= number,
            within=within,
            what=f"start {number} of {job_id}",
            logs=self.logs,
        )
        return self.notes.starts_of(job_id)[number - 1]

    def wait_for_done(self, *job_ids: str, within: float = 40.0) -> None:
        for job_id in job_ids:
            self.wait_for(job_id, JobState.DONE, within=within)

    def logs(self) -> str:
        return "\n".join(f"--- {worker.pid}\n{worker.log}" for worker in self.workers)

    def end(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.kill_tree()


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path)


@pytest.fixture
def fleet(redis: Redis, notes: Notes, site_env: dict[str, str]) -> Iterator[Fleet]:
    """Workers on the run's Redis, with a lease of 2 s."""
    env = {
        **site_env,
        "HANDLERS_DIR": str(notes.folder),
        "QUEUEOPS_HANDLERS": "tests.handlers",
        "QUEUEOPS_LEASE_S": "2",
        "PYTHONPATH": os.getcwd(),
    }
    store = Store(publish=publish_defaults)
    store.register(QUEUE)
    redis.hset("queueops:{work}:settings", "lease_ms", 2000)
    fleet = Fleet(redis, notes, env, store)
    yield fleet
    fleet.end()
