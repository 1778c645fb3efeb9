"""A queue's lists: paging, filters, rows that stay, and what is done to ticked ones."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from redis import Redis

from dashboard import lists
from queueops import models
from queueops.store import Store
from tests.dashboard.pages import Q, dead, enqueue, kill, person, record, rows, run, spec, streamed
from tests.factories import state

pytestmark = pytest.mark.django_db

HTMX = {"HX-Request": "true"}


@pytest.fixture(autouse=True)
def real_time(store: Store) -> None:
    store.now_ms = ""


def html(client: object, path: str, **headers: str) -> str:
    answer = client.get(path, headers=headers)  # type: ignore[attr-defined]
    assert answer.status_code == 200, answer.status_code
    return str(answer.content.decode())


@pytest.mark.parametrize("where", ["delayed", "ready", "pending", "dead", "discarded"])
def test_each_state_has_its_list_and_its_count(redis: Redis, store: Store, where: str) -> None:
    enqueue(store, "l", delay_ms=9_000_000)
    kill(store, "d1", "d2")
    run(store, "p")
    enqueue(store, "x1", "x2", "x3")
    store.discard(Q, ["x1", "x2", "x3"], actor="user:1", reason="not wanted")
    enqueue(store, "r1")

    page = html(person("Viewer"), f"/queues/{Q}/?state={where}")

    wanted = {
        "delayed": ["l"],
        "ready": ["r1"],
        "pending": ["p"],
        "dead": ["d2", "d1"],
        "discarded": ["x3", "x2", "x1"],
    }
    assert sorted(rows(page)) == sorted(wanted[where])
    counts = dict(re.findall(r'\?state=(\w+)"[^>]*>\w+<b>(\d+)</b>', page))
    assert counts == {"delayed": "1", "ready": "1", "pending": "1", "dead": "2", "discarded": "3"}


def test_list_goes_by_its_states_own_time_in_either_direction(redis: Redis, store: Store) -> None:
    for place, job in enumerate(("b", "c", "a")):
        enqueue(store, job, delay_ms=9_000_000 + 60_000 * place)
    viewer = person("Viewer")

    shown = [
        rows(html(viewer, f"/queues/{Q}/?state=delayed{order}"))
        for order in ("", "&order=oldest", "&order=newest")
    ]

    assert shown == [["b", "c", "a"], ["b", "c", "a"], ["a", "c", "b"]]


@pytest.mark.parametrize("where", ["delayed", "discarded"])
def test_filtered_rows_tell_the_time_that_their_heading_names(redis: Redis, store: Store, where: str) -> None:
    enqueue(store, "a", delay_ms=9_000_000, data=spec(tags={"a": "1"}))
    if where == "discarded":
        store.discard(Q, ["a"], actor="user:1")
    record(store)
    viewer = person("Viewer")

    def told(tag: str) -> list[datetime]:
        page = html(viewer, f"/queues/{Q}/?state={where}{tag}").partition('data-job="a"')[2]
        return [
            datetime.fromisoformat(at) for at in re.findall(r'datetime="([^"]+)"', page.partition("</tr>")[0])
        ]

    plain, filtered = told(""), told("&tag=a%3D1")  # from Redis, and from the record
    assert len(plain) == len(filtered) > 0
    for one, other in zip(plain, filtered, strict=True):
        assert abs(one - other) < timedelta(seconds=2)


def test_queue_that_is_newer_than_the_last_figures_has_its_page(redis: Redis, store: Store) -> None:
    viewer = person("Viewer")
    viewer.get("/")  # figures that the next second's pages are made from
    enqueue(store, "a", queue="fresh")

    assert rows(html(viewer, "/queues/fresh/?state=ready")) == ["a"]
    assert viewer.get("/queues/fresher/").status_code == 404


def test_pages_do_not_drift_while_rows_move(redis: Redis, store: Store) -> None:
    ids = kill(store, *[f"d{i:03}" for i in range(120)])
    viewer = person("Viewer")
    first = html(viewer, f"/queues/{Q}/?state=dead")
    assert len(rows(first)) == lists.PAGE_SIZE
    store.discard(Q, rows(first)[:30], actor="user:1")  # what was above goes
    kill(store, "new-1", "new-2")  # and what is new comes above

    seen = list(rows(first))
    page = first
    while link := re.search(r'href="\?([^"]+)" rel="next"', page):
        page = html(viewer, f"/queues/{Q}/?{link[1].replace('&amp;', '&')}")
        seen += rows(page)

    assert sorted(seen) == sorted(ids)  # each once, none left out
    assert len(seen) == len(set(seen))


def test_filters_stand_in_the_address_and_find_by_handler_cause_tag_and_id(
    redis: Redis, store: Store
) -> None:
    kill(store, "a1", cause="c1", data=spec("mail.send", tags={"customer": "7"}))
    kill(store, "a2", cause="c2", data=spec("mail.other", tags={"customer": "8"}))
    kill(store, "b1", cause="c1", data=spec("mail.other", tags={"customer": "7"}))
    record(store)
    viewer = person("Viewer")

    def found(query: str) -> list[str]:
        return sorted(rows(html(viewer, f"/queues/{Q}/?state=dead&{query}")))

    assert found("handler=mail.other") == ["a2", "b1"]
    assert found("cause=c1") == ["a1", "b1"]
    assert found("tag=customer%3D7") == ["a1", "b1"]
    assert found("id=a") == ["a1", "a2"]
    assert found("handler=mail.other&tag=customer%3D7") == ["b1"]
    assert found("handler=nobody") == []
    page = html(viewer, f"/queues/{Q}/?state=dead&handler=mail.other&cause=c2")
    assert 'value="mail.other"' in page
    assert "from the record" in page


def test_filtered_rows_show_the_state_that_redis_knows(redis: Redis, store: Store) -> None:
    kill(store, "a1", "a2")
    record(store)
    store.requeue(Q, ["a1"], actor="user:1")  # the record does not know yet

    page = html(person("Viewer"), f"/queues/{Q}/?state=dead&handler=mail.send")

    assert re.search(r'id="job-a1"[^>]*class="moved"', page)
    assert not re.search(r'id="job-a2"[^>]*class="moved"', page)


def test_rows_that_are_shown_keep_their_places_and_new_ones_are_only_counted(
    redis: Redis, store: Store
) -> None:
    kill(store, *[f"d{i:02}" for i in range(40)])
    viewer = person("Viewer")
    shown = rows(html(viewer, f"/queues/{Q}/?state=dead"))
    store.discard(Q, [shown[3]], actor="user:1")

    fragment = html(viewer, f"/queues/{Q}/?state=dead&shown={'+'.join(shown)}", **HTMX)

    assert rows(fragment) == shown
    assert re.search(rf'id="job-{shown[3]}"[^>]*class="moved"', fragment)
    assert "new: show" not in fragment  # nothing has died since


def test_pill_counts_what_has_come(redis: Redis, store: Store) -> None:
    kill(store, "a", "b")
    viewer = person("Viewer")
    shown = rows(html(viewer, f"/queues/{Q}/?state=dead"))
    kill(store, *[f"n{i:02}" for i in range(37)])

    fragment = html(viewer, f"/queues/{Q}/?state=dead&shown={'+'.join(shown)}", **HTMX)

    assert rows(fragment) == shown
    assert "37 new: show" in fragment


def test_bad_cursor_and_unknown_queue_are_not_found(redis: Redis, store: Store) -> None:
    kill(store, "a")
    viewer = person("Viewer")

    assert viewer.get(f"/queues/{Q}/?state=dead&after=nonsense").status_code == 404
    assert viewer.get(f"/queues/{Q}/?state=dead&handler=x&after=nonsense").status_code == 404
    assert viewer.get("/queues/nobody-knows/").status_code == 404
    assert viewer.get(f"/queues/{Q}/?state=nonsense").status_code == 200


def test_ticked_rows_are_requeued_and_only_they(redis: Redis, store: Store) -> None:
    kill(store, "a", "b", "c")

    answer = person("Operator").post(f"/queues/{Q}/selection/requeue/", {"id": ["a", "c"], "reason": "fixed"})

    assert answer.status_code == 302
    assert [state(redis, job) for job in "abc"] == ["ready", "dead", "ready"]
    action = models.OperatorAction.objects.get(verb="requeue")
    assert (action.count, action.reason, action.filter) == (2, "fixed", {"ids": ["a", "c"]})


def test_ticked_rows_that_somebody_took_first_are_named(redis: Redis, store: Store) -> None:
    kill(store, "a", "b")
    store.requeue(Q, ["a"], actor="user:9")

    some = person("Operator").post(f"/queues/{Q}/selection/requeue/", {"id": ["a", "b"]}, headers=HTMX)
    none = person("Operator").post(f"/queues/{Q}/selection/requeue/", {"id": ["a", "b"]}, headers=HTMX)

    assert some.status_code == 200
    assert "1 job requeued; 1 not: somebody was first, it is ready now" in some.content.decode()
    assert none.status_code == 409


def test_discard_of_more_than_a_hundred_asks_for_the_count(redis: Redis, store: Store) -> None:
    ids = enqueue(store, *[f"x{i:03}" for i in range(101)])
    operator = person("Operator")

    refused = operator.post(f"/queues/{Q}/selection/discard/", {"id": ids})
    assert refused.status_code == 422
    assert "Type 101" in refused.content.decode()
    assert state(redis, "x000") == "ready"

    operator.post(f"/queues/{Q}/selection/discard/", {"id": ids, "typed": "101"})
    assert state(redis, "x000") == state(redis, "x100") == "discarded"


def test_purge_asks_for_the_count_even_of_one(redis: Redis, store: Store) -> None:
    enqueue(store, "x", "y")
    store.discard(Q, ["x", "y"], actor="user:1")
    admin = person("Admin")

    assert admin.post(f"/queues/{Q}/selection/purge/", {"id": ["x"], "typed": "2"}).status_code == 422
    assert state(redis, "x") == "discarded"
    assert admin.post(f"/queues/{Q}/selection/purge/", {"id": ["x"], "typed": "1"}).status_code == 302
    assert (state(redis, "x"), state(redis, "y")) == (None, "discarded")


def test_discard_is_taken_back_from_its_action(redis: Redis, store: Store) -> None:
    kill(store, "a", "b")
    operator = person("Operator")
    operator.post(f"/queues/{Q}/selection/discard/", {"id": ["a", "b"]})
    action = models.OperatorAction.objects.get(verb="discard")
    assert dead(redis) == 0

    answer = operator.post(f"/activity/{action.pk}/undo/", headers=HTMX)

    assert answer.status_code == 200
    assert dead(redis) == 2


def test_reschedule_takes_a_wait_or_a_time_in_the_viewers_zone(redis: Redis, store: Store) -> None:
    enqueue(store, "a", "b", delay_ms=9_000_000)
    operator = person("Operator")
    path = f"/queues/{Q}/selection/reschedule/"

    for bad in ({}, {"after": "5 min", "at": "2030-01-01T10:00"}, {"after": "soon"}, {"at": "yesterday"}):
        assert operator.post(path, {"id": "a", **bad}).status_code == 422
    operator.post(path, {"id": "a", "at": "2030-01-01T10:00", "zone": "Europe/Berlin"})
    operator.post(path, {"id": "b", "after": "1h 30min"})

    scores = {job: redis.zscore(f"queueops:{{{Q}}}:delayed", job) or 0.0 for job in "ab"}
    assert scores["a"] == 1_893_488_400_000  # 09:00 UTC
    now_ms = int(redis.time()[0]) * 1000
    assert abs(scores["b"] - now_ms - 5_400_000) < 20_000


def test_export_holds_the_filtered_rows_and_no_secret(redis: Redis, store: Store) -> None:
    kill(store, "a", data=spec("mail.send", password="pw1", note="=1+1"), message="login with pw1 failed")
    kill(store, "b", data=spec("mail.other"))
    record(store)

    answer = person("Viewer").get(f"/queues/{Q}/export/?state=dead&handler=mail.send")
    text = streamed(answer)

    assert answer["Content-Type"].startswith("text/csv")
    assert len(text.strip().splitlines()) == 2
    assert "pw1" not in text
    assert models.OperatorAction.objects.filter(verb="export").exists()
