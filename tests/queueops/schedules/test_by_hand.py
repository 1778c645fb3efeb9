"""What a person does to single slots, and what the ledger says of jobs in the end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from queueops.actors import Who
from queueops.mirror import run_once as mirror
from queueops.models import Schedule, ScheduleSlot
from queueops.schedules import backfill, by_hand, ledger, reads
from queueops.schedules.by_hand import Refused
from tests.queueops.schedules.conftest import HOUR, MINUTE, QUEUE, SECOND, World, at, edit, instant

Make = Callable[..., Schedule]
WHO = Who(actor="user:1", actor_name="alice")


@pytest.fixture(autouse=True)
def commit_at_once(django_capture_on_commit_callbacks: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outbox pushes after the commit, which a test's transaction never sees."""
    from queueops import client

    monkeypatch.setattr(client, "_record", None)


def settle(world: World) -> None:
    """Let the mirror and the ledger hear of what happened."""
    mirror(world.store)
    world.run()


def test_a_run_by_hand_is_in_the_way_of_the_next_slot_and_a_backfill_is_not(world: World, make: Make) -> None:
    schedule = make(overlap="skip")
    slot = by_hand.run_slot(schedule, token="abc123", **WHO)
    world.run()

    world.run("2026-05-01 00:01")
    assert world.states() == ["skipped"]
    assert slot.job_id in world.reasons()[0]
    world.finish_jobs()
    settle(world)
    assert ScheduleSlot.objects.get(suffix="hand-abc123").state == "ran"

    backfill.start(schedule, at("2026-04-30 00:00"), at("2026-04-30 00:09"), rate=1000, **WHO)
    world.run()
    world.run("2026-05-01 00:02")
    assert world.ledger()[-1] == ("05-01 00:02", "fired")


def test_a_slot_that_was_skipped_beforehand_is_not_run(world: World, make: Make) -> None:
    schedule = make(rule="0 * * * *")
    by_hand.skip_slot(schedule, reason="stocktaking", **WHO)
    world.run()

    world.run("2026-05-01 01:00")
    world.run("2026-05-01 02:00")

    assert world.ledger() == [("05-01 01:00", "skipped"), ("05-01 02:00", "fired")]
    assert world.jobs() == ["20260501T020000Z"]
    assert ScheduleSlot.objects.get(state="skipped").reason == "stocktaking"


def test_what_was_taken_back_runs(world: World, make: Make) -> None:
    schedule = make(rule="0 * * * *")
    by_hand.skip_slot(schedule, **WHO)
    world.run()
    by_hand.unskip_slot(schedule, at("2026-05-01 01:00"), **WHO)
    world.run()

    world.run("2026-05-01 01:00")

    assert world.ledger() == [("05-01 01:00", "fired")]


def test_too_late_to_skip_is_said(world: World, make: Make) -> None:
    schedule = make()
    world.set("2026-05-01 00:00:58")

    with pytest.raises(Refused, match="too late"):
        by_hand.skip_slot(schedule, **WHO)
    with pytest.raises(Refused, match="no such slot"):
        by_hand.skip_slot(schedule, at("2026-05-01 00:01:30"), **WHO)


def test_a_skip_that_nobody_heard_of_is_recorded_as_what_happened(world: World, make: Make) -> None:
    """The database was slow: the slot is fired, and the ledger says so."""
    schedule = make()
    by_hand.skip_slot(schedule, **WHO)
    world.set("2026-05-01 00:01")
    world.scheduler.run_once(refresh=False)

    assert world.ledger() == [("05-01 00:01", "fired")]
    assert world.jobs() == ["20260501T000100Z"]


def test_a_slot_cannot_be_run_before_its_time(world: World, make: Make) -> None:
    schedule = make()

    with pytest.raises(Refused, match="before its time"):
        by_hand.run_slot(schedule, at("2026-05-01 00:05"), token="abc123", **WHO)


def test_a_broken_schedule_is_not_run_by_hand(world: World, make: Make) -> None:
    schedule = make()
    Schedule.objects.update(rule="61 * * * *")
    schedule.refresh_from_db()

    with pytest.raises(Refused, match="minute"):
        by_hand.run_slot(schedule, token="abc123", **WHO)


def test_a_paused_one_is(world: World, make: Make) -> None:
    schedule = make()
    by_hand.pause(schedule, reason="later", **WHO)

    slot = by_hand.run_slot(schedule, token="abc123", **WHO)
    assert world.store.connection.client.exists(f"queueops:{{{QUEUE}}}:job:{slot.job_id}")


# -- what became of them -----------------------------------------------------------------------------


def test_a_slots_job_is_followed_to_its_end(world: World, make: Make) -> None:
    make(rule="0 * * * *")
    world.run("2026-05-01 01:00")
    assert world.states() == ["fired"]

    taken = world.child.register().take()
    settle(world)
    assert world.states() == ["running"]
    world.set("2026-05-01 01:00:20")
    world.child.ack(*taken)
    settle(world)

    slot = ScheduleSlot.objects.get()
    assert (slot.state, slot.outcome) == ("ran", "done")
    assert slot.started_at == instant("2026-05-01 01:00")
    assert slot.finished_at == instant("2026-05-01 01:00") + timedelta(seconds=20)
    assert ledger.lateness_s(slot) == 0


def test_a_job_that_started_late_makes_its_slot_late(world: World, make: Make) -> None:
    make(rule="0 * * * *")
    world.run("2026-05-01 01:00")
    world.set("2026-05-01 01:10")
    world.finish_jobs()
    settle(world)

    slot = ScheduleSlot.objects.select_related("schedule").get()
    assert slot.state == "late"
    assert ledger.lateness_s(slot) == 600
    alarm = next(alarm for alarm in reads.alarms(instant("2026-05-01 01:20")) if alarm.kind == "late")
    assert alarm.text == "tick: the slot of 01:00 UTC ran 10 min late"


