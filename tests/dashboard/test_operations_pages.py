"""Bulk actions from their forms: the set that was shown, its true count, and no other."""

from __future__ import annotations

import re

import pytest
from redis import Redis

from queueops import models, operations
from queueops.store import Store
from tests.dashboard.pages import Q, dead, enqueue, kill, person, record, spec
from tests.factories import state

pytestmark = pytest.mark.django_db

HTMX = {"HX-Request": "true"}


@pytest.fixture(autouse=True)
def real_time(store: Store) -> None:
    store.now_ms = ""


def finish(row: models.Operation) -> models.Operation:
    operations.Runner(row.pk).run_guarded(float("inf"))
    row.refresh_from_db()
    return row


def shown_count(html: str) -> int:
    found = re.search(r'class="set-count">([\d,]+)<', html)
    assert found, html
    return int(found[1].replace(",", ""))


def test_g11_all_that_match_are_the_filtered_ones_and_never_all(redis: Redis, store: Store) -> None:
    """Case g11: 500 dead, 30 of them match; 20 are requeued by name, then the rest that matches."""
    kill(store, *[f"other-{i:03}" for i in range(470)], data=spec("mail.other"))
    mine = kill(store, *[f"mine-{i:02}" for i in range(30)], data=spec("mail.send"))
    record(store)
    operator = person("Operator")
    operator.post(f"/queues/{Q}/selection/requeue/", {"id": mine[:20]})
    record(store)

    page = operator.get(f"/queues/{Q}/?state=dead&handler=mail.send").content.decode()
    link = re.search(r'id="select-matching" href="([^"]+)"', page)
    assert link
    assert "Select all 10 that match" in page
    form = operator.get(link[1].replace("&amp;", "&") + "&verb=requeue").content.decode()
    assert shown_count(form) == 10
    assert "handler mail.send" in form  # the confirmation names the filter
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))
    answer = operator.post("/operations/start/", {**fields, "reason": "fixed"})

    row = finish(models.Operation.objects.get())
    assert answer["Location"] == f"/operations/{row.pk}/"
    assert (row.total, row.done, row.status) == (10, 10, "finished")
    assert dead(redis) == 470
    assert all(state(redis, job) == "ready" for job in mine)


def test_jobs_that_die_later_do_not_join(redis: Redis, store: Store) -> None:
    kill(store, "a", "b")
    operator = person("Operator")
    operator.post("/operations/start/", {"queue": Q, "state": "dead", "verb": "requeue"})
    redis.time()
    store.now_ms = "+5000"
    kill(store, "c")

    finish(models.Operation.objects.get())

    assert state(redis, "c") == "dead"


def test_cause_is_requeued_over_all_queues_with_a_canary_first(redis: Redis, store: Store) -> None:
    kill(store, *[f"a{i}" for i in range(8)], cause="abc123abc123")
    kill(store, *[f"b{i}" for i in range(4)], cause="abc123abc123", queue="billing")
    kill(store, "x", cause="other")
    operator = person("Operator")

    page = operator.get("/causes/abc123abc123/").content.decode()
    assert shown_count(page) == 12
    form = {"state": "dead", "cause": "abc123abc123", "verb": "requeue", "canary": "5", "stop_percent": "50"}
    operator.post("/operations/start/", form)
    row = finish(models.Operation.objects.get())

    assert (row.total, row.done, row.status) == (12, 5, "paused")
    shown = operator.get(f"/operations/{row.pk}/").content.decode()
    assert "5 of 12" in shown
    assert "Go on" in shown
    operator.post(f"/operations/{row.pk}/resume/")
    assert finish(row).done == 12
    assert state(redis, "x") == "dead"


def test_discard_of_more_than_a_hundred_asks_for_the_count_and_is_taken_back(
    redis: Redis, store: Store
) -> None:
    kill(store, *[f"a{i:03}" for i in range(101)])
    operator = person("Operator")
    form = {"queue": Q, "state": "dead", "verb": "discard", "reason": "poison"}

    assert operator.post("/operations/start/", form).status_code == 422
    assert operator.post("/operations/start/", {**form, "typed": "100"}).status_code == 422
    operator.post("/operations/start/", {**form, "typed": "101"})
    row = finish(models.Operation.objects.get())
    assert dead(redis) == 0

    operator.post(f"/operations/{row.pk}/undo/")
    finish(models.Operation.objects.exclude(pk=row.pk).get())
    assert dead(redis) == 101


