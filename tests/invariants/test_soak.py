"""The soak: jobs flow through real workers and mirrors that are killed at random, and nothing disagrees.

100,000 jobs (SOAK_JOBS), on whichever database the run has. At the end the handlers' own ledger, Redis
and the record must say the same of each job.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from django.db.models import Count

from queueops import keys
from queueops.job import NewJob, new_job_id
from queueops.mirror import compare_all, run_once
from queueops.models import Attempt, Job, JobEvent, MirrorState, SetAsideEvent
from queueops.payload import encode_spec
from queueops.policies import Jitter, RetryPolicy
from queueops.store import Store, publish_defaults
from tests.factories import Redis

JOBS = int(os.environ.get("SOAK_JOBS", "100000"))
QUEUE = "soak"
ROOT = Path(__file__).resolve().parents[2]


class Fleet:
    """Processes that are killed with all of their children and started again."""

    def __init__(self, env: dict[str, str], log: Path) -> None:
        self._env = env
        self._log = log.open("ab")
        self._running: dict[str, list[subprocess.Popen[bytes]]] = {"runworkers": [], "runmirror": []}
        self.killed: Counter[str] = Counter()

    def start(self, command: str, *arguments: str) -> None:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), command, *arguments],
            env=self._env, stdout=self._log, stderr=self._log, start_new_session=True,
        )  # fmt: skip
        self._running[command].append(process)

    def kill_one(self, command: str) -> None:
        """Kill −9 the oldest with its whole tree, as a lost host would."""
        if self._running[command]:
            self._kill(self._running[command].pop(0))
            self.killed[command] += 1

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        try:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            family = []
        for member in family:
            try:
                member.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        process.wait()

    def close(self) -> None:
        for processes in self._running.values():
            for process in processes:
                self._kill(process)
        self._log.close()


@contextmanager
def fleet(env: dict[str, str], folder: Path) -> Iterator[Fleet]:
    running = Fleet(env, folder / "fleet.log")
    try:
        yield running
    finally:
        running.close()


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.django_db(transaction=True)
def test_record_redis_and_ledger_agree_after_random_kills(
    redis: Redis, site_env: dict[str, str], tmp_path: Path
) -> None:
    env = {
        **site_env,
        "HANDLERS_DIR": str(tmp_path),
        "QUEUEOPS_HANDLERS": "tests.handlers",
        "QUEUEOPS_LEASE_S": "5",
        "QUEUEOPS_MAX_RESCUES": "1000",
    }
    store = Store(publish=publish_defaults)
    store.register(QUEUE)
    store.publish(QUEUE, 1, {"lease_ms": 5_000, "max_rescues": 1_000, "done_keep_ms": 3_600_000})
    chance = random.Random(11)
    ids: list[str] = []
    policy = RetryPolicy(name="soak", delays_s=(0.05,), max_retries=3, jitter=Jitter.NONE)
    specs = [
        encode_spec("test.note", [7]),
        encode_spec("test.fail_until", [2], policy=policy),
        encode_spec("test.fail", policy=policy),
    ]

    def enqueue(count: int) -> None:
        now_ms = round(time.time() * 1000)
        jobs = []
        for _ in range(count):
            kind = chance.choices((0, 1, 2), (90, 8, 2))[0]
            delay = now_ms + chance.randrange(100, 2_000) if chance.random() < 0.2 else None
            jobs.append(NewJob(new_job_id(), specs[kind], delay))
        ids.extend(job.id for job in jobs)
        store.enqueue(QUEUE, jobs)

    def unsettled() -> int:
        live = redis.zcard(keys.queue_key(QUEUE, "delayed")) + redis.zcard(keys.queue_key(QUEUE, "pending"))
        entries = sum(
            redis.xlen(keys.ready(QUEUE, lane)) for lane in ("first", "high", "normal", "low", "suspect")
        )
        return int(live + entries)

    with fleet(env, tmp_path) as running:
        workers = ("--queue", QUEUE, "--processes", "2", "--concurrency", "8", "--no-housekeeping")
        for _ in range(2):
            running.start("runworkers", *workers)
            running.start("runmirror")
        kill_at = time.monotonic() + 8
        while len(ids) < JOBS or unsettled():
            if len(ids) < JOBS and unsettled() < 5_000:
                enqueue(min(500, JOBS - len(ids)))
            if time.monotonic() > kill_at:
                victim, again = chance.choice((("runworkers", workers), ("runmirror", ())))
                running.kill_one(victim)
                running.start(victim, *again)
                kill_at = time.monotonic() + chance.uniform(2, 6)
            time.sleep(0.02)
        killed = dict(running.killed)
    while run_once(store):
        pass

    states = dict(Job.objects.values_list("state").annotate(n=Count("pk")).values_list("state", "n"))
    dead = redis.zcard(keys.queue_key(QUEUE, "dead"))
    assert set(Job.objects.values_list("job_id", flat=True)) == set(ids)
    assert states == {"done": len(ids) - dead, "dead": dead}
    assert compare_all(store) == []
    assert not SetAsideEvent.objects.exists()
    assert MirrorState.objects.get().gaps == 0
    assert JobEvent.objects.filter(verb="enqueue").count() == len(ids)
    assert JobEvent.objects.filter(verb="ack").count() == states["done"]
    assert JobEvent.objects.filter(verb="bury").count() == dead
    # Every failed attempt is a row, the last of a dead job among them.
    failed = JobEvent.objects.filter(verb__in=["retry", "bury"]).count()
    assert Attempt.objects.count() == failed
    started = {line.split()[0] for line in (tmp_path / "starts").read_text().splitlines()}
    assert started == set(ids)
    assert killed.get("runworkers", 0) + killed.get("runmirror", 0) >= 1
