"""Settings and policies: the truth is the database's, Redis gets each change with a version."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as site
from django.core.exceptions import ValidationError
from django.db import OperationalError, connection, transaction
from django.test import override_settings
from django.utils import timezone

from queueops import keys, publishing
from queueops.errors import StoreUnavailable
from queueops.models import OperatorAction, Queue, RetryPolicy, RetryPolicyVersion
from queueops.store import Store
from tests.factories import PERSON, QUEUE, Child, Redis, seed_ready

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def live(redis: Redis) -> Store:
    """The engine as the site has it: on the real clock, asking the database for settings."""
    return Store()


def settings(redis: Redis, queue: str = QUEUE) -> dict[str, str]:
    found = redis.hgetall(keys.queue_key(queue, "settings"))
    return {name.decode(): value.decode() for name, value in found.items()}


def policies(redis: Redis) -> dict[str, Any]:
    return {name.decode(): json.loads(text) for name, text in redis.hgetall(keys.POLICIES).items()}


def patient(**fields: Any) -> RetryPolicy:
    return RetryPolicy(**{"name": "patient", "delays_s": [60, 600], "max_retries": 2, **fields})


# -- a queue's settings ---------------------------------------------------------------------------------


def test_a_queue_without_a_row_has_the_sites_defaults(redis: Redis, live: Store) -> None:
    seed_ready(live, "a")

    assert settings(redis).items() >= {"version": "0", "lease_ms": "30000", "done_keep_ms": "600000"}.items()
    assert "paused" not in settings(redis)


def test_a_change_is_published_with_the_next_version_and_recorded(redis: Redis, live: Store) -> None:
    seed_ready(live, "a")
    publishing.change_queue(
        QUEUE, {"concurrency": 3, "rate_per_s": 2.5, "lease_s": 12.0}, actor=PERSON, reason="gently"
    )

    said = settings(redis)
    assert (said["version"], said["concurrency"], said["rate"], said["lease_ms"]) == (
        "2",
        "3",
        "2.5",
        "12000",
    )
    action = OperatorAction.objects.get()
    assert (action.actor, action.verb, action.queue, action.reason) == (PERSON, "edit_queue", QUEUE, "gently")
    assert action.before == {"concurrency": None, "rate_per_s": None, "lease_s": None}
    assert action.after == {"concurrency": 3, "rate_per_s": 2.5, "lease_s": 12.0}


def test_a_limit_that_is_taken_away_is_taken_away_in_redis(redis: Redis, live: Store) -> None:
    publishing.change_queue(QUEUE, {"concurrency": 3}, actor=PERSON)
    publishing.change_queue(QUEUE, {"concurrency": None}, actor=PERSON)

    assert "concurrency" not in settings(redis)


def test_what_workers_need_not_see_is_no_new_version(redis: Redis, live: Store) -> None:
    publishing.change_queue(QUEUE, {"description": "mails"}, actor=PERSON)

    assert Queue.objects.get().version == 1


def test_pause_and_resume(redis: Redis, live: Store) -> None:
    seed_ready(live, "a")
    until = timezone.now() + timedelta(hours=1)
    publishing.pause(QUEUE, actor=PERSON, reason="the bank is down", until=until, actor_name="ann")
    child = Child(live, "host:1:aa/1").register()

    assert child.claim().word == "paused"
    said = settings(redis)
    assert (said["paused"], said["paused_reason"]) == ("1", "the bank is down")
    assert int(said["paused_until"]) == pytest.approx(until.timestamp() * 1000, abs=1)
    assert Queue.objects.get().paused_by == "ann"

    publishing.resume(QUEUE, actor=PERSON)
    assert [job.id for job in child.take()] == ["a"]
    assert Queue.objects.get().paused_by == ""
    assert [action.verb for action in OperatorAction.objects.order_by("pk")] == ["pause", "resume"]


def test_a_pause_that_ended_is_taken_back_in_the_record_too(redis: Redis, live: Store) -> None:
    publishing.pause(QUEUE, actor=PERSON, until=timezone.now() - timedelta(seconds=1))
    publishing.run_once(live)

    assert Queue.objects.get().paused is False
    assert "paused" not in settings(redis)
    assert OperatorAction.objects.get(verb="resume").actor == "queueops"


def test_a_change_that_is_rolled_back_is_not_published(redis: Redis, live: Store) -> None:
    with transaction.atomic():
        publishing.pause(QUEUE, actor=PERSON)
        transaction.set_rollback(True)

    assert settings(redis) == {}
    assert not Queue.objects.exists()


def test_a_bad_value_names_its_field(redis: Redis, live: Store) -> None:
    with pytest.raises(ValidationError) as caught:
        publishing.change_queue(QUEUE, {"rate_per_s": -1}, actor=PERSON)

    assert list(caught.value.message_dict) == ["rate_per_s"]
    assert not OperatorAction.objects.exists()


def test_redis_away_keeps_the_change_and_publishes_it_later(
    redis: Redis, live: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> bool:
        raise StoreUnavailable("no Redis at redis://nowhere")

    with monkeypatch.context() as without:
        without.setattr(Store, "publish", away)
        with pytest.raises(StoreUnavailable):
            publishing.pause(QUEUE, actor=PERSON)
    assert Queue.objects.get().paused
    assert settings(redis) == {}

    assert publishing.run_once(live) == 1
    assert settings(redis)["paused"] == "1"
    assert publishing.run_once(live) == 0


def test_a_row_that_was_changed_in_another_way_is_published_as_a_new_version(
    redis: Redis, live: Store
) -> None:
    seed_ready(live, "a")
    publishing.run_once(live)
    before = Queue.objects.get().version
    Queue.objects.update(concurrency=3, paused=True, paused_reason="by hand")

    assert publishing.run_once(live) == 1

    said = settings(redis)
    assert (said["concurrency"], said["paused"], said["paused_reason"]) == ("3", "1", "by hand")
    assert int(said["version"]) == Queue.objects.get().version == before + 1
    row = Queue.objects.get()
    row.concurrency, row.paused, row.paused_reason = None, False, ""
    row.save()
    assert publishing.run_once(live) == 1
    assert settings(redis).keys().isdisjoint({"concurrency", "paused", "paused_reason"})
    assert publishing.run_once(live) == 0


def test_a_default_of_the_site_that_was_changed_is_published(redis: Redis, live: Store) -> None:
    seed_ready(live, "a")
    publishing.change_queue("reports", {"lease_s": 12.0}, actor=PERSON)
    publishing.run_once(live)

    with override_settings(QUEUEOPS={**site.QUEUEOPS, "LEASE_S": "7"}):
        assert publishing.run_once(live) == 1

        assert (settings(redis)["lease_ms"], settings(redis, "reports")["lease_ms"]) == ("7000", "12000")
        assert publishing.run_once(live) == 0


# -- a lost Redis -----------------------------------------------------------------------------------------


def test_a_lost_redis_does_not_resume_a_queue(redis: Redis, live: Store) -> None:
    publishing.pause(QUEUE, actor=PERSON)
    redis.flushall()
    seed_ready(live, "a")  # finds no settings, and publishes the row's
    child = Child(live, "host:1:aa/1").register()

    assert child.claim().word == "paused"


def test_while_the_database_is_away_an_unknown_queue_is_held_back(
    redis: Redis, live: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    publishing.pause(QUEUE, actor=PERSON)
    publishing.resume(QUEUE, actor=PERSON)
    redis.flushall()
    with monkeypatch.context() as without:

        def away(*_: object) -> None:
            raise OperationalError("connection refused")

        without.setattr(connection, "cursor", away)
        seed_ready(live, "a")
        child = Child(live, "host:1:aa/1").register()
        assert child.claim().word == "paused"
        assert settings(redis)["paused_reason"] == publishing.UNKNOWN

    publishing.run_once(live)
    assert [job.id for job in child.take()] == ["a"]


def test_a_new_epoch_publishes_everything_again(redis: Redis, live: Store) -> None:
    publishing.change_queue(QUEUE, {"concurrency": 3}, actor=PERSON)
    publishing.save_policy(patient(), actor=PERSON)
    redis.flushall()

    assert publishing.run_once(live) == 1
    assert settings(redis)["concurrency"] == "3"
    assert list(policies(redis)) == ["patient"]
    assert redis.smembers(keys.QUEUES) == {QUEUE.encode()}


def test_a_database_from_a_backup_publishes_over_what_is_newer(redis: Redis, live: Store) -> None:
    for limit in (1, 2, 3, 4):
        publishing.change_queue(QUEUE, {"concurrency": limit}, actor=PERSON)
    Queue.objects.update(version=2, concurrency=9)

    publishing.run_once(live)

    assert settings(redis)["concurrency"] == "9"
    assert int(settings(redis)["version"]) == Queue.objects.get().version == 6
    assert publishing.run_once(live) == 0


def test_queues_that_only_redis_knows_get_a_row(redis: Redis, live: Store) -> None:
    seed_ready(live, "a", queue="newcomer")
    publishing.run_once(live)

    assert Queue.objects.get().name == "newcomer"
    assert settings(redis, "newcomer")["version"] == "1"


def test_g15_a_name_that_no_queue_can_have_is_passed_over(redis: Redis, live: Store) -> None:
    seed_ready(live, "a")
    Queue.objects.bulk_create([Queue(name="a/b")])  # past every check
    redis.sadd(keys.QUEUES, "c/d")

    publishing.run_once(live)

    assert redis.hlen(keys.queue_key("a/b", "settings")) == 0
    assert not redis.sismember(keys.QUEUES, "a/b")
    assert sorted(Queue.objects.values_list("name", flat=True)) == ["a/b", QUEUE]
    assert publishing.run_once(live) == 0


# -- policies ------------------------------------------------------------------------------------------


def test_each_save_that_changes_a_policy_is_a_new_version(redis: Redis, live: Store) -> None:
    seed_ready(live, "a")
    policy = publishing.save_policy(patient(), actor=PERSON)
    policy.delays_s = [60, 900]
    publishing.save_policy(policy, actor=PERSON, actor_name="ann")
    publishing.save_policy(policy, actor=PERSON)  # nothing changed

    versions = RetryPolicyVersion.objects.order_by("version")
    assert [(each.version, each.definition["delays_s"]) for each in versions] == [
        (1, [60.0, 600.0]),
        (2, [60.0, 900.0]),
    ]
    assert versions[0].policy_then().delays_s == (60.0, 600.0)
    assert versions[1].saved_by == "ann"
    assert policies(redis)["patient"]["version"] == 2
    assert OperatorAction.objects.filter(verb="edit_policy").count() == 3


def test_each_save_of_the_model_that_changes_a_policy_is_a_new_version_too(redis: Redis, live: Store) -> None:
    policy = RetryPolicy.objects.create(name="patient", delays_s=[60], max_retries=1)
    policy.save()
    policy.delays_s = [90]
    policy.save(update_fields=["delays_s"])

    versions = RetryPolicyVersion.objects.order_by("version")
    assert [(each.version, each.definition["delays_s"]) for each in versions] == [(1, [60.0]), (2, [90.0])]
    assert RetryPolicy.objects.get().version == policy.version == 2
    publishing.run_once(live)
    assert (policies(redis)["patient"]["version"], policies(redis)["patient"]["delays_s"]) == (2, [90.0])


def test_a_policy_that_was_changed_past_the_model_gets_its_version(redis: Redis, live: Store) -> None:
    seed_ready(live, "a")
    publishing.save_policy(patient(), actor=PERSON)
    RetryPolicy.objects.update(max_retries=1)

    publishing.run_once(live)

    assert RetryPolicy.objects.get().version == policies(redis)["patient"]["version"] == 2
    assert RetryPolicyVersion.objects.get(version=2).definition["max_retries"] == 1
    assert publishing.run_once(live) == 0


def test_a_policy_that_was_deleted_and_made_again_goes_on_counting(redis: Redis, live: Store) -> None:
    publishing.delete_policy(publishing.save_policy(patient(), actor=PERSON), actor=PERSON)
    again = publishing.save_policy(patient(max_retries=1), actor=PERSON)

    assert again.version == policies(redis)["patient"]["version"] == 2
    assert sorted(RetryPolicyVersion.objects.values_list("version", "policy")) == [(1, None), (2, again.pk)]


def test_c15_a_policy_that_can_not_be_keeps_no_other_from_being_published(
    redis: Redis, live: Store, caplog: pytest.LogCaptureFixture
) -> None:
    publishing.save_policy(patient(), actor=PERSON)
    RetryPolicy.objects.update(delays_s=[-5])
    RetryPolicy.objects.bulk_create([RetryPolicy(name="wild"), RetryPolicy(name="calm", delays_s=[1])])

    publishing.run_once(live)
    publishing.run_once(live)

    assert {name: said["delays_s"] for name, said in policies(redis).items()} == {
        "patient": [60.0, 600.0], "calm": [1.0],
    }  # fmt: skip
    assert len([line for line in caplog.messages if "can't be used" in line]) == 2


def test_a_saved_policy_gives_every_queue_a_new_version(redis: Redis, live: Store) -> None:
    seed_ready(live, "a")
    seed_ready(live, "b", queue="reports")
    publishing.run_once(live)
    publishing.save_policy(patient(), actor=PERSON)

    assert settings(redis)["version"] == settings(redis, "reports")["version"] == "2"


def test_a_default_policy_is_published_by_its_name(redis: Redis, live: Store) -> None:
    policy = publishing.save_policy(patient(), actor=PERSON)
    publishing.change_queue(QUEUE, {"default_policy": policy}, actor=PERSON)
    assert settings(redis)["policy"] == "patient"

    publishing.delete_policy(policy, actor=PERSON)
    assert "policy" not in settings(redis)
    assert policies(redis) == {}
    assert RetryPolicyVersion.objects.get().policy is None


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"base_s": -1.0, "delays_s": []}, "base_s"),
        ({"base_s": 0.0, "delays_s": []}, "base_s"),
        ({"base_s": 10.0, "cap_s": 5.0, "delays_s": []}, "base_s"),
        ({"jitter_ratio": 1.5}, "jitter_ratio"),
        ({"factor": 0.5}, "factor"),
        ({"cap_s": 0.0}, "cap_s"),
        ({"delays_s": [1.0] * 10_000}, "delays_s"),
        ({"delays_s": [-5]}, "delays_s"),
        ({"delays_s": []}, "delays_s"),
        ({"max_retries": 10**9}, "max_retries"),
        ({"fatal": ["not a name!"]}, "fatal"),
        ({"done_keep_s": 5.0}, "done_keep_s"),
    ],
)
def test_c15_a_policy_that_can_not_be_is_refused_at_its_field(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        publishing.save_policy(patient(**fields), actor=PERSON)

    assert name in caught.value.message_dict
    assert not RetryPolicy.objects.exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"base_s": 0}, {"base_s": -1}, {"base_s": 1e309}, {"factor": 0}, {"factor": 0.5}, {"factor": 1e309},
        {"cap_s": 0}, {"base_s": 100, "cap_s": 10}, {"max_retries": -1}, {"max_retries": 10**9},
        {"jitter_ratio": 1.5}, {"jitter_ratio": -0.1}, {"jitter": "wild"}, {"hard_limit_s": 0}, {"name": ""},
        {"version": 0},
    ],
)  # fmt: skip
def test_c15_the_database_refuses_it_too(fields: dict[str, Any]) -> None:
    """Past the form, straight through the ORM."""
    from django.db import DatabaseError

    with pytest.raises(DatabaseError), transaction.atomic():
        RetryPolicy.objects.create(**{"name": "wild", "delays_s": [1], **fields})


def test_publishing_takes_far_less_than_two_seconds(redis: Redis, live: Store) -> None:
    for number in range(50):
        seed_ready(live, "a", queue=f"q{number}")
    publishing.run_once(live)
    began = time.monotonic()
    publishing.save_policy(patient(), actor=PERSON)

    assert time.monotonic() - began < 1.5
    assert {settings(redis, f"q{number}")["version"] for number in range(50)} == {"2"}
