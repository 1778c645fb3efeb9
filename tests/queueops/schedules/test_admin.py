"""Schedules in the admin: the same rules, and what happens next in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from queueops.models import OperatorAction, Schedule
from tests.queueops.schedules.conftest import QUEUE, World, instant

Make = Callable[..., Schedule]
URL = "/admin/queueops/schedule/"
GIVEN = {
    "key": "nightly", "description": "", "kind": "cron", "rule": "0 3 * * *", "zone": "Europe/Berlin",
    "start_at_0": "", "start_at_1": "", "end_at_0": "", "end_at_1": "", "handler": "test.noop", "args": "[]",
    "kwargs": "{}", "queue": QUEUE, "policy": "", "catch_up": "latest", "catch_up_cap": "100",
    "catch_up_max_age_s": "86400", "catch_up_rate_per_s": "1", "overlap": "skip", "jitter_s": "0",
    "paused_reason": "", "resume_at_0": "", "resume_at_1": "",
}  # fmt: skip


@pytest.fixture
def client(world: World, settings: Any) -> Client:
    settings.QUEUEOPS = {**settings.QUEUEOPS, "HANDLERS": ["tests.handlers"]}
    user = User.objects.create_user("alice", password="sesame", is_staff=True)
    user.groups.add(Group.objects.get(name="Admin"))
    made = Client()
    made.force_login(user)
    return made


def test_a_schedule_is_made_and_the_answer_says_what_happens_next(world: World, client: Client) -> None:
    answer = client.post(f"{URL}add/", GIVEN, follow=True)

    assert "Next run: Fri 2026-05-01 03:00 CEST (01:00 UTC)." in answer.content.decode()
    assert Schedule.objects.get().changed_at == instant("2026-05-01 00:00")
    assert OperatorAction.objects.get().verb == "make_schedule"
    world.run()
    world.run("2026-05-01 01:00")
    assert world.jobs("nightly") == ["20260501T010000Z"]


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"rule": "0 0 30 2 *"}, "rule"),
        ({"zone": "Mars/Phobos"}, "zone"),
        ({"handler": "nobody"}, "handler"),
        ({"args": '{"a": 1}'}, "args"),
        ({"policy": "nobody"}, "policy"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(client: Client, typed: dict[str, str], field: str) -> None:
    answer = client.post(f"{URL}add/", {**GIVEN, **typed})

    assert answer.status_code == 200
    assert list(answer.context["adminform"].form.errors) == [field]
    assert not Schedule.objects.exists()


def test_the_form_says_what_enabling_would_do_and_f07_enabling_does_it(
    world: World, make: Make, client: Client
) -> None:
    schedule = make(rule="0 * * * *", catch_up="all", handler="test.noop")
    client.post(URL, {"action": "pause_selected", "_selected_action": [schedule.pk]})
    world.run()
    world.run_until("2026-05-01 02:20", 600_000)

    page = client.get(f"{URL}{schedule.pk}/change/").content.decode()
    assert (
        "If it is resumed now: Next run: Fri 2026-05-01 03:00 UTC. 2 slots since the pause are skipped"
        in page
    )
    answer = client.post(URL, {"action": "resume_selected", "_selected_action": [schedule.pk]}, follow=True)

    assert "goes on. Next run: Fri 2026-05-01 03:00 UTC. 2 slots since the pause" in answer.content.decode()
    world.run_until("2026-05-01 03:00", 600_000)
    assert world.jobs() == ["20260501T030000Z"]
    assert world.states() == ["skipped", "skipped", "fired"]


def test_an_edit_there_keeps_what_schedulers_wrote_meanwhile(
    world: World, make: Make, client: Client
) -> None:
    schedule = make(handler="test.noop")
    world.run("2026-05-01 00:01")
    before = Schedule.objects.values("last_slot_at", "version").get()
    typed = {**GIVEN, "rule": "*/5 * * * *", "overlap": "allow"}

    answer = client.post(f"{URL}{schedule.pk}/change/", typed)

    assert answer.status_code == 302, answer.context["adminform"].form.errors
    assert Schedule.objects.values("last_slot_at", "version").get() == before
    world.run()
    world.run_until("2026-05-01 00:05")
    assert world.jobs() == ["20260501T000100Z", "20260501T000500Z"]


def test_one_from_the_code_is_shown_and_not_edited(world: World, client: Client, settings: Any) -> None:
    settings.QUEUEOPS = {**settings.QUEUEOPS, "SCHEDULES": {"coded": {"handler": "test.noop", "every": 60}}}
    world.restart()
    world.run()
    schedule = Schedule.objects.get()

    assert client.get(f"{URL}{schedule.pk}/change/").status_code == 200
    assert client.post(f"{URL}{schedule.pk}/change/", GIVEN).status_code == 403
    assert client.post(f"{URL}{schedule.pk}/delete/", {"post": "yes"}).status_code == 403
    client.post(URL, {"action": "pause_selected", "_selected_action": [schedule.pk]})
    assert Schedule.objects.get().paused


def test_the_ledger_is_there_to_look_at(world: World, make: Make, client: Client) -> None:
    make(handler="test.noop")
    world.run("2026-05-01 00:01")

    page = client.get("/admin/queueops/scheduleslot/").content.decode()
    assert "fired" in page
    assert client.get("/admin/queueops/scheduleslot/add/").status_code == 403


def test_who_may_not_edit_schedules_sees_none(world: World, make: Make) -> None:
    make(handler="test.noop")
    user = User.objects.create_user("bob", password="sesame", is_staff=True)
    user.groups.add(Group.objects.get(name="Viewer"))
    client = Client()
    client.force_login(user)

    assert client.get(URL).status_code == 403
