"""Content from outside: whatever a payload, an error or a name holds, a page shows it and stays whole."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client
from redis import Redis

from dashboard.visible import folded, one_line, visible
from queueops import enqueue as send
from queueops import models
from queueops.keys import check_job_id, check_queue
from queueops.masking import redact, secrets_in
from queueops.store import Outcome, Store
from tests.dashboard.pages import Elements, Q, enqueue, kill, person, record, spec, streamed
from tests.factories import Child, state

pytestmark = pytest.mark.django_db

PROBES = [
    "<script>window.__xss=1</script>",
    "<img src=x onerror=window.__xss=1>",
    '"><svg onload=window.__xss=1>',
    "</textarea><script>window.__xss=1</script>",
    "</script><script>window.__xss=1</script>",
    "javascript:window.__xss=1",
    "{{7*7}}{% now 'Y' %}",
    "' onmouseover='window.__xss=1",
    "\u202egnp.exe\u202c \u200b\ufeff",
    "nul\x00 escape\x1b[31m bell\x07",
    "emoji 👩‍👩‍👧 𝕏 \ud800 lone",
    "x" * 100_000,
]


@pytest.fixture(autouse=True)
def real_time(store: Store) -> None:
    store.now_ms = ""


@pytest.fixture
def hostile(redis: Redis, store: Store) -> list[str]:
    """A dead job for each probe, which is in its handler, arguments, error, traceback and worker."""
    ids = []
    for i, probe in enumerate(PROBES):
        job = f"h{i}"
        data = spec(probe[:150].replace("\ud800", "") or "x", probe, {"k" + probe[:50]: [probe]}, note=probe)
        error = json.dumps(
            {
                "error": probe[:180],
                "message": probe,
                "traceback": probe,
                "cause": f"c{i}",
                "cause_text": probe[:180],
            }
        )
        enqueue(store, job, data=data)
        child = Child(store, f"host{probe[:20]}:1:aa/1".replace("\ud800", ""), Q).register()
        [claimed] = child.take(1)
        child.settle(
            Outcome.bury(
                claimed,
                cause=f"c{i}",
                cause_text=probe[:180].encode("utf-8", "replace").decode(),
                error=error,
                policy="default@1",
            )
        )
        ids.append(job)
    store.discard(Q, [ids[-1]], actor="user:1", reason=PROBES[0])
    record(store)
    return ids


def test_g01_every_page_shows_it_literally(hostile: list[str], redis: Redis) -> None:
    admin = person("Admin")
    admin.post(f"/queues/{Q}/selection/requeue/", {"id": hostile[:2], "reason": PROBES[0]})
    admin.post(f"/queues/{Q}/pause/", {"reason": PROBES[1]})
    paths = ["/", "/causes/", "/activity/", "/workers/", "/forecast/", "/operations/", "/admin/queueops/job/"]
    paths += [f"/queues/{Q}/?state={where}" for where in ("dead", "ready", "discarded", "delayed", "pending")]
    paths += [f"/queues/{Q}/jobs/{job}/" for job in hostile]
    paths += [f"/causes/c{i}/" for i in range(len(PROBES))]
    paths += [f"/search/?q={quote(probe, errors='replace')}" for probe in PROBES[:10]]
    paths += [
        f"/queues/{Q}/?state=dead&handler={quote(PROBES[2])}&tag={quote(PROBES[0])}%3D1&id={quote(PROBES[2])}"
    ]
    paths += [
        f"/queues/{Q}/jobs/{hostile[3]}/edit/form/",
        f"/operations/new/?queue={Q}&state=dead&handler={quote(PROBES[0])}",
    ]
    for path in paths:
        for headers in ({}, {"HX-Request": "true"}):
            answer = admin.get(path, headers=headers)
            if path.startswith("/admin/") and answer.status_code in (302, 404):
                continue
            assert answer.status_code == 200, (path, answer.status_code)
            assert_harmless(answer.content.decode(), path)


def assert_harmless(html: str, path: str) -> None:
    page = Elements(html)
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes), (path, tag, attributes)
        for name in ("href", "src", "action", "formaction", "hx-get", "hx-post"):
            assert not (attributes.get(name) or "").lower().startswith("javascript:"), (path, attributes)
        assert not (tag == "img" and attributes.get("src") == "x"), path
        assert not (tag == "svg" and "onload" in attributes), path
        if tag == "script":
            assert (attributes.get("src") or "").startswith("/static/"), path
    assert "window.__xss=1" not in "".join(
        part.partition("</script>")[0] for part in html.split("<script")[1:]
    ), path
    assert "49" + "20" not in page.text
    assert "\u202e" not in html, path
    assert "\x00" not in html, path


def test_a_huge_or_deep_payload_is_cut_and_says_so(redis: Redis, store: Store) -> None:
    keys: Any = {f"key{i}": i for i in range(10_000)}
    deep: object = "bottom"
    for _ in range(150):
        deep = [deep]
    kill(store, "big", data=spec("mail.send", "y" * 200_000, keys=keys, deep=deep))

    page = person("Viewer").get(f"/queues/{Q}/jobs/big/")

    assert page.status_code == 200
    assert len(page.content) < 200_000
    assert "more entries" in page.content.decode()
    assert "more characters" in page.content.decode()
    assert "cut to fit" in page.content.decode()


def test_hidden_characters_are_named() -> None:
    assert visible("a\u202eb") == "a⟨U+202E⟩b"
    assert visible("a\x00b\x1bc") == "a␀b␛c"
    assert visible("\ud800") == "⟨U+D800⟩"
    assert visible("line\r\nnext\tcell 👩‍👩‍👧 é") == "line\nnext\tcell 👩‍👩‍👧 é"
    assert one_line("a\n  b" * 100, 10) == "a ba ba b…"
    assert folded("abcdef" * 10, 12)[1] == 48


IDS = ["a:b", "a.b", "a-b", "a_b", "a@b", "A" * 128, "0", "a..b", "a::", "schedule:x:20260101T000000Z"]
BAD_IDS = [
    "a/b", "a%2Fb", "a%b", "a b", "a+b", "a#b", "a?b", "a&b", "{x}", "{}", "..", ".", "a\n", "a\t", "a'\"b",
    "a😀", "a\u202e", "A" * 1_000, "A" * 200_000, "", "-a", ":a",
]  # fmt: skip


@pytest.mark.parametrize("job", IDS)
def test_g15_allowed_id_works_everywhere(redis: Redis, store: Store, job: str) -> None:
    kill(store, job)
    record(store)
    operator = person("Operator")
    listed = operator.get(f"/queues/{Q}/?state=dead").content.decode()
    [href] = [
        a["href"] for tag, a in Elements(listed).tags if tag == "a" and "/jobs/" in (a.get("href") or "")
    ]

    page = operator.get(href or "")
    assert page.status_code == 200
    assert job in page.content.decode()
    assert operator.get(f"/search/?q={quote(job)}").content.decode().count("/jobs/") >= 1
    assert job in streamed(operator.get(f"/queues/{Q}/export/?state=dead"))
    assert operator.post(f"{href}requeue/", {"as": "row"}, headers={"HX-Request": "true"}).status_code == 200
    assert state(redis, job) == "ready"


@pytest.mark.parametrize("job", BAD_IDS, ids=range(len(BAD_IDS)))
def test_g15_refused_id_is_refused_at_enqueue_and_has_no_page(redis: Redis, store: Store, job: str) -> None:
    kill(store, "b", "a")  # what a%2Fb or a/../b could be taken for
    with pytest.raises(ValueError, match="job_id"):
        check_job_id(job)
    with pytest.raises(ValueError, match="job_id"):
        send("dashboard.demo.tasks.none", job_id=job)
    viewer: Client = person("Viewer")

    assert viewer.get(f"/queues/{Q}/jobs/{quote(job[:2_000], safe='')}/").status_code == 404
    assert viewer.get("/search/", {"q": job[:5_000]}).status_code == 200


@pytest.mark.parametrize("queue", ["a/b", "a b", "{x}", "..", "", "a:b", "é", "A" * 65])
def test_g15_refused_queue_name_has_no_page(redis: Redis, queue: str) -> None:
    with pytest.raises(ValueError, match="queue"):
        check_queue(queue)

    assert person("Viewer").get(f"/queues/{quote(queue, safe='')}/").status_code == 404


def test_g17_secrets_are_on_no_page(redis: Redis, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    secret: dict[str, Any] = {"password": "pw1-zz", "nested": {"api_token": "t2-zz"}, "note": "ok"}
    data = spec("mail.send", **secret)
    told = redact("login with pw1-zz and t2-zz failed", secrets_in(secret))  # as a worker keeps it
    kill(store, "s1", data=data, cause="c0ffee000000", message=told)
    enqueue(store, "s2", data=data, delay_ms=900_000)
    record(store)
    store.discard(Q, ["s2"], actor="user:1")
    admin = person("Admin")
    admin.post(
        f"/queues/{Q}/jobs/s1/edit/",
        {
            "payload": '{"kwargs": {"password": "[masked]", "nested": {"api_token": "t3-zz"}, "note": "x"}}',
            "save": "1",
        },
    )
    record(store)
    paths = [
        "/", "/causes/", "/causes/c0ffee000000/", "/activity/", "/activity/export/", "/workers/", "/metrics",
        "/search/?q=s1", "/search/?q=login", "/search/?q=mail.send", f"/queues/{Q}/?state=ready",
        f"/queues/{Q}/?state=discarded", f"/queues/{Q}/?state=ready&handler=mail.send",
        f"/queues/{Q}/export/?state=discarded", f"/queues/{Q}/jobs/s1/", f"/queues/{Q}/jobs/s2/",
        f"/queues/{Q}/jobs/s1/edit/form/",
    ]  # fmt: skip
    for path in paths:
        answer = admin.get(path)
        text = streamed(answer) if answer.streaming else answer.content.decode()
        for value in ("pw1-zz", "t2-zz", "t3-zz"):
            assert value not in text, (path, value)
    assert "pw1-zz" not in caplog.text
    assert b"t3-zz" in redis.hget(f"queueops:{{{Q}}}:job:s1", "spec")  # type: ignore[operator]
    assert models.OperatorAction.objects.filter(verb="edit", count=1).exists()
