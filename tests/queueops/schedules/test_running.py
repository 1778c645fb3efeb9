"""A scheduler that runs: by the server's clock, in its threads, beside others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from django.db import connections

from queueops import keys
from queueops.models import Schedule, ScheduleSlot
from queueops.schedules.scheduler import ROLE, Scheduler
from tests.factories import Redis

QUEUE = "reports"


@pytest.fixture
def start(redis: Redis, transactional_db: None) -> Iterator[Callable[..., Scheduler]]:
    """Run schedulers until the test ends."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def started(**options: object) -> Scheduler:
        scheduler = Scheduler(**options)  # type: ignore[arg-type]  # a test's own
        threads.append(threading.Thread(target=scheduler.run, args=(stop,), daemon=True))
        threads[-1].start()
        return scheduler

    yield started
    stop.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    connections.close_all()


def wait_for(condition: Callable[[], object], limit_s: float = 15.0) -> float:
    """Wait until it holds; how long that took, seconds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit_s
        time.sleep(0.02)
    return time.monotonic() - began


def fired(redis: Redis) -> int:
    return sum(1 for _ in redis.scan_iter(match="queueops:*:job:schedule:*", count=10_000))


def test_an_edit_is_in_force_within_two_seconds_without_a_restart(
    redis: Redis, start: Callable[..., Scheduler]
) -> None:
    schedule = Schedule.objects.create(
        key="tick", queue=QUEUE, handler="tests.work", rule="0 0 1 1 *", overlap="allow"
    )
    start()
    wait_for(lambda: redis.exists(keys.schedule(QUEUE, "tick")))

    Schedule.objects.filter(pk=schedule.pk).update(kind="interval", rule="1")
    took_s = wait_for(lambda: fired(redis))

    assert took_s < 2 + 1 + 1  # to notice, to the next slot, and what a busy machine adds
    wait_for(lambda: ScheduleSlot.objects.count() >= 2)
    assert set(ScheduleSlot.objects.values_list("state", flat=True)) == {"fired"}


def test_one_leads_and_another_goes_on_when_it_is_gone(redis: Redis, start: Callable[..., Scheduler]) -> None:
    Schedule.objects.create(
        key="tick", queue=QUEUE, handler="tests.work", kind="interval", rule="1", overlap="allow"
    )
    first, second = start(name="first"), start(name="second")
    wait_for(lambda: first.is_leader or second.is_leader)
    wait_for(lambda: fired(redis) >= 2)
    redis.set(keys.lease(ROLE), b"somebody-else 1", px=600_000)  # neither leads: both look, a moment later

    before = fired(redis)
    wait_for(lambda: fired(redis) >= before + 3)

    assert not first.is_leader
    assert not second.is_leader
    slots = sorted(ScheduleSlot.objects.values_list("slot_at", flat=True))
    assert all((b - a).total_seconds() == 1 for a, b in pairwise(slots))


def test_a_waiting_scheduler_asks_for_little(redis: Redis, start: Callable[..., Scheduler]) -> None:
    """A schedule that is not due costs a lease and a reading of the database a second."""
    Schedule.objects.create(key="tick", queue=QUEUE, handler="tests.work", rule="0 0 1 1 *")
    scheduler = start()
    wait_for(lambda: scheduler.is_leader and redis.exists(keys.schedule(QUEUE, "tick")))
    before = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
    time.sleep(3)
    after = redis.info("commandstats")["cmdstat_evalsha"]["calls"]

    assert after - before <= 3 * 6
