"""Twelve things an operator does during an incident, with their clicks counted.

A click is a press of the pointer on the shortest path from the overview; typing is not counted. Each also
works by keyboard, since every control is a link, a button or a field; `test_keys` drives the keys of pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Locator, Page, expect
from redis import Redis

from queueops import models, operations
from queueops.store import Store
from tests.browser.conftest import enter
from tests.browser.sample import Sample
from tests.dashboard.conftest import Site, wait_for
from tests.factories import state

Q = "webhooks"


class Clicks:
    """Presses of the pointer, counted."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.count = 0

    def __call__(self, what: str | Locator) -> None:
        target = self.page.locator(what) if isinstance(what, str) else what
        target.click()
        self.count += 1


@pytest.fixture
def sample(site: Site, redis: Redis) -> Sample:
    User.objects.create_user("first", password="sesame")
    return Sample(Store()).fill()


@pytest.fixture
def admin(page: Page, sample: Sample, site: Site, member: Callable[..., User]) -> Page:
    """A tab of an administrator on the overview."""
    enter(page, site, member("Admin"))
    page.goto("/")
    return page


@pytest.fixture
def click(admin: Page) -> Clicks:
    return Clicks(admin)


def test_01_learns_that_something_is_wrong_without_a_click(admin: Page, click: Clicks) -> None:
    wrong = admin.locator(".alerts")
    expect(wrong).to_contain_text("webhooks:")
    expect(wrong).to_contain_text("has not fetched for")
    expect(wrong).to_contain_text("reports: paused")
    for line in wrong.locator("li").all():
        assert line.locator("a.go").get_attribute("href")
    assert re.match(r"\(\d+\) Overview", admin.title())
    assert "d92d20" in (admin.locator("#icon").get_attribute("href") or "")
    assert click.count == 0


def test_02_sees_what_fails_with_one_click(admin: Page, click: Clicks) -> None:
    click(".side >> text=Causes")

    first = admin.locator("#cause-list tbody tr").first
    expect(first).to_contain_text("ConnectTimeout")
    expect(first.locator(".share")).to_contain_text("%")
    expect(first).to_contain_text("ago")
    assert click.count == 1


def test_03_stops_a_queue_with_two_clicks(admin: Page, click: Clicks, redis: Redis) -> None:
    click("#queue-mail >> text=Pause")
    admin.fill("#dialog [name=reason]", "provider down")
    admin.select_option("#dialog [name=resume_after]", "30 min")
    click("#dialog button[type=submit]")

    expect(admin.locator("#live-banner")).to_contain_text("mail is paused")
    expect(admin.locator("#live-banner")).to_contain_text("provider down")
    row = models.Queue.objects.get(pk="mail")
    assert row.paused
    assert row.paused_until is not None
    assert timedelta(minutes=29) < row.paused_until - datetime.now(UTC) < timedelta(minutes=31)
    assert click.count == 2
    admin.goto("/activity/")
    expect(admin.locator("#live-banner")).to_contain_text("mail is paused")
    expect(admin.locator("#activity-list tbody tr").first).to_contain_text("provider down")


def test_03_holds_one_handler_with_two_clicks_and_lifts_it(
    admin: Page, click: Clicks, sample: Sample, redis: Redis
) -> None:
    click("#queue-webhooks >> text=Hold")
    admin.fill("#dialog [name=handler]", "webhook.deliver")
    admin.fill("#dialog [name=reason]", "partner is down")
    admin.select_option("#dialog [name=resume_after]", "30 min")
    click("#dialog button[type=submit]")

    expect(admin.locator("#live-banner")).to_contain_text("webhooks: handler webhook.deliver is held")
    expect(admin.locator(".alerts")).to_contain_text("webhooks: handler webhook.deliver is held")
    hold = models.QueueHold.objects.get()
    assert hold.until is not None
    assert timedelta(minutes=29) < hold.until - datetime.now(UTC) < timedelta(minutes=31)
    assert click.count == 2
    admin.goto("/activity/")
    expect(admin.locator("#live-banner")).to_contain_text("partner is down")

    sample.store.renew(Q, ["host:9:zz/1"])
    assert sample.store.claim(Q, "host:9:zz/1", request=1, limit=100).jobs == []
    lifting = Clicks(admin)
    lifting("#live-banner a >> text=is held")
    expect(admin.locator("#holds")).to_contain_text(re.compile(r"[1-9]\d* kept back · partner is down"))
    lifting("#holds >> text=Lift")
    expect(admin.locator("#holds")).to_have_count(0)
    expect(admin.locator("#live-banner")).not_to_contain_text("webhook.deliver")
    assert lifting.count == 2
    assert sample.store.claim(Q, "host:9:zz/1", request=2, limit=1).jobs != []


