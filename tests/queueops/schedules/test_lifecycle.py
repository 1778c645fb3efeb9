"""Edits, pauses, deletion, bad schedules and losses: none fires the past, none stops the others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction

from queueops import keys
from queueops.mirror import run_once as mirror
from queueops.models import OperatorAction, Schedule, ScheduleSlot
from queueops.schedules import by_hand
from queueops.schedules.changes import effect_words
from tests.queueops.schedules.conftest import HOUR, MINUTE, QUEUE, SECOND, World, at, edit, instant

Make = Callable[..., Schedule]


def by_form(schedule: Schedule) -> None:
    edit(schedule, paused=False, paused_reason="")


def by_page(schedule: Schedule) -> None:
    by_hand.resume(schedule, actor="user:1")


def by_update(schedule: Schedule) -> None:
    Schedule.objects.filter(pk=schedule.pk).update(paused=False)


@pytest.mark.parametrize("enable", [by_form, by_page, by_update])
@pytest.mark.parametrize("catch_up", ["skip", "latest", "all"])
@pytest.mark.parametrize("is_running", [True, False])
def test_f07_enabling_fires_nothing_of_the_past(
    world: World, make: Make, enable: Callable[[Schedule], None], catch_up: str, is_running: bool
) -> None:
    """Disabled at 09:30, enabled at 11:20: no run then, the next at 12:00, whether anybody ran meanwhile."""
    world.set("2026-05-01 08:59:59")
    schedule = make(rule="0 * * * *", catch_up=catch_up)
    world.run("2026-05-01 09:00")
    world.set("2026-05-01 09:30")
    by_hand.pause(schedule, actor="user:1", reason="the API is down")
    if is_running:
        world.run_until("2026-05-01 11:20", 10 * MINUTE)
    else:
        world.restart()
        world.set("2026-05-01 11:20")
    schedule.refresh_from_db()
    enable(schedule)

    world.run(world.now_ms + SECOND)
    assert world.jobs() == ["20260501T090000Z"]
    assert world.ledger()[1:] == [("05-01 10:00", "skipped"), ("05-01 11:00", "skipped")]
    assert set(world.reasons()[1:]) == {"paused: the API is down" if is_running else "paused"}
    world.run("2026-05-01 12:00")
    assert world.jobs() == ["20260501T090000Z", "20260501T120000Z"]


def test_what_the_form_says_of_enabling_is_what_happens(world: World, make: Make) -> None:
    world.set("2026-05-01 13:30")
    schedule = make(rule="*/10 * * * *", zone="Europe/Berlin")
    by_hand.pause(schedule, actor="user:1")
    world.run("2026-05-01 13:31")
    world.restart()
    world.set("2026-05-01 14:01")
    schedule.refresh_from_db()
    resumed = replace(schedule.definition(), paused=False)

    words = effect_words(schedule.definition(), resumed, last_ms=at("2026-05-01 13:31"), now_ms=world.now_ms)
    by_hand.resume(schedule, actor="user:1")
    world.run()

    assert words == [
        "Next run: Fri 2026-05-01 16:10 CEST (14:10 UTC).",
        "3 slots since the pause are skipped, not run.",
    ]
    assert world.states() == ["skipped"] * 3
    assert Schedule.objects.get().next_slot_at == instant("2026-05-01 14:10")


def test_a_pause_ends_by_itself_and_skips_what_it_covered(world: World, make: Make) -> None:
    schedule = make()
    by_hand.pause(schedule, actor="user:1", reason="deploy", resume_at=instant("2026-05-01 00:03"))

    world.run_until("2026-05-01 00:04", 20 * SECOND)

    assert world.ledger() == [
        ("05-01 00:01", "skipped"),
        ("05-01 00:02", "skipped"),
        ("05-01 00:03", "fired"),
        ("05-01 00:04", "fired"),
    ]
    row = Schedule.objects.get()
    assert (row.paused, row.resume_at, row.paused_reason) == (False, None, "")
    assert OperatorAction.objects.filter(actor="queueops", verb="resume_schedule").count() == 1


def test_a_pause_that_ended_while_nobody_ran_is_no_downtime_before_its_end(world: World, make: Make) -> None:
    schedule = make(catch_up="all", overlap="allow")
    by_hand.pause(schedule, actor="user:1", resume_at=instant("2026-05-01 00:03"))
    world.run()
    world.restart()

    world.run("2026-05-01 00:05:30")

    assert world.states() == ["skipped", "skipped", "fired", "fired", "fired"]


def test_f09_an_edit_is_in_force_at_the_next_look_without_a_restart(world: World, make: Make) -> None:
    schedule = make()
    world.run("2026-05-01 00:01")
    edit(schedule, rule="0 * * * *")
    world.run("2026-05-01 00:01:02")

    world.run_until("2026-05-01 01:00")

    assert world.ledger() == [("05-01 00:01", "fired"), ("05-01 01:00", "fired")]
    assert Schedule.objects.get().version == 2


def test_f09_deleted_and_made_again_under_the_same_key_is_noticed(world: World, make: Make) -> None:
    schedule = make()
    world.run("2026-05-01 00:01")
    with transaction.atomic():
        schedule.delete()
        new = {"handler": "tests.other", "rule": "*/5 * * * *", "overlap": "allow"}
        Schedule.objects.create(key="tick", queue=QUEUE, **new)

    world.run("2026-05-01 00:01:02")
    world.run_until("2026-05-01 00:05")

    assert world.jobs() == ["20260501T000100Z", "20260501T000500Z"]
    assert b"tests.other" in world.redis.hget(keys.job(QUEUE, "schedule:tick:20260501T000500Z"), "spec")
    assert Schedule.objects.get().version == 2


def test_a_deleted_schedule_fires_no_more_not_even_by_who_has_not_heard_of_it(
    world: World, make: Make
) -> None:
    schedule = make()
    other = world.another("other")
    other.run_once(refresh=True)
    schedule.delete()
    world.run()
    world.set("2026-05-01 00:01")

    other.run_once(refresh=False)

    assert world.jobs() == []
    assert world.redis.pttl(keys.schedule(QUEUE, "tick")) > 0


def test_who_has_not_heard_of_an_edit_fires_nothing_by_the_old_rule(world: World, make: Make) -> None:
    schedule = make()
    other = world.another("other")
    other.run_once(refresh=True)
    edit(schedule, rule="30 * * * *")
    world.run()
    world.set("2026-05-01 00:01")

    other.run_once(refresh=False)
    assert world.jobs() == []
    world.set("2026-05-01 00:30")
    other.run_once(refresh=True)
    other.run_once(refresh=True)
    assert world.jobs() == ["20260501T003000Z"]


def test_changing_the_rule_keeps_the_ledger(world: World, make: Make) -> None:
    schedule = make(overlap="allow")
    world.run_until("2026-05-01 00:03")
    edit(schedule, rule="0 12 * * *", zone="Asia/Tokyo")
    world.run(world.now_ms + SECOND)

    assert world.states() == ["fired"] * 3


def test_an_edit_never_fires_the_past(world: World, make: Make) -> None:
    """The new rule has a slot a moment before the edit; the old one had one a minute before nobody ran it."""
    schedule = make(rule="0 12 * * *", catch_up="all")
    world.set("2026-05-01 00:10:30")
    edit(schedule, rule="*/10 * * * *")

    world.run()

    assert (world.jobs(), world.ledger()) == ([], [])
    world.run("2026-05-01 00:20")
    assert world.jobs() == ["20260501T002000Z"]


def test_a_slot_right_after_the_save_is_not_lost(world: World, make: Make) -> None:
    """Saved at 00:00:59.9, taken over at 00:01:00.8: the slot of 00:01 is the new rule's."""
    schedule = make(rule="0 12 * * *")
    world.set(at("2026-05-01 00:01") - 100)
    edit(schedule, rule="* * * * *", changed_at=instant("2026-05-01 00:00") + timedelta(seconds=59.9))

    world.run(at("2026-05-01 00:01") + 800)

    assert world.jobs() == ["20260501T000100Z"]


