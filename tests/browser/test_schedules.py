"""Task 11 of an operator: did the nightly run happen? Run it, skip it: two presses each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import Page, expect

from queueops.inspector import Inspector
from queueops.models import Schedule, ScheduleSlot
from queueops.store import Store
from tests.browser.conftest import enter
from tests.browser.test_live_page import serious
from tests.dashboard.conftest import Site


@pytest.fixture
def nightly(site: Site, page: Page, member: Callable[..., User]) -> Schedule:
    """A schedule whose last night was missed, and a tab at the overview."""
    Store().register("reports")
    row = Schedule.objects.create(key="nightly", queue="reports", handler="webhook.deliver", rule="0 3 * * *")
    row.slots.create(
        slot_at=timezone.now() - timedelta(hours=7), state="missed", reason="no scheduler ran at its time"
    )
    enter(page, site, member("Admin"))
    page.goto("/")
    return row


def test_the_missed_night_stands_on_the_overview_and_one_press_leads_to_it(
    page: Page, nightly: Schedule
) -> None:
    wrong = page.locator("#live-overview, main").get_by_text("nightly: the slot of")
    expect(wrong.first).to_be_visible()

    page.get_by_role("link", name="Run this slot").first.click()

    expect(page.get_by_role("heading", name="nightly")).to_be_visible()
    expect(page.locator("td", has_text="no scheduler ran at its time")).to_be_visible()
    page.get_by_role("button", name="Run this slot").click()
    expect(page.locator("#toasts")).to_contain_text("nightly runs now for")
    slot = ScheduleSlot.objects.get(suffix__startswith="hand-")
    assert Inspector().job("reports", slot.job_id) is not None


def test_run_now_and_skip_are_two_presses_away(page: Page, nightly: Schedule) -> None:
    page.get_by_role("link", name="Schedules").click()
    page.get_by_role("button", name="Skip next").click()
    expect(page.locator("#toasts")).to_contain_text("nightly will not run")
    expect(page.locator("#schedule-nightly")).to_contain_text("skipped")

    page.locator("#toasts").get_by_role("button", name="Let it run").click()
    expect(page.locator("#toasts")).to_contain_text("after all")
    page.get_by_role("button", name="Run now").click()
    expect(page.locator("#toasts")).to_contain_text("nightly runs now")
    assert ScheduleSlot.objects.filter(suffix__startswith="hand-").count() == 1


def test_the_form_shows_what_is_typed_before_it_is_saved(page: Page, nightly: Schedule) -> None:
    page.goto("/schedules/new")
    page.get_by_label("Rule").fill("30 2 * * *")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    preview = page.locator("#schedule-preview")

    expect(preview.locator("li", has_text="02:30 CE")).to_have_count(5)
    expect(preview).to_contain_text("Next in Europe/Berlin")
    page.get_by_label("Time zone").fill("Mars/Phobos")
    expect(preview).to_contain_text("no time zone is named")
    page.get_by_label("Key", exact=True).fill("hourly")
    page.get_by_label("Time zone").fill("UTC")
    page.get_by_label("Handler").fill("webhook.deliver")
    page.get_by_label("Arguments", exact=True).fill('["https://example.com/hook"]')
    expect(preview).to_contain_text("Next run:")
    page.get_by_role("button", name="Make it").click()
    expect(page.get_by_text("hourly is made. Next run:")).to_be_visible()


def test_no_serious_problem_of_accessibility(page: Page, nightly: Schedule) -> None:
    found = {}
    for path in ("", "nightly/", "nightly/edit/", "nightly/backfill/", "nightly/pause/form/"):
        page.goto(f"/schedules/{path}")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            if problems := serious(page):
                found[path, scheme] = problems[:3]
    assert found == {}
