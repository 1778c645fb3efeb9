"""Database connections of handlers: one that the server closed costs no attempt."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import psycopg
import pytest

from queueops import JobState, enqueue
from tests.postgres import MISSING, LocalPostgres, find_binaries
from tests.queueops.worker.conftest import QUEUE, Fleet, eventually

pytestmark = pytest.mark.skipif(find_binaries() is None, reason=MISSING)


@pytest.fixture(scope="module")
def postgres() -> Iterator[LocalPostgres]:
    with LocalPostgres() as server:
        yield server


def terminate_backends(server: LocalPostgres) -> int:
    """End every other session; how many."""
    with contextlib.closing(psycopg.connect(server.url, autocommit=True)) as connection:
        found = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ).fetchall()
    return len(found)


@pytest.mark.parametrize("age", ["0", "600", "None"])
@pytest.mark.parametrize("handler", ["test.query", "test.async_query"])
def test_h01_closed_session_costs_no_attempt(
    fleet: Fleet, postgres: LocalPostgres, age: str, handler: str
) -> None:
    fleet.start(concurrency=1, DATABASE_URL=f"{postgres.url}&conn_max_age={age}")
    for number in range(3):
        job = enqueue(handler, job_id=f"q{number}", queue=QUEUE)
        fleet.wait_for_done(job.id)
        terminate_backends(postgres)

    assert [fleet.job(f"q{number}").attempts for number in range(3)] == [0, 0, 0]


def test_h01_session_closed_under_a_handler_costs_one_attempt(fleet: Fleet, postgres: LocalPostgres) -> None:
    fleet.redis.hset("queueops:policies", "quick", '{"name": "quick", "delays_s": [0.05]}')
    fleet.start(concurrency=1, DATABASE_URL=f"{postgres.url}&conn_max_age=600")
    enqueue("test.query_twice", job_id="t", queue=QUEUE, policy="quick")
    fleet.wait_for_start("t")
    eventually(lambda: terminate_backends(postgres) > 0)
    fleet.notes.let_go()
    job = fleet.wait_for("t", JobState.DONE)

    assert job.attempts == 1


def test_async_jobs_leave_no_session_behind(fleet: Fleet, postgres: LocalPostgres) -> None:
    fleet.start(concurrency=8, DATABASE_URL=f"{postgres.url}&conn_max_age=600")
    ids = [enqueue("test.async_query", queue=QUEUE).id for _ in range(40)]
    fleet.wait_for_done(*ids)
    began = time.monotonic()
    eventually(lambda: terminate_backends(postgres) == 0 or time.monotonic() - began > 5)

    assert terminate_backends(postgres) == 0
