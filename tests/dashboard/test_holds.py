"""Holding a part of a queue on its pages: asked for, seen everywhere, lifted."""

from __future__ import annotations

import pytest
from django.test import Client
from redis import Redis

from queueops import holding, models
from queueops.mirror import catch_up
from queueops.store import Store
from tests.dashboard.pages import Q, enqueue, kill, person, spec
from tests.factories import Child, job, state

pytestmark = pytest.mark.django_db(transaction=True)

HTMX = {"HX-Request": "true"}


@pytest.fixture
def live(redis: Redis) -> Store:
    """The engine as the site has it: it publishes what the database says."""
    return Store()


@pytest.fixture
def operator() -> Client:
    return person("Operator")


def take(live: Store) -> list[str]:
    return [each.id for each in Child(live, "host:9:zz/1", Q).register().take(10)]


def test_a_handler_is_held_and_every_page_says_so(redis: Redis, live: Store, operator: Client) -> None:
    enqueue(live, "a")
    enqueue(live, "b", data=spec("mail.digest"))

    answer = operator.post(
        f"/queues/{Q}/hold/", {"handler": "mail.send", "reason": "provider <down>", "resume_after": "30 min"},
        headers=HTMX,
    )  # fmt: skip

    assert answer.status_code == 200
    assert "handler mail.send of mail is held until" in answer.content.decode()
    assert take(live) == ["b"]
    for page in ("/", "/activity/", "/causes/", f"/queues/{Q}/"):
        html = operator.get(page).content.decode()
        assert "mail: handler mail.send is held" in html, page
        assert "provider &lt;down&gt;" in html
    overview = operator.get("/").content.decode()
    assert "1 held" in overview
    assert "1 job kept back so far" in overview
    assert 'class="badge c-pending"' in operator.get(f"/queues/{Q}/?state=delayed").content.decode()
    row = models.OperatorAction.objects.get(verb="hold")
    assert (row.actor_name, row.reason) == ("Operator-", "provider <down>")


def test_a_hold_is_lifted_once_and_who_comes_second_is_told(
    redis: Redis, live: Store, operator: Client
) -> None:
    enqueue(live, "a")
    held = holding.hold(Q, "handler", "mail.send", actor="user:1")
    assert take(live) == []
    url = f"/queues/{Q}/holds/{held.pk}/lift/"
    assert url in operator.get(f"/queues/{Q}/").content.decode()
    assert url not in person("Viewer").get(f"/queues/{Q}/").content.decode()

    assert operator.post(url, headers=HTMX).status_code == 200
    assert operator.post(url, headers=HTMX).status_code == 409

    assert take(live) == ["a"]
    assert [row.count for row in models.OperatorAction.objects.filter(verb="lift")] == [0, 1]


def test_a_hold_is_undone_from_the_activity(redis: Redis, live: Store, operator: Client) -> None:
    enqueue(live, "a")
    holding.hold(Q, "tag", "customer=42", actor="user:1", reason="they asked")
    row = models.OperatorAction.objects.get(verb="hold")
    html = operator.get("/activity/").content.decode()
    assert f"/activity/{row.pk}/undo/" in html
    assert "tag customer=42" in html

    answer = operator.post(f"/activity/{row.pk}/undo/", headers=HTMX)

    assert answer.status_code == 200
    assert not models.QueueHold.objects.exists()
    assert operator.post(f"/activity/{row.pk}/undo/", headers=HTMX).status_code == 409


def test_a_cause_is_held_in_every_queue_that_has_it(redis: Redis, live: Store, operator: Client) -> None:
    kill(live, "a", message="declined")
    kill(live, "b", queue="orders", message="declined")
    form = operator.get("/causes/boom/hold/form/").content.decode()
    assert "In mail, orders." in form
    assert "/causes/boom/hold/form/" in operator.get("/causes/boom/").content.decode()

    answer = operator.post("/causes/boom/hold/", {"reason": "the bank is down"})

    assert answer.status_code == 302
    assert sorted(models.QueueHold.objects.values_list("queue", "kind", "value")) == [
        ("mail", "cause", "boom"), ("orders", "cause", "boom"),
    ]  # fmt: skip
    overview = operator.get("/").content.decode()
    assert "mail: cause boom: declined is held" in overview
    assert operator.get("/causes/nothing/hold/form/").status_code == 404


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({}, "name a handler, a cause or a tag, one of the three"),
        ({"handler": "mail.send", "tag": "a=b"}, "one of the three"),
        ({"tag": "customer"}, "a tag is named as name=value"),
        ({"handler": "x", "resume_at": "2020-01-01T00:00"}, "that time has passed"),
        ({"handler": "x", "resume_after": "soon"}, "is no duration"),
    ],
)
def test_what_no_hold_can_mean_is_said_in_the_form(
    redis: Redis, live: Store, operator: Client, form: dict[str, str], said: str
) -> None:
    enqueue(live, "a")

    answer = operator.post(f"/queues/{Q}/hold/", form, headers=HTMX)

    assert answer.status_code == 422
    assert said in answer.content.decode()
    assert not models.QueueHold.objects.exists()


def test_a_held_job_run_now_goes_past_the_hold(redis: Redis, live: Store, operator: Client) -> None:
    enqueue(live, "a", "b")
    holding.hold(Q, "handler", "mail.send", actor="user:1")
    assert take(live) == []
    catch_up(live, Q)
    assert "until its hold is lifted" in operator.get(f"/queues/{Q}/jobs/a/").content.decode()

    operator.post(f"/queues/{Q}/selection/run-now/", {"id": "a"})

    assert take(live) == ["a"]
    assert (state(redis, "b"), job(redis, "b")["held"]) == (
        "delayed", str(models.QueueHold.objects.get().pk),
    )  # fmt: skip
