"""Slots of a schedule, against recorded vectors and against a scan of every minute."""

# ruff: noqa: DTZ001 - wall clocks have no zone

from __future__ import annotations

import json
import os
import time
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queueops.cron import (
    ALIASES,
    CronRule,
    IntervalRule,
    OnceRule,
    Rule,
    describe,
    next_slots,
    previous_slots,
    slot_jitter_s,
    slot_name,
    slots_after,
    slots_before,
    slots_between,
)
from queueops.errors import ScheduleError
from queueops.zones import ClockChange, check_zone, clock_changes

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "cron_vectors.json").read_text())


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def shown(slots: list[datetime]) -> list[str]:
    return [f"{slot:%Y-%m-%dT%H:%M:%SZ}" for slot in slots]


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["id"] for vector in VECTORS])
def test_vector_gives_the_right_instants_and_backwards_the_same(vector: dict[str, Any]) -> None:
    expected = vector["V_utc"]
    after = datetime.fromisoformat(vector["after"])

    slots = next_slots(vector["expr"], vector["tz"], after, len(expected))
    assert shown(slots) == expected

    back = previous_slots(vector["expr"], vector["tz"], slots[-1] + timedelta(seconds=1), len(slots))
    assert back == slots[::-1]
    assert previous_slots(vector["expr"], vector["tz"], slots[0])[0] <= after
    assert [f"{slot.astimezone(ZoneInfo(vector['tz'])):%a %Y-%m-%d %H:%M}" for slot in slots] == [
        local[: len("Sun 2025-03-09 03:00")] for local in vector["V_local"]
    ]


def test_e14_the_slot_before_lord_howes_half_hour_change() -> None:
    [slot] = previous_slots("0 * * * *", "Australia/Lord_Howe", utc("2025-10-04T16:00:00"))
    assert slot == utc("2025-10-04T14:30:00")  # 01:00+10:30


def test_e28_13_or_friday_is_61_slots_in_2026() -> None:
    slots = slots_between("0 0 13 * 5", "UTC", utc("2025-12-31T23:59:59"), utc("2026-12-31T23:59:59"), 1_000)
    assert len(slots) == 61


@pytest.mark.parametrize(("day", "count"), [("2026-05-01", 216), ("2025-03-09", 207), ("2025-11-02", 225)])
def test_e33_every_seventh_minute_by_elapsed_time_on_days_of_24_23_and_25_hours(day: str, count: int) -> None:
    zone = ZoneInfo("America/New_York")
    midnight = datetime.fromisoformat(day).replace(tzinfo=zone)
    start = midnight.astimezone(UTC) - timedelta(microseconds=1)
    end = (midnight + timedelta(days=1)).astimezone(UTC) - timedelta(microseconds=1)

    assert len(slots_between("*/7 * * * *", zone, start, end, 1_000)) == count


@pytest.mark.parametrize(
    "expression",
    ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 31 4 *", "0 0 */31 * FRI#5", "0 0 0 30 FEB *"],
)
def test_e40_what_never_occurs_is_refused_quickly(expression: str) -> None:
    took = []
    for _ in range(3):
        start = time.perf_counter()
        with pytest.raises(ScheduleError, match="never occurs") as caught:
            CronRule(expression)
        took.append(time.perf_counter() - start)

    assert caught.value.field == "expression"
    assert min(took) < 0.05


