"""Slots of a schedule: when it is due, in which zone, and what a clock change does to it. Pure.

A cron rule is read in the wall clock of its schedule's zone, and this is what happens when that clock
is changed (rule V: Vixie's and Debian's cron, which cronsim follows):

- A *fixed time* (neither the minute nor the hour field, nor the one for seconds, starts with `*`) that
  falls in the hour which does not exist runs once, at the first instant after it. In the hour that
  comes twice it runs once, at its first coming.
- Any other rule follows elapsed time: nothing in the hour that is left out, and both comings of the
  one that is repeated.

cronsim reads the expressions and walks the calendar; it is only ever given wall clocks without a
zone. From them to instants it is done here, in one way for both directions, because its own zones
differ: with six fields it has no rule V, backwards it forgets it, and a midnight that does not
exist gives a time that is not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from queueops.errors import ScheduleError
from queueops.zones import FIRST, LAST, as_utc, first_change, instant_of, last_change, offset_at, wall_at

# What a schedule needs of its zone, under the name that its callers know.
from queueops.zones import check_zone as check_zone
from queueops.zones import clock_changes as clock_changes

CLOCK_CHANGE_RULE = (
    "A fixed time that falls in the hour that does not exist runs once, at the first instant after it; in "
    "the hour that comes twice it runs once, at its first coming. A rule whose minute or hour starts with * "
    "follows elapsed time: it skips the missing hour and runs in both comings of the repeated one."
)
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MAX_EXPRESSION = 200
MAX_EVERY_S = 10 * 366 * 86_400
#: No slot is looked for further away than this.
_HORIZON = timedelta(days=50 * 366)

_FIELDS = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")
_HIGHEST = (59, 59, 23, 31, 12, 7)
_VALUES = {
    "second": ("0", "59"),
    "minute": ("0", "59"),
    "hour": ("0", "23"),
    "day-of-month": ("1", "31"),
    "month": ("1", "12, or JAN to DEC"),
    "day-of-week": ("0 (Sunday)", "7 (Sunday), or SUN to SAT"),
}
_SECOND = timedelta(seconds=1)
_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class CronRule:
    """A cron expression: minute hour day-of-month month day-of-week, or six fields with seconds first.

    `*`, lists, ranges, steps, names (JAN, SUN), 0 and 7 for Sunday; day-of-month L and LW; day-of-week
    5L (the last Friday) and FRI#3 (the third). Day-of-month and day-of-week are *or*, unless
    one of them starts with `*`: then *and*. @daily and its like are aliases. Raises ScheduleError on
    anything else, and on what never occurs.
    """

    expression: str

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise ScheduleError("expression", f"must be text, got {type(self.expression).__name__}")
        if len(self.expression) > MAX_EXPRESSION:
            raise ScheduleError(
                "expression", f"has {len(self.expression):,} characters, over {MAX_EXPRESSION}"
            )
        expression = " ".join(self.expression.split())
        object.__setattr__(self, "expression", ALIASES.get(expression.lower(), expression))
        _check_expression(self.expression)

    @property
    def is_fixed_time(self) -> bool:
        """Whether a clock change makes it run once (see the module), instead of by elapsed time."""
        return not any(part.startswith("*") for part in self.expression.split()[:-3])


@dataclass(frozen=True, slots=True)
class IntervalRule:
    """Every so many whole seconds of elapsed time, at anchor + k * every_s, before the anchor too."""

    every_s: int
    anchor: datetime

    def __post_init__(self) -> None:
        if isinstance(self.every_s, bool) or not isinstance(self.every_s, int):
            raise ScheduleError("every_s", f"must be whole seconds, got {self.every_s!r:.40}")
        if not 1 <= self.every_s <= MAX_EVERY_S:
            raise ScheduleError("every_s", f"must be from 1 to {MAX_EVERY_S:,} seconds")
        object.__setattr__(self, "anchor", _whole_second("anchor", self.anchor))


@dataclass(frozen=True, slots=True)
class OnceRule:
    """One slot, at this instant."""

    at: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", _whole_second("at", self.at))


Rule = CronRule | IntervalRule | OnceRule


def slots_after(rule: Rule | str, zone: str | ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield the slots strictly after an aware instant, earliest first, as UTC datetimes.

    A text is a cron expression. Ends after a one-off's slot, or where the calendar does.
    """
    after, rule, zone = as_utc(after), _rule(rule), _zone(zone)
    if isinstance(rule, OnceRule):
        return iter([rule.at] if rule.at > after else [])
    if isinstance(rule, IntervalRule):
        return _interval_slots(rule, (after - rule.anchor) // timedelta(seconds=rule.every_s) + 1, 1)
    after = max(after, FIRST)
    if after > LAST:
        return iter([])
    slots = _fixed_after(rule, zone, after) if rule.is_fixed_time else _elapsed_after(rule, zone, after)
    return takewhile(lambda slot: slot - after <= _HORIZON, slots)


def slots_before(rule: Rule | str, zone: str | ZoneInfo, before: datetime) -> Iterator[datetime]:
    """Yield the slots strictly before an aware instant, latest first, as UTC datetimes.

    The same slots as slots_after: a rule is one set of instants.
    """
    before, rule, zone = as_utc(before), _rule(rule), _zone(zone)
    if isinstance(rule, OnceRule):
        return iter([rule.at] if rule.at < before else [])
    if isinstance(rule, IntervalRule):
        return _interval_slots(rule, -((rule.anchor - before) // timedelta(seconds=rule.every_s) + 1), -1)
    before = min(before, LAST)
    if before < FIRST:
        return iter([])
    slots = _fixed_before(rule, zone, before) if rule.is_fixed_time else _elapsed_before(rule, zone, before)
    return takewhile(lambda slot: before - slot <= _HORIZON, slots)


def next_slots(rule: Rule | str, zone: str | ZoneInfo, after: datetime, n: int = 1) -> list[datetime]:
    """Return the first `n` slots strictly after `after`; fewer when there are no more."""
    return list(islice(slots_after(rule, zone, after), n))


def previous_slots(rule: Rule | str, zone: str | ZoneInfo, before: datetime, n: int = 1) -> list[datetime]:
    """Return the last `n` slots strictly before `before`, latest first."""
    return list(islice(slots_before(rule, zone, before), n))


def slots_between(
    rule: Rule | str, zone: str | ZoneInfo, after: datetime, until: datetime, limit: int
) -> list[datetime]:
    """Return the slots with after < slot <= until, earliest first, at most the first `limit`."""
    until = as_utc(until)
    return list(islice(takewhile(lambda slot: slot <= until, slots_after(rule, zone, after)), limit))


def slot_name(slot: datetime) -> str:
    """Return a slot as ids and keys write it: 20260501T000000Z."""
    return f"{as_utc(slot):%Y%m%dT%H%M%SZ}".rjust(16, "0")


def slot_jitter_s(key: str, slot: datetime, most_s: float) -> float:
    """Return how many seconds this schedule's slot is put off: in [0, most_s), and always the same."""
    digest = sha256(f"{key}\0{slot_name(slot)}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48 * most_s


def describe(rule: Rule | str, zone: str | ZoneInfo = "UTC") -> str:
    """Return a rule in plain words, its zone included."""
    rule, zone = _rule(rule), _zone(zone)
    if isinstance(rule, OnceRule):
        return f"Once, on {rule.at.astimezone(zone):%a %Y-%m-%d at %H:%M:%S} ({zone.key})"
    if isinstance(rule, IntervalRule):
        since = rule.anchor.astimezone(zone)
        return f"Every {_every_text(rule.every_s)}, counted from {since:%Y-%m-%d %H:%M:%S} ({zone.key})"
    try:
        words = _better_words(CronSim(rule.expression, _EPOCH).explain())
    except (ValueError, IndexError, KeyError, AttributeError, NotImplementedError):
        words = f"At the times of {rule.expression}"  # its words know less than its parser
    return f"{words} ({zone.key})"


def _better_words(words: str) -> str:
    """Mend cronsim's "31th", and its "and" between two kinds of days, either of which is enough."""
    endings = {"1": "st", "2": "nd", "3": "rd"}
    words = re.sub(r"\b([23]?)([123])th\b", lambda found: found[1] + found[2] + endings[found[2]], words)
    return words.replace("day of month and on", "day of the month, and also on")


_EPOCH = datetime(2000, 1, 1)  # noqa: DTZ001 - a wall clock, as cronsim is always given here


def _rule(rule: Rule | str) -> Rule:
    return CronRule(rule) if isinstance(rule, str) else rule


def _zone(zone: str | ZoneInfo) -> ZoneInfo:
    return check_zone(zone) if isinstance(zone, str) else zone


def _whole_second(field: str, at: object) -> datetime:
    if not isinstance(at, datetime):
        raise ScheduleError(field, f"must be a datetime, got {type(at).__name__}")
    try:
        return as_utc(at).replace(microsecond=0)
    except (ValueError, OverflowError) as error:
        raise ScheduleError(field, str(error)) from None


def _every_text(seconds: int) -> str:
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds % size == 0:
            count = seconds // size
            return unit if count == 1 else f"{count} {unit}s"
    return "second" if seconds == 1 else f"{seconds} seconds"


# --- reading an expression -------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _check_expression(expression: str) -> None:
    parts = expression.upper().split()
    if expression.startswith("@"):
        raise ScheduleError("expression", f"{expression!r:.40} is none of {', '.join(ALIASES)}")
    if len(parts) not in {5, 6}:
        raise ScheduleError("expression", f"has {len(parts)} fields instead of 5, or 6 with seconds first")
    names, highest = _FIELDS[-len(parts) :], _HIGHEST[-len(parts) :]
    for name, most, part in zip(names, highest, parts, strict=True):
        for term in part.split(","):
            start, _, step = term.partition("/")
            if step.isdecimal() and int(step) > most:
                raise _bad_field(
                    name, part, f"a step of {step} is over {most}: it would match one value only"
                )
            if step and (start in {"L", "LW"} or _is_one_value(start)):
                raise _bad_field(name, part, f"{start} takes no step")  # cronsim reads 5-5/2 as 5/2
    try:
        simulated = CronSim(expression, _EPOCH)
    except CronSimError as error:
        name = str(error).removeprefix("Bad ")
        if name == "day-of-month" and _is_valid(" ".join([*parts[:-2], "*", parts[-1]])):
            raise ScheduleError("expression", f"{expression!r} never occurs: no such day") from None
        part = parts[names.index(name)] if name in names else expression
        raise _bad_field(name, part, _hint(name, part)) from None
    if not any(day.month in simulated.months and simulated.match_day(day) for day in _all_days()):
        raise ScheduleError("expression", f"{expression!r} never occurs: no such day")


def _is_one_value(term: str) -> bool:
    low, dash, high = term.partition("-")
    return bool(dash) and low.lstrip("0") == high.lstrip("0")


def _is_valid(expression: str) -> bool:
    try:
        CronSim(expression, _EPOCH)
    except CronSimError:
        return False
    return True


def _bad_field(name: str, part: str, reason: str) -> ScheduleError:
    return ScheduleError("expression", f"the {name} field {part!r:.60} is not understood: {reason}")


def _hint(name: str, part: str) -> str:
    if "?" in part:
        return "write * for any"
    if name == "day-of-month" and re.fullmatch(r"[0-9]+W", part):
        return "of the W forms there is only LW, the last weekday"
    if name == "day-of-week" and part.startswith("L"):
        return "the last Friday is 5L"
    low, high = _VALUES[name]
    backwards = ", and a range must not go backwards" if "-" in part else ""
    return f"its values are {low} to {high}{backwards}"


def _all_days() -> Iterator[date]:
    """Yield the days of fourteen years which are all the years there are: by first weekday, leap or not."""
    for year in (2001, 2002, 2003, 2009, 2010, 2011, 2017, 2000, 2004, 2008, 2012, 2016, 2020, 2024):
        day = date(year, 1, 1)
        while day.year == year:
            yield day
            day += timedelta(days=1)


# --- from wall clocks to instants ------------------------------------------------------------------


def _walls(rule: CronRule, wall: datetime, *, reverse: bool = False) -> Iterator[datetime]:
    """Yield the rule's wall clocks strictly after (or before) a naive one, as if no clock were changed."""
    clock = CronSim(rule.expression, wall, reverse)
    while True:
        try:
            found = next(clock)
        except (StopIteration, OverflowError, ValueError):  # none in 50 years, or the calendar's end
            return
        yield found


def _fixed_after(rule: CronRule, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    last = after
    for wall in _walls(rule, wall_at(after, zone)):
        slot = instant_of(wall, zone)
        if slot > last:  # not when several fall in one gap, nor what an overlap had before `after`
            yield slot
            last = slot


def _fixed_before(rule: CronRule, zone: ZoneInfo, before: datetime) -> Iterator[datetime]:
    # A clock set back within the last day showed later times than it does now.
    hours = (before - timedelta(hours=hour) for hour in range(27))
    wall = before.replace(tzinfo=None) + max(offset_at(at, zone) for at in hours)
    last = before
    for each in _walls(rule, wall, reverse=True):
        slot = instant_of(each, zone)
        if slot < last:
            yield slot
            last = slot


def _elapsed_after(rule: CronRule, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Go from one clock change to the next; between two, wall clocks and instants run alike."""
    start, end = after, after + _HORIZON
    while start < end:
        offset = offset_at(start, zone)
        change: datetime | None = None
        for wall in _walls(rule, start.replace(tzinfo=None) + offset):
            slot = (wall - offset).replace(tzinfo=UTC)
            if change := first_change(zone, start, min(slot, end)):
                break
            if slot > end:
                return
            yield slot
            start = slot
        if change is None:
            return
        # The change itself may be a slot by the new clock.
        wall = wall_at(change, zone)
        if next(_walls(rule, wall - _SECOND), None) == wall:
            yield change
        start = change


def _elapsed_before(rule: CronRule, zone: ZoneInfo, before: datetime) -> Iterator[datetime]:
    start, end = before, before - _HORIZON
    while start > end:
        offset = offset_at(start - _INSTANT, zone)
        change: datetime | None = None
        bound = start  # changes from here on are behind us
        for wall in _walls(rule, start.replace(tzinfo=None) + offset, reverse=True):
            slot = (wall - offset).replace(tzinfo=UTC)
            if change := last_change(zone, max(slot, end), bound):
                break
            if slot < end:
                return
            yield slot
            bound = slot + _INSTANT  # the slot may be the change itself
        if change is None:
            return
        start = change


def _interval_slots(rule: IntervalRule, first: int, step: int) -> Iterator[datetime]:
    try:
        while True:
            yield rule.anchor + timedelta(seconds=rule.every_s * first)
            first += step
    except OverflowError:
        return
