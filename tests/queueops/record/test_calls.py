"""Calls of Celery and Django tasks inside a transaction: they live and die with it (h02)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import Group
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from pytest_django import Settings

from queueops.models import Job
from tests.factories import Redis
from tests.queueops.bridges import django_cases
from tests.queueops.bridges.queue_app import app

pytestmark = pytest.mark.django_db(transaction=True)

ADD: Any = app.tasks["cases.add"]
CALLS: dict[str, Callable[[], str]] = {
    "delay": lambda: str(ADD.delay("k", 1, 2).id),
    "apply_async": lambda: str(ADD.apply_async(("k", 1, 2), queue="default").id),
    "delay_on_commit": lambda: str(ADD.delay_on_commit("k", 1, 2).id),
    "signature": lambda: str(ADD.s("k", 1, 2).delay().id),
    "send_task": lambda: str(app.send_task("cases.add", ("k", 1, 2)).id),
    "django task": lambda: str(django_cases.add.enqueue("k", 1).id),
}


class _Undone(Exception):
    """Rolls a block back."""


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest, redis: Redis, settings: Settings) -> Callable[[], str]:
    """A way to enqueue a job; the answer is its id."""
    settings.TASKS = {"default": {"BACKEND": "queueops.bridges.django_tasks.QueueOpsBackend", "QUEUES": []}}
    return CALLS[request.param]


def is_in_redis(redis: Redis, job_id: str) -> bool:
    return any(redis.exists(f"queueops:{{{queue}}}:job:{job_id}") for queue in ("cases", "default"))


def test_h02_a_call_is_pushed_after_the_commit_under_the_id_it_answered(
    redis: Redis, call: Callable[[], str]
) -> None:
    with transaction.atomic():
        Group.objects.create(name="order 7")
        job_id = call()
        assert not is_in_redis(redis, job_id)
        assert Job.objects.get(job_id=job_id).state == "accepted"

    assert is_in_redis(redis, job_id)


def test_h02_a_call_is_rolled_back_with_its_transaction_or_savepoint(
    redis: Redis, call: Callable[[], str]
) -> None:
    undone = []
    with suppress(_Undone), transaction.atomic():
        undone.append(call())
        raise _Undone
    with transaction.atomic():
        outer = call()
        with suppress(_Undone), transaction.atomic():
            undone.append(call())
            raise _Undone

    assert [is_in_redis(redis, job_id) for job_id in (*undone, outer)] == [False, False, True]
    assert [row.job_id for row in Job.objects.all()] == [outer]


@login_not_required
def order(request: HttpRequest) -> HttpResponse:
    Group.objects.create(name=f"order {request.GET['fail']}")
    job_id = CALLS[request.GET["how"]]()
    if request.GET["fail"] == "yes":
        raise _Undone(job_id)
    return HttpResponse(job_id)


urlpatterns = [path("order/", order)]


@pytest.mark.urls(__name__)
@pytest.mark.parametrize("how", CALLS)
def test_h02_a_call_in_a_view_with_atomic_requests(
    redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    settings.TASKS = {"default": {"BACKEND": "queueops.bridges.django_tasks.QueueOpsBackend", "QUEUES": []}}
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    done = Client().get("/order/", {"how": how, "fail": "no"}).content.decode()
    with pytest.raises(_Undone) as undone:
        Client().get("/order/", {"how": how, "fail": "yes"})

    assert is_in_redis(redis, done)
    assert not is_in_redis(redis, str(undone.value))
    assert list(Group.objects.filter(name__startswith="order").values_list("name", flat=True)) == ["order no"]
