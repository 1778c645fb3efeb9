"""How many jobs a second the mirror records with the whole life of their events, and what that costs workers.

Lives are made first and mirrored then. `at once`: enqueue, claim and ack follow each other, as where
workers keep up. `a backlog`: all are enqueued before the first is claimed, so that each job's row is
written twice or more. One job in ten is delayed, one in twenty fails once with an error of 4 KB.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.ground import PAYLOAD, ROOT, Run, wait_until

ROUNDS = 3
PACE = 2_000  # jobs a second
PACED_S = 8
_INNER = "BENCH_MIRRORING_JOBS"


def run(run: Run) -> None:
    """Measure on SQLite and on PostgreSQL 15, and workers at 2,000 jobs a second beside a mirror."""
    from tests.postgres import LocalPostgres, find_binaries

    _measure(run, "SQLite", os.environ["DATABASE_URL"])
    if find_binaries() is None:
        print("  PostgreSQL was not measured: no binaries")
        _paced(run, "SQLite", os.environ["DATABASE_URL"])
        return
    with LocalPostgres(durable=True) as postgres:
        _measure(run, "PostgreSQL", postgres.url)
        for name, url in (("SQLite", os.environ["DATABASE_URL"]), ("PostgreSQL", postgres.url)):
            _paced(run, name, url)


def _measure(run: Run, name: str, database_url: str) -> None:
    environment = {**os.environ, "DATABASE_URL": database_url, _INNER: str(run.n(8_000))}
    told = subprocess.run(
        [sys.executable, "-m", "bench.mirroring"],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    for kind, rates in json.loads(told.splitlines()[-1]).items():
        run.add(f"mirror to {name}, {kind}", statistics.median(rates), "jobs/s", bar=">= 2,000")


def _paced(run: Run, name: str, database_url: str) -> None:
    """Jobs done in a second while 2,000 a second come, without and with a mirror beside the worker."""
    alone, _ = _rate(run, None)
    beside, left = _rate(run, database_url)
    run.add(f"{PACE:,} jobs/s come: done beside {name}'s mirror", 100 * beside / alone, "%", bar=">= 85 %")
    run.add(f"  events it was behind after {PACED_S} s", left, "events")


def _rate(run: Run, mirrored_to: str | None) -> tuple[float, int]:
    from bench.handlers import noop
    from queueops import JobSpec, enqueue, enqueue_many

    run.flush()
    enqueue(noop, [PAYLOAD])
    with run.workers("--processes", "1", "--concurrency", "16"), _mirror(run, mirrored_to):
        wait_until(lambda: run.count("done") == 1, 30, "the first job did not run")
        began = time.perf_counter()
        sent = 0
        while (passed := time.perf_counter() - began) < PACED_S:
            due = int(passed * PACE) - sent
            if due >= 20:
                enqueue_many(JobSpec(noop, [PAYLOAD]) for _ in range(due))
                sent += due
            time.sleep(0.005)
        left = int(run.client.xlen("queueops:{default}:events"))
        done = run.count("done") - 1
        return done / (time.perf_counter() - began), left


@contextmanager
def _mirror(run: Run, database_url: str | None) -> Iterator[None]:
    if database_url is None:
        yield
        return
    log = (run.folder / "mirror.log").open("ab")
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "manage.py"), "runmirror"],
        env={**os.environ, "DATABASE_URL": database_url}, stdout=log, stderr=log,
    )  # fmt: skip
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        log.close()


# -- inside: one database ---------------------------------------------------------------------------------


def _inner(jobs: int) -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    from queueops.mirror import run_once
    from queueops.store import Store

    store = Store()
    rates: dict[str, list[float]] = {"lives at once": [], "a backlog": []}
    for round_ in range(ROUNDS):
        for kind, found in rates.items():
            _live(store, f"bench{round_}{kind[0]}", jobs, at_once=kind == "lives at once")
            began = time.perf_counter()
            run_once(store, limit_s=600)
            found.append(jobs / (time.perf_counter() - began))
    print(json.dumps(rates))


def _live(store: object, queue: str, jobs: int, *, at_once: bool) -> None:
    """Let jobs run through all of their lives."""
    from queueops.job import NewJob, new_job_id
    from queueops.payload import encode_spec
    from queueops.store import Store

    assert isinstance(store, Store)
    store.register(queue)
    spec = encode_spec("shop.charge", [12345, "EUR"], {"customer": "cus_12345", "note": "x" * 120})
    child = _Child(store, queue)
    step = 100
    for first in range(0, jobs, step):
        now = round(time.time() * 1000)
        new = [
            NewJob(new_job_id(), spec, now + 1 if i % 10 == 0 else None) for i in range(first, first + step)
        ]
        store.enqueue(queue, new)
        if at_once:
            child.run(first + step)
    child.run(jobs // step * step + (step if jobs % step else 0))


class _Child:
    """Claims and settles; one job in twenty fails once."""

    def __init__(self, store: object, queue: str) -> None:
        self.store, self.queue, self.name = store, queue, "bench:1:a/1"
        self.request = self.done = 0
        self.failed: set[str] = set()

    def run(self, until: int) -> None:
        from queueops.store import Outcome, Store

        assert isinstance(self.store, Store)
        error = '{"class": "TimeoutError", "message": "timed out", "traceback": "' + "x" * 4_000 + '"}'
        while self.done < until:
            self.request += 1
            self.store.renew(self.queue, [self.name])
            outcomes = []
            for job in self.store.claim(self.queue, self.name, request=self.request, limit=100).jobs:
                if int(job.id[-4:], 32) % 20 == 0 and job.id not in self.failed:
                    self.failed.add(job.id)
                    outcomes.append(
                        Outcome.retry(
                            job,
                            delay_s=0.001,
                            cause="abc",
                            cause_text="timed out",
                            error=error,
                            policy="default@1",
                            ran_ms=5,
                        )
                    )
                else:
                    outcomes.append(Outcome.ack(job, handler="shop.charge", result='"ok"', ran_ms=5))
                    self.done += 1
            self.store.settle(self.queue, self.name, outcomes)


if __name__ == "__main__":
    _inner(int(os.environ[_INNER]))
