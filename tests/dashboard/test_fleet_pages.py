"""Causes, forecast, workers, search, activity, what is wrong now, and what Prometheus reads."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from django.test import override_settings
from django.utils import timezone
from redis import Redis

from dashboard import conditions, queries
from dashboard.templatetags.dashboard import time_left
from queueops import keys, models, publishing
from queueops.store import Store
from tests.dashboard.pages import Q, enqueue, kill, person, record, run, spec, streamed
from tests.factories import Child

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def real_time(store: Store) -> None:
    store.now_ms = ""


def found() -> dict[str, conditions.Problem]:
    """What is wrong now, by check."""
    queries._fleet = None
    return {problem.check: problem for problem in queries.take_snapshot().problems}


def beat(redis: Redis, worker: str, *, fetched_s_ago: float, host: str = "app-1") -> None:
    now_ms = int(redis.time()[0]) * 1000
    redis.zadd(keys.WORKERS, {worker: now_ms})
    about = {
        "host": host,
        "pid": 1,
        "version": "0.1.0",
        "queues": "all",
        "fetched_s_ago": fetched_s_ago,
        "rss_mb": 50,
    }
    redis.hset(keys.WORKER_INFO, worker, json.dumps(about))


def test_nothing_is_wrong_on_a_healthy_site(redis: Redis, store: Store) -> None:
    enqueue(store, "a", delay_ms=60_000)
    store.renew(Q, ["host:1:aa/1"])
    beat(redis, "host:1:aa", fetched_s_ago=0.5)

    assert found().keys() <= {"redis_server"}  # the test's Redis writes no file


@pytest.mark.django_db(transaction=True)  # publishing follows the commit
def test_each_thing_that_is_wrong_is_found_and_leads_to_its_page(redis: Redis, store: Store) -> None:
    kill(store, *[f"d{i}" for i in range(3)], cause="abc123abc123")
    enqueue(store, "r", queue="alone")
    enqueue(store, "p", queue="stopped")
    publishing.pause("stopped", actor="user:1", reason="migration")
    beat(redis, "host:2:bb", fetched_s_ago=200, host="app-2")
    redis.hset(f"queueops:{{{Q}}}:settings", "events_lost", 7)
    operation = models.Operation.objects.create(
        id="op1", verb="requeue", queue=Q, from_state="dead", frozen_ms=1, actor="user:1", total=9,
        status="stopped", finished_at=timezone.now(), error="stopped by itself",
    )  # fmt: skip
    admin = person("Admin")

    wrong = found()

    assert {
        "dead",
        "no_worker",
        "paused",
        "worker_does_not_fetch",
        "events_lost",
        "operation",
    } <= wrong.keys()
    assert wrong["dead"].url == "/causes/abc123abc123/"
    assert "3 dead, 3 in the last 10 min" in wrong["dead"].text
    assert wrong["no_worker"].url == "/queues/alone/?state=ready"
    assert wrong["operation"].url == f"/operations/{operation.pk}/"
    assert "app-2" in wrong["worker_does_not_fetch"].text
    for problem in wrong.values():
        assert admin.get(problem.url.partition("#")[0]).status_code == 200, problem
    page = admin.get("/").content.decode()
    assert re.search(rf"<title>\({len(queries._last.problems)}\) Overview", page)
    assert "stopped is paused" in page
    assert "migration" in page
    assert page.index("app-2") < page.index("stopped: paused")  # the worst first


def test_missed_slot_and_broken_schedule_are_found(redis: Redis, store: Store) -> None:
    enqueue(store, "a", delay_ms=60_000)
    schedule = models.Schedule.objects.create(key="nightly", queue=Q, handler="mail.send", rule="0 2 * * *")
    models.ScheduleSlot.objects.create(
        schedule=schedule,
        slot_at=timezone.now() - timedelta(hours=1),
        state="missed",
        reason="no scheduler ran",
    )
    models.Schedule.objects.filter(pk=schedule.pk).update(error="no handler is named mail.send")

    wrong = found()

    assert "nightly" in wrong["missed_slot"].text
    assert "no handler" in wrong["schedule"].why


def test_storm_of_failures_is_found_before_anything_is_dead(redis: Redis, store: Store) -> None:
    enqueue(store, *[f"a{i}" for i in range(30)])
    child = Child(store, "host:1:aa/1").register()
    child.retry(*child.take(30), delay_s=600, cause="abc123abc123")

    wrong = found()

    assert "100 % of attempts fail" in wrong["failing"].text
    page = person("Viewer").get("/causes/").content.decode()
    assert "abc123abc123" in page
    assert re.search(r'class="num c-delayed">30 <', page)


def test_causes_show_count_share_handlers_and_a_sample(redis: Redis, store: Store) -> None:
    kill(store, *[f"a{i}" for i in range(3)], cause="c1", data=spec("mail.send"))
    kill(store, "b0", cause="c2", queue="billing", data=spec("billing.charge"))

    page = person("Viewer").get("/causes/").content.decode()

    assert page.index("cause-c1") < page.index("cause-c2")
    for text in ("75 %", "25 %", "mail.send", "billing.charge", "boom.py", "new"):
        assert text in page, text


def test_forecast_counts_what_falls_due_by_minute_and_slots(redis: Redis, store: Store) -> None:
    enqueue(store, *[f"a{i}" for i in range(7)], delay_ms=600_000)
    models.Schedule.objects.create(
        key="often", queue="billing", handler="mail.send", rule="*/10 * * * *", next_slot_at=timezone.now()
    )

    page = person("Viewer").get("/forecast/?span=1h").content.decode()

    assert re.search(r"1[23] jobs fall due within 1 h", page)
    chart = re.search(r'data-chart="([^"]+)"', page)
    assert chart
    data = json.loads(chart[1].replace("&quot;", '"'))
    counts = {each["name"]: each["counts"] for each in data["series"]}
    assert counts[Q][10] == 7 or counts[Q][9] == 7
    assert sum(counts["billing"]) in {5, 6}


@pytest.mark.parametrize(("span", "minutes"), [("1h", 60), ("3h", 180), ("12h", 720), ("24h", 1_440)])
def test_the_forecasts_axis_ends_where_its_last_bar_does(
    redis: Redis, store: Store, span: str, minutes: int
) -> None:
    enqueue(store, "a", delay_ms=600_000)

    page = person("Viewer").get(f"/forecast/?span={span}").content.decode()

    ticks = re.search(r'<div class="ticks">(.*?)</div>', page, re.DOTALL)
    assert ticks
    at = [datetime.fromisoformat(each) for each in re.findall(r'datetime="([^"]+)"', ticks[1])]
    assert at[-1] - at[0] == timedelta(minutes=minutes)
    assert {later - earlier for earlier, later in pairwise(at)} == {timedelta(minutes=minutes / 6)}


def test_workers_show_leases_and_jobs_the_silent_first(redis: Redis, store: Store) -> None:
    run(store, "x")
    beat(redis, "host:8:run", fetched_s_ago=0.5, host="app-1")
    beat(redis, "host:9:zz", fetched_s_ago=300, host="app-2")
    admin = person("Admin")

    page = admin.get("/workers/").content.decode()

    assert page.index("app-2") < page.index("app-1")
    assert "does not fetch" in page
    assert f"/queues/{Q}/jobs/x/" in page
    admin.post("/workers/host:8:run/drain/", {"reason": "deploy"})
    assert redis.exists(keys.drain("host:8:run"))
    assert models.OperatorAction.objects.get(verb="drain").filter == {"worker": "host:8:run"}
    assert admin.post("/workers/host:1:nobody/drain/").status_code == 404


@pytest.mark.parametrize(("left_s", "text"), [(4.5, "4.5 s"), (-28.2, "over for 28 s"), (None, "–")])
def test_what_is_left_of_a_lease_is_told_also_when_it_is_over(left_s: float | None, text: str) -> None:
    assert time_left(left_s) == text


def test_search_finds_ids_prefixes_handlers_causes_and_tags_over_all_states(
    redis: Redis, store: Store
) -> None:
    kill(store, "order-1-dead", cause="abc123abc123", data=spec("mail.send", tags={"customer": "42"}))
    enqueue(store, "order-1-late", delay_ms=900_000, data=spec("mail.send", tags={"customer": "42"}))
    enqueue(store, "order-2", queue="billing", data=spec("billing.charge", tags={"customer": "42"}))
    for queue in (Q, "billing"):
        store.register(queue)
        record(store, queue)
    publishing.run_once()
    viewer = person("Viewer")

    def search(text: str) -> str:
        return str(viewer.get("/search/", {"q": text}).content.decode())

    exact = search("order-2")
    assert "This job" in exact
    assert "/queues/billing/jobs/order-2/" in exact
    prefix = search("order-1")
    assert prefix.count('class="mono" href="/queues/mail/jobs/order-1-') == 2
    assert "/queues/billing/?state=dead&amp;handler=billing.charge" in search("billing.charge")
    assert "/causes/abc123abc123/" in search("it fai")
    tagged = search("customer=42")
    assert "3 jobs" in tagged
    assert {"dead", "delayed", "ready"} <= set(re.findall(r'class="badge c-(\w+)"', tagged))
    assert "Nothing matches" in search("nobody")
    assert search("").count("Search everything") == 1


def test_job_that_the_record_does_not_know_yet_is_found_by_its_id(redis: Redis, store: Store) -> None:
    enqueue(store, "just-now")

    assert "/queues/mail/jobs/just-now/" in person("Viewer").get("/search/?q=just-now").content.decode()


def test_activity_is_filtered_by_person_queue_and_verb_and_exported(redis: Redis, store: Store) -> None:
    kill(store, "a", "b")
    ann, bob = person("Operator", name="ann"), person("Operator", name="bob")
    ann.post(f"/queues/{Q}/jobs/a/requeue/", {"reason": "=HYPERLINK(1)"})
    bob.post(f"/queues/{Q}/jobs/b/discard/", {"reason": "poison"})
    bob.post("/queues/mail/pause/", {"reason": "stop"})

    def rows(query: str) -> int:
        return str(ann.get(f"/activity/?{query}").content.decode()).count('id="action-')

    assert rows("") == 3
    assert rows("person=ann") == 1
    assert rows("verb=discard") == 1
    assert rows("person=bob&queue=mail") == 2
    assert rows("job=a") == 1
    answer = ann.get("/activity/export/?person=ann")
    text = streamed(answer)
    assert "requeue" in text
    assert "poison" not in text
    assert "'=HYPERLINK(1)" in text  # no spreadsheet takes it for a formula


@pytest.mark.django_db(transaction=True)  # publishing follows the commit
def test_pause_until_a_time_and_limits_take_effect_and_are_recorded(redis: Redis, store: Store) -> None:
    enqueue(store, "a")
    admin = person("Admin")

    admin.post(f"/queues/{Q}/pause/", {"reason": "partner down", "resume_after": "30 min"})
    settings = redis.hgetall(f"queueops:{{{Q}}}:settings")
    assert settings[b"paused"] == b"1"
    assert admin.post(f"/queues/{Q}/resume/").status_code == 302
    second = admin.post(f"/queues/{Q}/resume/", headers={"HX-Request": "true"})
    assert second.status_code == 409
    admin.post(f"/queues/{Q}/limits/", {"concurrency": "4", "rate_per_s": "2.5", "reason": "slowly"})
    settings = redis.hgetall(f"queueops:{{{Q}}}:settings")
    assert (settings[b"concurrency"], settings[b"rate"]) == (b"4", b"2.5")
    assert admin.post(f"/queues/{Q}/limits/", {"concurrency": "0"}).status_code == 422
    page = admin.get("/activity/").content.decode()
    assert "concurrency: none to 4" in page
    assert "partner down" in page


def test_limits_say_what_they_will_do(redis: Redis, store: Store) -> None:
    enqueue(store, *[f"a{i}" for i in range(100)], delay_ms=600_000)

    form = person("Admin").get(f"/queues/{Q}/limits/form/?rate_per_s=0.01").content.decode()

    assert re.search(r"Next hour: 36 tries instead of \d+; \d+ wait longer", form)


def test_another_policy_says_how_often_a_failing_job_is_tried(redis: Redis, store: Store) -> None:
    enqueue(store, "a", delay_ms=600_000)
    models.RetryPolicy.objects.create(name="patient", max_retries=2, delays_s=[600, 7_200])
    admin = person("Admin")

    form = admin.get(f"/queues/{Q}/limits/form/?default_policy=patient").content.decode()
    admin.post(f"/queues/{Q}/limits/", {"default_policy": "patient", "reason": "slowly"})

    assert "tried again 1 time in its first hour instead of 3: 2 retries after 10 min and 2 h" in form
    assert models.Queue.objects.get(pk=Q).default_policy.name == "patient"  # type: ignore[union-attr]
    assert admin.post(f"/queues/{Q}/limits/", {"default_policy": "nobody"}).status_code == 422


def test_c15_a_policy_that_can_not_be_is_told_beside_the_limits(redis: Redis, store: Store) -> None:
    enqueue(store, "a")
    models.RetryPolicy.objects.bulk_create([models.RetryPolicy(name="wild")])  # past every check

    form = person("Admin").get(f"/queues/{Q}/limits/form/?default_policy=wild")

    assert form.status_code == 200
    assert "A retry policy can&#x27;t be used: delays_s" in form.content.decode()


def test_metrics_hold_statistics_and_conditions(redis: Redis, store: Store) -> None:
    kill(store, "d", cause="abc123abc123")
    enqueue(store, "x")
    child = Child(store, "host:1:aa/1").register()
    child.ack(*child.take(1))

    answer = person(None).get("/metrics")
    text = answer.content.decode()

    assert answer.status_code == 200
    assert 'queueops_jobs{queue="mail",state="dead"} 1.0' in text
    assert 'queueops_enqueued_total{queue="mail"} 2.0' in text
    assert 'queueops_dead_total{queue="mail"} 1.0' in text
    assert re.search(r'queueops_ran_seconds_bucket\{le="\+Inf",queue="mail"\} 1.0', text)
    assert 'queueops_condition{check="dead",queue="mail",severity="bad"} 1.0' in text
    assert "queueops_redis_up 1.0" in text
    with override_settings(METRICS_TOKEN="t0ken"):
        assert person(None).get("/metrics").status_code == 401
        assert person(None).get("/metrics", headers={"Authorization": "Bearer t0ken"}).status_code == 200
        assert person(None).get("/metrics", headers={"Authorization": "Bearer nö"}).status_code == 401
