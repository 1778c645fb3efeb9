"""25 hours over each clock change, in simulated time: the jobs that come are those of rule V.

What is expected is found here by looking at every minute of UTC through zoneinfo, not by the code under test.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from queueops.job import to_ms
from queueops.models import Schedule, ScheduleSlot
from tests.queueops.schedules.conftest import HOUR, MINUTE, World

Make = Callable[..., Schedule]

#: Zone, the instant (UTC) of a change, a fixed time that the change hits: left out, or coming twice.
CHANGES = [
    ("America/New_York", "2025-03-09 07:00", "30 2 * * *"),
    ("America/New_York", "2025-11-02 06:00", "30 1 * * *"),
    ("Europe/Berlin", "2025-03-30 01:00", "30 2 * * *"),
    ("Europe/Berlin", "2025-10-26 01:00", "30 2 * * *"),
    ("Australia/Lord_Howe", "2025-10-04 15:30", "15 2 * * *"),
    ("Australia/Lord_Howe", "2025-04-05 15:00", "45 1 * * *"),
]


def walls(zone: str, start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """(instant, wall clock) of every minute in (start, end]."""
    found = []
    at = start
    while (at := at + timedelta(minutes=1)) <= end:
        found.append((at, at.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)))
    return found


def elapsed(zone: str, start: datetime, end: datetime, every: int) -> list[datetime]:
    """Minutes divisible by `every` on the wall clock, each time they come."""
    return [at for at, wall in walls(zone, start, end) if wall.minute % every == 0]


def fixed(zone: str, start: datetime, end: datetime, minute: int, hour: int) -> list[datetime]:
    """Once a date: at its first coming, or right after the gap that it falls in."""
    found = []
    before = None
    ran = set()
    for at, wall in walls(zone, start - timedelta(days=1), end):
        wanted = wall.replace(hour=hour, minute=minute)
        is_due = wall == wanted or (
            before is not None and before < wanted < wall and before.date() == wall.date()
        )
        if is_due and wall.date() not in ran:
            ran.add(wall.date())
            if at > start:
                found.append(at)
        before = wall
    return found


@pytest.mark.parametrize(("zone", "change", "fixed_rule"), CHANGES)
def test_25_hours_over_a_clock_change(
    world: World, make: Make, zone: str, change: str, fixed_rule: str
) -> None:
    middle = datetime.fromisoformat(change).replace(tzinfo=UTC)
    start, end = middle - timedelta(hours=12, minutes=30), middle + timedelta(hours=12, minutes=30)
    world.set(to_ms(start))
    rules = {"fixed": fixed_rule, "half-hourly": "*/30 * * * *", "hourly": "0 * * * *"}
    for key, rule in rules.items():
        make(key=key, rule=rule, zone=zone, catch_up="skip")
    make(key="interval", kind="interval", rule="1h", zone=zone, catch_up="skip")

    while world.now_ms < to_ms(end):
        world.clock.advance(5 * MINUTE)
        world.scheduler.run_once(refresh=False)

    def fired(key: str) -> list[datetime]:
        rows = ScheduleSlot.objects.filter(schedule__key=key, state="fired").order_by("slot_at")
        return list(rows.values_list("slot_at", flat=True))

    minute, hour = (int(part) for part in fixed_rule.split()[:2])
    assert fired("fixed") == fixed(zone, start, end, minute, hour)
    assert len(fired("fixed")) in {1, 2}
    assert fired("half-hourly") == elapsed(zone, start, end, 30)
    assert fired("hourly") == elapsed(zone, start, end, 60)
    gaps = {b - a for a, b in pairwise(fired("interval"))}
    assert gaps == {timedelta(milliseconds=HOUR)}
    assert not ScheduleSlot.objects.exclude(state="fired").exists()
    for key in (*rules, "interval"):
        assert len(world.jobs(key)) == len(fired(key))
