"""A hold and real workers: what matches waits, the rest runs, and lifting it wakes who is idle."""

from __future__ import annotations

from queueops import JobState, enqueue, keys
from queueops.holds import Hold, HoldKind, to_setting
from tests.queueops.worker.conftest import QUEUE, Fleet, eventually


def publish(fleet: Fleet, *holds: Hold) -> None:
    """Let these holds be in force and no others."""
    raw = fleet.redis.hget(keys.queue_key(QUEUE, "settings"), "version")
    assert fleet.store.publish(QUEUE, int(raw) + 1, {"holds": to_setting(holds)})


def test_one_handler_waits_while_the_rest_runs_and_goes_on_when_it_is_lifted(fleet: Fleet) -> None:
    fleet.start_ready(concurrency=2)
    publish(fleet, Hold(1, HoldKind.HANDLER, "test.note"))
    held = [enqueue("test.note", [n], queue=QUEUE).id for n in range(250)]
    beside = [enqueue("test.noop", queue=QUEUE).id for _ in range(20)]

    fleet.wait_for_done(*beside)
    eventually(lambda: fleet.redis.zcard(keys.held_by(QUEUE, 1)) == 250, what="all held", logs=fleet.logs)
    assert fleet.notes.effects == {}

    publish(fleet)
    fleet.wait_for_done(*held, within=10)  # a worker that waits for a token is woken
    assert set(fleet.notes.effects.values()) == {1}
    assert {start.attempt for start in fleet.notes.starts} == {1}


def test_a_hold_ends_by_itself_at_its_time(fleet: Fleet) -> None:
    fleet.start_ready()
    seconds, us = fleet.redis.time()
    until_ms = seconds * 1000 + us // 1000 + 1500
    publish(fleet, Hold(1, HoldKind.TAG, "customer=42", until_ms))
    job = enqueue("test.note", queue=QUEUE, tags={"customer": "42"})
    eventually(lambda: fleet.state(job.id) == JobState.DELAYED, what="held", logs=fleet.logs)

    fleet.wait_for_done(job.id, within=10)

    assert fleet.notes.starts_of(job.id)[0].at * 1000 >= until_ms


def test_a_worker_that_is_killed_while_a_hold_is_there_loses_no_held_job(fleet: Fleet) -> None:
    worker = fleet.start_ready(concurrency=2)
    publish(fleet, Hold(1, HoldKind.HANDLER, "test.note"))
    held = [enqueue("test.note", queue=QUEUE).id for _ in range(300)]
    eventually(lambda: fleet.redis.zcard(keys.held_by(QUEUE, 1)) > 0, what="some held", logs=fleet.logs)
    worker.kill_tree()

    publish(fleet)
    fleet.start(concurrency=2)

    fleet.wait_for_done(*held)
    assert set(fleet.notes.effects.values()) == {1}
