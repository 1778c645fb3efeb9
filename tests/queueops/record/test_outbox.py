"""The outbox: a job enqueued inside a transaction lives and dies with it, and is pushed right after."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import Group
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path
from django.utils import timezone

from queueops import client, enqueue, enqueue_many, get_job, keys, outbox
from queueops.connection import Connection
from queueops.errors import StoreUnavailable
from queueops.mirror import compare_all, copy_events, run_once
from queueops.models import Job, JobTag
from queueops.states import JobState
from queueops.store import Store
from tests.factories import Child, Redis, ids_in, job, run_at, set_up, state, verbs

pytestmark = pytest.mark.django_db(transaction=True)
QUEUE = "default"


@pytest.fixture
def live(redis: Redis) -> Store:
    """The engine on the real clock: what the outbox pushes with."""
    return Store()


class _Undone(Exception):
    """Rolls a block back."""


def row(job_id: str) -> Job:
    return Job.objects.get(job_id=job_id)


def age(job_id: str, seconds: float) -> None:
    Job.objects.filter(job_id=job_id).update(accepted_at=timezone.now() - timedelta(seconds=seconds))


def accept_unpushed(*ids: str, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Commit jobs and lose the process before the push."""
    with monkeypatch.context() as dying:
        dying.setattr(outbox, "_push_after_commit", lambda *_: None)
        with transaction.atomic():
            for job_id in ids:
                enqueue("shop.charge", job_id=job_id, **fields)


# -- with its transaction -------------------------------------------------------------------------------


def test_h02_a_job_is_pushed_right_after_the_commit_and_its_row_is_there_before_it_runs(
    redis: Redis, live: Store
) -> None:
    with transaction.atomic():
        Group.objects.create(name="order 7")
        inside = enqueue("shop.charge", [7], tags={"order": "7"})
        assert inside.state == "accepted"
        assert state(redis, inside.id, QUEUE) is None
        assert row(inside.id).state == "accepted"

    assert state(redis, inside.id, QUEUE) == "ready"
    child = Child(live, "host:1:aa/1", queue=QUEUE).register()
    assert [each.id for each in child.take()] == [inside.id]
    assert Group.objects.filter(name="order 7").exists()
    assert JobTag.objects.get().value == "7"


def test_h02_what_is_rolled_back_never_was(redis: Redis, live: Store) -> None:
    with suppress(_Undone), transaction.atomic():
        undone = enqueue("shop.charge")
        raise _Undone

    assert state(redis, undone.id, QUEUE) is None
    assert not Job.objects.exists()
    assert get_job(undone.id) is None


def test_h02_a_savepoint_takes_its_jobs_with_it(redis: Redis, live: Store) -> None:
    with transaction.atomic():
        outer = enqueue("shop.charge")
        with suppress(_Undone), transaction.atomic():
            inner = enqueue("shop.charge")
            raise _Undone
        with transaction.atomic():
            kept = enqueue("shop.charge")

    assert state(redis, inner.id, QUEUE) is None
    assert {state(redis, each.id, QUEUE) for each in (outer, kept)} == {"ready"}
    assert Job.objects.count() == 2


@login_not_required
def order(request: HttpRequest) -> HttpResponse:
    Group.objects.create(name="from a view")
    enqueue("shop.charge", job_id="from-a-view")
    if request.GET.get("fail"):
        raise _Undone
    return HttpResponse("ok")


urlpatterns = [path("order/", order)]