# -- another queue ---------------------------------------------------------------------------------------


def test_moving_to_another_queue_hands_the_schedule_over(world: World, make: Make) -> None:
    schedule = make(overlap="allow")
    other = world.another("other")
    other.run_once(refresh=True)
    world.run("2026-05-01 00:01")
    edit(schedule, queue="billing")

    world.run()
    world.set("2026-05-01 00:02")
    other.run_once(refresh=False)  # by the old queue
    world.run()

    assert world.jobs() == ["20260501T000100Z"]
    assert world.jobs(queue="billing") == ["20260501T000200Z"]
    assert Schedule.objects.get().placed_queue == "billing"
    edit(schedule, queue=QUEUE)
    world.run()
    world.run_until("2026-05-01 00:04")
    assert world.jobs() == ["20260501T000100Z", "20260501T000300Z", "20260501T000400Z"]
    assert world.states() == ["fired"] * 4


def test_what_waited_in_the_old_queue_is_skipped_and_recorded(world: World, make: Make) -> None:
    schedule = make(overlap="queue_one")
    world.run("2026-05-01 00:01")
    world.run("2026-05-01 00:02")
    assert world.states() == ["fired", "waiting"]

    edit(schedule, queue="billing")
    world.run()

    assert world.states() == ["fired", "skipped"]
    assert "moved to queue billing" in world.reasons()[1]
    world.run("2026-05-01 00:03")
    assert world.jobs(queue="billing") == ["20260501T000300Z"]


