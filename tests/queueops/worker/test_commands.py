"""`runworkers` and `workerhealth` from the shell: options, refusals, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from queueops import enqueue
from tests.queueops.worker.conftest import QUEUE, Fleet, eventually


def run(fleet: Fleet, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(command, env={**fleet.env, **env}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--queue", "a b"], "is not allowed"),
        (["--processes", "0"], "whole number"),
        (["--concurrency", "x"], "whole number"),
        (["--grace", "-1"], "number of seconds"),
        (["--grace", "nan"], "number of seconds"),
        (["--executor", "rocket"], "invalid choice"),
    ],
)
def test_bad_option_is_refused_with_exit_2(fleet: Fleet, arguments: list[str], says: str) -> None:
    done = run(fleet, "runworkers", *arguments)
    assert done.returncode == 2
    assert says in done.stderr


def test_handlers_that_cannot_be_loaded_are_named_in_one_line(fleet: Fleet) -> None:
    done = run(fleet, "runworkers", QUEUEOPS_HANDLERS="no.such.module")
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "no.such.module" in done.stderr


def test_burst_with_nothing_to_do_ends(fleet: Fleet) -> None:
    worker = fleet.start("--burst")
    assert worker.wait() == 0


def test_burst_does_not_wait_for_delayed_jobs_or_a_paused_queue(fleet: Fleet) -> None:
    enqueue("test.note", job_id="later", delay=3600, queue=QUEUE)
    fleet.store.register("paused")
    fleet.redis.hset("queueops:{paused}:settings", "paused", "1")
    enqueue("test.note", job_id="p", queue="paused")
    enqueue("test.note", job_id="now", queue=QUEUE)
    worker = fleet.start("--burst", queue=None)

    assert worker.wait() == 0
    assert fleet.notes.effects == {"now": 1}


def test_worker_says_what_it_is(fleet: Fleet) -> None:
    fleet.start_ready(processes=2, concurrency=3)
    info = eventually(lambda: _info(fleet) if len(_info(fleet).get("children", ())) == 3 else None)

    assert {"host", "pid", "version", "started_at", "last_fetch_at", "rss_mb"} <= info.keys()
    assert (info["queues"], info["processes"], info["concurrency"], info["draining"]) == (
        [QUEUE],
        2,
        3,
        False,
    )
    assert {child["name"].rpartition("/")[2] for child in info["children"]} == {"1", "2", "probation"}


def _info(fleet: Fleet) -> dict[str, Any]:
    raw = fleet.redis.hvals("queueops:worker-info")
    return json.loads(raw[0]) if raw else {}


def test_workerhealth_is_well_while_a_worker_fetches_and_ill_when_it_does_not(fleet: Fleet) -> None:
    assert run(fleet, "workerhealth").returncode == 1
    worker = fleet.start_ready()
    [name] = [raw.decode() for raw in fleet.redis.zrange("queueops:workers", 0, -1)]
    eventually(lambda: run(fleet, "workerhealth").returncode == 0, what="well on this host")
    assert run(fleet, "workerhealth", name).returncode == 0
    assert run(fleet, "workerhealth", "host:1:none").returncode == 1

    for process in worker.tree():
        process.suspend()
    done = eventually(
        lambda: (answer := run(fleet, "workerhealth", QUEUEOPS_FETCH_LIMIT_S="1")).returncode and answer
    )
    assert "over 1 s" in done.stdout or "no heartbeat" in done.stdout
    for process in worker.tree():
        process.resume()


def test_workerhealth_without_redis_is_one_line_and_exit_1(fleet: Fleet) -> None:
    done = run(fleet, "workerhealth", REDIS_URL="redis://127.0.0.1:1/0")
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
