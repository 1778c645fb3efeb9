"""Celery beat's schedules as schedules of QueueOps, and where the two read them differently.

The entries are those of the app's `beat_schedule`, and of django-celery-beat where it is installed. What
they ran last is passed over: a schedule begins when it is imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from celery import Celery
from celery.schedules import crontab, maybe_schedule
from django.apps import apps

from queueops.bridges.celery.handlers import site_app
from queueops.conf import config
from queueops.cron import check_zone
from queueops.errors import ScheduleError
from queueops.schedules.definition import MAX_KEY, Definition

#: So many runs ahead are compared, and so many are shown.
COMPARED, SHOWN = 60, 5


@dataclass
class Entry:
    """One entry of beat, as a definition, and its next runs under both readings."""

    name: str
    definition: Definition
    theirs: list[datetime] = field(default_factory=list)  # UTC, as are the next
    ours: list[datetime] = field(default_factory=list)
    problem: str = ""  # why it can't be imported

    @property
    def is_read_differently(self) -> bool:
        """Whether Celery would run it at other times."""
        return self.theirs != self.ours


def entries(now: datetime) -> list[Entry]:
    """Every entry that beat would follow, compared from `now` on."""
    app = site_app()
    return [_entry(app, each, now) for each in [*_of_the_settings(app), *_of_the_database()]]


@dataclass
class _Given:
    name: str
    task: str
    schedule: Any
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str | None
    enabled: bool = True


def _of_the_settings(app: Celery[Any]) -> Iterator[_Given]:
    for name, said in dict(app.conf.beat_schedule or {}).items():
        yield _Given(
            name=name,
            task=said["task"],
            schedule=maybe_schedule(said["schedule"], relative=said.get("relative", False), app=app),
            args=list(said.get("args") or ()),
            kwargs=dict(said.get("kwargs") or {}),
            queue=(said.get("options") or {}).get("queue"),
            enabled=said.get("enabled", True),
        )


def _of_the_database() -> Iterator[_Given]:
    if not apps.is_installed("django_celery_beat"):
        return
    model: Any = apps.get_app_config("django_celery_beat").get_model("PeriodicTask")
    for row in model.objects.exclude(name="celery.backend_cleanup").order_by("pk"):
        yield _Given(
            name=row.name,
            task=row.task,
            schedule=row.schedule,
            args=json.loads(row.args or "[]"),
            kwargs=json.loads(row.kwargs or "{}"),
            queue=row.queue or None,
            enabled=row.enabled,
        )


def _entry(app: Celery[Any], given: _Given, now: datetime) -> Entry:
    task = app.tasks.get(given.task)
    definition = Definition(
        key=re.sub(r"[^A-Za-z0-9._-]+", "-", given.name).strip("-._")[:MAX_KEY],
        handler=given.task,
        queue=given.queue or getattr(task, "queue", None) or config().default_queue,
        args=given.args,
        kwargs=given.kwargs,
        catch_up="skip",  # beat catches up with nothing
        overlap="allow",  # ... and looks at no run before
        paused=not given.enabled,
        paused_reason="" if given.enabled else "disabled in Celery beat",
    )
    try:
        definition = _timed(app, definition, given.schedule)
        definition.check()
        ours = list(islice(definition.slots_after(round(now.timestamp() * 1000)), COMPARED))
    except ScheduleError as error:
        return Entry(given.name, definition, problem=str(error))
    entry = Entry(given.name, definition, ours=[datetime.fromtimestamp(at / 1000, UTC) for at in ours])
    # An interval runs as often in both; beat counts it from its last run, so that no instants compare.
    entry.theirs = _as_celery_runs(given.schedule, now) if definition.kind == "cron" else entry.ours
    if entry.is_read_differently and not definition.paused:
        reason = "Celery beat would run it at other times: resume it when these are right"
        entry.definition = _changed(definition, paused=True, paused_reason=reason)
    return entry


def _timed(app: Celery[Any], definition: Definition, schedule: Any) -> Definition:
    """The definition with the schedule's rule and zone. Raises ScheduleError."""
    if isinstance(schedule, crontab):
        fields = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
        rule = " ".join(_field(getattr(schedule, f"_orig_{name}")) for name in fields)
        zone: Any = getattr(schedule, "tz", None) or app.timezone
        return _changed(definition, kind="cron", rule=rule, zone=str(getattr(zone, "key", zone)))
    at = getattr(schedule, "clocked_time", None)
    if at is not None:
        return _changed(definition, kind="once", rule=at.astimezone(UTC).isoformat())
    every = getattr(schedule, "run_every", None)
    if every is None:
        raise ScheduleError("rule", f"{schedule!r} has no counterpart")
    return _changed(definition, kind="interval", rule=f"{every.total_seconds():g}")


def _field(said: Any) -> str:
    """A field of a crontab, which takes texts, numbers and iterables of them."""
    if isinstance(said, (str, int)):
        return str(said).replace(" ", "")
    return ",".join(str(each) for each in sorted(said))


def _as_celery_runs(schedule: Any, now: datetime) -> list[datetime]:
    """The next runs by Celery's own arithmetic, for a beat that never stops."""
    schedule.nowfun = lambda: now
    found: list[datetime] = []
    last = now
    for _ in range(COMPARED):
        start, until, _now = schedule.remaining_delta(last)
        last = start + until
        found.append(last.astimezone(UTC))
    return found


def _changed(definition: Definition, **changes: Any) -> Definition:
    return Definition.from_json(definition.key, {**definition.to_json(), **changes})


def next_of(runs: list[datetime], zone: str) -> str:
    """The first of these instants, for people."""
    return ", ".join(f"{at.astimezone(check_zone(zone)):%Y-%m-%d %H:%M %Z}" for at in runs[:SHOWN])
