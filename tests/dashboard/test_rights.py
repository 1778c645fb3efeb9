"""The matrix: who gets what at every address. A new address without a line here fails."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, get_resolver
from redis import Redis

from queueops import models, operations
from queueops.operations import Selection
from queueops.store import Store
from tests.dashboard.pages import Q, dead, enqueue, kill, person, record, run, spec

pytestmark = pytest.mark.django_db

#: Right -> which of the five may. Anonymous people are sent to the login page, the others get 403.
VIEW = {"viewer", "operator", "admin"}
OPERATE = {"operator", "admin"}
ADMIN = {"admin"}

J = f"/queues/{Q}/jobs"
S = f"/queues/{Q}/selection"

#: name -> path, who may open it.
PAGES: dict[str, tuple[str, set[str]]] = {
    "overview": ("/", VIEW),
    "search": ("/search/?q=dead-1", VIEW),
    "queue": (f"/queues/{Q}/?state=dead", VIEW),
    "jobs-export": (f"/queues/{Q}/export/?state=dead", VIEW),
    "queue-pause-form": (f"/queues/{Q}/pause/form/", OPERATE),
    "queue-hold-form": (f"/queues/{Q}/hold/form/", OPERATE),
    "cause-hold-form": ("/causes/boom/hold/form/", OPERATE),
    "queue-limits-form": (f"/queues/{Q}/limits/form/", ADMIN),
    "jobs-form": (f"{S}/purge/form/?id=gone-1", ADMIN),
    "job": (f"{J}/dead-1/", VIEW),
    "job-edit-form": (f"{J}/dead-1/edit/form/", OPERATE),
    "job-form": (f"{J}/late-1/reschedule/form/", OPERATE),
    "causes": ("/causes/", VIEW),
    "cause": ("/causes/boom/", VIEW),
    "forecast": ("/forecast/", VIEW),
    "workers": ("/workers/", VIEW),
    "operations": ("/operations/", VIEW),
    "operation": ("/operations/{operation}/", VIEW),
    "operation-form": (f"/operations/new/?queue={Q}&state=dead", OPERATE),
    "activity": ("/activity/", VIEW),
    "activity-export": ("/activity/export/", VIEW),
}
#: name -> path, form, who may post it.
ACTIONS: dict[str, tuple[str, dict[str, str], set[str]]] = {
    "queue-pause": (f"/queues/{Q}/pause/", {"reason": "x"}, OPERATE),
    "queue-resume": (f"/queues/{Q}/resume/", {}, OPERATE),
    "queue-hold": (f"/queues/{Q}/hold/", {"handler": "mail.send"}, OPERATE),
    "cause-hold": ("/causes/boom/hold/", {"reason": "x"}, OPERATE),
    "hold-lift": (f"/queues/{Q}/holds/{{hold}}/lift/", {}, OPERATE),
    "queue-limits": (f"/queues/{Q}/limits/", {"rate_per_s": "5"}, ADMIN),
    "jobs-requeue": (f"{S}/requeue/", {"id": "dead-1"}, OPERATE),
    "jobs-run-now": (f"{S}/run-now/", {"id": "late-1"}, OPERATE),
    "jobs-reschedule": (f"{S}/reschedule/", {"id": "late-1", "after": "5 min"}, OPERATE),
    "jobs-discard": (f"{S}/discard/", {"id": "dead-1"}, OPERATE),
    "jobs-restore": (f"{S}/restore/", {"id": "gone-1"}, OPERATE),
    "jobs-purge": (f"{S}/purge/", {"id": "gone-1", "typed": "1"}, ADMIN),
    "jobs-cancel": (f"{S}/cancel/", {"id": "runs-1"}, OPERATE),
    "job-requeue": (f"{J}/dead-1/requeue/", {}, OPERATE),
    "job-run-now": (f"{J}/late-1/run-now/", {}, OPERATE),
    "job-reschedule": (f"{J}/late-1/reschedule/", {"after": "5 min"}, OPERATE),
    "job-discard": (f"{J}/dead-1/discard/", {}, OPERATE),
    "job-restore": (f"{J}/gone-1/restore/", {}, OPERATE),
    "job-purge": (f"{J}/gone-1/purge/", {"typed": "1"}, ADMIN),
    "job-cancel": (f"{J}/runs-1/cancel/", {}, OPERATE),
    "job-reveal": (f"{J}/dead-1/reveal/", {}, OPERATE),
    "job-edit": (f"{J}/dead-1/edit/", {"payload": '{"args": [1]}', "save": "1"}, OPERATE),
    "worker-drain": ("/workers/host:8:run/drain/", {}, OPERATE),
    "operation-start": ("/operations/start/", {"queue": Q, "state": "dead", "verb": "requeue"}, OPERATE),
    "operation-pause": ("/operations/{operation}/pause/", {}, OPERATE),
    "operation-resume": ("/operations/{operation}/resume/", {}, OPERATE),
    "operation-cancel": ("/operations/{operation}/cancel/", {}, OPERATE),
    "operation-undo": ("/operations/{discarded}/undo/", {}, OPERATE),
    "action-undo": ("/activity/{action}/undo/", {}, OPERATE),
}
#: Asked without a person, or by everybody.
OPEN = {"login", "logout", "healthz", "readyz", "metrics"}
#: Held by another file's matrix.
ELSEWHERE: set[str] = set()


@pytest.fixture
def ids(redis: Redis, store: Store) -> dict[str, str]:
    """A job in every state, an operation and an action, by the names that the paths use."""
    store.now_ms = ""
    kill(store, "dead-1", "dead-2")
    run(store, "runs-1")
    enqueue(store, "late-1", delay_ms=3_600_000)
    enqueue(store, "gone-1", data=spec(password="pw"))
    store.discard(Q, ["gone-1"], actor="user:1")
    record(store)
    operation = operations.start("requeue", Selection(queue=Q, state="dead", cause="none"), actor="user:1")
    discarded = operations.start("discard", Selection(queue=Q, state="dead", cause="none"), actor="user:1")
    models.Operation.objects.filter(pk=discarded.pk).update(
        status="finished", done=1, finished_at=discarded.created_at
    )
    action = models.OperatorAction.objects.create(
        actor="user:1", verb="discard", queue=Q, job_id="gone-1", count=1
    )
    hold = models.QueueHold.objects.create(queue=Q, kind="tag", value="customer=8")
    return {
        "hold": str(hold.pk),
        "operation": operation.pk,
        "discarded": discarded.pk,
        "action": str(action.pk),
    }


PEOPLE = ("anonymous", "nobody", "viewer", "operator", "admin")
LOGIN = "to the login page"


def status(answer: Any) -> int | str:
    """An answer's status, or LOGIN."""
    return LOGIN if answer.get("Location", "").startswith("/login/") else int(answer.status_code)


