"""Many tasks with a delay of hours: lines in Redis, and nothing in the memory of a worker or a broker."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import psutil
import pytest

from queueops import client
from queueops.bridges.celery import results
from queueops.connection import Connection
from queueops.inspector import Inspector
from queueops.job import new_job_id
from queueops.states import JobState
from queueops.store import Store, publish_defaults
from tests.factories import Child
from tests.queueops.bridges import cases
from tests.queueops.bridges.fleet import QUEUE, Fleet
from tests.queueops.bridges.ground import FOLDER, Ground, Started, eventually

pytestmark = pytest.mark.timeout(240)

TWO_HOURS_S = 7_200
#: Celery's worker keeps about 11 KB for each message with an ETA. The memory of a process moves by itself.
LESS_THAN_A_JOB_BYTES = 2_000


def memory_of(*workers: Started) -> int:
    """What processes have for themselves, bytes."""
    trees = [psutil.Process(each.process.pid) for each in workers]
    processes = [*trees, *(child for tree in trees for child in tree.children(recursive=True))]
    return sum(process.memory_full_info().uss for process in processes)


def make_due(connection: Connection, queue: str, ahead_s: float) -> None:
    """Let one child claim nothing, later by so much: what is due by then is ready."""
    later = Store(connection, publish=publish_defaults, now_ms=f"+{round(ahead_s * 1000)}")
    child = Child(later, f"seam:1:{new_job_id()[-8:]}/1", queue=queue).register()
    while Inspector(connection).counts(queue)[JobState.DELAYED]:
        child.claim(0, rescuing=False)  # what runs has its lease by the real clock
    child.die()


def is_idle(connection: Connection, queue: str) -> bool:
    counts = Inspector(connection).counts(queue)
    return not any(counts[state] for state in (JobState.DELAYED, JobState.READY, JobState.PENDING))


def numbers(notes: list[dict[str, Any]]) -> list[int]:
    return sorted(note["number"] for note in notes if note["what"] == "run")


def test_a_thousand_tasks_due_in_two_hours_run_once_each_and_take_no_memory(
    here: Ground, queue_worker: Started, key: str
) -> None:
    from tests.queueops.bridges.queue_app import app

    where, connection = app.tasks["cases.where"], Connection(here.url)
    warm_up = [where.delay(f"{key}-warm", number) for number in range(200)]
    eventually(partial(is_idle, connection, "cases"), what=lambda: queue_worker.log, within=60)
    before = memory_of(queue_worker)

    for number in range(1_000):
        where.apply_async((key, number), countdown=TWO_HOURS_S)
    where.delay(f"{key}-warm", 200).get(timeout=30)  # it has looked at the queue since

    assert Inspector(connection).counts("cases")[JobState.DELAYED] == 1_000
    assert memory_of(queue_worker) - before < 1_000 * LESS_THAN_A_JOB_BYTES
    make_due(connection, "cases", TWO_HOURS_S)
    eventually(partial(is_idle, connection, "cases"), what=lambda: queue_worker.log, within=60)
    assert numbers(here.notes("queued", key)) == list(range(1_000))
    assert numbers(here.notes("queued", f"{key}-warm")) == list(range(201))
    assert all(each.state == "SUCCESS" for each in warm_up)


@pytest.mark.slow
def test_j03_jobs_of_the_future_wait_in_no_celery_worker_and_are_shared_when_they_are_due(
    fleet: Fleet, key: str
) -> None:
    from tests.queueops.bridges.fleet_app import app

    if "b" in fleet.celery:
        assert fleet.celery.pop("b").stop() == 0
    fleet.whole("a")
    warm_up = [client.JobSpec("cases.where", (f"{key}-warm", number), queue=QUEUE) for number in range(200)]
    client.enqueue_many(warm_up)
    eventually(fleet.is_idle, what=fleet.logs, within=60)
    crew = (fleet.celery["a"], *fleet.hands)
    before = memory_of(*crew)

    client.enqueue_many(
        [
            client.JobSpec("cases.where", (key, number), queue=QUEUE, delay=TWO_HOURS_S)
            for number in range(5_000)
        ]
    )
    fleet.wait_for(fleet.call("where", f"{key}-warm", 200))
    grown = memory_of(*crew) - before

    inspect = app.control.inspect(destination=["a@h"], timeout=10)
    assert (inspect.reserved(), inspect.scheduled()) == ({"a@h": []}, {"a@h": []})
    assert fleet.in_broker() == 0
    assert grown < 5_000 * LESS_THAN_A_JOB_BYTES

    fleet.whole("a", "b")
    of_a = {process.pid for process in fleet.pool("a")}
    make_due(fleet.connection, QUEUE, TWO_HOURS_S)
    eventually(fleet.is_idle, what=lambda: fleet.logs(), within=150)

    notes = cases.notes(FOLDER, "fleet", key)
    assert numbers(notes) == list(range(5_000))
    shares = Counter(note["pid"] in of_a for note in notes if note["what"] == "run")
    assert 1_500 <= shares[True] <= 3_500, shares


def test_j07_a_job_that_was_revoked_long_before_does_not_start_after_a_restart_of_the_workers(
    fleet: Fleet, key: str
) -> None:
    fleet.whole("a", "b")
    revoked, kept = (fleet.call("where", key, number, delay=TWO_HOURS_S) for number in (1, 2))

    assert results.revoke(revoked.id)
    assert fleet.celery.pop("a").stop() == 0
    fleet.whole("a", "b")
    make_due(fleet.connection, QUEUE, TWO_HOURS_S)

    fleet.wait_for(kept)
    assert numbers(cases.notes(FOLDER, "fleet", key)) == [2]
    assert fleet.job(revoked).state == JobState.DISCARDED
    told = [event[b"verb"] for event in fleet.events() if event[b"id"].decode() == revoked.id]
    assert told == [b"enqueue", b"discard"]
