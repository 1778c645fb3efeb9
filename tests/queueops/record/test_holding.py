"""Holds as people set and lift them: recorded, published with the settings, and over by themselves."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db import transaction

from queueops import holding, keys, publishing
from queueops.errors import StoreUnavailable
from queueops.holds import MOST_HOLDS
from queueops.inspector import Inspector
from queueops.job import from_ms
from queueops.mirror import run_once as run_mirror
from queueops.models import OperatorAction, Queue, QueueHold
from queueops.payload import encode_spec
from queueops.rebuild import rebuild
from queueops.store import Store
from tests.factories import PERSON, QUEUE, Child, Redis, job, seed_ready, state

pytestmark = pytest.mark.django_db(transaction=True)

CHARGE = encode_spec("shop.charge", [1])


@pytest.fixture
def live(redis: Redis) -> Store:
    """The engine as the site has it: on the real clock, asking the database for settings."""
    return Store()


def run(*words: str) -> str:
    out = StringIO()
    call_command(*words, stdout=out)
    return out.getvalue()


def test_a_hold_is_published_and_recorded_and_so_is_its_end(redis: Redis, live: Store) -> None:
    child = Child(live, "host:1:aa/1").register()
    seed_ready(live, "a", spec=CHARGE)
    seed_ready(live, "b", spec=encode_spec("shop.mail"))

    held = holding.hold(QUEUE, "handler", "shop.charge", actor=PERSON, actor_name="ann", reason="API down")
    assert [each.id for each in child.take()] == ["b"]
    assert job(redis, "a")["held"] == str(held.pk)
    (seen,) = Inspector().summary(QUEUE).holds
    assert (str(seen), seen.reason, seen.by, seen.jobs) == ("handler shop.charge", "API down", "ann", 1)

    assert holding.lift(QUEUE, "handler", "shop.charge", actor=PERSON, reason="fixed")
    assert [each.id for each in child.take()] == ["a"]
    assert not holding.lift(QUEUE, "handler", "shop.charge", actor=PERSON)

    lifted, was = OperatorAction.objects.all()[:2]
    assert (was.verb, was.queue, was.filter, was.reason) == (
        "hold", QUEUE, {"handler": "shop.charge"}, "API down",
    )  # fmt: skip
    assert (was.before, was.after) == (None, {"reason": "API down", "until": None, "by": "ann"})
    assert (lifted.verb, lifted.before, lifted.reason) == ("lift", was.after, "fixed")
    assert not QueueHold.objects.exists()


def test_a_hold_that_is_set_again_gets_another_end_and_stays_one(redis: Redis, live: Store) -> None:
    until = from_ms(Inspector().now_ms()) + timedelta(hours=1)
    first = holding.hold(QUEUE, "tag", "customer=42", actor=PERSON)
    again = holding.hold(QUEUE, "tag", "customer=42", actor=PERSON, until=until, reason="an hour more")

    assert (again.pk, again.until) == (first.pk, until)
    assert [hold.reason for hold in Inspector().summary(QUEUE).holds] == ["an hour more"]
    assert OperatorAction.objects.first().before == {"reason": "", "until": None, "by": PERSON}  # type: ignore[union-attr]


def test_a_hold_survives_the_loss_of_redis(redis: Redis, live: Store) -> None:
    holding.hold(QUEUE, "handler", "shop.charge", actor=PERSON)
    redis.flushall()
    child = Child(live, "host:1:aa/1").register()
    seed_ready(live, "a", spec=CHARGE)

    assert child.take() == []
    assert state(redis, "a") == "delayed"


def test_a_held_job_that_redis_lost_is_rebuilt_and_held_again_and_lifted(redis: Redis, live: Store) -> None:
    """Its record says when it was due, not when its hold would end, which may be never."""
    holding.hold(QUEUE, "handler", "shop.charge", actor=PERSON)
    child = Child(live, "host:1:aa/1").register()
    seed_ready(live, "a", "b", spec=CHARGE)
    assert child.take() == []
    run_mirror(live)
    redis.flushall()

    rebuild(live, actor=PERSON)
    child = Child(live, "host:2:bb/1").register()

    assert child.take() == []
    assert "held" in job(redis, "a")
    holding.lift(QUEUE, "handler", "shop.charge", actor=PERSON)
    assert {each.id for each in child.take()} == {"a", "b"}


def test_a_hold_is_over_by_redis_time_and_its_row_follows(redis: Redis, live: Store) -> None:
    until = from_ms(Inspector().now_ms()) + timedelta(hours=1)
    holding.hold(QUEUE, "handler", "shop.charge", actor=PERSON, until=until)
    holding.hold(QUEUE, "handler", "shop.mail", actor=PERSON)
    child = Child(live, "host:1:aa/1").register()
    seed_ready(live, "a", spec=CHARGE)
    child.take()
    assert holding.run_once(live) == 0

    later = Store(now_ms=f"+{3_600_000}")
    child.store = later
    child.register()
    assert [each.id for each in child.take()] == ["a"]
    assert holding.run_once(later) == 1

    assert [row.value for row in QueueHold.objects.all()] == ["shop.mail"]
    action = OperatorAction.objects.get(verb="lift")
    assert (action.actor, action.reason[:11]) == ("queueops", "it ended at")


def test_a_hold_that_is_rolled_back_is_never_published(redis: Redis, live: Store) -> None:
    publishing.change_queue(QUEUE, {"description": "x"}, actor=PERSON)

    def hold_and_fail() -> None:
        with transaction.atomic():
            holding.hold(QUEUE, "handler", "shop.charge", actor=PERSON)
            raise RuntimeError("something else failed")

    with pytest.raises(RuntimeError, match="something else"):
        hold_and_fail()

    assert Inspector().summary(QUEUE).holds == ()


def test_without_redis_a_hold_stands_and_is_published_when_it_is_back(redis: Redis, live: Store) -> None:
    from queueops.connection import Connection

    gone = Store(Connection("redis://127.0.0.1:1/0", retries=0))
    with pytest.raises(StoreUnavailable):
        holding.hold(QUEUE, "handler", "shop.charge", actor=PERSON, store=gone)
    assert QueueHold.objects.count() == 1

    publishing.run_once(live)

    assert [str(hold) for hold in Inspector().summary(QUEUE).holds] == ["handler shop.charge"]


def test_too_many_holds_are_refused(redis: Redis, live: Store) -> None:
    for number in range(MOST_HOLDS):
        holding.hold(QUEUE, "tag", f"customer={number}", actor=PERSON)

    with pytest.raises(ValidationError, match="each claim reads them all"):
        holding.hold(QUEUE, "tag", "customer=x", actor=PERSON)
    holding.hold(QUEUE, "tag", "customer=1", actor=PERSON, reason="one that is there")
    with pytest.raises(ValueError, match="name=value"):
        holding.hold(QUEUE, "tag", "customer", actor=PERSON)


def test_a_queue_without_holds_publishes_no_field_of_them(redis: Redis, live: Store) -> None:
    holding.hold(QUEUE, "handler", "shop.charge", actor=PERSON)
    holding.lift(QUEUE, "handler", "shop.charge", actor=PERSON)

    assert redis.hget(keys.queue_key(QUEUE, "settings"), "holds") is None
    assert Queue.objects.get(name=QUEUE).version > 1


def test_hold_and_lift_as_commands(redis: Redis, live: Store) -> None:
    seed_ready(live, "a", spec=CHARGE)

    assert run("hold", QUEUE, "--handler", "shop.charge", "--reason", "API down") == (
        "handler shop.charge of mail is held\n"
    )
    Child(live, "host:1:aa/1").register().take()
    assert "held: handler shop.charge (1)" in run("queues")
    assert "until" in run("hold", QUEUE, "--tag", "customer=42", "--for", "30m")
    assert run("lift", QUEUE, "--handler", "shop.charge") == "handler shop.charge of mail goes on\n"

    for words, said in (
        (["lift", QUEUE, "--handler", "shop.charge"], "mail has no hold on handler shop.charge"),
        (["hold", QUEUE, "--tag", "customer"], "a tag is named as name=value"),
        (["hold", "nowhere", "--tag", "a=b"], "no queue is named nowhere"),
        (["hold", QUEUE], "one of the arguments --handler --cause --tag is required"),
    ):
        with pytest.raises(CommandError, match=said):
            run(*words)
