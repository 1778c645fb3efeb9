"""How many jobs a second the mirror records, with the whole life of their events, on either database.

Lives are made first and mirrored then: enqueue, claim, ack each; one in ten is delayed (one more
event), one in twenty fails once (three more, with an error of 4 KB). `python -m bench.mirror`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOBS = int(os.environ.get("BENCH_MIRROR_JOBS", "10000"))
ROUNDS = 3
_INNER = "BENCH_MIRROR_INNER"


def main() -> None:
    """Measure on SQLite and on PostgreSQL, each in its own process and on a Redis of this run."""
    from queueops.local_redis import LocalServer, find_binary
    from tests.postgres import LocalPostgres, find_binaries

    with tempfile.TemporaryDirectory(prefix="qo-bench-") as folder:
        socket = Path(folder) / "redis.sock"
        server = LocalServer(
            Path(folder) / "redis", binary=find_binary(None), unix_socket=socket, options={"appendonly": "no"}
        )
        with server:
            _measure("SQLite", f"sqlite:///{folder}/db.sqlite3", socket)
            if find_binaries() is None:
                print("PostgreSQL: not measured, no binaries")
            else:
                with LocalPostgres() as postgres:
                    _measure("PostgreSQL", postgres.url, socket)


def _measure(name: str, database_url: str, socket: Path) -> None:
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "dashboard.settings",
        "ENV_FILE": os.devnull,
        "SECRET_KEY": "bench",
        "DATABASE_URL": database_url,
        "REDIS_URL": f"unix://{socket}",
        _INNER: name,
    }
    subprocess.run([sys.executable, "-m", "bench.mirror"], env=environment, check=True)


def _inner(name: str) -> None:
    import django
    from django.core.management import call_command
    from django.db import connection

    django.setup()
    call_command("migrate", verbosity=0)
    from queueops.mirror import run_once
    from queueops.store import Store

    store = Store()
    rates, events = [], 0
    for round_ in range(ROUNDS):
        _live(store, f"bench{round_}")
        started, cpu = time.perf_counter(), time.process_time()
        events = run_once(store, limit_s=600)
        took = time.perf_counter() - started
        rates.append(JOBS / took)
        print(
            f"  {name} round {round_ + 1}: {JOBS:,} jobs, {events:,} events in {took:.2f} s, "
            f"{JOBS / took:,.0f} jobs/s, {events / took:,.0f} events/s, "
            f"own CPU {time.process_time() - cpu:.2f} s"
        )
    with connection.cursor() as cursor:
        cursor.execute("SELECT sqlite_version()" if name == "SQLite" else "SHOW server_version")
        version = cursor.fetchone()[0]
    print(
        f"{name} {version}: median {statistics.median(rates):,.0f} jobs a second "
        "with all their events (bar 2,000)"
    )


def _live(store: object, queue: str) -> None:
    """Let jobs run through all of their lives."""
    from queueops.job import NewJob, new_job_id
    from queueops.payload import encode_spec
    from queueops.store import Outcome, Store

    assert isinstance(store, Store)
    store.register(queue)
    spec = encode_spec("shop.charge", [12345, "EUR"], {"customer": "cus_12345", "note": "x" * 120})
    error = '{"class": "TimeoutError", "message": "timed out", "traceback": "' + "x" * 4_000 + '"}'
    now = round(time.time() * 1000)
    for first in range(0, JOBS, 500):
        jobs = [
            NewJob(new_job_id(), spec, now + 1 if i % 10 == 0 else None) for i in range(first, first + 500)
        ]
        store.enqueue(queue, jobs)
    child, request, done = "bench:1:a/1", 0, 0
    store.renew(queue, [child])
    failed: set[str] = set()
    while done < JOBS:
        request += 1
        store.renew(queue, [child])
        jobs_ = store.claim(queue, child, request=request, limit=100).jobs
        outcomes = []
        for job in jobs_:
            if hash(job.id) % 20 == 0 and job.id not in failed:
                failed.add(job.id)
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
                done += 1
        store.settle(queue, child, outcomes)


if __name__ == "__main__":
    inner = os.environ.get(_INNER)
    if inner:
        _inner(inner)
    else:
        main()
