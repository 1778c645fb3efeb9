"""The practice drill: real workers, something killed in the middle, and the proof that nothing is amiss.

It has its own Redis, its own settings and its own folder: nothing of the site is touched. The proof
is the service's own books (`ledger`), held against what was enqueued.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from queueops import doctor
from queueops.connection import Connection
from queueops.drill.charging import NAME
from queueops.drill.crew import LEASE_S, Crew
from queueops.drill.ledger import Books, Ledger
from queueops.errors import QueueOpsError, StoreUnavailable
from queueops.inspector import Inspector
from queueops.job import NewJob, new_job_id
from queueops.local_redis import LocalServer
from queueops.payload import encode_spec
from queueops.policies import RetryPolicy
from queueops.states import JobState
from queueops.store import Store, default_settings

QUEUE = "drill"
_POLICY = RetryPolicy(name="drill", max_retries=4, delays_s=(0.5,))
_START_S, _SETTLE_S, _STOP_S = 60.0, 60.0, 30.0

Say = Callable[[str], None]


class DrillFailed(QueueOpsError):
    """The drill could not be held: its text says why. It proved nothing."""


@dataclass(frozen=True)
class Check:
    """One thing that must hold, and what was found."""

    name: str
    is_well: bool
    found: str


@dataclass
class Report:
    """What the drill proved."""

    kill: str
    workers: int
    jobs: int
    executor: str = "threads"
    seconds: float = 0.0
    killed: str = ""
    held: int = 0  # jobs that the killed worker held, or that were running when Redis was killed
    started: int = 0
    repeated: int = 0
    rescued: int = 0
    retried: int = 0
    checks: list[Check] = field(default_factory=list)
    folder: str = ""

    @property
    def is_well(self) -> bool:
        """Whether every check holds."""
        return bool(self.checks) and all(check.is_well for check in self.checks)


class Drill:
    """Holds one drill in `folder`, which must be empty. `say` is told of each step."""

    def __init__(
        self, folder: Path, *, workers: int, jobs: int, kill: str, say: Say, executor: str = "threads"
    ) -> None:
        self.folder = folder
        self.kill = kill
        self.say = say
        self.report = Report(kill, workers, jobs, executor)
        self.crew = Crew(folder, queue=QUEUE, workers=workers, executor=executor)
        self.ledger = Ledger(folder / "ledger.sqlite3")
        self._socket = folder / "redis.sock"
        # A Unix socket: no port that anything else could want while the server is down.
        self.server = LocalServer(
            folder / "redis", port=None, unix_socket=self._socket, options={"appendfsync": "always"}
        )
        self.amounts: dict[str, int] = {}
        self._random = random.Random(20)

    def run(self) -> Report:
        """Hold it. Raises DrillFailed or NoServer when it can't be held."""
        began = time.monotonic()
        self.ledger.create()
        try:
            self.server.start()
            self.connection = Connection(self.server.url)
            self.store = Store(self.connection, publish=_publish)
            self.inspector = Inspector(self.connection)
            jobs = self._jobs()
            half = len(jobs) // 2
            self._enqueue(jobs[:half])
            self._start_workers()
            self._wait_for_work(half)
            self._strike(jobs[half:])
            self._settle()
            self._stop_workers()
            self._judge()
        finally:
            for tree in self.crew.trees:
                if tree.is_up:
                    tree.kill()
            self.server.stop()
        self.report.seconds = round(time.monotonic() - began, 1)
        self.report.folder = str(self.folder)
        return self.report

    # -- the work -------------------------------------------------------------------

    def _jobs(self) -> list[NewJob]:
        """Jobs of every kind: quick and slow, delayed, failing before and after their effect."""
        jobs = []
        for i in range(self.report.jobs):
            amount = self._random.randint(1, 10_000)
            before_s, after_s = (round(self._random.uniform(0.05, 0.25), 3) for _ in range(2))
            fails = {3: "before", 7: "after"}.get(i % 10, "")
            spec = encode_spec(NAME, [amount, before_s, after_s, fails], policy=_POLICY)
            run_at = self.inspector.now_ms() + self._random.randint(200, 3_000) if i % 5 == 0 else None
            jobs.append(NewJob(new_job_id(), spec, run_at_ms=run_at))
            self.amounts[jobs[-1].id] = amount
        return jobs

    def _enqueue(self, jobs: list[NewJob]) -> None:
        """Enqueue by id, again until it is answered, as callers do whose Redis is away."""
        deadline = time.monotonic() + _SETTLE_S
        while True:
            try:
                self.store.enqueue(QUEUE, jobs, actor="drill")
                return
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _enqueue_bit_by_bit(self, jobs: list[NewJob]) -> None:
        for start in range(0, len(jobs), 5):
            self._enqueue(jobs[start : start + 5])
            time.sleep(0.01)

    def _start_workers(self) -> None:
        self.crew.start(self._socket, self.server.url, self.ledger.path)
        self.say(f"{self.crew} started, {self.report.jobs:,} jobs to do")

    def _wait_for_work(self, half: int) -> None:
        """Until every worker has joined and the one to be killed is in the middle of its jobs."""
        deadline = time.monotonic() + _START_S
        enough = max(1, half // 4)
        while not self.crew.is_ready(self.connection):
            if (tree := self.crew.fallen()) is not None:
                raise DrillFailed(f"{tree.name} did not start: see {self.folder}/{tree.name}.log")
            if time.monotonic() > deadline:
                raise DrillFailed(f"the workers did not come up within {_START_S:g} s: see {self.folder}")
            time.sleep(0.02)
        while self._done() < enough and time.monotonic() < deadline:
            time.sleep(0.02)

    def _done(self) -> int:
        return self.inspector.totals([QUEUE])[QUEUE].count("done")

    # -- the blow -------------------------------------------------------------------

    def _strike(self, rest: list[NewJob]) -> None:
        if self.kill == "redis":
            # Somebody enqueues all the while: what was cut short is sent again under the same ids.
            caller = threading.Thread(target=self._enqueue_bit_by_bit, args=(rest,))
            caller.start()
            time.sleep(0.1)
            self.report.held = len(self._running_by(None))
            self.server.kill()
            self.say("Redis killed with SIGKILL, in the middle of the work")
            time.sleep(1.0)
            self.server.start()
            self.report.killed = f"Redis {self.server.binary.version}"
            self.say("Redis is up again on the same data")
            caller.join()
            return
        # More to do, so that no worker is idle when it is struck.
        self._enqueue(rest)
        tree = self.crew.trees[0]
        deadline = time.monotonic() + _START_S
        while not (held := self._running_by(tree.pid)):
            if time.monotonic() > deadline:
                raise DrillFailed("the worker to be killed got no job in time")
            time.sleep(0.01)
        number = tree.kill()
        self.report.held = len(held)
        self.report.killed = f"{tree.name} ({number} processes)"
        self.say(f"{tree.name} killed with SIGKILL, {number} processes, while it held {len(held)} jobs")

    def _running_by(self, pid: int | None) -> list[str]:
        """Ids of the jobs that a worker holds and has started."""
        return [
            each.job.id
            for each in self.inspector.running([QUEUE])
            if each.running_s is not None and (pid is None or _pid_of(each.job.child) == pid)
        ]

    # -- the end --------------------------------------------------------------------

    def _settle(self) -> None:
        """Until nothing is left to do."""
        deadline = time.monotonic() + _SETTLE_S + 0.5 * self.report.jobs
        while time.monotonic() < deadline:
            counts = self.inspector.counts(QUEUE)
            if not any(counts[state] for state in (JobState.DELAYED, JobState.READY, JobState.PENDING)):
                return
            time.sleep(0.05)
        self.say("it took too long: what is left is told below")

    def _stop_workers(self) -> None:
        self.exits = [tree.stop(_STOP_S) for tree in reversed(self.crew.trees) if tree.is_up]

    def _judge(self) -> None:
        books = self.ledger.books()
        jobs = dict(zip(self.amounts, self.inspector.jobs(QUEUE, list(self.amounts)), strict=True))
        states = {job_id: "gone" if job is None else str(job.state) for job_id, job in jobs.items()}
        totals = self.inspector.totals([QUEUE])[QUEUE]
        self.report.started, self.report.repeated = books.started, books.repeated
        self.report.rescued, self.report.retried = totals.count("rescued"), totals.count("failed")
        undone = [f"{job_id} is {state}" for job_id, state in states.items() if state != JobState.DONE]
        findings = [
            str(finding)
            for finding in doctor.examine(self.connection, server=False)
            if finding.severity == "error"
        ]
        self.report.checks = [
            _check("every job is done", undone, f"{len(states) - len(undone):,} of {len(states):,}"),
            *_money(books, self.amounts),
            _check("the doctor finds nothing", findings, "well"),
            _check("the others stopped when asked", _bad_exits(self.exits), f"{len(self.exits)} with code 0"),
        ]


def _money(books: Books, amounts: dict[str, int]) -> list[Check]:
    lost = [f"{job_id} never took effect" for job_id in amounts if not books.charges.get(job_id)]
    twice = [f"{job_id} took effect {n} times" for job_id, n in books.charges.items() if n > 1]
    strange = [f"{job_id} was never asked for" for job_id in books.charges if job_id not in amounts]
    due = sum(amounts.values())
    balance = [] if books.balance == due else [f"the account holds {books.balance:,}, due are {due:,}"]
    return [
        _check("each took effect", lost, f"{len(books.charges):,} of {len(amounts):,}"),
        _check("none took effect twice", twice + strange, f"{books.repeated:,} repeats charged nothing"),
        _check("the account is right", balance, f"{books.balance:,}"),
    ]


def _check(name: str, wrong: list[str], well: str) -> Check:
    shown = "; ".join(wrong[:5]) + (f"; and {len(wrong) - 5:,} more" if len(wrong) > 5 else "")
    return Check(name, not wrong, shown or well)


def _bad_exits(exits: list[int | None]) -> list[str]:
    told: dict[int | None, str] = {None: "one had to be killed"}
    return [told.get(code, f"one ended with {code}") for code in exits if code != 0]


def _pid_of(child: str | None) -> int | None:
    """The supervisor's pid in `host:pid:random/n`."""
    parts = (child or "").rpartition("/")[0].rsplit(":", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else None


def _publish(store: Store, queue: str) -> None:
    settings: dict[str, Any] = {**default_settings(store), "lease_ms": round(LEASE_S * 1000)}
    store.publish(queue, 1, settings)