MAY_2026 = utc("2026-05-01T00:00:00")


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        ("0 0 * * 7/2", ["2026-05-03", "2026-05-10", "2026-05-17"]),  # Sunday only: 7 is the field's last
        ("0 0 * * 0/2", ["2026-05-02", "2026-05-03", "2026-05-05"]),  # Sun, Tue, Thu, Sat
        ("0 0 * * 1/2", ["2026-05-03", "2026-05-04", "2026-05-06"]),  # Mon, Wed, Fri, Sun
        ("0 0 LW * *", ["2026-05-29", "2026-06-30", "2026-07-31"]),
        ("0 0 L * *", ["2026-05-31", "2026-06-30", "2026-07-31"]),
        ("0 0 * * 5L", ["2026-05-29", "2026-06-26", "2026-07-31"]),
        ("0 0 * * FRI#3", ["2026-05-15", "2026-06-19", "2026-07-17"]),
        ("0 0 * * fri#3", ["2026-05-15", "2026-06-19", "2026-07-17"]),
        ("0 0 * * 5#5", ["2026-05-29", "2026-07-31", "2026-10-30"]),
        ("0 0 1,15,L * *", ["2026-05-15", "2026-05-31", "2026-06-01"]),
        ("0 0 * JUL,sep SUN", ["2026-07-05", "2026-07-12", "2026-07-19"]),
        ("@daily", ["2026-05-02", "2026-05-03", "2026-05-04"]),
        ("@midnight", ["2026-05-02", "2026-05-03", "2026-05-04"]),
        ("@weekly", ["2026-05-03", "2026-05-10", "2026-05-17"]),
        ("@monthly", ["2026-06-01", "2026-07-01", "2026-08-01"]),
        ("@Yearly", ["2027-01-01", "2028-01-01", "2029-01-01"]),
    ],
)
def test_e44_accepted_forms_give_exactly_these_days(expression: str, days: list[str]) -> None:
    slots = next_slots(expression, "UTC", MAY_2026, 3)
    assert [f"{slot:%Y-%m-%d %H:%M:%S}" for slot in slots] == [f"{day} 00:00:00" for day in days]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (
            "0 22-2 * * *",
            "the hour field '22-2' is not understood: its values are 0 to 23, and a range must not",
        ),
        (
            "0 0 * * FRI-MON",
            "the day-of-week field 'FRI-MON' is not understood: its values are 0 (Sunday) to",
        ),
        ("0 0 31-1 * *", "the day-of-month field '31-1' is not understood"),
        ("*/90 * * * *", "the minute field '*/90' is not understood: a step of 90 is over 59"),
        ("0 0 ? * *", "the day-of-month field '?' is not understood: write * for any"),
        ("0 0 15W * *", "the day-of-month field '15W' is not understood: of the W forms there is only LW"),
        ("0 0 1W * *", "of the W forms there is only LW"),
        ("0 0 * * L5", "the day-of-week field 'L5' is not understood: the last Friday is 5L"),
        ("0 0 L-3 * *", "the day-of-month field 'L-3' is not understood"),
        ("0 0 L/2 * *", "L takes no step"),
        ("5-05/2 * * * *", "5-05 takes no step"),
        ("0 0 * * FRI#6", "the day-of-week field 'FRI#6'"),
        ("@reboot", "'@reboot' is none of @yearly"),
        ("61 * * * *", "the minute field '61' is not understood: its values are 0 to 59"),
        ("0 0 0 * *", "the day-of-month field '0' is not understood: its values are 1 to 31"),
        ("0 0 1 13 *", "the month field '13' is not understood: its values are 1 to 12, or JAN to DEC"),
        ("0 0 * FOO *", "the month field 'FOO'"),
        ("*/0 * * * *", "the minute field '*/0'"),
        ("-1 * * * *", "the minute field '-1'"),
        ("1,,2 * * * *", "the minute field '1,,2'"),
        ("٣ * * * *", "the minute field"),  # a digit, but not one of ours
        ("60 * * * * *", "the second field '60'"),
        ("* * * *", "has 4 fields instead of 5, or 6 with seconds first"),
        ("* * * * * * *", "has 7 fields"),
        ("", "has 0 fields"),
        ("x" * 201, "has 201 characters, over 200"),
        (None, "must be text, got NoneType"),
    ],
)
def test_e44_refused_forms_name_the_field(expression: Any, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        CronRule(expression)

    assert message in str(caught.value)
    assert caught.value.field == "expression"
    assert isinstance(caught.value, ValueError)


def test_an_expression_is_kept_as_written_but_for_its_spaces_and_alias() -> None:
    assert CronRule("  30\t2 * *  mon ").expression == "30 2 * * mon"
    assert CronRule(" @Daily").expression == ALIASES["@daily"]


@pytest.mark.parametrize(
    "name",
    [
        *["Mars/Phobos", "europe/berlin", "UTC+2", "", "America", "x" * 5_000, "../etc/passwd", "a\0b"],
        *["localtime", "right/UTC", "right/Europe/Berlin", "posix/UTC", "posixrules", "Factory"],
        *["/etc/localtime", "America/", "Europe//Berlin", "Europe/Berlin\n", "Европа", 5, None],
    ],
)
def test_e46_a_bad_zone_is_one_error_at_its_field(name: Any) -> None:
    with pytest.raises(ScheduleError) as caught:
        check_zone(name)

    assert caught.value.field == "zone"
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["UTC", "Europe/Berlin", "Etc/GMT-5", "Asia/Calcutta", "Europe/Kyiv", "US/Eastern", "Etc/UTC"]
)
def test_e46_zones_and_their_aliases_are_accepted(name: str) -> None:
    assert check_zone(name).key == name


