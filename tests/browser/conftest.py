"""A real Chromium, Debian's, driven by Playwright against a real web server."""

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests.dashboard.conftest import Site, forget_snapshot, member, running_site, site

__all__ = ["forget_snapshot", "member", "running_site", "site"]

CHROMIUM = shutil.which("chromium")
#: As root Chromium needs --no-sandbox; the rest keeps it from asking the outside world.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(os.path.dirname(__file__)):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser a module. Not longer: while Playwright lives, no async test can run in this thread."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: run 'apt-get install chromium' as root")
    with sync_playwright() as playwright, pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "DJANGO_ALLOW_ASYNC_UNSAFE", "1"
        )  # Playwright's loop counts as running; no query is in it
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the browser's console said, page errors included; a test may clear what it expects."""
    return []


def is_complaint(message: ConsoleMessage) -> bool:
    """Whether the console's line tells of a fault. A page that is left at once never opens its socket."""
    is_left = "WebSocket is closed before the connection is established" in message.text
    return message.type in ("error", "warning") and not is_left


@pytest.fixture
def context(browser: Browser, site: Site, complaints: list[str]) -> Iterator[BrowserContext]:
    """An own profile; at the end no page may have complained, which a breach of the policy would."""
    made = browser.new_context(base_url=site.url, viewport={"width": 1280, "height": 800})
    made.set_default_timeout(10_000)
    made.on("console", lambda m: complaints.append(m.text) if is_complaint(m) else None)
    made.on("weberror", lambda e: complaints.append(str(e.error)))
    yield made
    made.close()
    assert complaints == []


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """A tab, not logged in."""
    return context.new_page()


def enter(page: Page, site: Site, user: User) -> User:
    """Log a tab in without the form: a real password hash costs a second."""
    client = Client()
    client.force_login(user)
    page.context.add_cookies(
        [{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": site.url}]
    )
    return user


@pytest.fixture
def log_in(member: Callable[..., User]) -> Callable[..., User]:
    """Log a tab in as a member of a group, by the form."""

    def enter(page: Page, group: str = "Viewer", name: str = "alice") -> User:
        user = User.objects.filter(username=name).first() or member(group, name)
        page.goto("/")
        page.fill("#id_username", name)
        page.fill("#id_password", "sesame")
        page.click("text=Log in >> nth=-1")
        page.wait_for_selector("#live-overview")
        return user

    return enter


@pytest.fixture
def admin(page: Page, site: Site, member: Callable[..., User]) -> Page:
    """A tab of an administrator, logged in."""
    enter(page, site, member("Admin"))
    return page
