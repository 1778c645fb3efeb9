"""One job's page, and what is done to one job."""

from __future__ import annotations

import json
import threading

import pytest
from django.test import Client
from redis import Redis

from dashboard import edits
from queueops import models
from queueops.inspector import Inspector
from queueops.store import Store
from tests.dashboard.conftest import wait_for
from tests.dashboard.pages import Q, enqueue, kill, person, record, run, spec
from tests.factories import job as fields_of
from tests.factories import state

pytestmark = pytest.mark.django_db

HTMX = {"HX-Request": "true"}


@pytest.fixture(autouse=True)
def real_time(store: Store) -> None:
    store.now_ms = ""


def page_of(job: str, client: Client | None = None) -> str:
    answer = (client or person("Viewer")).get(f"/queues/{Q}/jobs/{job}/")
    assert answer.status_code == 200
    return answer.content.decode()


def test_page_shows_path_attempts_facts_and_timeline(redis: Redis, store: Store) -> None:
    kill(store, "d1", data=spec("mail.send", "ada@example.com", tags={"customer": "7"}))
    record(store)

    page = page_of("d1")

    for text in (
        "mail.send",
        "Enqueued",
        "dead",
        "Boom: it failed",
        "customer=7",
        "ada@example.com",
        "default",
        "bury",
    ):
        assert text in page, text
    assert "manage.py enqueue mail.send --args" in page


def test_page_of_a_job_that_redis_has_forgotten_comes_from_the_record(redis: Redis, store: Store) -> None:
    enqueue(store, "x")
    store.discard(Q, ["x"], actor="user:1")
    store.purge(Q, ["x"], actor="user:1")
    record(store)

    page = page_of("x")

    assert "gone" in page
    assert "purge" in page


def test_unknown_job_is_not_found(redis: Redis, store: Store) -> None:
    enqueue(store, "x")

    assert person("Viewer").get(f"/queues/{Q}/jobs/nobody/").status_code == 404


def test_delayed_job_shows_its_next_tries(redis: Redis, store: Store) -> None:
    enqueue(store, "x", delay_ms=60_000)

    page = page_of("x")

    assert "Next try" in page
    assert page.count('class="try coming"') >= 4


def test_page_of_a_job_whose_data_cannot_be_read_says_so(redis: Redis, store: Store) -> None:
    kill(store, "x")
    redis.hset(f"queueops:{{{Q}}}:job:x", "spec", b"\xff\xfe not json")

    page = page_of("x")

    assert "can&#x27;t be read" in page or "can't be read" in page


@pytest.mark.parametrize(
    ("verb", "start", "end"),
    [
        ("requeue", "dead", "ready"),
        ("run-now", "delayed", "ready"),
        ("discard", "dead", "discarded"),
        ("restore", "discarded", "ready"),
    ],
)
def test_verb_moves_the_job_and_leaves_an_action(
    redis: Redis, store: Store, verb: str, start: str, end: str
) -> None:
    if start == "dead":
        kill(store, "x")
    elif start == "delayed":
        enqueue(store, "x", delay_ms=900_000)
    else:
        enqueue(store, "x")
        store.discard(Q, ["x"], actor="user:1")

    answer = person("Operator").post(f"/queues/{Q}/jobs/x/{verb}/", {"reason": "because"}, follow=True)

    assert answer.status_code == 200
    assert state(redis, "x") == end
    action = models.OperatorAction.objects.get()
    assert (action.verb, action.job_id, action.count, action.reason) == (
        verb.replace("-", "_"),
        "x",
        1,
        "because",
    )
    assert action.actor_name == "Operator-"


def test_g19_who_comes_second_gets_409_and_the_true_state(redis: Redis, store: Store) -> None:
    kill(store, "x")
    operator = person("Operator")
    operator.post(f"/queues/{Q}/jobs/x/requeue/")

    plain = operator.post(f"/queues/{Q}/jobs/x/requeue/")
    row = operator.post(f"/queues/{Q}/jobs/x/requeue/", {"as": "row"}, headers=HTMX)

    assert (plain.status_code, row.status_code) == (409, 409)
    assert "somebody was first, it is ready now" in plain.content.decode()
    assert 'id="job-x"' in row.content.decode()
    assert "ready" in row.content.decode()
    assert [a.count for a in models.OperatorAction.objects.order_by("pk")] == [1, 0, 0]