# -- bad schedules -----------------------------------------------------------------------------------------


def test_f11_bad_schedules_are_flagged_and_the_others_run(
    world: World, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(5):
        make(key=f"good-{n}")
    for key in ("zone", "rule", "args", "never"):
        make(key=key)
    by_sql = {
        "zone": ("zone", "Mars/Phobos"),
        "rule": ("rule", "61 * * * *"),
        "never": ("rule", "0 0 30 2 *"),
        "args": ("args", '"no list"'),
    }
    with connection.cursor() as cursor:
        for key, (column, value) in by_sql.items():
            cursor.execute(f"UPDATE queueops_schedule SET {column} = %s WHERE key = %s", [value, key])

    with caplog.at_level(logging.ERROR):
        world.run_until("2026-05-01 00:03", SECOND)

    for n in range(5):
        assert world.jobs(f"good-{n}")[0] == "20260501T000100Z"
    errors = dict(Schedule.objects.exclude(error="").values_list("key", "error"))
    assert errors.keys() == by_sql.keys()
    assert "Mars/Phobos" in errors["zone"]
    assert "minute" in errors["rule"]
    assert "never occurs" in errors["never"]
    assert "JSON list" in errors["args"]
    assert all(world.jobs(key) == [] for key in by_sql)
    assert len(caplog.records) == len(by_sql)  # one line each, not one a second


def test_f11_text_that_is_no_json_is_flagged_too(world: World, make: Make) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("a jsonb column takes nothing else")
    make(key="good")
    make(key="bad")
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA ignore_check_constraints = ON")
        cursor.execute("UPDATE queueops_schedule SET args = '[1,' WHERE key = 'bad'")
        cursor.execute("PRAGMA ignore_check_constraints = OFF")

    world.run("2026-05-01 00:01")

    assert world.jobs("good") == ["20260501T000100Z"]
    assert "args: must be a JSON list" in Schedule.objects.defer("args").get(key="bad").error


def test_a_mended_schedule_goes_on_without_firing_the_past(world: World, make: Make) -> None:
    schedule = make(catch_up="all")
    Schedule.objects.filter(pk=schedule.pk).update(args="no list")
    world.run("2026-05-01 00:00:30")
    world.run_until("2026-05-01 00:03:30", 10 * SECOND)
    Schedule.objects.filter(pk=schedule.pk).update(args=[])

    world.run()
    world.run("2026-05-01 00:04")

    assert world.ledger() == [
        ("05-01 00:01", "missed"),
        ("05-01 00:02", "missed"),
        ("05-01 00:03", "missed"),
        ("05-01 00:04", "fired"),
    ]
    assert "could not be fired: args" in world.reasons()[0]
    assert Schedule.objects.get().error == ""


@pytest.mark.damages("a key holds a foreign type")
def test_a_schedule_whose_redis_key_is_damaged_holds_nobody_up(world: World, make: Make) -> None:
    make(key="good")
    make(key="bad")
    world.redis.delete(keys.schedule(QUEUE, "bad"))
    world.redis.set(keys.schedule(QUEUE, "bad"), "foreign")

    world.run("2026-05-01 00:01")

    assert world.jobs("good") == ["20260501T000100Z"]
    assert "holds a string" in Schedule.objects.get(key="bad").error


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 31 4 *"])
def test_e40_what_never_occurs_is_refused_at_save(db: None, expression: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Schedule.objects.create(key="never", queue=QUEUE, handler="tests.work", rule=expression)

    assert "never occurs" in str(caught.value.message_dict["rule"])


# -- losses -------------------------------------------------------------------------------------------------


def test_after_a_loss_of_redis_slots_later_than_the_ledgers_last_are_missed(world: World, make: Make) -> None:
    make(rule="*/10 * * * *", catch_up="all", overlap="allow")
    world.run("2026-05-01 00:10")
    world.finish_jobs()
    mirror(world.store)
    world.run("2026-05-01 00:15")
    world.redis.flushall()
    world.restart()

    world.run("2026-05-01 00:31")
    assert world.states() == ["ran", "missed", "missed"]
    assert all(reason.startswith("store lost") for reason in world.reasons()[1:])
    assert world.jobs() == []
    world.run("2026-05-01 00:40")
    assert world.jobs() == ["20260501T004000Z"]


def test_a_loss_between_two_slots_is_noticed_by_who_runs_on(world: World, make: Make) -> None:
    make()
    world.run("2026-05-01 00:01")
    world.redis.flushall()

    world.run("2026-05-01 00:02")

    assert world.states() == ["fired", "missed"]
    world.run("2026-05-01 00:03")
    assert world.states() == ["fired", "missed", "fired"]


def test_after_a_loss_of_the_database_redis_refuses_a_second_fire(world: World, make: Make) -> None:
    make(catch_up="all", overlap="allow")
    backup = Schedule.objects.values().get()
    world.run_until("2026-05-01 00:03")
    fired = world.jobs()
    ScheduleSlot.objects.all().delete()
    Schedule.objects.filter(pk=backup["id"]).update(**{k: v for k, v in backup.items() if k != "id"})
    world.restart()

    world.run("2026-05-01 00:03:30")

    assert world.jobs() == fired
    assert len(fired) == 3
    world.run("2026-05-01 00:04")
    assert world.jobs() == [*fired, "20260501T000400Z"]


def test_a_database_made_anew_does_not_fire_again(world: World, make: Make) -> None:
    make(catch_up="all")
    world.run("2026-05-01 00:01")
    Schedule.objects.all().delete()
    world.restart()
    make(catch_up="all")

    world.run()

    assert world.jobs() == ["20260501T000100Z"]
    assert Schedule.objects.get().version >= 2
    world.finish_jobs()
    world.run("2026-05-01 00:02")
    assert world.jobs() == ["20260501T000100Z", "20260501T000200Z"]


def test_an_older_backup_of_the_database_follows_again(world: World, make: Make) -> None:
    """Its version is older than the one in Redis: that one is overtaken, after a moment."""
    schedule = make()
    old = Schedule.objects.values().get()
    edit(schedule, rule="*/5 * * * *")
    world.run(world.now_ms + SECOND)
    Schedule.objects.filter(pk=schedule.pk).update(**{k: v for k, v in old.items() if k != "id"})
    world.restart()

    world.run_until("2026-05-01 00:02", SECOND)

    assert world.jobs() == ["20260501T000100Z", "20260501T000200Z"]
    assert Schedule.objects.get().version == 3


def test_a_scheduler_that_dies_between_redis_and_the_database_loses_no_line(
    world: World, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(rule="0 * * * *")
    monkeypatch.setattr(world.scheduler, "_record", lambda: None)
    world.set("2026-05-01 01:00")
    world.scheduler.run_once(refresh=False)
    assert (world.jobs(), world.ledger()) == (["20260501T010000Z"], [])
    monkeypatch.undo()
    world.restart()

    world.run("2026-05-01 01:00:03")

    assert world.ledger() == [("05-01 01:00", "fired")]


def test_without_the_database_slots_are_fired_and_written_down_later(
    world: World, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import OperationalError

    from queueops.schedules import ledger

    make(overlap="allow")
    recorded = ledger.record

    def away(*_: Any) -> int:
        raise OperationalError("no database")

    monkeypatch.setattr(ledger, "record", away)
    world.set("2026-05-01 00:01")
    world.scheduler.run_once(refresh=False)
    world.set("2026-05-01 00:02")
    world.scheduler.run_once(refresh=False)
    assert len(world.jobs()) == 2
    assert world.ledger() == []

    monkeypatch.setattr(ledger, "record", recorded)
    world.run("2026-05-01 00:02:05")

    assert world.states() == ["fired", "fired"]


# -- the site's own clock and zone -----------------------------------------------------------------


def test_h11_another_time_zone_of_the_site_moves_nothing(world: World, make: Make, settings: Any) -> None:
    world.set("2026-05-01 02:59")
    make(rule="0 5 1 * *", zone="Europe/Berlin", catch_up="all")
    world.run("2026-05-01 03:00")
    assert world.jobs() == ["20260501T030000Z"]
    for name in ("Europe/Berlin", "UTC", "Pacific/Auckland"):
        settings.TIME_ZONE = name
        world.restart()
        world.run(world.now_ms + 16 * 24 * HOUR if name == "UTC" else world.now_ms + HOUR)

    assert world.jobs() == ["20260501T030000Z"]
    assert Schedule.objects.get().next_slot_at == instant("2026-06-01 03:00")
