"""/schedules/: what people see and do; every fault at its field; the form says what happens next."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from redis import Redis

from queueops import keys
from queueops.inspector import Inspector
from queueops.job import from_ms, to_ms
from queueops.models import Operation, OperatorAction, Schedule, ScheduleSlot
from queueops.schedules.definition import moment
from queueops.schedules.scheduler import Scheduler

URL = "/schedules/"
GIVEN = {
    "key": "nightly", "kind": "cron", "rule": "0 3 * * *", "zone": "Europe/Berlin", "handler": "test.noop",
    "args": "[]", "kwargs": "{}", "queue": "reports", "catch_up": "latest", "catch_up_cap": "100",
    "catch_up_max_age_s": "1 d", "catch_up_rate_per_s": "1", "overlap": "skip", "jitter_s": "0",
}  # fmt: skip


@pytest.fixture(autouse=True)
def handlers(settings: Any) -> None:
    settings.QUEUEOPS = {**settings.QUEUEOPS, "HANDLERS": ["tests.handlers"]}


@pytest.fixture
def admin_client_(redis: Redis, db: None, member: Callable[..., User]) -> Client:
    client = Client()
    client.force_login(member("Admin"))
    return client


@pytest.fixture
def nightly(redis: Redis, db: None) -> Schedule:
    row = Schedule.objects.create(
        key="nightly", queue="reports", handler="test.noop", rule="0 3 * * *", zone="Europe/Berlin"
    )
    follow()
    row.refresh_from_db()
    return row


def follow() -> None:
    """Let schedulers take over what was edited."""
    scheduler = Scheduler(uses_lease=False)
    scheduler.run_once(refresh=True)
    scheduler.run_once(refresh=True)


def token(html: str) -> str:
    found = re.search(r'name="token" value="(\w+)"', html)
    assert found
    return found[1]


# -- seen ------------------------------------------------------------------------------------------


def test_the_page_says_rule_next_and_last_run_in_words(admin_client_: Client, nightly: Schedule) -> None:
    now = timezone.now()
    nightly.slots.create(
        slot_at=now - timedelta(hours=3), state="ran", outcome="done",
        started_at=now - timedelta(hours=3), finished_at=now - timedelta(hours=2, minutes=58),
    )  # fmt: skip
    nightly.slots.create(slot_at=now - timedelta(hours=27), state="missed", reason="store lost: gone")

    page = admin_client_.get(URL).content.decode()

    assert "At 03:00" in page
    assert "(Europe/Berlin)" in page
    assert "2 min" in page  # it took so long
    assert 'class="slots"' in page
    assert page.count('class="s-ran"') == 1
    assert page.count('class="s-missed"') == 1
    assert "last 2 slots: 1 ran, 1 missed" in page


def test_a_schedules_page_shows_five_slots_ahead_in_its_zone_and_utc(
    admin_client_: Client, nightly: Schedule
) -> None:
    page = admin_client_.get(f"{URL}nightly/").content.decode()

    ahead = nightly.definition().next_slots(Inspector().now_ms(), 5)
    for slot in ahead:
        assert moment(slot, "Europe/Berlin") in page
    assert "UTC)" in moment(ahead[0], "Europe/Berlin")
    assert "the hour that does not exist" in page
    assert "does not exist" in page
    assert "comes twice" in page


def test_hostile_text_is_shown_and_not_run(admin_client_: Client, nightly: Schedule) -> None:
    Schedule.objects.filter(pk=nightly.pk).update(description="<script>alert(1)</script>", error="<b>bad</b>")

    for url in (URL, f"{URL}nightly/"):
        page = admin_client_.get(url).content.decode()
        assert "<script>alert(1)</script>" not in page
        assert "<b>bad</b>" not in page


def test_a_rule_that_sql_broke_does_not_break_the_page(admin_client_: Client, nightly: Schedule) -> None:
    Schedule.objects.filter(pk=nightly.pk).update(rule="61 * * * *", zone="Mars/Phobos", args={"no": "list"})
    follow()

    for url in (URL, f"{URL}nightly/", f"{URL}nightly/edit/"):
        assert admin_client_.get(url).status_code == 200
    assert (
        "can&#x27;t fire" in admin_client_.get(URL).content.decode()
        or "can't fire" in admin_client_.get(URL).content.decode()
    )


# -- made and edited -------------------------------------------------------------------------------


def test_a_schedule_is_made_and_the_answer_says_when_it_runs(admin_client_: Client) -> None:
    answer = admin_client_.post(f"{URL}new", GIVEN, follow=True)

    row = Schedule.objects.get(key="nightly")
    assert (row.rule, row.zone, row.args, row.kwargs, row.source) == (
        "0 3 * * *",
        "Europe/Berlin",
        [],
        {},
        "admin",
    )
    first = moment(row.definition().next_slots(Inspector().now_ms(), 1)[0], "Europe/Berlin")
    assert f"nightly is made. Next run: {first}." in answer.content.decode()
    action = OperatorAction.objects.get(verb="make_schedule")
    assert (action.actor_name, action.queue) == ("alice", "reports")


#: What is typed wrong, and the field at which it is said, with words of it.
WRONG = [
    ({"rule": "61 * * * *"}, "rule", "minute"),
    ({"rule": "0 0 30 2 *"}, "rule", "never occurs"),
    ({"rule": ""}, "rule", "required"),
    ({"kind": "interval", "rule": "soon"}, "rule", "no number of seconds"),
    ({"kind": "interval", "rule": "0"}, "rule", "from 1"),
    ({"kind": "once", "rule": "tomorrow"}, "rule", "no date and time"),
    ({"zone": "Mars/Phobos"}, "zone", "no time zone"),
    ({"zone": "europe/berlin"}, "zone", "did you mean Europe/Berlin"),
    ({"zone": "../etc/passwd"}, "zone", "not a name"),
    ({"zone": "localtime"}, "zone", "every host"),
    ({"handler": "test.nop"}, "handler", "did you mean test.noop"),
    ({"handler": "test.hold", "args": "[1, 2, 3, 4]"}, "args", "does not take them"),
    ({"args": "[1,"}, "args", "JSON list"),
    ({"args": '{"a": 1}'}, "args", "JSON list"),
    ({"args": "[NaN]"}, "args", "args[0]"),
    ({"kwargs": "[]"}, "kwargs", "JSON object"),
    ({"queue": "a b"}, "queue", "not allowed"),
    ({"key": "a/b"}, "key", "letters, digits"),
    ({"policy": "nobody"}, "policy", "no retry policy"),
    ({"jitter_s": "2 d"}, "jitter_s", "from 0 to 86400"),
    ({"kind": "interval", "rule": "60", "jitter_s": "90 s"}, "jitter_s", "shorter than the 60 s"),
    ({"catch_up_cap": "0"}, "catch_up_cap", "from 1 to"),
    ({"catch_up_rate_per_s": "0"}, "catch_up_rate_per_s", "from 0.001"),
    ({"start_at": "2026-05-02T00:00", "end_at": "2026-05-01T00:00"}, "end_at", "after the start"),
    ({"overlap": "perhaps"}, "overlap", "valid choice"),
]


@pytest.mark.parametrize(("typed", "field", "words"), WRONG)
def test_what_is_wrong_is_said_at_its_field(
    admin_client_: Client, typed: dict[str, str], field: str, words: str
) -> None:
    answer = admin_client_.post(f"{URL}new", {**GIVEN, **typed})

    assert answer.status_code == 422
    errors = answer.context["form"].errors
    assert words in " ".join(errors[field])
    assert not Schedule.objects.exists()


def test_e48_the_preview_is_what_the_scheduler_uses_whatever_the_servers_zone(
    admin_client_: Client, settings: Any
) -> None:
    typed = {**GIVEN, "rule": "30 10 * * 1", "zone": "Europe/Brussels"}
    pages = set()
    for zone in ("UTC", "Pacific/Auckland"):
        settings.TIME_ZONE = zone
        page = admin_client_.post(f"{URL}preview", typed).content.decode()
        pages.add(tuple(re.findall(r"<li>(.*?)</li>", page)))
    admin_client_.post(f"{URL}new", typed)
    follow()

    row = Schedule.objects.get()
    assert row.taken is not None
    slots = row.definition().next_slots(Inspector().now_ms(), 5)
    assert pages == {tuple(moment(slot, "Europe/Brussels") for slot in slots)}
    assert all("10:30 CE" in slot and "UTC)" in slot for slot in next(iter(pages)))
    assert Schedule.objects.get().next_slot_at in {None, from_ms(slots[0])}


def test_the_preview_marks_the_zones_next_clock_changes(admin_client_: Client) -> None:
    page = admin_client_.post(f"{URL}preview", GIVEN).content.decode()

    assert "Next in Europe/Berlin" in page
    assert "A fixed time that falls in the hour that does not exist runs once" in page
    assert (
        "not changed in the next three years"
        in admin_client_.post(f"{URL}preview", {**GIVEN, "zone": "Asia/Tokyo"}).content.decode()
    )


def test_the_form_says_what_an_edit_does_to_slots_that_are_due(
    admin_client_: Client, nightly: Schedule, redis: Redis
) -> None:
    """Nobody ran for three days."""
    then = from_ms(Inspector().now_ms()) - timedelta(days=3)
    Schedule.objects.filter(pk=nightly.pk).update(last_slot_at=then)
    redis.hset(keys.schedule("reports", "nightly"), "last", to_ms(then))
    typed = {**GIVEN, "of": "nightly", "rule": "0 5 * * *"}

    page = admin_client_.post(f"{URL}preview", typed).content.decode()
    assert "3 slots not run yet are skipped." in page
    answer = admin_client_.post(f"{URL}nightly/edit/", typed, follow=True)
    follow()

    assert "nightly is changed. Next run: " in answer.content.decode()
    assert list(nightly.slots.values_list("state", flat=True)) == ["skipped"] * 3
    action = OperatorAction.objects.get(verb="edit_schedule")
    assert (action.before["rule"], action.after["rule"]) == ("0 3 * * *", "0 5 * * *")


def test_secrets_are_masked_on_every_page_and_kept_by_an_edit(
    admin_client_: Client, nightly: Schedule
) -> None:
    secret = {"api_key": "hunter2hunter2", "day": 1}
    Schedule.objects.filter(pk=nightly.pk).update(args=[secret])

    pages = [admin_client_.get(f"{URL}{path}").content.decode() for path in ("", "nightly/", "nightly/edit/")]
    form = admin_client_.get(f"{URL}nightly/edit/").context["form"]
    typed = {**GIVEN, "args": form.initial["args"].replace('"day": 1', '"day": 2'), "queue": "default"}
    answer = admin_client_.post(f"{URL}nightly/edit/", typed)

    assert answer.status_code == 302
    assert Schedule.objects.get().args == [{**secret, "day": 2}]
    pages.append(admin_client_.get("/activity/").content.decode())
    assert all("hunter2" not in page for page in pages)
    assert "hunter2" not in json.dumps(list(OperatorAction.objects.values("before", "after")))
    left = {**typed, "args": form.initial["args"].replace("api_key", "other_key")}
    assert "args" in admin_client_.post(f"{URL}nightly/edit/", left).context["form"].errors


def test_dates_are_those_of_a_clock_in_the_schedules_zone(admin_client_: Client) -> None:
    admin_client_.post(f"{URL}new", {**GIVEN, "start_at": "2027-06-01T00:00", "end_at": "2027-07-01 00:00"})

    row = Schedule.objects.get()
    assert f"{row.start_at:%Y-%m-%d %H:%M}" == "2027-05-31 22:00"
    page = admin_client_.get(f"{URL}nightly/edit/").content.decode()
    assert 'value="2027-06-01 00:00"' in page


def test_two_schedules_of_one_name_are_refused_at_the_field(
    admin_client_: Client, nightly: Schedule, settings: Any
) -> None:
    settings.QUEUEOPS = {**settings.QUEUEOPS, "SCHEDULES": {"coded": {"handler": "test.noop", "every": 60}}}

    for key in ("nightly", "coded"):
        answer = admin_client_.post(f"{URL}new", {**GIVEN, "key": key})
        assert answer.status_code == 422
        assert key in " ".join(answer.context["form"].errors["key"])


def test_one_from_the_code_can_be_paused_and_not_edited(admin_client_: Client, settings: Any) -> None:
    settings.QUEUEOPS = {**settings.QUEUEOPS, "SCHEDULES": {"coded": {"handler": "test.noop", "every": 60}}}
    follow()

    assert admin_client_.get(f"{URL}coded/edit/").status_code == 404
    assert admin_client_.post(f"{URL}coded/edit/", GIVEN).status_code == 404
    page = admin_client_.get(f"{URL}coded/").content.decode()
    assert "in the code" in page
    assert "/schedules/coded/edit/" not in page
    admin_client_.post(f"{URL}coded/delete/")
    admin_client_.post(f"{URL}coded/pause/", {"reason": "no"})
    assert Schedule.objects.get().paused


# -- done to it ------------------------------------------------------------------------------------


def test_run_now_runs_it_once_however_often_the_button_is_pressed(
    admin_client_: Client, nightly: Schedule, redis: Redis, django_capture_on_commit_callbacks: Any
) -> None:
    wish = token(admin_client_.get(URL).content.decode())
    with django_capture_on_commit_callbacks(execute=True):
        for _ in range(2):
            admin_client_.post(f"{URL}nightly/run/", {"token": wish})

    slot = ScheduleSlot.objects.get()
    assert (slot.suffix, slot.state, slot.actor) == (f"hand-{wish}", "fired", f"user:{User.objects.get().pk}")
    assert slot.job_id.endswith(f":hand-{wish}")
    assert Inspector().job("reports", slot.job_id) is not None
    assert OperatorAction.objects.filter(verb="run_slot").count() == 1
    assert nightly.last_slot_at == Schedule.objects.get().last_slot_at  # its own times stay


def test_a_missed_slot_is_run_by_its_button(
    admin_client_: Client, nightly: Schedule, django_capture_on_commit_callbacks: Any
) -> None:
    missed = nightly.slots.create(
        slot_at=timezone.now().replace(microsecond=0) - timedelta(hours=5), state="missed", reason="nobody"
    )
    page = admin_client_.get(f"{URL}nightly/").content.decode()
    assert "Run this slot" in page
    at_ms = re.search(r'name="slot" value="(\d+)"', page)
    assert at_ms
    with django_capture_on_commit_callbacks(execute=True):
        admin_client_.post(f"{URL}nightly/run/", {"token": token(page), "slot": at_ms[1]})

    by_hand = ScheduleSlot.objects.exclude(pk=missed.pk).get()
    assert by_hand.slot_at == missed.slot_at
    assert Inspector().job("reports", by_hand.job_id) is not None


def test_skip_next_leaves_the_next_slot_out_and_can_be_taken_back(
    admin_client_: Client, nightly: Schedule
) -> None:
    slots = nightly.definition().next_slots(Inspector().now_ms(), 2)
    admin_client_.post(f"{URL}nightly/skip/")
    admin_client_.post(f"{URL}nightly/skip/")  # and the one after it

    rows = ScheduleSlot.objects.order_by("slot_at")
    assert [row.slot_at for row in rows] == [from_ms(slot) for slot in slots]
    assert {row.state for row in rows} == {"skipped"}
    assert "skipped by alice" in rows[0].reason
    assert "skipped" in admin_client_.get(f"{URL}nightly/").content.decode()
    admin_client_.post(f"{URL}nightly/unskip/{slots[0]}/")
    assert ScheduleSlot.objects.get().slot_at == from_ms(slots[1])


def test_pause_and_resume_say_what_happens(admin_client_: Client, nightly: Schedule) -> None:
    assert admin_client_.get(f"{URL}nightly/pause/form/").status_code == 200
    admin_client_.post(f"{URL}nightly/pause/", {"reason": "the API is down", "resume_after": "4 h"})
    row = Schedule.objects.get()
    assert (row.paused, row.paused_reason) == (True, "the API is down")
    assert row.resume_at is not None
    assert row.resume_at - timezone.now() > timedelta(hours=3)
    follow()

    answer = admin_client_.post(f"{URL}nightly/resume/", follow=True)

    assert "nightly goes on. Next run: " in answer.content.decode()
    assert "0 slots since the pause are skipped, not run." in answer.content.decode()
    assert not Schedule.objects.get().paused
    assert [a.verb for a in OperatorAction.objects.order_by("id")] == ["pause_schedule", "resume_schedule"]


def test_deleting_takes_the_ledger_and_is_recorded(admin_client_: Client, nightly: Schedule) -> None:
    admin_client_.post(f"{URL}nightly/delete/")

    assert not Schedule.objects.exists()
    assert OperatorAction.objects.get(verb="delete_schedule").before["rule"] == "0 3 * * *"


def test_a_backfill_is_shown_dry_first_and_then_runs_as_an_operation(
    admin_client_: Client, nightly: Schedule, django_capture_on_commit_callbacks: Any
) -> None:
    typed = {"from_at": "2026-05-01T00:00", "until_at": "2026-05-03T03:00", "rate": "100"}

    page = admin_client_.post(f"{URL}nightly/backfill/", {**typed, "dry_run": "1"}).content.decode()
    assert "3 slots" in page
    assert "from Fri 2026-05-01 03:00 CEST" in page
    assert not Operation.objects.exists()

    answer = admin_client_.post(f"{URL}nightly/backfill/", {**typed, "reason": "a hole"})
    operation = Operation.objects.get()
    assert answer["Location"] == f"/operations/{operation.pk}/"
    assert (operation.total, operation.reason) == (3, "a hole")
    with django_capture_on_commit_callbacks(execute=True):
        follow()
        follow()

    operation.refresh_from_db()
    assert (operation.status, operation.done) == ("finished", 3)
    rows = ScheduleSlot.objects.order_by("slot_at")
    assert [f"{row.slot_at:%m-%d %H:%M}" for row in rows] == ["05-01 01:00", "05-02 01:00", "05-03 01:00"]
    assert all(Inspector().job("reports", row.job_id) is not None for row in rows)
    assert admin_client_.get(f"/operations/{operation.pk}/").status_code == 200
    assert "slots of schedule nightly" in admin_client_.get("/operations/").content.decode()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ({"from_at": "2026-05-03T00:00", "until_at": "2026-05-01T00:00"}, "end is before its start"),
        ({"from_at": "2026-05-01T00:00", "until_at": "2126-05-01T00:00"}, "of the past"),
        ({"from_at": "soon", "until_at": "2026-05-01T00:00"}, "from:"),
    ],
)
def test_a_backfill_that_can_t_be_meant_is_refused(
    admin_client_: Client, nightly: Schedule, typed: dict[str, str], words: str
) -> None:
    answer = admin_client_.post(f"{URL}nightly/backfill/", {**typed, "rate": "1"})

    assert answer.status_code == 422
    assert words in answer.content.decode()
    assert not Operation.objects.exists()


# -- rights ----------------------------------------------------------------------------------------


ACTIONS = ["new", "nightly/edit/", "nightly/delete/", "nightly/pause/", "nightly/resume/", "nightly/run/",
           "nightly/skip/", "nightly/unskip/1/", "nightly/backfill/", "preview"]  # fmt: skip


@pytest.mark.parametrize("group", ["Viewer", "Operator", None])
def test_only_who_may_edit_schedules_acts(
    redis: Redis, nightly: Schedule, member: Callable[..., User], group: str | None
) -> None:
    client = Client()
    client.force_login(member(group))

    assert client.get(URL).status_code == (403 if group is None else 200)
    for action in ACTIONS:
        assert client.post(f"{URL}{action}", {"token": "abcdef123"}).status_code == 403
    assert list(Schedule.objects.values_list("paused", flat=True)) == [False]
    assert not ScheduleSlot.objects.exists()
    if group:
        assert "Run now" not in client.get(URL).content.decode()


def test_a_click_from_htmx_answers_with_a_toast(admin_client_: Client, nightly: Schedule) -> None:
    answer = admin_client_.post(f"{URL}nightly/skip/", headers={"HX-Request": "true"})

    assert "toast" in answer.content.decode()
    assert "Let it run" in answer.content.decode()
    assert "page-changed" in json.loads(answer["HX-Trigger"])


def test_f11_a_key_without_an_address_breaks_no_page(
    admin_client_: Client, redis: Redis, nightly: Schedule
) -> None:
    """Past every check, as by SQL; and a name beside ours on the index of queues."""
    bad = ["two words", "a/b", "{{7*7}}", "a\u202eb"]
    Schedule.objects.bulk_create(
        [Schedule(key=key, queue="reports", handler="x", rule="@daily") for key in bad]
    )
    redis.sadd(keys.QUEUES, "a/b", b"\xff", "")
    follow()
    assert Schedule.objects.exclude(error="").count() == len(bad)

    for page in ("/", URL, "/workers/", "/forecast/", "/causes/", "/operations/", "/activity/", "/metrics"):
        response = admin_client_.get(page)
        assert response.status_code == 200, page
    assert "two words: can&#x27;t fire" in admin_client_.get(URL).content.decode()
