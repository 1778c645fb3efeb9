"""Pages in a real browser: what a person has ticked, opened and typed stays; keys; no JavaScript."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import BrowserContext, Page, expect
from redis import Redis

from queueops import models
from queueops.local_redis import LocalServer
from queueops.store import Store
from tests.browser.conftest import enter
from tests.dashboard.conftest import Site, wait_for
from tests.dashboard.pages import Q, dead, enqueue, kill, record, spec
from tests.factories import state

#: What a browser does when its tab goes to the back, or comes to the front.
HIDE = """hidden => {
  Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
  document.dispatchEvent(new Event('visibilitychange'));
}"""

#: Counts what a page fetches and swaps in by itself.
COUNT_SWAPS = """() => {
  window.swaps = 0;
  document.addEventListener('htmx:after:swap', () => window.swaps++);
}"""


@pytest.fixture(autouse=True)
def real_time(store: Store) -> None:
    store.now_ms = ""


def test_ticks_stay_with_their_jobs_through_live_updates(admin: Page, store: Store, redis: Redis) -> None:
    kill(store, *[f"d{i:02}" for i in range(12)])
    admin.goto(f"/queues/{Q}/?state=dead")
    admin.check("#job-d03 input")
    admin.check("#job-d07 input")
    expect(admin.locator(".bulk-count")).to_have_text("2 selected")

    store.discard(Q, ["d03", "d05"], actor="user:9")  # one ticked, one not
    kill(store, *[f"n{i:02}" for i in range(37)])

    expect(admin.locator(".pill")).to_have_text("37 new: show")
    expect(admin.locator("#job-d05")).to_have_class(re.compile("moved"))
    expect(admin.locator("#job-d03")).to_have_class(re.compile("moved"))
    ticked = admin.eval_on_selector_all(
        "#job-list input[name=id]:checked", "boxes => boxes.map(box => box.value)"
    )
    assert ticked == ["d07"]
    expect(admin.locator(".bulk-count")).to_have_text("1 selected")

    admin.click(".pill")
    expect(admin.locator("#job-n36")).to_be_visible()
    ticked = admin.eval_on_selector_all(
        "#job-list input[name=id]:checked", "boxes => boxes.map(box => box.value)"
    )
    assert ticked == ["d07"]
    admin.click("#bulk [data-verb=requeue]")
    wait_for(lambda: state(redis, "d07") == "ready")
    assert dead(redis) == 12 + 37 - 3  # two discarded, one requeued


def test_rows_do_not_jump_under_the_pointer(admin: Page, store: Store) -> None:
    kill(store, *[f"d{i:02}" for i in range(12)])
    admin.goto(f"/queues/{Q}/?state=dead")
    box = admin.locator("#job-d05").bounding_box()
    assert box is not None
    admin.mouse.move(box["x"] + 50, box["y"] + 10)

    kill(store, *[f"n{i:02}" for i in range(5)])
    expect(admin.locator(".pill")).to_have_text("5 new: show")

    under = admin.evaluate(f"document.elementFromPoint({box['x'] + 50}, {box['y'] + 10}).closest('tr')?.id")
    if under != "job-d05":  # the pill itself takes a line: that alone may move what is below
        moved = admin.locator("#job-d05").bounding_box()
        assert moved is not None
        assert abs(moved["y"] - box["y"]) < 44


def test_open_details_typed_text_and_focus_survive(admin: Page, store: Store) -> None:
    kill(store, "d1", "d2")
    record(store)
    admin.goto(f"/queues/{Q}/jobs/d1/")
    admin.click("#job-body details summary >> nth=0")
    admin.fill("#job-reason", "because of")
    admin.evaluate("window.untouched = true")

    admin.evaluate(COUNT_SWAPS)
    for i in range(3):  # three hints, each of which fetches the page's parts again
        kill(store, f"more{i}")
        admin.wait_for_function("n => window.swaps > n", arg=i)

    assert admin.input_value("#job-reason") == "because of"
    assert admin.evaluate("document.activeElement.id") == "job-reason"
    assert admin.evaluate("document.querySelector('#job-body details').open")
    assert admin.evaluate("window.untouched")


def test_what_one_does_another_sees_within_a_second_and_a_half(
    admin: Page, context: BrowserContext, store: Store, redis: Redis
) -> None:
    kill(store, "d1", "d2", "d3")
    other = context.new_page()
    for tab in (admin, other):
        tab.goto(f"/queues/{Q}/?state=dead")
    kill(store, "d4")
    for tab in (admin, other):  # both sockets are open
        expect(tab.locator(".pill")).to_have_text("1 new: show")

    admin.click("#job-d2 button")
    wait_for(lambda: state(redis, "d2") == "ready")
    started = time.monotonic()
    other.wait_for_selector("#job-d2.moved", timeout=5_000)

    assert time.monotonic() - started < 1.5
    expect(admin.locator("#job-d2")).to_have_class(re.compile("moved"))
    expect(admin.locator(".toast")).to_contain_text("Requeued: d2")


def test_hidden_tab_fetches_nothing_and_catches_up(
    admin: Page, context: BrowserContext, store: Store
) -> None:
    kill(store, "d1")
    admin.goto(f"/queues/{Q}/?state=dead")
    seen = context.new_page()
    seen.goto(f"/queues/{Q}/?state=dead")
    kill(store, "d2")
    for tab in (admin, seen):
        expect(tab.locator(".pill")).to_have_text("1 new: show")
    asked: list[str] = []
    admin.evaluate(HIDE, True)
    admin.on("request", lambda request: asked.append(request.url))

    for i in range(3):
        kill(store, f"n{i}")
        expect(seen.locator(".pill")).to_have_text(f"{i + 2} new: show")  # what the other tab was told too
    assert asked == []

    admin.evaluate(HIDE, False)
    expect(admin.locator(".pill")).to_have_text("4 new: show")


def test_lists_fetch_at_most_once_a_second(admin: Page, store: Store) -> None:
    kill(store, "d1")
    admin.goto(f"/queues/{Q}/?state=dead")
    kill(store, "d2")
    expect(admin.locator(".pill")).to_have_text("1 new: show")
    asked: list[str] = []
    admin.on("request", lambda request: asked.append(request.url))
    started = time.monotonic()

    for i in range(40):
        kill(store, f"n{i:02}")
        admin.evaluate("document.body.dispatchEvent(new CustomEvent('live-stale'))")
        admin.wait_for_timeout(75)

    assert 2 <= len(asked) <= time.monotonic() - started + 1
    expect(admin.locator(".pill")).to_contain_text("41 new")  # the last of a burst counts


def test_keys(admin: Page, store: Store, redis: Redis) -> None:
    kill(store, "d1", "d2", "d3")
    record(store)
    admin.goto(f"/queues/{Q}/?state=dead")
    first, second = (admin.locator("tr[data-job]").nth(i).get_attribute("data-job") for i in (0, 1))

    admin.keyboard.press("?")
    expect(admin.locator("#keys")).to_be_visible()
    admin.keyboard.press("Escape")
    admin.keyboard.press("/")
    assert admin.evaluate("document.activeElement.id") == "search"
    admin.keyboard.press("Escape")
    admin.keyboard.press("j")
    admin.keyboard.press("j")
    admin.keyboard.press("x")
    expect(admin.locator(".bulk-count")).to_have_text("1 selected")
    admin.keyboard.press("k")
    admin.keyboard.press("x")
    expect(admin.locator(".bulk-count")).to_have_text("2 selected")
    admin.keyboard.press("d")
    wait_for(lambda: [state(redis, str(job)) for job in (first, second)] == ["discarded", "discarded"])
    admin.goto(f"/queues/{Q}/?state=dead")
    admin.keyboard.press("j")
    admin.keyboard.press("Enter")
    expect(admin).to_have_url(re.compile("/jobs/"))
    admin.keyboard.press("r")
    wait_for(lambda: dead(redis) == 0)
    for key, path in (
        ("c", "/causes/"),
        ("f", "/forecast/"),
        ("w", "/workers/"),
        ("p", "/operations/"),
        ("a", "/activity/"),
        ("o", "/"),
    ):
        admin.keyboard.press("g")
        admin.keyboard.press(key)
        expect(admin).to_have_url(re.compile(f"^http://[^/]+{path}$"))
        admin.wait_for_load_state()


def test_all_that_match_leads_to_a_form_with_the_true_count(admin: Page, store: Store) -> None:
    kill(store, *[f"d{i:03}" for i in range(120)])
    admin.goto(f"/queues/{Q}/?state=dead")
    admin.check("#tick-page")
    expect(admin.locator(".bulk-count")).to_have_text("50 selected")

    admin.click("text=Select all 120 that match")
    expect(admin.locator(".bulk-count")).to_have_text("All 120 that match")
    admin.click("#bulk [data-verb=discard]")
    expect(admin.locator("#dialog .set-count")).to_have_text("120")
    admin.click("#dialog button[type=submit]")
    assert not models.Operation.objects.exists()  # the count has to be typed
    admin.fill("#dialog [name=typed]", "120")
    admin.click("#dialog button[type=submit]")
    expect(admin).to_have_url(re.compile("/operations/"))


def test_times_are_in_the_viewers_zone_with_utc_beside(
    admin: Page, context: BrowserContext, site: Site, member: Callable[..., User], store: Store
) -> None:
    kill(store, "d1")
    record(store)
    assert context.browser is not None
    with context.browser.new_context(base_url=site.url, timezone_id="Asia/Tokyo", locale="en-GB") as far:
        tab = far.new_page()
        enter(tab, site, User.objects.get())
        tab.goto(f"/queues/{Q}/jobs/d1/")
        shown = tab.locator(".path time").first
        utc = (shown.get_attribute("title") or "")[11:19]
        hour = (int(utc[:2]) + 9) % 24
        expect(shown).to_have_text(f"{hour:02}{utc[2:]}")


def test_times_are_relative_to_the_servers_clock_whatever_the_browsers_says(
    admin: Page, store: Store
) -> None:
    admin.add_init_script("const right = Date.now; Date.now = () => right() - 3_600_000;")
    kill(store, "d1")
    admin.goto(f"/queues/{Q}/?state=dead")

    expect(admin.locator("#job-d1 .age time")).to_have_text(re.compile("^(now|[0-9.]+ s ago)$"))


def test_command_that_sends_a_job_again_is_copied(admin: Page, context: BrowserContext, store: Store) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    kill(store, "d1", data=spec("mail.send", "ada@example.com", token="secret-1"))
    admin.goto(f"/queues/{Q}/jobs/d1/")
    admin.click("text=As a command")
    admin.click("[data-copy]")

    expect(admin.locator(".toast")).to_contain_text("Copied")
    copied = admin.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("manage.py enqueue mail.send --args")
    assert "ada@example.com" in copied
    assert "secret-1" not in copied


def test_g01_hostile_content_runs_nowhere_even_when_swapped_in(admin: Page, store: Store) -> None:
    probe = "</textarea><script>window.__xss=1</script><img src=x onerror=window.__xss=1>"
    data = spec("mail.send", probe, note=probe)
    kill(store, "h1", data=data, message=probe)
    admin.goto(f"/queues/{Q}/?state=dead")
    kill(store, "h2", data=data, message=probe)
    admin.click(".pill")
    expect(admin.locator("#job-h2")).to_be_visible()
    admin.goto(f"/queues/{Q}/jobs/h2/")
    admin.click("text=Edit and requeue…")
    expect(admin.locator("#dialog textarea")).to_be_visible()
    admin.evaluate(COUNT_SWAPS)
    kill(store, "h3", data=data, message=probe)
    admin.wait_for_function("() => window.swaps > 0")

    assert admin.evaluate("window.__xss") is None
    assert admin.locator("img").count() == 0


def test_page_says_that_the_server_keeps_somebody_waiting(
    admin: Page, store: Store, redis: Redis, site: Site
) -> None:
    kill(store, "d1", "d2")
    admin.goto(f"/queues/{Q}/?state=dead")
    expect(admin.locator("#live")).to_have_text("Live")
    assert site.process is not None
    site.process.send_signal(signal.SIGSTOP)  # it neither answers nor refuses
    try:
        admin.click("#job-d1 button")
        expect(admin.locator("#live")).to_have_text(re.compile("Waiting for the server, [0-9]+ s"))
        assert admin.locator("#job-d1").is_visible()
    finally:
        site.process.send_signal(signal.SIGCONT)

    expect(admin.locator("#job-d1")).to_have_class(re.compile("moved"))
    expect(admin.locator("#live")).to_have_text("Live")
    assert state(redis, "d1") == "ready"


def test_pages_recover_after_a_restart_of_redis(
    admin: Page, store: Store, redis_server: LocalServer, complaints: list[str]
) -> None:
    kill(store, "d1")
    admin.goto(f"/queues/{Q}/?state=dead")
    redis_server.kill()
    try:
        expect(admin.locator("#job-list, #queue-state").first).to_be_visible()
        expect(admin.locator("#queue-state .banner.bad, #job-list .banner.bad").first).to_be_visible(
            timeout=15_000
        )
    finally:
        redis_server.start()
    enqueue(store, "r1")
    expect(admin.locator("#queue-state .banner.bad")).to_have_count(0, timeout=20_000)
    expect(admin.locator("#job-list .banner.bad")).to_have_count(0, timeout=20_000)
    complaints.clear()  # Chromium reports what failed meanwhile