@pytest.mark.django_db(transaction=True)
def test_g19_two_operators_at_once_requeue_a_job_once(redis: Redis, store: Store) -> None:
    kill(store, "x")
    clients = [person("Operator", name=name) for name in ("ann", "bob")]
    for client in clients:
        client.get("/")
    answers: list[int] = []
    gate = threading.Barrier(2)

    def press(client: Client) -> None:
        from django.db import connection

        gate.wait()
        answers.append(client.post(f"/queues/{Q}/jobs/x/requeue/", headers=HTMX).status_code)
        connection.close()

    threads = [threading.Thread(target=press, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(answers) == [200, 409]
    assert redis.xlen(f"queueops:{{{Q}}}:ready:normal") == 1
    record(store)
    assert models.JobEvent.objects.filter(verb="requeue").count() == 1
    assert {a.actor_name for a in models.OperatorAction.objects.filter(verb="requeue")} == {"ann", "bob"}


def test_running_job_is_asked_to_stop(redis: Redis, store: Store) -> None:
    run(store, "x")

    person("Operator").post(f"/queues/{Q}/jobs/x/cancel/")

    assert fields_of(redis, "x")["cancel"].startswith("user:")
    assert "asked to stop" in page_of("x")


def test_reveal_shows_the_secret_once_and_is_recorded(redis: Redis, store: Store) -> None:
    kill(store, "x", data=spec("mail.send", password="pw1", note="ok"))
    operator = person("Operator")
    assert "pw1" not in page_of("x", operator)

    shown = operator.post(f"/queues/{Q}/jobs/x/reveal/", headers=HTMX).content.decode()

    assert "pw1" in shown
    assert models.OperatorAction.objects.filter(verb="reveal", job_id="x").count() == 1
    assert "pw1" not in page_of("x", operator)


def edit(client: Client, job: str, payload: object, **more: str) -> object:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return client.post(f"/queues/{Q}/jobs/{job}/edit/", {"payload": text, **more}, headers=HTMX)


def test_edit_shows_the_difference_first_and_then_requeues_a_new_edition(redis: Redis, store: Store) -> None:
    kill(store, "x", data=spec("mail.send", "ada", order=1, password="pw1", tags={"customer": "7"}))
    operator = person("Operator")
    job = Inspector().job(Q, "x")
    assert job is not None
    payload = json.loads(edits.editable(job))
    payload["kwargs"]["order"] = 2

    preview = edit(operator, "x", payload)
    assert state(redis, "x") == "dead"
    assert 'class="old"' in preview.content.decode()  # type: ignore[attr-defined]
    edit(operator, "x", payload, save="1", reason="wrong order")

    job = Inspector().job(Q, "x")
    assert job is not None
    assert (job.state, job.edition, job.tags) == ("ready", 1, {"customer": "7"})
    # The masked secret is what it was.
    assert (job.args, job.kwargs) == (["ada"], {"order": 2, "password": "pw1"})
    action = models.OperatorAction.objects.get(verb="edit")
    assert "pw1" not in json.dumps([action.before, action.after])
    activity = operator.get("/activity/").content.decode()
    assert "&quot;order&quot;: 1" in activity
    assert "pw1" not in activity


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "line 1"),
        ("[]", "must be an object"),
        ('{"args": {}}', "must be a list"),
        ('{"argh": []}', "args"),
        ('{"args": [NaN]}', "NaN"),
        ('{"args": [], "kwargs": {"token": "[masked]", "new": "[masked]"}}', "still says"),
        ('{"args": ["' + "x" * 300_000 + '"]}', "too large"),
        ("[" * 5_000 + "]" * 5_000, ""),
    ],
)
def test_edit_that_is_no_payload_is_refused_with_its_place(
    redis: Redis, store: Store, text: str, why: str
) -> None:
    kill(store, "x", data=spec("mail.send", token="t2"))

    answer = edit(person("Operator"), "x", text, save="1")

    assert answer.status_code == 422  # type: ignore[attr-defined]
    assert why in answer.content.decode()  # type: ignore[attr-defined]
    assert fields_of(redis, "x").get("edition", "0") == "0"


def test_effect_is_told_to_other_viewers_at_once(redis: Redis, store: Store) -> None:
    kill(store, "x")
    heard: list[bytes] = []
    listener = redis.pubsub(ignore_subscribe_messages=True)
    listener.psubscribe("*hints*")
    listener.get_message(timeout=1)

    person("Operator").post(f"/queues/{Q}/jobs/x/requeue/")

    def got() -> bool:
        message = listener.get_message(timeout=0.1)
        if message:
            heard.append(message["data"])
        return bool(heard)

    wait_for(got, 5)
    assert b"mail" in heard[0]
    listener.close()
