"""Each query that stands beside an index in the models uses it, by PostgreSQL's own word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from dashboard import lists
from queueops.models import (
    Attempt,
    Effect,
    Job,
    JobEvent,
    JobTag,
    Operation,
    OperatorAction,
    Schedule,
    ScheduleSlot,
    WorkerRecord,
)
from queueops.states import JobState

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="EXPLAIN is read on PostgreSQL"),
]

_ROWS = (Path(__file__).parent / "many_rows.sql").read_text()
_SEEDED = (
    JobEvent,
    JobTag,
    Attempt,
    Effect,
    OperatorAction,
    Operation,
    WorkerRecord,
    ScheduleSlot,
    Schedule,
    Job,
)


@pytest.fixture(scope="module", autouse=True)
def many_rows(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Rows enough for the planner to care, and its statistics of them."""
    if connection.vendor != "postgresql":
        yield
        return
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        Schedule.objects.bulk_create(
            [Schedule(key="nightly", queue="q1", handler="shop.h1", rule="0 3 * * *")]
        )
        for statement in _ROWS.split("\n\n"):
            cursor.execute(statement.replace("%", "%%"), [])
        yield
        cursor.execute("INSERT INTO queueops_prunepermit (kept_until) VALUES (NULL)")
        for model in _SEEDED:
            cursor.execute(f"DELETE FROM {model._meta.db_table}")
        cursor.execute("DELETE FROM queueops_prunepermit")


def listed(**given: Any) -> QuerySet[Job]:
    """A page of a list as /queues/<queue>/ asks for it."""
    wanted = lists.Filter(queue="q4", state=JobState.DEAD, **given)
    return lists.matching(wanted).order_by("-since", "-pk")[:51]


def next_page(found: QuerySet[Job]) -> QuerySet[Job]:
    found.query.clear_limits()
    return found.filter(since__lte=timezone.now() - timedelta(hours=3)).order_by("-since", "-pk")[:51]


NOW = timezone.now()
PLANS: dict[str, tuple[Callable[[], Any], str]] = {
    "one job": (lambda: Job.objects.filter(queue="q4", job_id__in=["joba", "jobb"]), "job_once_a_queue"),
    "one id in any queue": (lambda: Job.objects.filter(job_id="joba"), "job_once_a_queue"),
    "ids by prefix": (
        lambda: lists.with_prefix(Job.objects.all(), "job00").order_by("job_id")[:50],
        "job_once_a_queue",
    ),
    "a state, newest first": (
        lambda: Job.objects.filter(queue="q4", state="dead").order_by("-since", "-pk")[:51],
        "job_by_state",
    ),
    "a handler of a state": (lambda: listed(handler="shop.h4"), "job_by_handler"),
    "its next page": (lambda: next_page(listed(handler="shop.h4")), "job_by_handler"),
    "a cause of a state": (lambda: listed(cause="c4", handler=""), "job_by_cause"),
    "a tag": (lambda: listed(tag="order=777"), "tag_by_value"),
    "a tag in any queue": (
        lambda: JobTag.objects.filter(name="order", value="77").order_by("-queue", "-job_id")[:50],
        "tag_by_value",
    ),
    "counts of states": (lambda: Job.objects.filter(queue="q4", state="accepted"), "job_"),
    "the relay": (
        lambda: Job.objects.filter(state="accepted", accepted_at__lt=NOW).order_by("accepted_at", "id")[:500],
        "job_accepted",
    ),
    "retention": (
        lambda: Job.objects.filter(keep_until__lte=NOW).order_by("keep_until")[:200],
        "job_over",
    ),
    "a timeline": (
        lambda: JobEvent.objects.filter(queue="q4", job_id="joba").order_by("-id")[:200],
        "event_of_job",
    ),
    "events of pruned jobs": (
        lambda: JobEvent.objects.filter(queue="q4", job_id__in=["joba", "jobb"]),
        "event_of_job",
    ),
    "its attempts": (
        lambda: Attempt.objects.filter(queue="q4", job_id="joba").order_by("-delivery"),
        "attempt_once_a_delivery",
    ),
    "once()": (
        lambda: Effect.objects.filter(queue="q4", idempotency_key="joba", key="charge"),
        "effect_",
    ),
    "effects of pruned jobs": (lambda: Effect.objects.filter(queue="q4", job_id__in=["joba"]), "effect_"),
    "effects by age": (
        lambda: Effect.objects.filter(created_at__lte=NOW).order_by("created_at", "id")[:500],
        "effect_by_age",
    ),
    "the activity": (lambda: OperatorAction.objects.order_by("-at", "-id")[:51], "action_newest"),
    "what a person did": (
        lambda: OperatorAction.objects.filter(actor_name="n7").order_by("-at", "-id")[:51],
        "action_by_actor",
    ),
    "what was done to a queue": (
        lambda: OperatorAction.objects.filter(queue="q4").order_by("-at", "-id")[:51],
        "action_by_queue",
    ),
    "what was done to a job": (
        lambda: OperatorAction.objects.filter(queue="q4", job_id="joba").order_by("-at", "-id")[:50],
        "action_of_job",
    ),
    "operations, newest first": (
        lambda: Operation.objects.order_by("-created_at", "-id")[:51],
        "operation_newest",
    ),
    "open operations": (
        lambda: Operation.objects.filter(status__in=["waiting", "running"]).order_by("created_at"),
        "operation_open",
    ),
    "a strip of slots": (
        lambda: ScheduleSlot.objects.filter(schedule_id=Schedule.objects.get().pk, slot_at__lte=NOW).order_by(
            "-slot_at", "-pk"
        )[:60],
        "slot_once",
    ),
    "the slot of a job": (lambda: ScheduleSlot.objects.filter(queue="q1", job_id="slot7"), "slot_of_job"),
    "missed slots": (
        lambda: ScheduleSlot.objects.filter(state="missed", slot_at__gt=NOW - timedelta(hours=1)),
        "slot_by_state",
    ),
    "workers seen lately": (
        lambda: WorkerRecord.objects.filter(last_seen_at__gt=NOW - timedelta(hours=1)).order_by(
            "-last_seen_at"
        ),
        "worker_by_last_seen",
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_query_uses_its_index(name: str) -> None:
    query, index = PLANS[name]
    plan = query().explain()

    assert index in plan, plan
    assert "Seq Scan" not in plan, plan


def test_the_mirror_finds_rows_by_their_index() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "EXPLAIN SELECT 1 FROM queueops_job WHERE queue = %s AND job_id = ANY(%s)",
            ["q4", [f"job{n}" for n in range(20)]],
        )
        plan = "\n".join(line for (line,) in cursor.fetchall())

    assert "job_once_a_queue" in plan, plan
