"""once(): database work of a handler is done once, however often its job is delivered."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, connections, transaction
from django.utils import timezone

from queueops import current_job, keys, once
from queueops.current import running
from queueops.errors import LostLease, WrongDatabase
from queueops.job import Delivery
from queueops.mirror import copy_events
from queueops.models import Effect, Job
from queueops.store import Store
from tests.factories import PERSON, QUEUE, Child, Redis, seed_pending, seed_ready, set_up, state

pytestmark = pytest.mark.django_db(transaction=True)


def delivery(job_id: str = "a", number: int = 1, edition: int = 0) -> Delivery:
    return Delivery(QUEUE, job_id, number, 0, 0, edition, True, 0, b"")


class _Broke(Exception):
    """What a handler raises."""


def charge() -> int:
    """What must be done once."""
    Group.objects.create(name=f"charge {Group.objects.filter(name__startswith='charge').count()}")
    return 7


def charges() -> int:
    return Group.objects.filter(name__startswith="charge").count()


def test_a_later_delivery_gets_the_recorded_result() -> None:
    with running(delivery(number=1)):
        assert once("charge", charge) == 7
    with running(delivery(number=2)):
        assert once("charge", charge) == 7

    assert charges() == 1
    effect = Effect.objects.get()
    assert (effect.queue, effect.idempotency_key, effect.key, effect.delivery) == (QUEUE, "a", "charge", 1)


def test_the_same_step_of_one_run_is_done_once_too() -> None:
    with running(delivery()):
        once("charge", charge)
        once("charge", charge)

    assert charges() == 1


def test_the_result_is_as_json_gives_it_also_the_first_time() -> None:
    moment = timezone.now()
    with running(delivery()):
        first = once("x", lambda: {"pair": (1, 2), "at": moment})
        again = once("x", lambda: None)

    assert first == again == {"pair": [1, 2], "at": moment}


def test_steps_jobs_queues_and_editions_are_apart() -> None:
    for step, given in (
        ("charge", delivery()),
        ("receipt", delivery()),
        ("charge", delivery("b")),
        ("charge", delivery(edition=1)),
        ("charge", Delivery("other", "a", 1, 0, 0, 0, True, 0, b"")),
    ):
        with running(given):
            once(step, charge)

    assert charges() == 5


def test_what_raises_is_not_recorded_and_its_work_is_undone() -> None:
    def fail() -> None:
        charge()
        raise _Broke

    with running(delivery()):
        with pytest.raises(_Broke):
            once("charge", fail)
        assert charges() == 0
        once("charge", charge)

    assert charges() == 1


def test_a_result_that_is_no_json_undoes_the_work() -> None:
    def work() -> object:
        charge()
        return object()

    with running(delivery()), pytest.raises(TypeError, match=r"the result of once\('charge'\)"):
        once("charge", work)

    assert charges() == 0
    assert not Effect.objects.exists()


def test_once_may_be_nested_with_another_key() -> None:
    def outer() -> int:
        return 1 + int(once("inner", charge))

    with running(delivery()):
        assert once("outer", outer) == 8
        assert once("inner", charge) == 7

    assert charges() == 1


def test_an_outer_step_that_fails_takes_the_inner_with_it() -> None:
    def outer() -> None:
        once("inner", charge)
        raise _Broke

    with running(delivery()), pytest.raises(_Broke):
        once("outer", outer)

    assert charges() == 0
    assert not Effect.objects.exists()


def test_once_inside_of_itself_is_an_error() -> None:
    with running(delivery()), pytest.raises(RuntimeError, match="inside of itself"):
        once("charge", lambda: once("charge", charge))


def test_in_the_callers_transaction_it_commits_with_it() -> None:
    with running(delivery()):
        with pytest.raises(_Broke), transaction.atomic():
            _charge_and_break()
        assert not Effect.objects.exists()
        with transaction.atomic():
            once("charge", charge)

    assert charges() == 1


def _charge_and_break() -> None:
    once("charge", charge)
    raise _Broke


@pytest.mark.parametrize(
    ("key", "error"), [("", ValueError), ("x" * 201, ValueError), (7, TypeError), (None, TypeError)]
)
def test_a_key_must_be_a_text(key: Any, error: type[Exception]) -> None:
    with running(delivery()), pytest.raises(error):
        once(key, charge)


def test_outside_of_a_handler_it_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="outside of a handler"):
        once("charge", charge)


def test_two_deliveries_at_once_do_it_once() -> None:
    """The lease ended while the first was at it, and the second came to the same step."""
    entered, leave = threading.Event(), threading.Event()
    results: list[Any] = []

    def slow() -> int:
        entered.set()
        leave.wait(10)
        return charge()

    def run(number: int, func: Callable[[], int]) -> None:
        try:
            with running(delivery(number=number)):
                results.append(once("charge", func))
        finally:
            connection.close()

    first = threading.Thread(target=run, args=(1, slow))
    first.start()
    assert entered.wait(10)
    second = threading.Thread(target=run, args=(2, charge))
    second.start()
    leave.set()
    first.join(20)
    second.join(20)

    assert results == [7, 7]
    assert charges() == 1


# -- killed between the write and the ack ----------------------------------------------------------------


def test_a_handler_killed_fifty_times_after_its_write_leaves_one_row(redis: Redis, store: Store) -> None:
    set_up(store, max_rescues=100)
    seed_ready(store, "a")
    connections.close_all()

    for number in range(1, 51):
        child = Child(store, f"host:1:aa/{number}", suspects=number > 1)
        if number > 1:
            child.name = f"host:{number}:aa/probation"
        (job,) = child.register().take(1)
        assert job.delivery == number
        pid = os.fork()
        if pid == 0:
            try:
                with running(job):
                    once("charge", charge)
                    os.kill(os.getpid(), signal.SIGKILL)  # before the ack
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        child.die(ran=["a"])

    assert charges() == 1
    assert Effect.objects.get().delivery == 1
    last = Child(store, "host:99:aa/probation", suspects=True).register()
    (job,) = last.take(1)
    with running(job):
        assert once("charge", charge) == 7
    last.ack(job)
    assert charges() == 1


def charge_and_die() -> None:
    charge()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_handler_killed_before_the_commit_leaves_nothing(redis: Redis, store: Store, child: Child) -> None:
    (job,) = seed_pending(child, "a")
    connections.close_all()
    pid = os.fork()
    if pid == 0:
        try:
            with running(job):
                once("charge", charge_and_die)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL

    assert charges() == 0
    assert not Effect.objects.exists()


# -- lives of an id -----------------------------------------------------------------------------------


def test_a_process_that_slept_through_the_end_of_its_job_changes_nothing(
    redis: Redis, store: Store, child: Child
) -> None:
    """Its effects may be pruned by then: only Redis can tell that it is from the past."""
    (lost,) = seed_pending(child, "a")
    child.die()
    child.register()
    (owner,) = child.take(1)
    with running(owner):
        once("charge", charge)
    child.ack(owner)
    copy_events(store, QUEUE)
    Effect.objects.all().delete()  # pruned
    redis.delete(keys.job(QUEUE, "a"))

    with running(lost), pytest.raises(LostLease):
        once("charge", charge)

    assert charges() == 1


def test_a_late_delivery_whose_effect_is_still_there_gets_it(
    redis: Redis, store: Store, child: Child
) -> None:
    (job,) = seed_pending(child, "a")
    with running(job):
        once("charge", charge)
    child.ack(job)
    copy_events(store, QUEUE)

    with running(job):
        assert once("charge", charge) == 7
    assert charges() == 1


def test_an_id_used_again_does_its_work_again(redis: Redis, store: Store, child: Child) -> None:
    """Though the effect of its earlier life is not pruned, and the record has not heard of the new one."""
    (job,) = seed_pending(child, "nightly")
    with running(job):
        once("charge", charge)
    child.ack(job)
    copy_events(store, QUEUE)
    redis.delete(keys.job(QUEUE, "nightly"))  # its tombstone's time is over
    (again,) = seed_pending(child, "nightly")

    with running(again):
        once("charge", charge)
        once("charge", charge)
    assert charges() == 2

    copy_events(store, QUEUE)  # and when it has heard of it
    with running(again):
        once("charge", charge)
    assert charges() == 2


def test_a_requeued_job_does_not_do_it_again(redis: Redis, store: Store, child: Child) -> None:
    (job,) = seed_pending(child, "a")
    with running(job):
        once("charge", charge)
    child.bury(job)
    copy_events(store, QUEUE)
    store.requeue(QUEUE, ["a"], actor=PERSON)
    (again,) = child.take(1)

    with running(again):
        assert once("charge", charge) == 7
    assert charges() == 1
    assert state(redis, "a") == "pending"


# -- other databases -----------------------------------------------------------------------------------


def test_work_in_another_database_is_refused(second_database: str) -> None:
    def elsewhere() -> None:
        Group.objects.using(second_database).create(name="charge")

    with running(delivery()):
        with pytest.raises(WrongDatabase, match="writes to 'shop'"):
            once("charge", elsewhere)
        with pytest.raises(WrongDatabase, match="idempotency_key"), transaction.atomic(using=second_database):
            once("charge", charge)

    assert charges() == 0
    assert not Effect.objects.exists()


def test_reading_another_database_is_allowed(second_database: str) -> None:
    with running(delivery()):
        assert once("count", lambda: Group.objects.using(second_database).count()) >= 0


def test_for_another_database_there_is_the_idempotency_key() -> None:
    with running(delivery(edition=2)):
        assert current_job().idempotency_key == "a:e2"


def test_effects_carry_when_they_were_made() -> None:
    with running(delivery()):
        once("charge", charge)

    assert timezone.now() - Effect.objects.get().created_at < timedelta(seconds=30)
    assert not Job.objects.exists()