def test_undo_from_the_activity_restores_a_bulk_discard(redis: Redis, store: Store) -> None:
    kill(store, "a", "b")
    operator = person("Operator")
    operator.post("/operations/start/", {"queue": Q, "state": "dead", "verb": "discard"})
    row = finish(models.Operation.objects.get())
    action = models.OperatorAction.objects.get(operation=row.pk)

    operator.post(f"/activity/{action.pk}/undo/")
    finish(models.Operation.objects.exclude(pk=row.pk).get())

    assert dead(redis) == 2


@pytest.mark.parametrize(
    "bad",
    [
        {"canary": "0"}, {"canary": "x"}, {"rate": "-1"}, {"rate": "nan"}, {"spread": "soon"},
        {"stop_percent": "200"},        {"verb": "purge"}, {"verb": ""}, {"verb": "nonsense"},
    ],
)  # fmt: skip
def test_bad_plan_is_refused_at_its_field(redis: Redis, store: Store, bad: dict[str, str]) -> None:
    kill(store, "a")

    answer = person("Admin").post(
        "/operations/start/", {"queue": Q, "state": "dead", "verb": "requeue", **bad}
    )

    assert answer.status_code == 422
    assert 'role="alert"' in answer.content.decode()
    assert not models.Operation.objects.exists()


def test_set_that_cannot_be_meant_is_not_found(redis: Redis, store: Store) -> None:
    operator = person("Operator")

    assert operator.get("/operations/new/?state=done").status_code == 404
    assert operator.get("/operations/new/?queue=a/b&state=dead").status_code == 404


def test_delayed_jobs_are_spread(redis: Redis, store: Store) -> None:
    enqueue(store, *[f"a{i}" for i in range(20)], delay_ms=60_000)
    operator = person("Operator")
    form = {"queue": Q, "state": "delayed", "verb": "reschedule", "after": "1 min", "spread": "10 min"}

    operator.post("/operations/start/", form)
    finish(models.Operation.objects.get())

    due = [redis.zscore(f"queueops:{{{Q}}}:delayed", f"a{i}") or 0.0 for i in range(20)]
    assert max(due) - min(due) > 60_000


def test_operation_is_paused_and_ended_by_a_person_once(redis: Redis, store: Store) -> None:
    kill(store, "a", "b")
    operator = person("Operator")
    operator.post("/operations/start/", {"queue": Q, "state": "dead", "verb": "requeue"})
    row = models.Operation.objects.get()

    assert operator.post(f"/operations/{row.pk}/pause/", headers=HTMX).status_code == 200
    assert operator.post(f"/operations/{row.pk}/pause/", headers=HTMX).status_code == 409
    assert operator.post(f"/operations/{row.pk}/cancel/", headers=HTMX).status_code == 200
    assert finish(row).status == "cancelled"
    verbs = list(models.OperatorAction.objects.order_by("pk").values_list("verb", "count"))
    assert verbs == [("requeue", 2), ("pause_operation", 1), ("pause_operation", 0), ("cancel_operation", 1)]


def test_pages_of_operations_do_not_drift(redis: Redis, store: Store) -> None:
    kill(store, "a")
    operator = person("Operator")
    for _ in range(60):
        operations.start("requeue", operations.Selection(queue=Q, state="dead", cause="none"), actor="user:1")
    first = operator.get("/operations/").content.decode()
    link = re.search(r'href="(\?before=[^"]+)" rel="next"', first)
    assert link
    operations.start("requeue", operations.Selection(queue=Q, state="dead", cause="none"), actor="user:1")

    second = operator.get(f"/operations/{link[1]}").content.decode()

    ids = re.findall(r'<tr id="operation-(\w+)"', first + second)
    assert len(ids) == len(set(ids)) == 60
