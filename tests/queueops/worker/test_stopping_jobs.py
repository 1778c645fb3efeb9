"""A person stops running jobs: asked first, then with their process; who is beside them is not punished."""

from __future__ import annotations

import pytest

from queueops import JobState, enqueue, operations
from queueops.inspector import Inspector
from queueops.models import Operation
from queueops.operations import Plan, Runner, Selection
from tests.queueops.worker.conftest import QUEUE, Fleet, eventually

pytestmark = pytest.mark.django_db(transaction=True)


def cancel(fleet: Fleet, *ids: str, after_s: float | None = None) -> Operation:
    """Begin the operation and ask everybody, as housekeeping does."""
    selection = Selection.for_verb("cancel", queue=QUEUE, ids=ids)
    plan = Plan(stop_after_s=after_s)
    row = operations.start("cancel", selection, plan, actor="user:7", actor_name="ann", reason="wrong")
    runner = Runner(row.pk, store=fleet.store)
    while runner.row.done + runner.row.skipped < len(ids):
        runner.step()
    return runner.row


def finish(fleet: Fleet, row: Operation) -> dict[str, int]:
    """Go on with it to its end; what its jobs did."""
    row = Runner(row.pk, store=fleet.store).run()
    assert row.status == "finished", row.error
    answers: dict[str, int] = dict(row.results["answers"])
    answers.pop("samples")
    return answers


def test_who_obeys_is_not_stopped_and_who_does_not_is_dead_of_a_person(fleet: Fleet) -> None:
    worker = fleet.start_ready(concurrency=4)
    enqueue("test.obey", job_id="good", queue=QUEUE)
    enqueue("test.hold", ["never"], job_id="deaf", queue=QUEUE)
    enqueue("test.hold", ["beside"], job_id="beside", queue=QUEUE)
    enqueue("test.hold", ["first"], job_id="first", queue=QUEUE)
    for job_id in ("good", "deaf", "beside", "first"):
        fleet.wait_for_start(job_id)

    row = cancel(fleet, "good", "deaf", "first", after_s=2)
    fleet.notes.let_go("first")
    dead = fleet.wait_for("deaf", JobState.DEAD)

    assert (dead.cause, dead.attempts, dead.rescues) == ("cancelled", 0, 0)
    assert dead.error is not None
    assert "ann asked it to stop; it ran on, and after" in dead.error["message"]
    assert worker.log_lines("is ended", "ann wants deaf stopped")
    assert fleet.job("good").state == JobState.DISCARDED
    # The one beside it had its moment, and runs again without an attempt.
    fleet.wait_for_start("beside", number=2)
    beside = fleet.job("beside")
    assert (beside.attempts, beside.rescues) == (0, 0)
    fleet.notes.let_go("beside")
    fleet.wait_for_done("beside")
    assert finish(fleet, row) == {"asked": 3, "obeyed": 1, "stopped": 1, "ended": 1, "running": 0}


def test_a_handler_that_holds_the_gil_is_stopped_too(fleet: Fleet) -> None:
    fleet.start_ready(processes=2, concurrency=1)
    enqueue("test.hog", [60], job_id="hog", queue=QUEUE)
    fleet.wait_for_start("hog")

    row = cancel(fleet, "hog", after_s=0.5)
    fleet.wait_for("hog", JobState.DEAD)

    assert fleet.job("hog").cause == "cancelled"
    assert finish(fleet, row)["stopped"] == 1
    fleet.run_one()


def test_asked_only_nobody_is_stopped(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "SEEN_S", 1.0)
    fleet.start_ready()
    enqueue("test.hold", job_id="deaf", queue=QUEUE)
    fleet.wait_for_start("deaf")

    row = cancel(fleet, "deaf")
    answers = finish(fleet, row)

    assert answers == {"asked": 1, "obeyed": 0, "stopped": 0, "ended": 0, "running": 1}
    assert Operation.objects.get(pk=row.pk).error == "1 of them still run"
    fleet.notes.let_go()
    fleet.wait_for_done("deaf")


def test_whoever_asked_may_be_gone_the_job_is_stopped_in_time(fleet: Fleet) -> None:
    """The wish stands in Redis: neither the runner of the operation nor the record is needed."""
    fleet.start_ready()
    enqueue("test.hold", ["never"], job_id="deaf", queue=QUEUE)
    fleet.wait_for_start("deaf")
    row = cancel(fleet, "deaf", after_s=1)
    Operation.objects.all().delete()

    fleet.wait_for("deaf", JobState.DEAD)
    assert row.pk == fleet.job("deaf").operation


def test_a_job_whose_whole_worker_was_lost_meanwhile_is_not_stopped_when_it_runs_again(fleet: Fleet) -> None:
    lost = fleet.start_ready()
    enqueue("test.hold", job_id="a", queue=QUEUE)
    fleet.wait_for_start("a")
    row = cancel(fleet, "a", after_s=3)
    lost.kill_tree()
    fleet.start()

    fleet.wait_for_start("a", number=2)
    over = Inspector().now_ms() + 5000  # the time of the stop, and a renewal after it
    assert finish(fleet, row)["ended"] == 1
    eventually(lambda: Inspector().now_ms() > over, what="5 s")
    assert fleet.job("a").state == JobState.PENDING
    fleet.notes.let_go()
    fleet.wait_for_done("a")


def test_two_stops_in_one_process_are_one_end_of_it(fleet: Fleet) -> None:
    worker = fleet.start_ready(concurrency=4)
    for job_id in ("a", "b"):
        enqueue("test.hold", ["never"], job_id=job_id, queue=QUEUE)
        fleet.wait_for_start(job_id)

    row = cancel(fleet, "a", "b", after_s=1)
    fleet.wait_for("a", JobState.DEAD)
    fleet.wait_for("b", JobState.DEAD)

    assert finish(fleet, row)["stopped"] == 2
    assert len(worker.log_lines("gave back")) <= 1


def test_an_async_handler_is_stopped_with_its_loop(fleet: Fleet) -> None:
    fleet.start_ready()
    enqueue("test.async_hold", [60], job_id="a", queue=QUEUE)
    fleet.wait_for_start("a")

    row = cancel(fleet, "a", after_s=0.5)
    fleet.wait_for("a", JobState.DEAD)

    assert finish(fleet, row)["stopped"] == 1
