"""Workers on record, the mirror as a process of its own, and what the checks say of a configuration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.db import DEFAULT_DB_ALIAS, connection, connections

from queueops import keys
from queueops.checks import check_databases, check_settings
from queueops.local_redis import LocalServer, tied_to_parent
from queueops.mirror import record_workers
from queueops.models import Job, WorkerRecord
from queueops.store import Store
from tests.factories import Redis, seed_ready


def beat(redis: Redis, worker: str, at_ms: int, **info: Any) -> None:
    redis.zadd(keys.WORKERS, {worker: at_ms})
    redis.hset(keys.WORKER_INFO, worker, json.dumps(info))


@pytest.mark.django_db
def test_a_worker_is_noted_from_its_first_to_its_last_heartbeat(redis: Redis, store: Store) -> None:
    beat(redis, "web1:17:aa", 1_700_000_000_000, version="1", bad="nul \0")
    assert record_workers(store) == 1
    beat(redis, "web1:17:aa", 1_700_000_060_000, version="1")
    assert record_workers(store) == 0

    row = WorkerRecord.objects.get()
    assert (row.host, row.pid, row.stopped_at) == ("web1", 17, None)
    assert (row.last_seen_at - row.first_seen_at).total_seconds() == 60
    redis.zrem(keys.WORKERS, "web1:17:aa")
    record_workers(store)
    row.refresh_from_db()
    assert row.stopped_at is not None


@pytest.mark.django_db
def test_a_worker_that_says_nonsense_is_noted_too(redis: Redis, store: Store) -> None:
    redis.zadd(keys.WORKERS, {"x" * 400: 1_700_000_000_000, "odd": 1_700_000_000_000})
    redis.hset(keys.WORKER_INFO, "odd", "{")
    record_workers(store)

    assert WorkerRecord.objects.count() == 2


# -- runmirror ------------------------------------------------------------------------------------------


@contextmanager
def running_mirror(env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A mirror in a process of its own, whose words are in `log`; it ends well when it is asked to."""
    connection.close()
    command = tied_to_parent([sys.executable, "manage.py", "runmirror"])
    with log.open("wb") as said:
        mirror = subprocess.Popen(command, env=env, stdout=said, stderr=subprocess.STDOUT)
    try:
        yield mirror
    finally:
        mirror.terminate()
        mirror.wait(20)
    assert mirror.returncode == 0, log.read_text()


def eventually(condition: Callable[[], bool], within_s: float = 40) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.05)


@pytest.mark.django_db(transaction=True)
def test_h01_a_mirror_goes_on_when_its_database_session_is_closed(
    redis: Redis, site_env: dict[str, str], tmp_path: Path
) -> None:
    store, log = Store(), tmp_path / "mirror.log"
    seed_ready(store, "before")
    with running_mirror(site_env, log) as mirror:
        eventually(lambda: Job.objects.filter(job_id="before").exists())
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )
        seed_ready(store, "after")
        eventually(lambda: Job.objects.filter(job_id="after").exists())
        assert mirror.poll() is None

    assert log.read_text().count("waits") <= 1


@pytest.mark.django_db(transaction=True)
def test_a_mirror_waits_for_redis_and_goes_on(
    redis: Redis, site_env: dict[str, str], redis_server: LocalServer, tmp_path: Path
) -> None:
    store, log = Store(), tmp_path / "mirror.log"
    with running_mirror(site_env, log):
        seed_ready(store, "before")
        eventually(lambda: Job.objects.filter(job_id="before").exists())
        redis_server.kill()
        try:
            eventually(lambda: "the mirror waits" in log.read_text())
        finally:
            redis_server.start()
        seed_ready(store, "after")
        eventually(lambda: Job.objects.filter(job_id="after").exists())

    assert log.read_text().count("the mirror waits") == 1
    assert log.read_text().count("the mirror goes on") == 1


@pytest.mark.django_db(transaction=True)
def test_burst_copies_everything_and_ends(redis: Redis, site_env: dict[str, str]) -> None:
    seed_ready(Store(), *[f"j{n}" for n in range(30)])
    connection.close()
    subprocess.run([sys.executable, "manage.py", "runmirror", "--burst"], env=site_env, check=True)

    assert Job.objects.count() == 30


@pytest.mark.django_db(transaction=True)
def test_h05_children_forked_after_use_read_their_own_rows(redis: Redis) -> None:
    store = Store()
    seed_ready(store, *[f"j{n}" for n in range(4)])
    from queueops.mirror import run_once

    run_once(store)
    connections.close_all()
    pids = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                mine = f"j{number}"
                same = all(Job.objects.get(job_id=mine).job_id == mine for _ in range(50))
                known = all(store.enqueue("mail", [_known(mine)])[0].there == mine for _ in range(50))
                connections.close_all()
                os._exit(0 if same and known else 1)
            finally:
                os._exit(2)
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0, 0, 0]
    assert Job.objects.count() == 4


def _known(job_id: str) -> Any:
    from tests.factories import new

    return new(job_id)


# -- checks ---------------------------------------------------------------------------------------------


def test_the_sites_own_configuration_is_well() -> None:
    assert check_databases(None) == []
    assert check_settings(None) == []


def test_an_unknown_setting_is_an_error(settings: Any) -> None:
    settings.QUEUEOPS = {"LEASE_SECONDS": 3}

    assert [(found.id, found.level) for found in check_settings(None)] == [("queueops.E001", checks.ERROR)]


def test_sqlite_that_would_fail_with_database_is_locked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("the run's database is not SQLite")
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {})

    assert [found.id for found in check_databases(None)] == [
        "queueops.W001",
        "queueops.W002",
        "queueops.W003",
    ]


def test_another_kind_of_database_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(connections[DEFAULT_DB_ALIAS]), "vendor", "mysql")

    assert [found.id for found in check_databases(None)] == ["queueops.E002"]