def test_jitter_is_no_lateness(world: World, make: Make) -> None:
    schedule = make(rule="0 * * * *", jitter_s=600)
    jitter_ms = schedule.definition().jitter_ms(at("2026-05-01 01:00"))
    assert jitter_ms > 10_000
    world.run("2026-05-01 01:00")
    world.set(at("2026-05-01 01:00") + jitter_ms - 1)
    assert world.finish_jobs() == []
    world.set(at("2026-05-01 01:00") + jitter_ms)
    assert len(world.finish_jobs()) == 1
    settle(world)

    assert world.states() == ["ran"]


def test_a_run_that_died_is_shown_as_failed_until_it_is_sent_again_and_succeeds(
    world: World, make: Make
) -> None:
    make(rule="0 * * * *")
    world.run("2026-05-01 01:00")
    dead = world.child.register().take()
    world.child.bury(*dead)
    settle(world)
    assert reads.outcome_of(ScheduleSlot.objects.get()) == "failed"

    world.store.requeue(QUEUE, [dead[0].id], actor="user:1")
    world.finish_jobs()
    settle(world)

    slot = ScheduleSlot.objects.get()
    assert (slot.outcome, reads.outcome_of(slot)) == ("done", "ran")


def test_a_job_that_was_discarded_before_it_ran_was_skipped(world: World, make: Make) -> None:
    make(rule="0 * * * *")
    world.run("2026-05-01 01:00")
    world.store.discard(QUEUE, ["schedule:tick:20260501T010000Z"], actor="user:1", reason="not now")
    settle(world)

    slot = ScheduleSlot.objects.get()
    assert (slot.state, slot.reason) == ("skipped", "not now")


def test_a_job_that_nobody_knows_any_more_was_missed(world: World, make: Make) -> None:
    make(rule="0 * * * *")
    world.run("2026-05-01 01:00")
    world.redis.flushall()  # before the mirror heard of it

    world.run(world.now_ms + 11 * MINUTE)

    slot = ScheduleSlot.objects.get(job_id__gt="")
    assert (slot.state, slot.reason) == ("missed", "store lost: its job is gone without a result")


# -- alarms ---------------------------------------------------------------------------------------------


def kinds(now: str) -> list[tuple[str, str]]:
    return [(alarm.kind, alarm.severity) for alarm in reads.alarms(instant(now))]


def test_a_missed_slot_is_an_alarm_for_a_day_and_less_grave_once_it_ran_again(
    world: World, make: Make
) -> None:
    make(rule="0 * * * *", catch_up="skip")
    assert kinds("2026-05-01 00:01") == []
    world.restart()
    world.run("2026-05-01 03:30")
    assert kinds("2026-05-01 03:30") == [("missed", "bad")]
    assert (
        "3 slots, the last one of 01 May 03:00 UTC were missed"
        in reads.alarms(instant("2026-05-01 03:30"))[0].text
    )

    world.run("2026-05-01 04:00")
    world.finish_jobs()
    settle(world)
    assert kinds("2026-05-01 04:00") == [("missed", "warn")]
    assert kinds("2026-05-02 04:00")[-1:] != [("missed", "warn")]


def test_a_slot_that_nobody_settles_is_an_alarm(world: World, make: Make) -> None:
    make(rule="0 * * * *")

    assert kinds("2026-05-01 01:00:59") == []
    assert kinds("2026-05-01 01:02") == [("overdue", "bad")]


def test_a_pause_is_no_alarm(world: World, make: Make) -> None:
    schedule = make(rule="0 * * * *")
    by_hand.pause(schedule, **WHO)
    world.run()
    world.run("2026-05-01 05:00")

    assert kinds("2026-05-01 06:30") == []


def test_the_ledger_is_bounded(world: World, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = make()
    rows = [
        ScheduleSlot(
            schedule=schedule, slot_at=instant("2026-04-30 00:00") - timedelta(minutes=n), state="ran"
        )
        for n in range(30)
    ]
    ScheduleSlot.objects.bulk_create(rows)
    monkeypatch.setattr(ledger, "KEPT_SLOTS", 10)

    assert ledger.prune(world.now_ms, limit=5) == 5
    assert ledger.prune(world.now_ms, limit=100) == 15
    kept = list(ScheduleSlot.objects.order_by("-slot_at").values_list("slot_at", flat=True))
    assert kept == [row.slot_at for row in rows[:10]]
    assert ledger.prune(world.now_ms + 401 * 24 * HOUR, limit=100) == 10


def test_an_end_date_ends_it(world: World, make: Make) -> None:
    schedule = make(start_at=instant("2026-05-01 00:02"), end_at=instant("2026-05-01 00:04"))

    world.run_until("2026-05-01 00:06", 30 * SECOND)

    assert world.jobs() == ["20260501T000200Z", "20260501T000300Z", "20260501T000400Z"]
    schedule.refresh_from_db()
    assert schedule.next_slot_at is None
    assert reads.effect_of(schedule, schedule.definition(), world.now_ms) == [
        "It never runs again: its last slot is over."
    ]
    edit(schedule, end_at=None)
    world.run_until("2026-05-01 00:08", 30 * SECOND)
    assert world.jobs()[-2:] == ["20260501T000700Z", "20260501T000800Z"]


def test_a_one_off_runs_once(world: World, make: Make) -> None:
    make(kind="once", rule="2026-05-01 02:03:04", zone="Europe/Berlin")

    world.run_until("2026-05-01 03:00", 10 * MINUTE)

    assert world.ledger() == [("05-01 00:03:04", "fired")]
