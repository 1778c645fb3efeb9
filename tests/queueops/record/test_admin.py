"""The admin: policies with what they would do before they are saved, queue settings, the record to read."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse

from queueops import keys, publishing
from queueops.admin.fields import seconds, words
from queueops.admin.storm import storm_of
from queueops.errors import StoreUnavailable
from queueops.mirror import run_once
from queueops.models import (
    Job,
    Operation,
    OperatorAction,
    Queue,
    RetryPolicy,
    RetryPolicyVersion,
)
from queueops.payload import encode_spec
from queueops.policies import DEFAULT_POLICY, Jitter, delay_before_jitter_s, preview
from queueops.policies import RetryPolicy as Policy
from queueops.store import Store
from tests.factories import PERSON, QUEUE, Child, Redis, new, run_at, seed_dead, seed_ready

pytestmark = pytest.mark.django_db(transaction=True)
FIELDS: dict[str, Any] = {
    "name": "patient", "description": "", "max_retries": "3", "delays_s": "", "base_s": "1 min",
    "factor": "2", "cap_s": "", "jitter": "ratio", "jitter_ratio": "0.2",
    "fatal": "ValueError\nshop.errors.Declined",
    "honour_retry_after": "on", "soft_limit_s": "", "hard_limit_s": "", "max_rescues": "", "done_keep_s": "",
    "discarded_keep_s": "", "reason": "gentler", "versions-TOTAL_FORMS": "0", "versions-INITIAL_FORMS": "0",
}  # fmt: skip
ADD = "/admin/queueops/retrypolicy/add/"
PREVIEW = "/admin/queueops/retrypolicy/preview/"


def person(name: str, *groups: str) -> Client:
    user = User.objects.create_user(name, is_staff=True)
    user.groups.set(Group.objects.filter(name__in=groups))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def ann(redis: Redis) -> Client:
    """A member of the group Admin."""
    return person("ann", "Admin")


def errors_of(response: Any) -> dict[str, list[str]]:
    form = response.context["adminform"].form
    return {name: list(texts) for name, texts in form.errors.items()}


# -- policies ----------------------------------------------------------------------------------


def test_a_policy_is_saved_published_and_recorded(redis: Redis, ann: Client) -> None:
    response = ann.post(ADD, FIELDS)

    assert response.status_code == 302
    row = RetryPolicy.objects.get()
    assert (row.base_s, row.fatal, row.version) == (60.0, ["ValueError", "shop.errors.Declined"], 1)
    published = json.loads(redis.hget(keys.POLICIES, "patient"))
    assert published["base_s"] == 60.0
    action = OperatorAction.objects.get()
    assert (action.actor_name, action.verb, action.reason) == ("ann", "edit_policy", "gentler")
    assert RetryPolicyVersion.objects.get().saved_by == "ann"


def test_an_edit_is_a_new_version_and_shows_the_old_ones(redis: Redis, ann: Client) -> None:
    ann.post(ADD, FIELDS)
    url = reverse("admin:queueops_retrypolicy_change", args=[RetryPolicy.objects.get().pk])
    ann.post(url, {**FIELDS, "factor": "3"})
    page = ann.get(url).content.decode()

    assert RetryPolicy.objects.get().version == 2
    assert "3 retries after 1 min, 2 min and 4 min, each ±20 %" in page  # version 1
    assert "3 retries after 1 min, 3 min and 9 min, each ±20 %" in page


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"base_s": "-5"}, "base_s"),
        ({"base_s": "", "delays_s": "5 s, -1 s"}, "delays_s"),
        ({"base_s": "10 min", "cap_s": "5 min"}, "base_s"),
        ({"jitter_ratio": "1.5"}, "jitter_ratio"),
        ({"jitter_ratio": "NaN"}, "jitter_ratio"),
        ({"max_retries": "-1"}, "max_retries"),
        ({"max_retries": "1000000000"}, "max_retries"),
        ({"max_retries": "many"}, "max_retries"),
        ({"base_s": "", "delays_s": ",".join(["5"] * 10_000)}, "delays_s"),
        ({"base_s": "soon"}, "base_s"),
        ({"base_s": "1e309"}, "base_s"),
        ({"base_s": "inf"}, "base_s"),
        ({"base_s": "0"}, "base_s"),
        ({"cap_s": "0"}, "cap_s"),
        ({"factor": "0.5"}, "factor"),
        ({"factor": "0"}, "factor"),
        ({"factor": "1e309"}, "factor"),
        ({"fatal": "not a name!"}, "fatal"),
        ({"base_s": ""}, "delays_s"),
        ({"soft_limit_s": "2 h", "hard_limit_s": "1 h"}, "soft_limit_s"),
        ({"done_keep_s": "10 s"}, "done_keep_s"),
        ({"name": ""}, "name"),
    ],
)
def test_c15_what_can_not_be_is_told_at_its_field(ann: Client, changes: dict[str, str], field: str) -> None:
    response = ann.post(ADD, FIELDS | changes)

    assert response.status_code == 200
    assert list(errors_of(response)) == [field]
    assert not RetryPolicy.objects.exists()


def test_c05_a_base_over_no_cap_is_the_first_delay_and_the_preview_is_what_happens(ann: Client) -> None:
    page = ann.get(PREVIEW, FIELDS | {"base_s": "3600", "factor": "2", "max_retries": "5"}).content.decode()
    policy = Policy(base_s=3_600.0, factor=2.0, max_retries=5)

    assert [delay_before_jitter_s(policy, n) for n in range(1, 6)] == [3_600, 7_200, 14_400, 28_800, 57_600]
    for text in ("1 h", "2 h", "4 h", "8 h", "16 h"):
        assert f"<td>{text}</td>" in page
    assert [each.delay_s for each in preview(policy)] == [3_600, 7_200, 14_400, 28_800, 57_600]


def test_c08_a_policy_that_never_retries_says_so(ann: Client) -> None:
    page = ann.get(PREVIEW, FIELDS | {"max_retries": "0"}).content.decode()
    assert "No retries" in page
    assert "The delays are never used." in page

    response = ann.post(ADD, FIELDS | {"max_retries": "0"}, follow=True)
    assert "No retries: the first error makes the job dead." in response.content.decode()


def test_the_preview_saves_nothing_and_names_what_is_wrong(ann: Client) -> None:
    fragment = ann.get(PREVIEW, FIELDS, headers={"X-Requested-With": "XMLHttpRequest"}).content.decode()
    wrong = ann.get(PREVIEW, FIELDS | {"base_s": "-1"}).content.decode()

    assert "<html" not in fragment
    assert "48 s to 1 min 12 s" in fragment
    assert fragment.count("<svg") == 3 + 2
    assert "must not be negative" in wrong
    assert not RetryPolicy.objects.exists()


def test_the_form_shows_the_preview_of_what_is_stored(ann: Client) -> None:
    ann.post(ADD, FIELDS)
    url = reverse("admin:queueops_retrypolicy_change", args=[RetryPolicy.objects.get().pk])
    page = ann.get(url).content.decode()

    assert "3 retries after 1 min, 2 min and 4 min, each ±20 %." in page
    assert "the same without jitter" in page


def test_no_page_of_ours_has_inline_script_or_style(ann: Client) -> None:
    for url in (ADD, PREVIEW):
        page = ann.get(url).content.decode()
        assert not re.search(r"<[^>]+\sstyle=", page)
        assert not re.search(r"<script(?![^>]*\bsrc=)(?![^>]*application/json)[^>]*>\s*\S", page)
        assert not re.search(r"\son\w+=", page)


def test_redis_away_saves_and_says_that_workers_will_see_it_later(
    ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("no Redis at redis://nowhere")

    monkeypatch.setattr(publishing, "_publish_all", away)
    response = ann.post(ADD, FIELDS, follow=True)

    assert RetryPolicy.objects.get().name == "patient"
    assert "as soon as Redis is back" in response.content.decode()


def test_waiting_retries_follow_a_changed_policy_by_a_bulk_action(redis: Redis, ann: Client) -> None:
    store = Store()
    policy = publishing.save_policy(
        RetryPolicy(name="patient", delays_s=[600], max_retries=4, jitter="none"), actor=PERSON
    )
    ours, others = encode_spec("shop.charge", policy="patient"), encode_spec("shop.charge")
    store.enqueue(QUEUE, [new("a", spec=ours), new("b", spec=others), new("c", spec=ours)])
    child = Child(store, "host:1:aa/1").register()
    jobs = {job.id: job for job in child.take(3)}
    child.retry(jobs["a"], jobs["b"], delay_s=600)
    child.release(jobs["c"])
    later = {name: run_at(redis, name) for name in ("a", "b")}

    url = reverse("admin:queueops_retrypolicy_change", args=[policy.pk])
    changed = FIELDS | {"base_s": "", "delays_s": "2 h", "jitter": "none", "max_retries": "4"}
    ann.post(url, changed | {"apply_to_waiting": "on"})
    operation = Operation.objects.get()
    from queueops.operations import Runner

    Runner(operation.pk, store=store).run()

    operation.refresh_from_db()
    assert (operation.verb, operation.status, operation.done) == ("reschedule", "finished", 1)
    assert run_at(redis, "a") == pytest.approx(later["a"] + 6_600_000, abs=1_000)
    assert run_at(redis, "b") == later["b"]


def test_c15_a_policy_that_can_not_be_is_told_and_its_page_opens(redis: Redis, ann: Client) -> None:
    RetryPolicy.objects.bulk_create([RetryPolicy(name="wild")])  # past every check

    listed = ann.get("/admin/queueops/retrypolicy/")
    opened = ann.get(reverse("admin:queueops_retrypolicy_change", args=[RetryPolicy.objects.get().pk]))

    assert (listed.status_code, opened.status_code) == (200, 200)
    assert "be used: delays_s: give a list of delays" in listed.content.decode()


def test_deleting_a_policy_leaves_its_versions(redis: Redis, ann: Client) -> None:
    ann.post(ADD, FIELDS)
    pk = RetryPolicy.objects.get().pk
    ann.post(reverse("admin:queueops_retrypolicy_delete", args=[pk]), {"post": "yes"})

    assert not RetryPolicy.objects.exists()
    assert RetryPolicyVersion.objects.count() == 1
    assert not redis.hexists(keys.POLICIES, "patient")


# -- queue settings ----------------------------------------------------------------------------

QUEUE_FIELDS = {
    "name": QUEUE, "description": "", "paused_reason": "", "paused_until_0": "", "paused_until_1": "",
    "concurrency": "", "rate_per_s": "", "rate_burst": "", "default_policy": "", "lease_s": "",
    "max_rescues": "", "done_keep_s": "", "discarded_keep_s": "", "record_done_s": "",
    "record_discarded_s": "", "record_dead_s": "", "audit": "", "events_max": "", "reason": "why",
}  # fmt: skip
ADD_QUEUE = "/admin/queueops/queue/add/"


def test_queue_settings_are_saved_and_published(redis: Redis, ann: Client) -> None:
    ann.post(ADD_QUEUE, QUEUE_FIELDS | {"lease_s": "45 s", "concurrency": "5", "done_keep_s": "1 h"})

    said = redis.hgetall(keys.queue_key(QUEUE, "settings"))
    assert (said[b"lease_ms"], said[b"concurrency"], said[b"done_keep_ms"]) == (b"45000", b"5", b"3600000")
    action = OperatorAction.objects.get()
    assert (action.verb, action.actor_name, action.reason) == ("edit_queue", "ann", "why")
    assert action.after == {"concurrency": 5, "lease_s": 45.0, "done_keep_s": 3600.0}


def test_a_queue_is_paused_with_a_reason_and_an_end(redis: Redis, ann: Client) -> None:
    ann.post(ADD_QUEUE, QUEUE_FIELDS)
    url = reverse("admin:queueops_queue_change", args=[QUEUE])
    until = {"paused_until_0": "2030-01-01", "paused_until_1": "08:00:00"}
    ann.post(url, QUEUE_FIELDS | until | {"paused": "on", "paused_reason": "the bank is down"})

    said = redis.hgetall(keys.queue_key(QUEUE, "settings"))
    assert (said[b"paused"], said[b"paused_until"]) == (b"1", b"1893484800000")
    assert OperatorAction.objects.filter(verb="pause").count() == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"lease_s": "-5"}, "lease_s"),
        ({"lease_s": "0.1 s"}, "lease_s"),
        ({"lease_s": "long"}, "lease_s"),
        ({"rate_per_s": "0"}, "rate_per_s"),
        ({"rate_per_s": "-1"}, "rate_per_s"),
        ({"rate_per_s": "inf"}, "rate_per_s"),
        ({"rate_burst": "5"}, "rate_burst"),
        ({"concurrency": "0"}, "concurrency"),
        ({"concurrency": "x"}, "concurrency"),
        ({"done_keep_s": "1 min"}, "done_keep_s"),
        ({"events_max": "1"}, "events_max"),
        ({"paused_reason": "why"}, "paused_reason"),
        ({"paused_until_0": "2030-01-01", "paused_until_1": "08:00"}, "paused_until"),
        ({"name": "no queue!"}, "name"),
        ({"audit": "some"}, "audit"),
    ],
)
def test_a_wrong_setting_is_told_at_its_field(ann: Client, changes: dict[str, str], field: str) -> None:
    response = ann.post(ADD_QUEUE, QUEUE_FIELDS | changes)

    assert response.status_code == 200
    assert list(errors_of(response)) == [field]
    assert not Queue.objects.exists()


def test_an_operator_may_pause_and_change_nothing_else(redis: Redis, ann: Client) -> None:
    ann.post(ADD_QUEUE, QUEUE_FIELDS)
    bob = person("bob", "Operator")
    url = reverse("admin:queueops_queue_change", args=[QUEUE])
    bob.post(url, QUEUE_FIELDS | {"paused": "on", "concurrency": "1"})

    row = Queue.objects.get()
    assert (row.paused, row.concurrency) == (True, None)
    assert bob.post(ADD, FIELDS).status_code == 403


# -- the record, to read -----------------------------------------------------------------------

READ_ONLY = (
    "job", "jobevent", "attempt", "effect", "mirrorstate", "setasideevent", "operation", "operatoraction",
    "workerrecord",
)  # fmt: skip


@pytest.mark.parametrize("name", READ_ONLY)
def test_the_record_is_read_only_for_everybody(ann: Client, name: str) -> None:
    root = Client()
    root.force_login(User.objects.create_superuser("root"))

    assert root.get(f"/admin/queueops/{name}/").status_code == 200
    assert root.get(f"/admin/queueops/{name}/add/").status_code == 403
    assert person("viewer", "Viewer").get(f"/admin/queueops/{name}/").status_code == 200
    assert person("nobody").get(f"/admin/queueops/{name}/").status_code == 403


def test_a_job_can_be_looked_at_and_its_secrets_not(redis: Redis, ann: Client) -> None:
    store = Store()
    spec = encode_spec("shop.charge", [1], {"password": "hunter2", "note": "</textarea><script>x</script>"})
    child = Child(store, "host:1:aa/1")
    seed_dead(child, "a", spec=spec)
    run_once(store)
    url = reverse("admin:queueops_job_change", args=[Job.objects.get().pk])
    page = ann.get(url)

    text = page.content.decode()
    assert page.status_code == 200
    assert "hunter2" not in text
    assert "<script>x" not in text
    assert "it failed" in text
    assert ann.post(url, {"state": "done"}).status_code == 403
    assert ann.post(reverse("admin:queueops_job_delete", args=[Job.objects.get().pk])).status_code == 403


def test_a_permission_alone_is_enough(redis: Redis) -> None:
    client = person("carol")
    User.objects.get(username="carol").user_permissions.add(
        Permission.objects.get(codename="edit_policy", content_type__app_label="queueops")
    )

    assert client.get(ADD).status_code == 200


# -- durations and plots -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5 h", 5_400),
        ("1 h 30 min", 5_400),
        ("2d", 172_800),
        ("250 ms", 0.25),
        ("1 w", 604_800),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("value", [0.0, 1.0, 90.0, 5_400.0, 86_400.0, 90_061.0, 0.25, 1e-3, 1234567.0])
def test_a_duration_is_written_so_that_it_is_read_again(value: float) -> None:
    assert seconds(words(value)) == value


def test_the_storm_without_jitter_is_the_higher_one() -> None:
    plain = Policy(delays_s=(60.0,), max_retries=1)
    drawn = storm_of(plain)

    assert drawn.without.peak == 10_000
    assert 0 < drawn.ours.peak < 1_000
    assert drawn.ours.path.startswith("M0 120")
    assert storm_of(Policy(max_retries=0, delays_s=(5.0,))).ours.peak == 0
    assert storm_of(DEFAULT_POLICY).ours.path == storm_of(DEFAULT_POLICY).ours.path
    unjittered = storm_of(Policy(delays_s=(5.0,), jitter=Jitter.NONE))
    assert unjittered.ours.peak == unjittered.without.peak


def test_a_queue_that_redis_made_can_be_opened(redis: Redis, ann: Client) -> None:
    store = Store()
    seed_ready(store, "a")
    publishing.run_once(store)

    assert ann.get(reverse("admin:queueops_queue_change", args=[QUEUE])).status_code == 200