def test_03_holds_one_cause_with_three_clicks(admin: Page, click: Clicks) -> None:
    click(".side >> text=Causes")
    click("#cause-list tbody tr >> nth=0 >> text=Hold")
    admin.fill("#dialog [name=reason]", "partner is down")
    click("#dialog button[type=submit]")

    expect(admin.locator("#live-banner")).to_contain_text("cause ConnectTimeout")
    assert click.count == 3
    assert {row.kind for row in models.QueueHold.objects.all()} == {"cause"}


def test_04_slows_a_queue_down_with_three_clicks(admin: Page, click: Clicks) -> None:
    click("#queue-webhooks th a")
    click("text=Limits…")
    admin.fill("#dialog [name=rate_per_s]", "0.02")
    expect(admin.locator("#effect")).to_contain_text(re.compile(r"Next hour: 72 tries instead of [\d,]+"))
    click("#dialog button[type=submit]")

    expect(admin.locator(".toast")).to_contain_text("0.02 a second")
    assert models.Queue.objects.get(pk=Q).rate_per_s == 0.02
    assert click.count == 3


def test_05_finds_one_customers_jobs_with_one_click(admin: Page, click: Clicks) -> None:
    click("#search")
    admin.keyboard.type("customer=8801")
    admin.keyboard.press("Enter")

    expect(admin.locator("#search-results h2").first).to_contain_text("customer=8801")
    states = set(admin.locator("#search-results .badge").all_inner_texts())
    assert {"dead", "delayed"} <= {text.strip() for text in states}
    assert admin.url.endswith("/search/?q=customer%3D8801")  # a link to send
    assert click.count == 1


def test_06_understands_one_job_with_one_click_and_fixes_its_data(
    admin: Page, click: Clicks, sample: Sample, redis: Redis
) -> None:
    job = sample.ids["dead"]
    click("#search")
    admin.keyboard.type(job)
    admin.keyboard.press("Enter")
    looked = Clicks(admin)
    looked("#search-results .id a")

    expect(admin.locator(".path")).to_contain_text("4 retries")
    expect(admin.locator(".try")).to_have_count(5)
    expect(admin.locator("#job-body")).to_contain_text("not as before")
    expect(admin.locator("#job-body")).to_contain_text("external-api v3")
    expect(admin.locator("#payload")).to_contain_text("masked")
    assert "s3cr3t" not in admin.content()
    assert looked.count == 1

    admin.click("text=Edit and requeue…")
    payload = admin.input_value("#dialog [name=payload]")
    admin.fill("#dialog [name=payload]", payload.replace('"order": 770', '"order": 880'))
    admin.click("#dialog button[type=submit]")
    expect(admin.locator("#dialog .diff .old")).to_contain_text('"order": 770')
    expect(admin.locator("#dialog .diff .new")).to_contain_text('"order": 880')
    admin.fill("#dialog [name=reason]", "wrong order")
    admin.click("text=Save and requeue")

    expect(admin.locator("#dialog")).not_to_be_visible()
    expect(admin.locator("#facts-title + *, .facts").first).to_be_visible()
    wait_for(lambda: state(redis, job, Q) == "ready")
    assert b"s3cr3t-token" in (redis.hget(f"queueops:{{{Q}}}:job:{job}", "spec") or b"")


def test_07_finds_stuck_workers_with_one_click(admin: Page, click: Clicks) -> None:
    click(".side >> text=Workers")

    red = admin.locator(".worker.red")
    expect(red).to_contain_text("does not fetch")
    expect(red).to_contain_text("app-1")
    busy = admin.locator(".worker", has_text="app-2")
    expect(busy.locator("tbody tr").first).to_contain_text("webhook.deliver")
    expect(busy).to_contain_text("Lease left")
    assert click.count == 1


def test_08_cancels_running_jobs_with_three_clicks_and_sees_who_obeyed(
    admin: Page, click: Clicks, redis: Redis, sample: Sample
) -> None:
    # Where a line of the overview, or a link from a colleague, leads.
    admin.goto(f"/queues/{Q}/?state=pending")
    click("#tick-page")
    click("#bulk [data-verb=cancel]")
    expect(admin.locator("#dialog")).to_contain_text("its process is ended")
    admin.select_option("#dialog [name=stop_after]", "30 s")
    admin.fill("#dialog [name=reason]", "wrong customer")
    click("#dialog button[type=submit]")

    expect(admin).to_have_url(re.compile("/operations/"))
    expect(admin.locator("#operation-body")).to_contain_text("asked first, stopped hard after 30 s")
    expect(admin.locator("#operation-body tr", has_text="still run")).to_contain_text("12")
    assert click.count == 3
    assert redis.hget(f"queueops:{{{Q}}}:job:{sample.ids['pending']}", "cancel") is not None
    assert redis.zcard(f"queueops:{{{Q}}}:stops") == 12
    admin.goto(f"/queues/{Q}/?state=pending")
    expect(admin.locator(".jobs tbody tr").first).to_contain_text("asked to stop")