@pytest.mark.urls(__name__)
@pytest.mark.parametrize("fails", [False, True])
def test_h02_a_view_with_atomic_requests(
    redis: Redis, live: Store, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    if fails:
        with pytest.raises(_Undone):
            Client().get("/order/?fail=1")
    else:
        assert Client().get("/order/").status_code == 200

    assert state(redis, "from-a-view", QUEUE) == (None if fails else "ready")
    assert Job.objects.exists() is not fails


def test_without_a_transaction_a_job_goes_straight_to_redis(redis: Redis, live: Store) -> None:
    straight = enqueue("shop.charge")

    assert straight.state == "ready"
    assert not Job.objects.exists()


def test_on_commit_false_pushes_at_once_and_is_not_rolled_back(redis: Redis, live: Store) -> None:
    with suppress(_Undone), transaction.atomic():
        at_once = enqueue("shop.charge", on_commit=False)
        raise _Undone

    assert state(redis, at_once.id, QUEUE) == "ready"


def test_enqueue_many_in_a_transaction_is_one_insert(redis: Redis, live: Store) -> None:
    specs: list[dict[str, Any]] = [{"handler": "shop.charge", "args": [n]} for n in range(700)]
    with CaptureQueriesContext(connection) as seen, transaction.atomic():
        jobs = enqueue_many(specs)

    inserts = [query["sql"] for query in seen.captured_queries if "INSERT INTO queueops_job " in query["sql"]]
    assert len(inserts) == 1
    assert len({each.id for each in jobs}) == 700
    assert len(ids_in(redis, JobState.READY, QUEUE)) == 700


def test_a_delay_counts_from_enqueue_and_not_from_the_commit(redis: Redis, live: Store) -> None:
    before_ms = time.time() * 1000
    with transaction.atomic():
        later = enqueue("shop.charge", delay=60)
        after_ms = time.time() * 1000
        time.sleep(0.3)

    due_ms = run_at(redis, later.id, QUEUE)
    assert before_ms + 60_000 - 50 <= due_ms <= after_ms + 60_000 + 150


def test_every_option_survives_the_outbox(redis: Redis, live: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {
        "queue": "mail", "priority": "high", "unique_key": "order-7", "unique_for": 900, "expires": 500,
        "policy": "patient", "run_at": timezone.now() + timedelta(seconds=90), "kwargs": {"a": 1},
    }  # fmt: skip
    accept_unpushed("relayed", monkeypatch=monkeypatch, **options)
    age("relayed", 2)
    outbox.Relay().run_once(live)
    relayed = job(redis, "relayed", "mail")
    redis.flushall()
    with transaction.atomic():
        enqueue("shop.charge", job_id="pushed", **options)
    pushed = job(redis, "pushed", "mail")
    redis.flushall()
    enqueue("shop.charge", job_id="direct", **options)
    direct = job(redis, "direct", "mail")

    for found in (relayed, pushed):
        assert abs(int(found.pop("expires")) - int(direct["expires"])) < 2_000
        found.pop("since")
        assert found.items() <= direct.items()


# -- ids and unique keys ----------------------------------------------------------------------------------


def test_the_same_id_in_a_transaction_is_the_same_job(redis: Redis, live: Store) -> None:
    with transaction.atomic():
        first = enqueue("shop.charge", [1], job_id="nightly")
        second = enqueue("shop.charge", [2], job_id="nightly")

    assert first.id == second.id
    assert second.args == [1]
    assert verbs(redis, "nightly", QUEUE) == ["enqueue"]


def test_an_id_that_the_record_knows_is_returned_and_not_run_again(redis: Redis, live: Store) -> None:
    enqueue("shop.charge", job_id="nightly")
    child = Child(live, "host:1:aa/1", queue=QUEUE).register()
    child.ack(*child.take())
    run_once(live)
    with transaction.atomic():
        again = enqueue("shop.charge", job_id="nightly")

    assert again.state == "done"
    assert verbs(redis, "nightly", QUEUE) == []


def test_an_id_whose_keep_time_is_over_begins_a_new_life(redis: Redis, live: Store) -> None:
    enqueue("shop.charge", job_id="nightly")
    child = Child(live, "host:1:aa/1", queue=QUEUE).register()
    child.ack(*child.take())
    run_once(live)
    redis.delete(keys.job(QUEUE, "nightly"))
    Job.objects.update(since=timezone.now() - timedelta(seconds=700))

    with transaction.atomic():
        again = enqueue("shop.refund", job_id="nightly")
    assert again.state == "accepted"
    run_once(live)

    assert (row("nightly").state, row("nightly").handler, row("nightly").delivery) == (
        "ready",
        "shop.refund",
        0,
    )


def test_a_job_that_meets_a_holder_of_its_unique_key_says_so(redis: Redis, live: Store) -> None:
    holder = enqueue("shop.charge", unique_key="order-7")
    with transaction.atomic():
        duplicate = enqueue("shop.charge", unique_key="order-7")

    found = get_job(duplicate.id)
    assert found is not None
    assert (found.state, found.reason) == ("discarded", f"duplicate of {holder.id}")
    assert get_job(duplicate.id, QUEUE) == found
    assert ids_in(redis, JobState.READY, QUEUE) == [holder.id]
    run_once(live)
    assert compare_all(live) == []


def test_the_id_of_a_job_that_met_a_holder_of_its_unique_key_can_be_used_once_the_key_is_free(
    redis: Redis, live: Store
) -> None:
    enqueue("shop.charge", job_id="holder", unique_key="order-7")
    with transaction.atomic():
        enqueue("shop.charge", job_id="late", unique_key="order-7")
    child = Child(live, "host:1:aa/1", queue=QUEUE).register()
    child.ack(*child.take())

    with transaction.atomic():
        enqueue("shop.charge", job_id="late", unique_key="order-7")

    assert state(redis, "late", QUEUE) == "ready"


def test_get_job_knows_an_accepted_job(redis: Redis, live: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    accept_unpushed("a", monkeypatch=monkeypatch, args=[7])

    found = get_job("a", QUEUE)
    assert found is not None
    assert (found.state, found.handler, found.args) == ("accepted", "shop.charge", [7])


# -- the relay ----------------------------------------------------------------------------------------


def test_a_process_that_dies_between_commit_and_push_loses_nothing(
    redis: Redis, live: Store, site_env: dict[str, str]
) -> None:
    script = """
import os, django
django.setup()
from django.db import transaction
from queueops import enqueue
with transaction.atomic():
    transaction.on_commit(lambda: os._exit(9))  # before the push
    enqueue("shop.charge", job_id="a")
    enqueue("shop.charge", job_id="b", delay=90)
"""
    connection.close()
    assert subprocess.run([sys.executable, "-c", script], env=site_env, check=False).returncode == 9
    assert state(redis, "a", QUEUE) is None

    deadline = time.monotonic() + 5
    while state(redis, "b", QUEUE) is None and time.monotonic() < deadline:
        outbox.relay_once(live)
        time.sleep(0.1)

    assert (state(redis, "a", QUEUE), state(redis, "b", QUEUE)) == ("ready", "delayed")


def test_redis_away_at_the_commit_is_the_relays_to_repair(
    redis: Redis, live: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("no Redis at redis://nowhere")

    with monkeypatch.context() as without:
        without.setattr(Store, "enqueue", away)
        with transaction.atomic():
            enqueue("shop.charge", job_id="a")
        assert row("a").state == "accepted"
        age("a", 2)
        with pytest.raises(StoreUnavailable):
            outbox.Relay().run_once(live)

    assert outbox.Relay().run_once(live) == 1
    assert state(redis, "a", QUEUE) == "ready"


def test_the_relay_leaves_what_redis_has(redis: Redis, live: Store) -> None:
    with transaction.atomic():
        enqueue("shop.charge", job_id="a")
    age("a", 2)

    assert outbox.Relay().run_once(live) == 0
    assert verbs(redis, "a", QUEUE) == ["enqueue"]


def test_nothing_marks_a_push_but_the_mirrored_event(redis: Redis, live: Store) -> None:
    with transaction.atomic():
        enqueue("shop.charge", job_id="a")
    assert row("a").state == "accepted"
    copy_events(live, QUEUE)
    assert row("a").state == "ready"


def test_a_push_that_redis_lost_is_made_again(redis: Redis, live: Store) -> None:
    """Append-only file `everysec`: the last second is gone."""
    with transaction.atomic():
        enqueue("shop.charge", job_id="a")
    redis.flushall()
    age("a", 2)

    assert outbox.Relay().run_once(live) == 1
    assert state(redis, "a", QUEUE) == "ready"


def test_an_old_row_waits_for_a_mirror_pass_that_knows_what_became_of_it(
    redis: Redis, live: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pushed, done and its tombstone gone while the mirror was behind: it must not run again."""
    with transaction.atomic():
        enqueue("shop.charge", job_id="a")
    child = Child(live, "host:1:aa/1", queue=QUEUE).register()
    child.ack(*child.take())
    redis.delete(keys.job(QUEUE, "a"))
    age("a", 5_000)
    with monkeypatch.context() as behind:
        behind.setattr(outbox, "catch_up", lambda store, queue: False)
        assert outbox.Relay().run_once(live) == 0

    assert outbox.Relay().run_once(live) == 0
    assert row("a").state == "done"


def test_an_old_row_that_was_never_pushed_is_pushed_after_such_a_pass(
    redis: Redis, live: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_unpushed("a", monkeypatch=monkeypatch)
    age("a", 5_000)

    assert outbox.Relay().run_once(live) == 1
    assert state(redis, "a", QUEUE) == "ready"


def test_with_audit_outcome_a_row_is_not_pushed_over_and_over(redis: Redis, live: Store) -> None:
    set_up(live, QUEUE, audit="outcome")
    with transaction.atomic():
        enqueue("shop.charge", job_id="a")
    run_once(live)
    age("a", 2)
    assert outbox.Relay().run_once(live) == 0
    child = Child(live, "host:1:aa/1", queue=QUEUE).register()
    child.ack(*child.take())
    run_once(live)

    assert row("a").state == "done"


def test_the_relay_comes_through_a_long_backlog(
    redis: Redis, live: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr(outbox, "_push_after_commit", lambda *_: None)
        with transaction.atomic():
            enqueue_many([{"handler": "shop.charge"} for _ in range(1_300)])
    Job.objects.update(accepted_at=timezone.now() - timedelta(seconds=100))
    relay = outbox.Relay()

    sent = [relay.run_once(live) for _ in range(3)]

    assert sent == [500, 500, 300]
    assert len(ids_in(redis, JobState.READY, QUEUE)) == 1_300


def test_two_relays_and_the_own_push_add_a_job_once(
    redis: Redis, live: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_unpushed(*[f"j{n}" for n in range(40)], monkeypatch=monkeypatch)
    Job.objects.update(accepted_at=timezone.now() - timedelta(seconds=3))

    def relay() -> None:
        outbox.Relay().run_once(Store(Connection()))
        connection.close()

    threads = [threading.Thread(target=relay) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(ids_in(redis, JobState.READY, QUEUE)) == 40


# -- more than one database ------------------------------------------------------------------------------


def test_a_transaction_of_another_database_has_its_own_outbox(
    redis: Redis, live: Store, second_database: str
) -> None:
    with transaction.atomic(using=second_database):
        accepted = enqueue("shop.charge")
        assert Job.objects.using(second_database).get().state == "accepted"
        assert not Job.objects.exists()
    with suppress(_Undone), transaction.atomic(using=second_database):
        undone = enqueue("shop.charge")
        raise _Undone

    assert state(redis, accepted.id, QUEUE) == "ready"
    assert state(redis, undone.id, QUEUE) is None
    run_once(live)
    Job.objects.using(second_database).update(accepted_at=timezone.now() - timedelta(seconds=5))
    redis.delete(keys.job(QUEUE, accepted.id))  # as when its tombstone's time is over
    redis.delete(keys.ready(QUEUE, "normal"))
    assert outbox.Relay().run_once(live) == 0
    assert not Job.objects.using(second_database).exists()


def test_the_relay_reads_every_outbox(
    redis: Redis, live: Store, second_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr(outbox, "_push_after_commit", lambda *_: None)
        with transaction.atomic(using=second_database):
            lost = enqueue("shop.charge")
    Job.objects.using(second_database).update(accepted_at=timezone.now() - timedelta(seconds=5))
    found = get_job(lost.id)
    assert found is not None
    assert found.state == "accepted"

    assert outbox.Relay().run_once(live) == 1
    assert state(redis, lost.id, QUEUE) == "ready"


def test_a_database_without_our_tables_pushes_after_its_commit(
    redis: Redis, live: Store, plain_database: str
) -> None:
    with transaction.atomic(using=plain_database):
        accepted = enqueue("shop.charge")
        assert state(redis, accepted.id, QUEUE) is None
    with suppress(_Undone), transaction.atomic(using=plain_database):
        undone = enqueue("shop.charge")
        raise _Undone

    assert state(redis, accepted.id, QUEUE) == "ready"
    assert state(redis, undone.id, QUEUE) is None


def test_a_client_without_a_record_pushes_at_once(
    redis: Redis, live: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_record", None)
    with transaction.atomic():
        straight = enqueue("shop.charge")
        assert state(redis, straight.id, QUEUE) == "ready"
