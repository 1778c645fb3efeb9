"""Bring the schedules of Celery beat over, and show where the two read one differently."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.db import transaction

from queueops.job import from_ms
from queueops.management.engine_command import EngineCommand
from queueops.models import Schedule
from queueops.schedules.definition import Definition


class Command(EngineCommand):
    help = (
        "Show the entries of Celery beat (beat_schedule, django-celery-beat) as schedules, and the next runs "
        "of those that Celery reads differently; with --apply, make the schedules."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--apply", action="store_true",
            help="make them. Disabled ones, and those that are read differently, are paused; a key that "
            "exists is left alone",
        )  # fmt: skip

    def answer(self, **given: Any) -> None:
        from queueops.bridges.celery.beat import Entry, entries, next_of  # Celery, where it is asked for

        now = from_ms(self.inspector().now_ms())
        found = entries(now)
        known = set(Schedule.objects.values_list("key", flat=True))

        def becomes(entry: Entry) -> str:
            if entry.problem:
                return "not imported"
            if entry.definition.key in known:
                return "is there"
            return "paused" if entry.definition.paused else "runs"

        rows = [
            [entry.name, entry.definition.key, entry.definition.rule, entry.definition.zone, becomes(entry)]
            for entry in found
        ]
        self.say_table(["entry", "schedule", "rule", "zone", "becomes"], rows, left=5)
        for entry in found:
            if entry.problem:
                self.say(f"{entry.name}: {entry.problem}")
            elif entry.is_read_differently:
                zone = entry.definition.zone
                self.say(f"{entry.name}: Celery would run it {next_of(entry.theirs, zone)}")
                self.say(f"{'':{len(entry.name)}}  here it runs {next_of(entry.ours, zone)}")
        if given["apply"]:
            made = [entry for entry in found if becomes(entry) in {"paused", "runs"}]
            with transaction.atomic():
                for entry in made:
                    _row(entry.definition, now).save()
            self.say(f"{len(made)} schedules made; stop Celery beat before you resume the paused ones")


def _row(definition: Definition, now: datetime) -> Schedule:
    """A new row. What it missed before `now` is not its own: no slot is caught up with."""
    columns = {name: value for name, value in definition.to_json().items() if hasattr(Schedule, name)}
    paused_at = now if definition.paused else None
    return Schedule(
        key=definition.key, description="from Celery beat", changed_at=now, paused_at=paused_at, **columns
    )
