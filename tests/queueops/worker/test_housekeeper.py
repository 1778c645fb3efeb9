"""Housekeeping: one place at a time, each duty for itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from queueops import JobState, enqueue, keys
from queueops.inspector import Inspector
from queueops.store import Store
from queueops.worker.control import Control
from queueops.worker.housekeeper import Duty, Housekeeper, forget_workers
from tests.factories import Redis
from tests.queueops.worker.conftest import QUEUE, Fleet, eventually

pytestmark = pytest.mark.django_db(transaction=True)  # the worker's processes see the database too


@pytest.fixture
def ends() -> Iterator[tuple[Control, Control]]:
    here, there = Control.pair()
    yield here, there
    here.close()
    there.close()


def test_one_housekeeper_leads_and_another_takes_over(redis: Redis, ends: tuple[Control, Control]) -> None:
    first, second = (Housekeeper(f"w{i}/housekeeper", ends[1], Store(), []) for i in (1, 2))

    assert first.run_once() > 0
    assert second.run_once() == 0
    assert first.run_once() == first.term  # the same term, kept
    redis.delete("queueops:lease:housekeeping")
    term = first.term
    assert second.run_once() > term
    assert first.run_once() == 0


def test_a_worker_without_a_sign_for_an_hour_is_forgotten(redis: Redis) -> None:
    store = Store()
    now_ms = Inspector().now_ms()
    for name, ago_s in (("killed", 3_700), ("silent", 3_500), ("alive", 1)):
        redis.zadd(keys.WORKERS, {name: now_ms - ago_s * 1000})
        redis.hset(keys.WORKER_INFO, name, "{}")

    assert forget_workers(store) == 1
    assert forget_workers(store) == 0
    assert redis.zrange(keys.WORKERS, 0, -1) == [b"silent", b"alive"]
    assert sorted(redis.hkeys(keys.WORKER_INFO)) == [b"alive", b"silent"]


def test_duty_that_fails_is_tried_again_and_stops_no_other(
    redis: Redis, ends: tuple[Control, Control], caplog: pytest.LogCaptureFixture
) -> None:
    tries, steady = [], threading.Event()

    def bad(_store: Store) -> int:
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("broken duty")
        return 0

    def good(_store: Store) -> int:
        steady.set()
        return 0

    duties = [Duty("bad", bad, 0.01), Duty("good", good, 0.01)]
    keeper = Housekeeper("w/housekeeper", ends[1], Store(), duties, with_schedules=False)
    thread = threading.Thread(target=keeper.run)
    thread.start()
    eventually(lambda: len(tries) >= 4)
    assert steady.is_set()
    ends[0].send({"stop": True})
    thread.join(10)

    assert not thread.is_alive()
    assert sum("bad failed" in record.message for record in caplog.records) == 1
    assert redis.get("queueops:lease:housekeeping") is None


def test_worker_keeps_house_and_records_its_last_jobs_before_it_ends(fleet: Fleet) -> None:
    enqueue("test.note", job_id="a", queue=QUEUE)
    worker = fleet.start("--burst", housekeeping=True)

    assert worker.wait() == 0
    assert fleet.state("a") == JobState.DONE
    assert fleet.redis.xlen("queueops:{work}:events") == 0, worker.log
    assert fleet.redis.get("queueops:lease:housekeeping") is None


def test_housekeeper_that_dies_is_replaced(fleet: Fleet) -> None:
    worker = fleet.start(housekeeping=True)
    holder = eventually(lambda: fleet.redis.get("queueops:lease:housekeeping"))
    [keeper] = [process for process in worker.tree() if process.name() == "qo-housekeeper"]
    keeper.kill()
    eventually(lambda: worker.log_lines("housekeeper ended (SIGKILL)"))
    enqueue("test.note", job_id="a", queue=QUEUE)
    fleet.wait_for_done("a")
    eventually(lambda: fleet.redis.xlen("queueops:{work}:events") == 0, what="the mirror runs again")
    assert fleet.redis.get("queueops:lease:housekeeping") == holder
