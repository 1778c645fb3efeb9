"""The first page as a person sees it: live, through restarts of Redis and of the web server."""

import re
from collections.abc import Callable
from typing import Literal

from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import User
from playwright.sync_api import BrowserContext, Page, expect
from redis import Redis

from queueops.local_redis import LocalServer
from queueops.store import Store
from tests.dashboard.conftest import Site
from tests.factories import Child, seed_dead, seed_ready

LogIn = Callable[..., User]

#: How Chromium reports a connection that a server was not there for.
REFUSED = ("ERR_CONNECTION_REFUSED", "WebSocket", "htmx:ws:error", "Failed to fetch")


def ready_of(page: Page, queue: str = "mail") -> str:
    return page.locator(f"#queue-{queue} td").nth(1).inner_text()


def test_counts_change_without_a_reload(page: Page, log_in: LogIn, store: Store) -> None:
    seed_ready(store, "a")
    log_in(page)
    expect(page.locator("#queue-mail td").nth(1)).to_have_text("1")
    page.evaluate("window.untouched = true")

    seed_ready(store, "b", "c")
    seed_ready(store, "x", queue="billing")

    expect(page.locator("#queue-mail td").nth(1)).to_have_text("3")
    expect(page.locator("#queue-billing td").nth(1)).to_have_text("1")
    expect(page.locator("#nav-billing")).to_be_visible()
    assert page.evaluate("window.untouched")


def test_live_update_keeps_focus_and_scroll(page: Page, log_in: LogIn, store: Store, child: Child) -> None:
    for i in range(30):
        seed_ready(store, "a", queue=f"queue-{i:02}")
    log_in(page)
    link = page.locator(".alerts .go").nth(4)
    link.focus()
    page.evaluate("window.scrollTo(0, 400)")

    seed_ready(store, "b", queue="queue-29")

    expect(page.locator("#queue-queue-29 td").nth(1)).to_have_text("2")
    assert page.evaluate("document.activeElement.matches('.alerts .go')")
    assert page.evaluate("window.scrollY") == 400


def test_page_says_how_old_the_figures_are_while_redis_is_away_and_recovers(
    page: Page, log_in: LogIn, store: Store, redis_server: LocalServer, complaints: list[str]
) -> None:
    seed_ready(store, "a")
    log_in(page)
    expect(page.locator("#live")).to_have_text("Live")
    expect(page.locator("#queue-mail")).to_be_visible()

    redis_server.kill()
    try:
        expect(page.locator("#live")).to_have_text(re.compile(r"\d+ s old"), timeout=8_000)
        expect(page.locator("#redis-away")).to_contain_text("last known figures", timeout=15_000)
        expect(page.locator("#queue-mail td").nth(1)).to_have_text("1")
    finally:
        redis_server.start()
    seed_ready(store, "a", "b")

    expect(page.locator("#live")).to_have_text("Live", timeout=20_000)
    expect(page.locator("#redis-away")).to_have_count(0)
    expect(page.locator("#queue-mail td").nth(1)).to_have_text("2", timeout=20_000)
    # A socket that was not open yet is refused with 503 until Redis is back; nothing else may be said.
    assert [each for each in complaints if not any(text in each for text in REFUSED)] == []
    complaints.clear()


def test_socket_comes_back_after_a_restart_of_the_web_server(
    page: Page, log_in: LogIn, site: Site, store: Store, complaints: list[str]
) -> None:
    seed_ready(store, "a")
    log_in(page)
    expect(page.locator("#queue-mail")).to_be_visible()
    page.evaluate("window.untouched = true")

    site.stop()
    expect(page.locator("#live")).to_have_text(re.compile("s old"), timeout=8_000)
    site.start()
    seed_ready(store, "b")

    expect(page.locator("#queue-mail td").nth(1)).to_have_text("2", timeout=20_000)
    expect(page.locator("#live")).to_have_text("Live", timeout=20_000)
    assert page.evaluate("window.untouched")
    # Chromium reports each refused connection while the server was away; nothing else may be said.
    assert [each for each in complaints if not any(text in each for text in REFUSED)] == []
    complaints.clear()


def test_page_whose_session_ended_goes_to_the_login_page_by_itself(
    page: Page, log_in: LogIn, context: BrowserContext, store: Store
) -> None:
    seed_ready(store, "a")
    log_in(page)
    other_tab = context.new_page()
    other_tab.goto("/")

    other_tab.click("text=Log out")

    expect(page).to_have_url(re.compile(r"/login/\?next=%2F"), timeout=15_000)


def test_page_works_without_javascript(
    page: Page, context: BrowserContext, log_in: LogIn, store: Store, site: Site, complaints: list[str]
) -> None:
    seed_ready(store, "a")
    assert context.browser is not None
    with context.browser.new_context(base_url=site.url, java_script_enabled=False) as plain:
        tab = plain.new_page()
        log_in(tab)

        assert ready_of(tab) == "1"
        tab.click("text=Log out")
        expect(tab.locator("h1")).to_have_text("Log in")


def test_no_serious_problem_of_accessibility_in_either_theme(
    page: Page, log_in: LogIn, store: Store, child: Child, redis: Redis
) -> None:
    seed_dead(child, "d")
    seed_ready(store, "a", queue="billing")
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    page.goto("/")
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        assert serious(page) == []
    log_in(page)
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        assert serious(page) == []


def test_phone_shows_the_four_counts_without_sideways_scroll_of_the_page(
    page: Page, log_in: LogIn, store: Store
) -> None:
    seed_ready(store, "a", queue="webhooks")
    page.set_viewport_size({"width": 390, "height": 844})
    log_in(page)

    assert page.evaluate("document.documentElement.scrollWidth") == 390
    for place in range(4):
        box = page.locator("#queue-webhooks td").nth(place).bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390


def serious(page: Page, **options: object) -> list[str]:
    """What axe-core finds that is serious or critical, one line each.

    Playwright evaluates in the page over its debugging protocol, which the page's policy does not bind.
    """
    found = Axe().run(page, options={"resultTypes": ["violations"], **options}).response["violations"]
    return [
        f"{each['id']}: {node['html']}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
