"""Pages for everybody: by keyboard, on a phone, without JavaScript, for a screen reader, on a slow line."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from functools import partial

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import BrowserContext, Page, Request, expect
from redis import Redis

from queueops.store import Store
from tests.browser.conftest import enter
from tests.browser.sample import Sample
from tests.browser.shots import pages
from tests.browser.test_live_page import serious
from tests.dashboard.conftest import Site
from tests.dashboard.pages import Q, kill, record
from tests.factories import state

#: All that a person can press or fill in here and now.
MARK_CONTROLS = """() => {
  const all = document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]');
  const usable = each => each.checkVisibility() && !each.disabled && each.type !== 'hidden';
  window.unreached = new Set([...all].filter(usable));
  window.undrawn = [];
}"""
FOCUS_IS_DRAWN = """() => {
  const here = document.activeElement;
  if (here === document.body) return 'left';
  window.unreached.delete(here);
  const style = getComputedStyle(here);
  if (style.outlineStyle === 'none' || !parseFloat(style.outlineWidth)) window.undrawn.push(here.outerHTML);
  return 'here';
}"""
UNREACHED = "() => [...window.unreached].map(each => each.outerHTML)"


@pytest.fixture(autouse=True)
def real_time(store: Store) -> None:
    store.now_ms = ""


def test_every_control_is_reached_by_tab_and_shows_that_it_is(admin: Page, store: Store) -> None:
    kill(store, "d1", "d2")
    record(store)
    for path in ("/", f"/queues/{Q}/?state=dead", f"/queues/{Q}/jobs/d1/", "/causes/boom/", "/activity/"):
        admin.goto(path, wait_until="networkidle")
        admin.evaluate(MARK_CONTROLS)
        for _ in range(200):
            admin.keyboard.press("Tab")
            if admin.evaluate(FOCUS_IS_DRAWN) == "left":
                break
        assert admin.evaluate("() => window.unreached.size") == 0, (path, admin.evaluate(UNREACHED))
        assert admin.evaluate("() => window.undrawn") == [], path


@pytest.mark.timeout(400)  # axe looks at some 25 pages, twice
def test_no_serious_problem_of_accessibility_on_any_page(
    admin: Page, site: Site, redis: Redis, store: Store
) -> None:
    sample = Sample(Store()).fill()
    found = {}
    for name, path in pages(sample.ids).items():
        answer = admin.goto(path)
        if answer is not None and answer.status == 404:
            continue
        admin.emulate_media(color_scheme="light")
        if problems := serious(admin):
            found[name, "light"] = problems[:3]
        admin.emulate_media(color_scheme="dark")  # only colours differ
        if problems := serious(admin, runOnly=["color-contrast"]):
            found[name, "dark"] = problems[:3]
    assert found == {}


def test_phone_never_scrolls_sideways(admin: Page, redis: Redis, store: Store) -> None:
    sample = Sample(Store()).fill()
    admin.set_viewport_size({"width": 390, "height": 844})
    wide = {}
    for name, path in pages(sample.ids).items():
        admin.goto(path)
        width = admin.evaluate("document.documentElement.scrollWidth")
        if width > 390:
            wide[name] = width
    assert wide == {}


def test_everything_can_be_done_without_javascript(
    page: Page, context: BrowserContext, site: Site, member: Callable[..., User], store: Store, redis: Redis
) -> None:
    kill(store, "d1", "d2", "d3", "d4")
    assert context.browser is not None
    with context.browser.new_context(base_url=site.url, java_script_enabled=False) as plain:
        tab = plain.new_page()
        enter(tab, site, member("Admin"))
        tab.goto(f"/queues/{Q}/?state=dead")
        tab.click("#job-d1 button")
        expect(tab.locator(".banner.ok")).to_contain_text("Requeued: d1")
        assert state(redis, "d1") == "ready"
        tab.goto(f"/queues/{Q}/?state=dead")
        tab.check("#job-d2 input")
        tab.check("#job-d3 input")
        tab.click("#bulk [data-verb=discard]")
        expect(tab.locator(".banner.ok")).to_contain_text("2 jobs discarded")
        tab.click("text=Select all 1 that match")
        tab.click("text=Requeue 1")
        expect(tab).to_have_url(re.compile("/operations/"))
        tab.goto("/")
        tab.click("#queue-mail >> text=Pause")
        tab.fill("[name=reason]", "by hand")
        tab.click("main button.primary")
        expect(tab.locator(".banner.warn").first).to_contain_text("mail is paused")
        tab.goto(f"/queues/{Q}/jobs/d2/")
        tab.click("text=Restore")
        expect(tab.locator(".banner.ok")).to_be_visible()
        assert state(redis, "d2") == "dead"
        tab.click("text=Edit and requeue…")
        payload = tab.input_value("[name=payload]")
        tab.fill("[name=payload]", payload.replace('"order": 1', '"order": 9'))
        tab.click("text=Show the difference")
        tab.click("text=Save and requeue")
        expect(tab.locator(".banner.ok")).to_be_visible()
        assert state(redis, "d2") == "ready"
        tab.fill("[name=q]", "d3")
        tab.press("[name=q]", "Enter")
        expect(tab.locator("#search-results")).to_contain_text("discarded")


def keep(seen: list[Request], request: Request) -> None:
    seen.append(request)


def test_first_view_is_light(admin: Page, site: Site, store: Store) -> None:
    Sample(Store()).fill()
    for path in ("/", "/queues/webhooks/?state=dead", "/forecast/", "/causes/"):
        answers: list[Request] = []
        tab = admin.context.new_page()
        tab.on("requestfinished", partial(keep, answers))
        tab.goto(path, wait_until="networkidle")
        loaded = [
            request for request in answers if "/ws/" not in request.url and request.url.startswith("http")
        ]
        documents = [request for request in loaded if request.resource_type == "document"]
        others = [
            request
            for request in loaded
            if request.resource_type in ("script", "stylesheet", "image", "font")
        ]
        assert len(documents) == 1
        assert len(others) <= 4, [request.url for request in others]
        weight = 0
        for request in [*documents, *others]:
            response = request.response()
            assert response is not None
            weight += len(gzip.compress(response.body()))
        assert weight <= 150_000, (path, weight)
        tab.close()
