"""Schedules from QUEUEOPS["SCHEDULES"]: synced at start, followed, not in the way of others."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from queueops.models import Schedule
from queueops.schedules import by_hand, checks, code, reads
from tests.factories import Redis
from tests.queueops.schedules.conftest import MINUTE, QUEUE, World, at, instant

Make = Callable[..., Schedule]
TICK: dict[str, Any] = {"handler": "tests.work", "cron": "* * * * *", "queue": QUEUE, "overlap": "allow"}


@pytest.fixture
def deploy(world: World) -> Callable[..., None]:
    """Start the site anew with these schedules in its settings."""
    from django.conf import settings

    def started(**schedules: object) -> None:
        given = {**settings.QUEUEOPS, "SCHEDULES": schedules}
        moved = override_settings(QUEUEOPS=given)
        moved.enable()
        world.moved.append(moved)
        world.restart()
        world.run()

    return started


def test_a_schedule_of_the_settings_runs_and_says_where_it_is_from(world: World, deploy: Any) -> None:
    deploy(tick=TICK)

    world.run("2026-05-01 00:01")

    row = Schedule.objects.get()
    assert (row.source, row.key, row.rule) == ("code", "tick", "* * * * *")
    assert world.jobs() == ["20260501T000100Z"]


def test_what_the_settings_say_is_what_the_row_says(world: World, deploy: Any) -> None:
    deploy(
        every={"handler": "a", "every": "5m", "args": (1,), "kwargs": {"b": 2}, "jitter_s": 10},
        at={"handler": "a", "at": datetime(2026, 6, 1, 12, tzinfo=UTC), "description": "once"},
        dated={
            "handler": "a",
            "cron": "@daily",
            "zone": "Europe/Berlin",
            "start": "2026-06-01",
            "end": "2026-07-01 12:00",
        },
    )

    every, once, dated = (Schedule.objects.get(key=key) for key in ("every", "at", "dated"))
    assert (every.kind, every.rule, every.args, every.kwargs, every.jitter_s) == (
        "interval",
        "5m",
        [1],
        {"b": 2},
        10,
    )
    assert every.queue == "default"
    assert once.definition().next_slots(world.now_ms, 2) == [at("2026-06-01 12:00")]
    assert (dated.start_at, dated.end_at) == (instant("2026-05-31 22:00"), instant("2026-07-01 10:00"))
    assert not Schedule.objects.exclude(error="").exists()


def test_a_changed_definition_is_followed_after_the_next_start_and_keeps_the_ledger(
    world: World, deploy: Any
) -> None:
    deploy(tick=TICK)
    world.run("2026-05-01 00:01")
    deploy(tick={**TICK, "cron": "*/2 * * * *", "catch_up": "all"})
    assert Schedule.objects.get().catch_up == "all"

    world.run_until("2026-05-01 00:04")
    assert world.jobs() == ["20260501T000100Z", "20260501T000200Z", "20260501T000400Z"]
    deploy(tick={**TICK, "cron": "*/2 * * * *"})
    assert Schedule.objects.get().catch_up == "latest"  # back to what is left out


def test_a_pause_outlives_a_deployment(world: World, deploy: Any) -> None:
    deploy(tick=TICK)
    by_hand.pause(Schedule.objects.get(), actor="user:1", reason="not today")
    deploy(tick={**TICK, "args": [1]})

    world.run_until("2026-05-01 00:02")

    assert world.jobs() == []
    assert world.states() == ["skipped", "skipped"]


def test_one_that_left_the_settings_stops_and_says_so(world: World, deploy: Any) -> None:
    deploy(tick=TICK)
    world.run("2026-05-01 00:01")
    deploy()

    world.run_until("2026-05-01 00:03")
    assert world.jobs() == ["20260501T000100Z"]
    assert Schedule.objects.get().error == code.GONE
    deploy(tick=TICK)
    world.run_until("2026-05-01 00:04")
    assert world.jobs() == ["20260501T000100Z", "20260501T000400Z"]
    assert Schedule.objects.get().error == ""


def test_two_sources_with_one_key_are_a_clear_error_and_the_page_s_goes_on(
    world: World, make: Make, deploy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    make()
    with caplog.at_level(logging.ERROR):
        deploy(tick={**TICK, "cron": "0 0 1 1 *"}, other=TICK)

    world.run("2026-05-01 00:01")

    assert code.clashes() == ["tick"]
    assert (
        "QUEUEOPS SCHEDULES tick: the key is also the key of a schedule that was made on the page"
        in caplog.text
    )
    assert Schedule.objects.get(key="tick").rule == "* * * * *"
    assert world.jobs("tick") == world.jobs("other") == ["20260501T000100Z"]
    clash = next(alarm for alarm in reads.alarms(instant("2026-05-01 00:01")) if alarm.kind == "clash")
    assert (clash.severity, clash.key) == ("bad", "tick")


#: A wrong definition, and words of what is said about it.
WRONG: list[tuple[object, str]] = [
    ({**TICK, "cron": "61 * * * *"}, "minute"),
    ({**TICK, "zone": "Mars/Phobos"}, "no time zone"),
    ({**TICK, "every": 60}, "one of cron, every and at"),
    ({"handler": "a"}, "one of cron, every and at, got none"),
    ({**TICK, "crontab": "x"}, "unknown: crontab"),
    ({"cron": "* * * * *"}, "handler"),
    ({**TICK, "overlap": "maybe"}, "must be one of allow"),
    ({**TICK, "jitter_s": -1}, "must be from 0"),
    ({**TICK, "start": "soon"}, "start_at"),
    ("0 3 * * *", "must be a mapping"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_a_bad_definition_is_said_and_the_others_run(
    world: World, deploy: Any, given: object, words: str
) -> None:
    deploy(bad=given, tick=TICK)

    world.run("2026-05-01 00:01")

    assert world.jobs() == ["20260501T000100Z"]
    said = [alarm.why for alarm in reads.alarms(instant("2026-05-01 00:01")) if alarm.key == "bad"]
    assert len(said) == 1
    assert words in said[0]
    assert world.jobs("bad", queue="default") == []


@pytest.mark.parametrize("key", ["two words", "a/b", "", "x" * 81, "é"])
def test_g15_a_key_that_none_can_have_is_said_and_makes_no_row(world: World, deploy: Any, key: str) -> None:
    deploy(**{key: TICK, "tick": TICK})

    world.run("2026-05-01 00:01")

    assert world.jobs() == ["20260501T000100Z"]
    assert [row.key for row in Schedule.objects.all()] == ["tick"]
    (alarm,) = [each for each in reads.alarms(instant("2026-05-01 00:01")) if each.key == key]
    assert (alarm.has_row, alarm.why[:18]) == (False, "key: 1 to 80 lette")


def test_several_processes_may_start_at_once(world: World, deploy: Any) -> None:
    deploy(tick=TICK)
    for _ in range(3):
        assert code.sync() == 0

    world.run(world.now_ms + MINUTE)
    assert Schedule.objects.count() == 1


def test_check_says_what_is_wrong_with_the_settings(
    world: World, make: Make, deploy: Any, settings: Any
) -> None:
    make()
    deploy(tick=TICK, bad={**TICK, "cron": "61 * * * *"})
    settings.USE_TZ = False

    found = {
        error.id: error.msg
        for error in [
            *checks.check_use_tz(None),
            *checks.check_definitions(None),
            *checks.check_keys(None, ["default"]),
        ]
    }

    assert found.keys() == {"queueops.E030", "queueops.E031", "queueops.E032"}
    assert "bad: rule" in found["queueops.E031"]
    assert "tick" in found["queueops.E032"]


@pytest.mark.parametrize(
    "command", [["runworkers", "--burst", "--processes=1"], ["runmirror", "--burst"], ["rebuild"], ["check"]]
)
def test_e46_a_schedule_that_this_host_can_not_read_stops_no_command_but_check(
    redis: Redis, transactional_db: None, site_env: dict[str, str], tmp_path: Path, command: list[str]
) -> None:
    bad = {**TICK, "zone": "Mars/Phobos"}
    site = "from dashboard.settings import *\nQUEUEOPS = {**QUEUEOPS, 'SCHEDULES': {'bad': %r}}\n"
    (tmp_path / "site_with_a_bad_schedule.py").write_text(site % bad)
    environment = {
        **site_env,
        "DJANGO_SETTINGS_MODULE": "site_with_a_bad_schedule",
        "PYTHONPATH": str(tmp_path),
    }

    ran = subprocess.run(
        [sys.executable, "manage.py", *command], env=environment, capture_output=True, text=True, timeout=60
    )

    if command == ["check"]:
        assert ran.returncode != 0
        assert "bad: zone: no time zone is named 'Mars/Phobos' here" in ran.stderr
    else:
        assert ran.returncode == 0, ran.stderr