def client_of(who: str) -> Client:
    if who == "anonymous":
        return Client()
    return person(None if who == "nobody" else who.capitalize())


def addresses() -> dict[str, str]:
    """Every named address of the site but the administration's."""
    found = {}
    for pattern in get_resolver().url_patterns:
        if isinstance(pattern, URLPattern):
            assert pattern.name, f"{pattern.pattern} has no name"
            found[pattern.name] = str(pattern.pattern)
    return found


def test_g05_every_address_stands_in_the_matrix() -> None:
    known = PAGES.keys() | ACTIONS.keys() | OPEN | ELSEWHERE
    missing = {name for name in addresses() if name not in known and not name.startswith("schedule")}

    assert missing == set(), "say in this file who may open them"


def test_g05_page_opens_only_for_who_may(ids: dict[str, str]) -> None:
    got = {}
    for who in PEOPLE:
        client = client_of(who)
        for name, (path, _) in PAGES.items():
            got[name, who] = status(client.get(path.format(**ids)))

    assert got == {
        (name, who): LOGIN if who == "anonymous" else 200 if who in allowed else 403
        for name, (_, allowed) in PAGES.items()
        for who in PEOPLE
    }


@pytest.mark.parametrize("name", sorted(ACTIONS))
def test_g05_action_is_done_only_for_who_may(redis: Redis, ids: dict[str, str], name: str) -> None:
    path, form, allowed = ACTIONS[name]
    before = picture(redis)
    got = {}

    for who in PEOPLE:  # those who may come last: they change something
        if who in allowed:
            break
        got[who] = status(client_of(who).post(path.format(**ids), form))
    assert picture(redis) == before
    for who in PEOPLE[len(got) :]:
        got[who] = status(client_of(who).post(path.format(**ids), form))

    assert got.pop("anonymous") == LOGIN
    assert all(got[who] in {200, 302, 409, 422} for who in allowed), (
        got
    )  # 422: the second says the same again
    assert all(got[who] == 403 for who in got if who not in allowed), got


@pytest.mark.parametrize("method", ["get", "head"])
def test_g03_reading_an_actions_address_changes_nothing(
    redis: Redis, ids: dict[str, str], method: str
) -> None:
    admin = person("Admin")
    before = picture(redis)

    for name, (path, form, _) in ACTIONS.items():
        assert getattr(admin, method)(path.format(**ids), form).status_code == 405, name

    assert picture(redis) == before


def test_g03_action_without_its_token_is_refused(redis: Redis, ids: dict[str, str]) -> None:
    client = Client(enforce_csrf_checks=True)
    client.cookies = person("Admin").cookies
    before = picture(redis)

    for name, (path, form, _) in ACTIONS.items():
        url = path.format(**ids)
        plain = client.post(url, form)
        foreign = client.post(url, form, headers={"Origin": "https://evil.example"})
        disguised = client.post(url, b'{"id": "dead-1"}', content_type="text/plain")
        assert {plain.status_code, foreign.status_code, disguised.status_code} == {403}, name

    assert picture(redis) == before


def test_g05_viewer_sees_no_button_that_would_be_refused(ids: dict[str, str]) -> None:
    viewer = person("Viewer")

    for path, _ in PAGES.values():
        answer = viewer.get(path.format(**ids))
        if answer.status_code != 200 or answer.streaming:
            continue
        html = answer.content.decode()
        forms = [part for part in html.split("<form")[1:] if 'method="post"' in part.partition(">")[0]]
        posts = [
            part for part in forms if "/logout/" not in part.partition(">")[0] and "jobs-form" not in part
        ]
        assert posts == [], path
        assert "hx-post" not in html, path
        assert "formaction" not in html, path


def test_operator_is_offered_neither_purge_nor_limits(ids: dict[str, str]) -> None:
    operator = person("Operator")

    listed = operator.get(f"/queues/{Q}/?state=discarded").content.decode()

    assert "Restore" in listed
    assert "Purge" not in listed
    assert "Limits" not in listed


def picture(redis: Redis) -> tuple[object, ...]:
    """What an action could change, with the list of actions; an export of a list is one too."""
    hashes = {key: redis.hgetall(key) for key in sorted(redis.scan_iter("queueops:*:job:*"))}
    settings = list(models.Queue.objects.values_list("name", "paused", "rate_per_s", "concurrency"))
    holds = list(models.QueueHold.objects.values_list("queue", "kind", "value"))
    statuses = sorted(models.Operation.objects.values_list("pk", "status"))
    return hashes, settings, holds, statuses, dead(redis), models.OperatorAction.objects.count()
