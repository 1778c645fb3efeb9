"""A person stops a job that a Celery worker runs: its process is ended for it, the others run on."""

from __future__ import annotations

from queueops.inspector import Inspector
from queueops.states import JobState
from queueops.tallies import asked
from tests.queueops.bridges.fleet import QUEUE, Fleet


def test_a_job_that_does_not_stop_when_asked_is_ended_with_its_process(fleet: Fleet, key: str) -> None:
    fleet.whole("a", "b")
    deaf, beside = fleet.call("holds", key), fleet.call("holds", key)
    fleet.wait_for_runs(key, 2)

    words = fleet.store.act("cancel", QUEUE, [(deaf.id, "1000 ann")], actor="user:7", operation="op-stops")
    dead = fleet.wait_for(deaf, JobState.DEAD)

    assert words == ["ok"]
    assert (dead.cause, dead.attempts, dead.rescues) == ("cancelled", 0, 0)
    assert dead.error is not None
    assert "ann asked it to stop" in dead.error["message"]
    told = asked(Inspector(fleet.connection), "op-stops", [QUEUE])
    assert (told["stopped"], told["running"]) == (1, 0)
    assert fleet.job(beside).state == JobState.PENDING
    fleet.ground.let_go(key)
    assert fleet.wait_for(beside).delivery == 1
