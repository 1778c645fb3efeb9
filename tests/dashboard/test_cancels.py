"""Cancelling running jobs on the pages: asked, hard after a while, and who obeyed."""

from __future__ import annotations

import pytest
from django.test import Client
from redis import Redis

from queueops import operations
from queueops.causes import CANCELLED
from queueops.models import Operation, OperatorAction
from queueops.store import Store
from tests.dashboard.pages import Q, enqueue, person
from tests.factories import Child, burying, job

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def live(redis: Redis) -> Store:
    """The engine as the site has it."""
    return Store()


@pytest.fixture
def operator() -> Client:
    return person("Operator")


@pytest.fixture
def running(live: Store) -> Child:
    """A child that runs four jobs."""
    enqueue(live, "a", "b", "c", "d")
    child = Child(live, "host:9:zz/1", Q).register()
    assert len(child.take(4)) == 4
    return child


def test_the_form_says_what_stopping_hard_means(operator: Client, running: Child) -> None:
    html = operator.get(f"/queues/{Q}/selection/cancel/form/?id=a&id=b").content.decode()

    assert "its process is ended" in html
    assert "Jobs beside it in the same process" in html
    assert 'name="stop_after"' in html
    assert "Cancel 2" in html


def test_ticked_jobs_are_asked_at_once_and_the_page_tells_who_obeyed(
    redis: Redis, operator: Client, running: Child
) -> None:
    answer = operator.post(
        f"/queues/{Q}/selection/cancel/",
        {"id": ["a", "b", "c"], "stop_after": "30 s", "reason": "wrong customer"},
    )

    row = Operation.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, f"/operations/{row.pk}/")
    assert (row.status, row.done, row.arguments) == ("running", 3, {"stop_after_s": 30.0})
    assert job(redis, "a")["stop_by"] == "Operator-"
    assert "cancel" not in job(redis, "d")
    (stop, *_) = running.store.renew(Q, [running.name]).stops
    assert (stop.job_id, stop.by) == ("a", "Operator-")
    a, b, c = (running.held[job_id] for job_id in "abc")
    running.store.look(Q, running.name, "a", a.delivery)
    running.discard(a)
    running.settle(burying(b, cause=CANCELLED, is_attempt=False))
    running.ack(c)
    operations.Runner(row.pk).step()

    html = operator.get(f"/operations/{row.pk}/").content.decode()
    for told in ("obeyed: saw it, and ended", "stopped hard, with their process", "ended before they saw it"):
        assert f'{told}</th><td class="num' in html
    row.refresh_from_db()
    assert row.status == "finished"
    assert {k: v for k, v in row.results["answers"].items() if k != "samples"} == {
        "asked": 3, "obeyed": 1, "stopped": 1, "ended": 1, "running": 0,
    }  # fmt: skip
    assert "asked first, stopped hard after 30 s" in html
    action = OperatorAction.objects.get()
    assert (action.verb, action.reason, action.operation) == ("cancel", "wrong customer", row.pk)


def test_a_filter_s_jobs_are_cancelled_by_an_operation(
    redis: Redis, operator: Client, running: Child
) -> None:
    form = operator.get(f"/operations/new/?queue={Q}&state=pending&verb=cancel").content.decode()
    assert 'name="stop_after"' in form
    given = {"queue": Q, "state": "pending", "verb": "cancel", "stop_after": "2 min"}

    operator.post("/operations/start/", given)

    row = Operation.objects.get()
    assert (row.verb, row.arguments) == ("cancel", {"stop_after_s": 120.0})
    operations.Runner(row.pk).run_guarded(0)
    operations.Runner(row.pk).run_guarded(0)
    assert redis.zcard(f"queueops:{{{Q}}}:stops") == 4


@pytest.mark.parametrize("stop_after", ["soon", "9 d"])
def test_a_time_that_can_t_be_meant_is_said_in_the_form(
    redis: Redis, operator: Client, running: Child, stop_after: str
) -> None:
    answer = operator.post(f"/queues/{Q}/selection/cancel/", {"id": "a", "stop_after": stop_after})

    assert answer.status_code == 422
    assert "cancel" not in job(redis, "a")


def test_without_a_tick_nobody_is_asked(operator: Client, running: Child) -> None:
    assert operator.post(f"/queues/{Q}/selection/cancel/", headers={"HX-Request": "true"}).status_code == 422
    assert not Operation.objects.exists()
