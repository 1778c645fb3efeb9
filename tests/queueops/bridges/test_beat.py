"""Schedules of Celery beat, brought over: real entries of a real app, and Celery's own arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab
from django.core.management import call_command

from queueops.bridges.celery import beat
from queueops.job import to_ms
from queueops.models import Schedule, ScheduleSlot
from tests.factories import Redis

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 1, 20, tzinfo=UTC)


@pytest.fixture
def app() -> Iterator[Celery[Any]]:
    """The site's app for one test."""
    before = Celery("before")
    made: Celery[Any] = Celery("beat")
    made.set_current()
    made.set_default()
    yield made
    before.set_current()
    before.set_default()


class Zoned(crontab):
    """As django-celery-beat's TzAwareCrontab: a crontab with a zone of its own."""

    def __init__(self, tz: ZoneInfo, **given: Any) -> None:
        self.tz = tz  # type: ignore[misc,assignment]  # as that one does
        super().__init__(**given)


class Sunset(BaseSchedule):
    """A schedule of somebody's own."""

    def __repr__(self) -> str:
        return "<sunset>"


def run(*words: str) -> str:
    out = StringIO()
    call_command("importbeat", *words, stdout=out)
    return out.getvalue()


def one(app: Celery[Any], schedule: Any, **given: Any) -> beat.Entry:
    app.conf.beat_schedule = {"the entry": {"task": "shop.work", "schedule": schedule, **given}}
    (entry,) = beat.entries(NOW)
    return entry


def test_j09_a_day_of_month_and_of_week_is_read_differently_and_says_so(
    app: Celery[Any], redis: Redis
) -> None:
    entry = one(app, crontab(minute=0, hour=0, day_of_month=13, day_of_week=5))

    days = [[f"{at:%Y-%m-%d}" for at in runs[:3]] for runs in (entry.theirs, entry.ours)]
    assert days == [["2026-02-13", "2026-03-13", "2026-11-13"], ["2026-01-23", "2026-01-30", "2026-02-06"]]
    assert entry.is_read_differently

    said = run("--apply")

    assert "the entry: Celery would run it " in said
    assert "here it runs " in said
    row = Schedule.objects.get(key="the-entry")
    assert (row.rule, row.paused) == ("0 0 13 * 5", True)
    assert "at other times" in row.paused_reason


def test_j09_a_crontab_keeps_its_zone(app: Celery[Any], redis: Redis) -> None:
    # The clocks of New York go forward on 8 March 2026, within what is compared.
    entry = one(app, Zoned(ZoneInfo("US/Eastern"), minute=30, hour="9", day_of_week="mon-fri", app=app))

    assert (entry.definition.rule, entry.definition.zone) == ("30 9 * * mon-fri", "US/Eastern")
    assert not entry.is_read_differently
    assert not entry.definition.paused
    assert {f"{at:%H:%M}" for at in entry.ours} == {"14:30", "13:30"}


@pytest.mark.parametrize(
    ("schedule", "kind", "rule"),
    [
        (crontab(minute="*/15"), "cron", "*/15 * * * *"),
        (crontab(minute=[5, 35], hour="2-4"), "cron", "5,35 2-4 * * *"),
        (crontab(hour=4, minute=0, day_of_month="1,15"), "cron", "0 4 1,15 * *"),
        (timedelta(minutes=5), "interval", "300"),
        (90, "interval", "90"),
    ],
)
def test_an_entry_becomes_a_schedule_of_the_same_times(
    app: Celery[Any], redis: Redis, schedule: Any, kind: str, rule: str
) -> None:
    entry = one(app, schedule, args=(1,), kwargs={"a": 2}, options={"queue": "mail"})

    definition = entry.definition
    assert (definition.kind, definition.rule, definition.queue) == (kind, rule, "mail")
    assert (definition.handler, definition.args, definition.kwargs) == ("shop.work", [1], {"a": 2})
    assert (entry.problem, entry.is_read_differently, definition.paused) == ("", False, False)


def test_j09_what_is_disabled_stays_disabled_and_nothing_is_caught_up_with(
    app: Celery[Any], redis: Redis
) -> None:
    minutely = {"task": "shop.work", "schedule": crontab()}
    app.conf.beat_schedule = {"on": minutely, "off": {**minutely, "enabled": False}}

    run("--apply")

    rows = {row.key: row for row in Schedule.objects.all()}
    assert (rows["on"].paused, rows["off"].paused) == (False, True)
    assert rows["off"].paused_reason == "disabled in Celery beat"
    assert {row.catch_up for row in rows.values()} == {"skip"}
    assert not ScheduleSlot.objects.exists()
    assert all(row.changed_at and to_ms(row.changed_at) > to_ms(NOW) - 1 for row in rows.values())


def test_what_has_no_counterpart_is_named_and_nothing_is_made_without_apply(
    app: Celery[Any], redis: Redis
) -> None:
    app.conf.beat_schedule = {
        "sun": {"task": "shop.work", "schedule": Sunset(app=app)},
        "hourly": {"task": "shop.work", "schedule": crontab(minute=0)},
    }

    said = run()

    assert "not imported" in said
    assert "<sunset> has no counterpart" in said
    assert not Schedule.objects.exists()


def test_a_schedule_that_is_there_is_left_alone(app: Celery[Any], redis: Redis) -> None:
    app.conf.beat_schedule = {"hourly": {"task": "shop.work", "schedule": crontab(minute=0)}}
    run("--apply")
    Schedule.objects.update(rule="30 * * * *")

    assert "is there" in run("--apply")

    assert Schedule.objects.get().rule == "30 * * * *"