def test_08_cancels_what_matches_a_filter_with_two_clicks(admin: Page, click: Clicks, redis: Redis) -> None:
    admin.goto(f"/queues/{Q}/?state=pending&handler=webhook.deliver")
    click("#cancel-matching")
    expect(admin.locator("#dialog")).to_contain_text("What still runs after that")
    admin.select_option("#dialog [name=stop_after]", "2 min")
    click("#dialog button[type=submit]")

    expect(admin).to_have_url(re.compile("/operations/"))
    row = models.Operation.objects.order_by("-created_at").first()
    assert row is not None
    assert (row.verb, row.filter) == ("cancel", {"handler": "webhook.deliver"})
    assert row.arguments == {"stop_after_s": 120.0}
    assert click.count == 2


def test_09_retries_a_cause_in_parts_with_three_clicks(admin: Page, click: Clicks, sample: Sample) -> None:
    click(".side >> text=Causes")
    click("#cause-list tbody tr >> nth=0 >> th a")
    count = int(admin.inner_text(".set-count"))
    admin.fill("[name=canary]", "10")
    admin.fill("[name=rate]", "500")
    admin.fill("[name=reason]", "partner is back")
    click(f"text=Requeue {count}")

    expect(admin).to_have_url(re.compile("/operations/"))
    row = models.Operation.objects.order_by("-created_at").first()
    assert row is not None
    assert (row.total, row.arguments["canary"], row.arguments["rate"]) == (count, 10, 500)
    assert row.arguments["stop_share"] == 0.5
    assert click.count == 3
    operations.Runner(row.pk).run_guarded(float("inf"))
    expect(admin.locator("#operation-body")).to_contain_text(f"10 of {count}")
    admin.click("text=Go on")
    wait_for(lambda: models.Operation.objects.get(pk=row.pk).status == "running")
    operations.Runner(row.pk).run_guarded(float("inf"))
    expect(admin.locator("#operation-body")).to_contain_text("finished")


def test_10_throws_poison_away_with_three_clicks_and_takes_it_back(
    admin: Page, click: Clicks, sample: Sample, redis: Redis
) -> None:
    admin.goto(f"/queues/{Q}/?state=dead")
    before = redis.zcard(f"queueops:{{{Q}}}:dead")
    click(".jobs tbody tr >> nth=0 >> input")
    click(".jobs tbody tr >> nth=1 >> input")
    click("#bulk [data-verb=discard]")
    assert click.count == 3
    expect(admin.locator(".toast")).to_contain_text("2 jobs discarded")
    assert redis.zcard(f"queueops:{{{Q}}}:dead") == before - 2
    expect(admin.locator("tr.moved")).to_have_count(2)

    admin.click(".toast >> text=Undo")
    wait_for(lambda: redis.zcard(f"queueops:{{{Q}}}:dead") == before)

    with admin.expect_download() as download:
        admin.click("#select-matching, a[download]") if admin.locator(
            "a[download]"
        ).count() else admin.evaluate(f"location.href = '/queues/{Q}/export/?state=dead'")
    assert "dead" in download.value.suggested_filename


def test_11_sees_whether_the_nightly_run_happened(admin: Page, click: Clicks) -> None:
    click(".side >> text=Schedules")
    nightly = admin.locator("#schedule-nightly-report")
    expect(nightly).to_contain_text("ran")
    expect(nightly.locator("svg.slots")).to_be_visible()
    click(nightly.get_by_role("button", name="Run now"))

    expect(admin.locator(".toast")).to_contain_text("nightly-report runs now")
    assert models.ScheduleSlot.objects.filter(suffix__startswith="hand-").count() == 1
    assert click.count == 2


def test_12_sees_who_did_what_with_one_click(admin: Page, click: Clicks) -> None:
    click(".side >> text=Activity")

    first = admin.locator("#activity-list")
    expect(first).to_contain_text("partner is back")
    expect(first).to_contain_text("warehouse is migrating")
    expect(first).to_contain_text("Undo")
    assert click.count == 1