def test_e46_a_misspelt_zone_is_told_what_comes_close() -> None:
    with pytest.raises(ScheduleError, match=r"did you mean Europe/Berlin\?"):
        check_zone("europe/berlin")
    with pytest.raises(ScheduleError, match=r"did you mean America/New_York"):
        check_zone("America/New York".replace(" ", "-"))


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="no tzset here")
@pytest.mark.parametrize("server_zone", ["UTC", "Pacific/Auckland"])
def test_e48_slots_do_not_depend_on_the_servers_own_zone(
    server_zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", server_zone)
    time.tzset()
    try:
        slots = next_slots("30 10 * * 1", "Europe/Brussels", utc("2026-03-20T00:00:00"), 5)
        words = describe("30 10 * * 1", "Europe/Brussels")
    finally:
        os.environ.pop("TZ")
        monkeypatch.undo()
        time.tzset()

    assert [f"{slot:%m-%d %H:%M}" for slot in slots] == [
        "03-23 09:30",
        "03-30 08:30",
        "04-06 08:30",
        "04-13 08:30",
        "04-20 08:30",
    ]
    assert words == "At 10:30 on Monday (Europe/Brussels)"


# --- every minute, scanned -------------------------------------------------------------------------

#: Zones, and days around which their clocks are changed.
CHANGES = [
    ("America/New_York", date(2025, 3, 9)),
    ("America/New_York", date(2025, 11, 2)),
    ("Europe/Paris", date(2024, 10, 27)),
    ("Europe/Paris", date(2025, 3, 30)),
    ("Africa/Cairo", date(2025, 4, 25)),  # no midnight
    ("Africa/Cairo", date(2025, 10, 30)),  # the hour before midnight twice
    ("America/Santiago", date(2025, 4, 5)),
    ("America/Santiago", date(2025, 9, 7)),
    ("Australia/Lord_Howe", date(2025, 4, 6)),  # half an hour
    ("Australia/Lord_Howe", date(2025, 10, 5)),
    ("Africa/Casablanca", date(2025, 2, 23)),
    ("Pacific/Apia", date(2011, 12, 30)),  # a day that was left out
    ("Asia/Kathmandu", date(2025, 3, 1)),
    ("America/Havana", date(2025, 11, 2)),
    ("UTC", date(2025, 3, 9)),
]


def field(low: int, high: int) -> st.SearchStrategy[str]:
    value = st.integers(low, high)
    span = (
        st.tuples(value, value).map(sorted).filter(lambda ends: ends[0] < ends[1]).map("{0[0]}-{0[1]}".format)
    )
    return (
        st.just("*")
        | value.map(str)
        | st.lists(value, min_size=2, max_size=3).map(lambda values: ",".join(map(str, values)))
        | span
        | st.tuples(st.just("*") | span, st.integers(1, high)).map(lambda both: f"{both[0]}/{both[1]}")
    )


expressions = st.tuples(
    field(0, 59), field(0, 4) | field(22, 23) | field(0, 23), st.just("*"), st.just("*"), field(0, 6)
).map(" ".join)


def values(part: str, low: int, high: int) -> set[int]:
    """A second reading of a cron field, to check the first against."""
    found: set[int] = set()
    for term in part.split(","):
        span, _, step = term.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


@cache
def clock(zone: ZoneInfo, start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """Each minute from a day before to a day after, with what the zone's clock shows."""
    day = timedelta(days=1)
    minutes = range((end - start + 2 * day) // timedelta(minutes=1))
    instants = [start - day + timedelta(minutes=minute) for minute in minutes]
    return [(at, at.astimezone(zone).replace(tzinfo=None, fold=0)) for at in instants]


def scan(expression: str, zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    """All slots in (start, end], by looking at every minute."""
    minutes, hours, weekdays = (
        values(expression.split()[index], *bounds)
        for index, bounds in ((0, (0, 59)), (1, (0, 23)), (4, (0, 6)))
    )

    def matches(wall: datetime) -> bool:
        return wall.minute in minutes and wall.hour in hours and wall.isoweekday() % 7 in weekdays

    walls = clock(zone, start, end)
    if expression.startswith("*") or expression.split()[1].startswith("*"):
        found = {at for at, wall in walls if matches(wall)}
    else:
        first_at: dict[datetime, datetime] = {}
        for at, wall in walls:
            first_at.setdefault(wall, at)
        found, last_wall = set(), walls[0][1]
        for at, wall in walls:
            while last_wall < wall:  # every clock time up to this one, also those left out
                last_wall += timedelta(minutes=1)
                if matches(last_wall):
                    found.add(first_at.get(last_wall, at))
    return sorted(at for at in found if start < at <= end)


@settings(max_examples=100, deadline=None)
@given(expressions, st.sampled_from(CHANGES), st.integers(0, 2 * 86_400))
def test_slots_equal_a_scan_of_every_minute_in_both_directions(
    expression: str, change: tuple[str, date], offset_s: int
) -> None:
    zone = ZoneInfo(change[0])
    noon = datetime(change[1].year, change[1].month, change[1].day, 12, tzinfo=UTC)
    begin = noon - timedelta(days=2)
    end = noon + timedelta(days=2)

    expected = scan(expression, zone, begin, end)
    assert slots_between(expression, zone, begin, end, 10_000) == expected
    backwards = slots_before(expression, zone, end + timedelta(seconds=1))
    assert list(islice(backwards, len(expected))) == expected[::-1]

    moment = begin + timedelta(days=1, seconds=offset_s, microseconds=offset_s % 3)  # from anywhere between
    assert slots_between(expression, zone, moment, end, 10_000) == [at for at in expected if at > moment]
    before = previous_slots(expression, zone, moment, 10)
    assert [at for at in before if at > begin] == [at for at in expected if at < moment][::-1][:10]


@pytest.mark.parametrize(("zone", "day"), CHANGES)
@pytest.mark.parametrize(
    ("six", "five"),
    [("0 30 0-3 * * *", "30 0-3 * * *"), ("0 */20 * * * *", "*/20 * * * *"), ("0 0 23 * * *", "0 23 * * *")],
)
def test_six_fields_with_second_0_are_the_same_rule_as_five(
    zone: str, day: date, six: str, five: str
) -> None:
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(days=2)

    assert next_slots(six, zone, begin, 60) == next_slots(five, zone, begin, 60)
    assert previous_slots(six, zone, begin, 60) == previous_slots(five, zone, begin, 60)


def test_six_fields_run_to_the_second() -> None:
    slots = next_slots("*/20 59 23 * * *", "Europe/Berlin", utc("2025-10-25T21:59:10"), 4)

    assert shown(slots) == [
        "2025-10-25T21:59:20Z",
        "2025-10-25T21:59:40Z",
        "2025-10-26T22:59:00Z",
        "2025-10-26T22:59:20Z",
    ]


def test_midnight_in_cairos_gap_by_elapsed_time_is_left_out() -> None:
    slots = next_slots("*/30 0 * * *", "Africa/Cairo", utc("2025-04-24T00:00:00"), 2)
    assert shown(slots) == ["2025-04-25T21:00:00Z", "2025-04-25T21:30:00Z"]


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Paris", "Australia/Lord_Howe"])
def test_25_hours_over_each_change_every_second_once(zone: str) -> None:
    for change in clock_changes(zone, utc("2025-01-01T00:00:00"), 2):
        start = change.at - timedelta(hours=12, minutes=30)
        slots = slots_between("* * * * * *", zone, start, start + timedelta(hours=25), 100_000)

        assert len(slots) == 25 * 3_600
        assert {later - earlier for earlier, later in pairwise(slots)} == {timedelta(seconds=1)}


# --- intervals and one-offs ------------------------------------------------------------------------


def test_an_interval_is_anchored_and_does_not_drift() -> None:
    rule = IntervalRule(90, utc("2026-05-01T00:00:30"))

    assert shown(next_slots(rule, "UTC", utc("2026-05-01T00:00:30"), 2)) == [
        "2026-05-01T00:02:00Z",
        "2026-05-01T00:03:30Z",
    ]
    assert shown(previous_slots(rule, "UTC", utc("2026-05-01T00:00:30"), 2)) == [
        "2026-04-30T23:59:00Z",
        "2026-04-30T23:57:30Z",
    ]
    [much_later] = next_slots(rule, "UTC", utc("2036-05-01T00:00:00"))
    assert (much_later - rule.anchor).total_seconds() % 90 == 0


@given(
    st.integers(1, 100_000),
    st.datetimes(datetime(2000, 1, 1), datetime(2040, 1, 1)),
    st.datetimes(datetime(2000, 1, 1), datetime(2040, 1, 1)),
)
def test_next_and_previous_of_an_interval_meet(every_s: int, anchor: datetime, moment: datetime) -> None:
    rule = IntervalRule(every_s, anchor.replace(tzinfo=UTC))
    moment = moment.replace(tzinfo=UTC)
    [later], [earlier] = next_slots(rule, "UTC", moment), previous_slots(rule, "UTC", moment)

    assert earlier < moment < later
    assert (later - earlier).total_seconds() in {every_s, 2 * every_s}
    assert (later - earlier).total_seconds() == every_s or later - timedelta(seconds=every_s) == moment


def test_a_one_off_has_one_slot() -> None:
    rule = OnceRule(datetime(2026, 5, 1, 12, tzinfo=ZoneInfo("Europe/Berlin")))
    at = utc("2026-05-01T10:00:00")

    assert next_slots(rule, "UTC", at - timedelta(microseconds=1), 5) == [at]
    assert next_slots(rule, "UTC", at, 5) == []
    assert previous_slots(rule, "UTC", at, 5) == []
    assert previous_slots(rule, "UTC", at + timedelta(microseconds=1), 5) == [at]


@pytest.mark.parametrize(
    ("make", "field_name"),
    [
        (lambda: IntervalRule(0, MAY_2026), "every_s"),
        (lambda: IntervalRule(-5, MAY_2026), "every_s"),
        (lambda: IntervalRule(10**12, MAY_2026), "every_s"),
        (lambda: IntervalRule(True, MAY_2026), "every_s"),
        (lambda: IntervalRule(1.5, MAY_2026), "every_s"),  # type: ignore[arg-type]
        (lambda: IntervalRule(5, datetime(2026, 5, 1)), "anchor"),
        (lambda: OnceRule(datetime(2026, 5, 1)), "at"),
        (lambda: OnceRule("2026-05-01"), "at"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_interval_or_instant_is_refused(make: Any, field_name: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        make()
    assert caught.value.field == field_name


@pytest.mark.parametrize("rule", [CronRule("* * * * *"), IntervalRule(60, MAY_2026), OnceRule(MAY_2026)])
def test_a_naive_instant_is_refused(rule: Rule) -> None:
    for function in (next_slots, previous_slots):
        with pytest.raises(ValueError, match="has no time zone"):
            function(rule, "UTC", datetime(2026, 5, 1))


def test_the_ends_of_the_calendar_are_ends() -> None:
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)

    assert next_slots("* * * * *", "Europe/Berlin", last) == []
    assert previous_slots("* * * * *", "Europe/Berlin", first) == []
    assert len(previous_slots("30 2 * * *", "America/New_York", last, 3)) == 3
    assert len(next_slots("*/5 * * * *", "America/New_York", first, 3)) == 3
    assert next_slots(IntervalRule(3_600, MAY_2026), "UTC", last - timedelta(seconds=5)) == []


def test_sparse_rules_are_found_over_a_skipped_leap_year() -> None:
    assert shown(next_slots("0 0 29 2 *", "Europe/Berlin", utc("2096-03-01T00:00:00"))) == [
        "2104-02-28T23:00:00Z"
    ]
    assert shown(previous_slots("*/30 0 29 2 MON-SUN".replace("MON-SUN", "*"), "UTC", MAY_2026)) == [
        "2024-02-29T00:30:00Z"
    ]


def test_slots_between_is_open_at_its_start_closed_at_its_end_and_bounded() -> None:
    at = [MAY_2026 + timedelta(minutes=n) for n in range(4)]

    assert slots_between("* * * * *", "UTC", at[0], at[3], 10) == at[1:]
    assert slots_between("* * * * *", "UTC", at[0], at[3], 2) == at[1:3]
    assert slots_between("* * * * *", "UTC", at[3], at[0], 2) == []
    assert next(slots_after("* * * * *", "UTC", at[0])) == at[1]


# --- names, words, changes -------------------------------------------------------------------------


def test_a_slots_name_is_its_instant_in_utc() -> None:
    slot = datetime(2026, 5, 1, 2, 0, tzinfo=ZoneInfo("Europe/Berlin"))

    assert slot_name(slot) == "20260501T000000Z"


def test_jitter_is_stable_for_a_slot_and_spread_over_slots() -> None:
    draws = [slot_jitter_s("nightly", MAY_2026 + timedelta(days=n), 60) for n in range(1_000)]

    assert draws == [slot_jitter_s("nightly", MAY_2026 + timedelta(days=n), 60) for n in range(1_000)]
    assert all(0 <= draw < 60 for draw in draws)
    assert abs(sum(draws) / 1_000 - 30) < 3
    assert slot_jitter_s("nightly", MAY_2026, 60) != slot_jitter_s("daily", MAY_2026, 60)
    assert slot_jitter_s("nightly", MAY_2026, 0) == 0


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("30 2 * * *", "At 02:30 every day (Europe/Berlin)"),
        ("0 0 13 * 5", "At 00:00 on the 13th day of the month, and also on Friday (Europe/Berlin)"),
        ("0 0 31 * *", "At 00:00 on the 31st day of every month (Europe/Berlin)"),
        ("0 0 11,22 * *", "At 00:00 on the 11th and the 22nd day of month (Europe/Berlin)"),
        ("0 0 * * 7/2", "At 00:00 on Sunday (Europe/Berlin)"),
        ("*/5 * * * * *", "Every fifth second of every minute (Europe/Berlin)"),
        (IntervalRule(5_400, MAY_2026), "Every 90 minutes, counted from 2026-05-01 02:00:00 (Europe/Berlin)"),
        (IntervalRule(86_400, MAY_2026), "Every day, counted from 2026-05-01 02:00:00 (Europe/Berlin)"),
        (OnceRule(MAY_2026), "Once, on Fri 2026-05-01 at 02:00:00 (Europe/Berlin)"),
    ],
)
def test_a_rule_in_plain_words_names_its_zone(rule: Rule | str, words: str) -> None:
    assert describe(rule, "Europe/Berlin") == words


@given(expressions)
def test_every_expression_has_words(expression: str) -> None:
    assert describe(expression).endswith(" (UTC)")


def test_the_next_clock_changes_of_a_zone_are_named() -> None:
    after = utc("2025-01-01T00:00:00")

    assert [str(change) for change in clock_changes("America/New_York", after)] == [
        "Sun 2025-03-09: 02:00 to 03:00 does not exist",
        "Sun 2025-11-02: 01:00 to 02:00 comes twice",
    ]
    assert [str(change) for change in clock_changes("Australia/Lord_Howe", after)] == [
        "Sun 2025-04-06: 01:30 to 02:00 comes twice",
        "Sun 2025-10-05: 02:00 to 02:30 does not exist",
    ]
    assert (
        str(clock_changes("Africa/Cairo", after, 2)[1])
        == "Thu 2025-10-30: Thu 23:00 to Fri 00:00 comes twice"
    )
    assert clock_changes("Asia/Kathmandu", after) == []
    assert clock_changes("UTC", after) == []
    assert clock_changes("America/New_York", utc("2025-03-09T07:00:00"), 1)[0].is_forward is False


def test_a_clock_change_tells_both_clocks() -> None:
    [change] = clock_changes("Europe/Berlin", utc("2025-01-01T00:00:00"), 1)

    assert change == ClockChange(
        at=utc("2025-03-30T01:00:00"),
        wall_before=datetime(2025, 3, 30, 2),
        wall_after=datetime(2025, 3, 30, 3),
    )
    assert change.is_forward
