"""Time zones: their names, their clock changes, and the instant at which a clock shows a time. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cache, lru_cache
from zoneinfo import ZoneInfo, available_timezones

from queueops.errors import ScheduleError

MAX_ZONE = 64
#: Clock changes are followed between these: Python's calendar ends soon after.
FIRST, LAST = datetime(1900, 1, 1, tzinfo=UTC), datetime(9900, 1, 1, tzinfo=UTC)

_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class ClockChange:
    """An instant at which a zone's clock is changed, and what it shows just before and after."""

    at: datetime  # UTC
    wall_before: datetime  # naive
    wall_after: datetime  # naive

    @property
    def is_forward(self) -> bool:
        """Whether clock times are left out (else some come twice)."""
        return self.wall_after > self.wall_before

    def __str__(self) -> str:
        first, last = sorted((self.wall_before, self.wall_after))
        what = "does not exist" if self.is_forward else "comes twice"
        form = "%H:%M" if first.date() == last.date() else "%a %H:%M"
        return f"{first:%a %Y-%m-%d}: {first:{form}} to {last:{form}} {what}"


def check_zone(name: str) -> ZoneInfo:
    """Return the IANA zone of this name. Raises ScheduleError, with the names that come close.

    Names that mean another thing on another host (localtime), or count leap seconds, are refused.
    """
    if not isinstance(name, str):
        raise ScheduleError("zone", f"must be text, got {type(name).__name__}")
    if not name:
        raise ScheduleError("zone", "must not be empty")
    shown = f"{name!r:.70}"
    if len(name) > MAX_ZONE or not re.fullmatch(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", name):
        raise ScheduleError("zone", f"{shown} is not a name like Europe/Berlin or UTC")
    if name in {"localtime", "posixrules", "Factory"} or name.startswith(("right/", "posix/")):
        raise ScheduleError(
            "zone", f"{shown} does not mean the same on every host; use one like Europe/Berlin"
        )
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        known = _known_zones()
        lower = name.lower()
        close = [
            known[each] for each in ([lower] if lower in known else get_close_matches(lower, known, 3, 0.75))
        ]
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ScheduleError("zone", f"no time zone is named {shown} here{hint}") from None


@cache
def _known_zones() -> dict[str, str]:
    return {name.lower(): name for name in available_timezones()}


def clock_changes(zone: str | ZoneInfo, after: datetime, n: int = 2, *, years: int = 3) -> list[ClockChange]:
    """Return the zone's next clock changes after an instant, at most `n`, within so many years."""
    zone, after = check_zone(zone) if isinstance(zone, str) else zone, as_utc(after)
    found: list[ClockChange] = []
    for year in range(max(after.year, FIRST.year), min(after.year + years, LAST.year) + 1):
        for at in transitions(zone, year):
            if after < at <= after + timedelta(days=366 * years) and len(found) < n:
                found.append(ClockChange(at, wall_at(at - _SECOND, zone) + _SECOND, wall_at(at, zone)))
    return found


def as_utc(at: datetime) -> datetime:
    """Return an aware instant in UTC. Raises ValueError on a naive one."""
    if at.tzinfo is None or at.utcoffset() is None:
        raise ValueError(f"{at!r} has no time zone: its instant is not known")
    return at.astimezone(UTC)


def wall_at(at: datetime, zone: ZoneInfo) -> datetime:
    """Return what the zone's clock shows at an instant, as a naive datetime."""
    return at.astimezone(zone).replace(tzinfo=None, fold=0)


def offset_at(at: datetime, zone: ZoneInfo) -> timedelta:
    """Return how far the zone's clock is ahead of UTC at an instant."""
    return at.astimezone(zone).utcoffset() or timedelta(0)


def instant_of(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return when a clock first shows `wall`; if it never does, the first instant after the gap."""
    at = wall.replace(tzinfo=zone).astimezone(UTC)
    if wall_at(at, zone) == wall:
        return at
    # In a gap: with fold 0 the old offset is used, which gives an instant after the change, and
    # with fold 1 the new one, which gives one before it.
    return _change_between(wall.replace(tzinfo=zone, fold=1).astimezone(UTC), at, zone)


def _change_between(low: datetime, high: datetime, zone: ZoneInfo) -> datetime:
    """Return the first whole second at which the offset is no longer that of `low`."""
    old = offset_at(low, zone)
    while high - low > _SECOND:
        middle = low + timedelta(seconds=(high - low) // _SECOND // 2)
        low, high = (middle, high) if offset_at(middle, zone) == old else (low, middle)
    return high


@lru_cache(maxsize=4096)
def transitions(zone: ZoneInfo, year: int) -> tuple[datetime, ...]:
    """Return the instants of a UTC year at which the zone's offset changes."""
    if zone.key == "UTC":
        return ()
    found, step = [], timedelta(hours=12)
    at, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    before = offset_at(at - _SECOND, zone)
    if offset_at(at, zone) != before:
        found.append(at)
    while at < end - _SECOND:
        later = min(at + step, end - _SECOND)
        if offset_at(later, zone) != offset_at(at, zone):
            found.append(_change_between(at, later, zone))
        at = later
    return tuple(found)


def first_change(zone: ZoneInfo, after: datetime, until: datetime) -> datetime | None:
    """Return the first clock change with after < it <= until, all in UTC."""
    for year in range(after.year, until.year + 1):
        for at in transitions(zone, year):
            if after < at <= until:
                return at
    return None


def last_change(zone: ZoneInfo, after: datetime, before: datetime) -> datetime | None:
    """Return the last clock change with after < it < before, all in UTC."""
    for year in range(before.year, after.year - 1, -1):
        for at in reversed(transitions(zone, year)):
            if after < at < before:
                return at
    return None
