"""Downtime under each catch-up rule: a table of expected ledgers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queueops.mirror import run_once as mirror
from queueops.models import Schedule, ScheduleSlot
from queueops.schedules.plan import plan
from queueops.slots import Action
from tests.queueops.schedules.conftest import MINUTE, World, at, edit, instant

Make = Callable[..., Schedule]

F, S, M, W = "fired", "skipped", "missed", "waiting"

#: Slots at 00:10, 00:20, 00:30; nobody runs from 00:05 to 00:35. Rule, overlap -> the ledger's states.
TABLE = [
    ("skip", "skip", [M, M, M]),
    ("skip", "allow", [M, M, M]),
    ("latest", "skip", [S, S, F]),
    ("latest", "allow", [S, S, F]),
    ("latest", "queue_one", [S, S, F]),
    ("latest", "cancel", [S, S, F]),
    ("all", "allow", [F, F, F]),
    ("all", "skip", [F, W, W]),
    ("all", "queue_one", [F, W, W]),
    ("all", "cancel", [F, W, W]),
]


@pytest.mark.parametrize(("catch_up", "overlap", "states"), TABLE)
def test_downtime_of_three_slots(
    world: World, make: Make, catch_up: str, overlap: str, states: list[str]
) -> None:
    make(rule="*/10 * * * *", catch_up=catch_up, overlap=overlap)
    world.run("2026-05-01 00:05")
    world.restart()

    world.run("2026-05-01 00:35")

    assert world.ledger() == [
        (f"05-01 00:{minute}", state) for minute, state in zip((10, 20, 30), states, strict=True)
    ]
    assert all(world.reasons())
    # Those that wait run one after the other, in order.
    ran = []
    for _ in range(4):
        ran += world.finish_jobs()
        world.run(world.now_ms + 2_000)
    assert ran == [
        f"schedule:tick:20260501T00{m}00Z" for m, s in zip((10, 20, 30), states, strict=True) if s in {F, W}
    ]
    assert W not in world.states()
    # And the next regular one is at its time.
    assert Schedule.objects.get().next_slot_at == instant("2026-05-01 00:40")


@pytest.mark.parametrize(
    ("catch_up", "fired", "others"),
    [("skip", 0, {M: 144}), ("latest", 1, {S: 143}), ("all", 100, {S: 44})],
)
def test_f01_a_day_down(world: World, make: Make, catch_up: str, fired: int, others: dict[str, int]) -> None:
    make(rule="*/10 * * * *", catch_up=catch_up, catch_up_max_age_s=200_000, overlap="allow")
    world.restart()

    world.run("2026-05-02 00:05")

    states = world.states()
    assert len(states) == 144
    assert states.count(F) == fired
    assert {state: states.count(state) for state in others} == others
    if catch_up == "latest":
        assert world.jobs() == ["20260502T000000Z"]
    if catch_up == "all":
        newest = [f"202605{slot[3:5]}T{slot[6:8]}{slot[9:11]}00Z" for slot, _ in world.ledger()[44:]]
        assert world.jobs() == newest
    world.run("2026-05-02 00:10")
    assert world.ledger()[-1] == ("05-02 00:10", F)


def test_all_is_spread_at_its_rate(world: World, make: Make) -> None:
    make(rule="*/10 * * * *", catch_up="all", overlap="allow", catch_up_rate_per_s=0.5)
    world.restart()

    world.run("2026-05-01 00:35")

    first = world.finish_jobs()
    assert first == ["schedule:tick:20260501T001000Z"]
    world.set(world.now_ms + 1_999)
    assert world.finish_jobs() == []
    world.set(world.now_ms + 1)
    assert world.finish_jobs() == ["schedule:tick:20260501T002000Z"]
    world.set(world.now_ms + 2_000)
    assert world.finish_jobs() == ["schedule:tick:20260501T003000Z"]


def test_all_leaves_out_what_is_too_old(world: World, make: Make) -> None:
    make(rule="*/10 * * * *", catch_up="all", catch_up_max_age_s=900, overlap="allow")
    world.restart()

    world.run("2026-05-01 00:35")

    assert world.states() == [M, F, F]
    assert "older than 900 s" in world.reasons()[0]


def test_a_slot_that_is_hardly_late_is_on_time_under_every_rule(world: World, make: Make) -> None:
    make(catch_up="skip")

    world.run(at("2026-05-01 00:01") + 4_000)

    assert world.ledger() == [("05-01 00:01", F)]


def test_a_long_downtime_of_a_fast_schedule_has_a_bounded_number_of_lines(world: World, make: Make) -> None:
    make(kind="interval", rule="10", catch_up="latest")
    world.restart()

    world.run(world.now_ms + 5_000 * 10_000)

    rows = ScheduleSlot.objects.order_by("slot_at")
    assert rows.count() == 1_001
    assert sum(row.stands_for for row in rows) == 5_000
    assert rows[0].stands_for == 4_000
    assert "4,000 slots to this one" in rows[0].reason
    assert [row.state for row in rows].count(F) == 1


def test_f03_a_restart_fires_nothing_again(world: World, make: Make) -> None:
    for key, rule in (("latest", "latest"), ("all", "all")):
        make(key=key, rule="0 21 * * *", zone="Europe/Madrid", catch_up=rule)
    world.run("2026-05-01 19:00")
    for minute in (40, 41):
        world.restart()
        world.run(f"2026-05-01 19:{minute}")

    assert [world.jobs(key) for key in ("latest", "all")] == [["20260501T190000Z"]] * 2


def test_the_plan_of_a_schedule_that_follows_on_time_is_to_fire(make: Make) -> None:
    schedule = make(rule="*/10 * * * *")
    found = plan(schedule.definition(), at("2026-05-01 00:00"), at("2026-05-01 00:10") + 3)

    assert [(slot.at_ms, slot.action, slot.reason) for slot in found] == [
        (at("2026-05-01 00:10"), Action.FIRE, "")
    ]


def test_what_was_caught_up_is_late_when_it_has_run(world: World, make: Make) -> None:
    make(rule="*/10 * * * *")
    world.restart()
    world.run("2026-05-01 00:35")
    world.finish_jobs()
    mirror(world.store)
    world.run(world.now_ms + MINUTE)

    assert world.ledger()[-1] == ("05-01 00:30", "late")


def test_other_edits_leave_the_catch_up_to_the_rule(world: World, make: Make) -> None:
    """An edit that does not touch when it runs, made while nobody ran, skips nothing."""
    schedule = make(rule="*/10 * * * *", catch_up="skip")
    world.restart()
    world.set("2026-05-01 00:35")
    edit(schedule, catch_up="all", overlap="allow", args=[7])

    world.run()

    assert world.states() == [F, F, F]
