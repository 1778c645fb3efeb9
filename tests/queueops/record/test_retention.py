"""Forgetting: done jobs early, those that were ever dead late, in batches that hold no lock for long."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.utils import timezone

from queueops.mirror import copy_events
from queueops.models import Attempt, Effect, Job, JobEvent, JobTag, Queue, SetAsideEvent, WorkerRecord
from queueops.retention import Retention, _Size, prune_jobs
from queueops.store import Store
from tests.factories import PERSON, QUEUE, Child, Clock, Redis, new, seed_dead, seed_discarded, seed_pending

pytestmark = pytest.mark.django_db
DAY_MS = 86_400_000


def left() -> set[str]:
    return set(Job.objects.values_list("job_id", flat=True))


def test_each_outcome_has_its_time(redis: Redis, store: Store, child: Child, clock: Clock) -> None:
    child.ack(*seed_pending(child, "done"))
    seed_dead(child, "revived")
    store.requeue(QUEUE, ["revived"], actor=PERSON)
    child.ack(*child.take())
    seed_dead(child, "dead")
    seed_discarded(store, "purged")
    store.purge(QUEUE, ["purged"], actor=PERSON)
    copy_events(store, QUEUE)
    retention = Retention()

    retention.run_once(store)
    assert left() == {"done", "revived", "dead", "purged"}
    clock.advance(7 * DAY_MS + 1_000)
    retention.run_once(store)
    assert left() == {"revived", "dead", "purged"}
    clock.advance(23 * DAY_MS)
    retention.run_once(store)
    assert left() == {"revived", "dead"}
    clock.advance(60 * DAY_MS)
    retention.run_once(store)
    assert left() == {"dead"}
    clock.advance(1_000 * DAY_MS)
    retention.run_once(store)
    assert left() == {"dead"}  # it waits for a person


def test_a_queue_may_have_times_of_its_own(store: Store, child: Child, clock: Clock) -> None:
    Queue.objects.create(name=QUEUE, record_done_s=3_600)
    child.ack(*seed_pending(child, "a"))
    copy_events(store, QUEUE)

    clock.advance(3_500_000)
    assert Retention().run_once(store) == 0
    clock.advance(200_000)
    Retention().run_once(store)
    assert left() == set()


def test_all_that_belongs_to_a_job_goes_with_it(store: Store, child: Child, clock: Clock) -> None:
    store.enqueue(QUEUE, [new("a", spec=b'["tests.work",[],{},{"tags":{"x":"1"}}]')])
    child.retry(*child.take(), delay_s=0)
    child.ack(*child.take())
    copy_events(store, QUEUE)
    assert all(model.objects.exists() for model in (Attempt, JobEvent, JobTag))
    clock.advance(8 * DAY_MS)
    Retention().run_once(store)

    assert not any(model.objects.exists() for model in (Job, Attempt, JobEvent, JobTag))


def effect(job_id: str, at: datetime) -> Effect:
    return Effect.objects.create(
        queue=QUEUE,
        idempotency_key=job_id,
        key="charge",
        job_id=job_id,
        delivery=1,
        result="1",
        created_at=at,
    )


def test_an_effect_is_kept_as_long_as_redis_answers_for_its_job(
    store: Store, child: Child, clock: Clock
) -> None:
    child.ack(*seed_pending(child, "done"))
    seed_pending(child, "runs")
    copy_events(store, QUEUE)
    for job_id in ("done", "runs", "unknown"):
        effect(job_id, timezone.now())
    retention = Retention()

    clock.advance(500_000)
    retention.run_once(store)
    assert Effect.objects.count() == 3
    clock.advance(200_000)
    retention.run_once(store)
    assert set(Effect.objects.values_list("job_id", flat=True)) == {"runs", "unknown"}
    clock.advance(91 * DAY_MS)
    retention.run_once(store)
    assert set(Effect.objects.values_list("job_id", flat=True)) == {"runs"}


def test_many_effects_of_running_jobs_hide_none_that_is_over(
    store: Store, child: Child, clock: Clock
) -> None:
    now = timezone.now()
    Effect.objects.bulk_create(
        Effect(queue=QUEUE, idempotency_key=f"r{n}", key="k", job_id=f"r{n}", delivery=1, result="1",
               created_at=now - timedelta(hours=1))
        for n in range(1_200)
    )  # fmt: skip
    child.ack(*seed_pending(child, "done"))
    copy_events(store, QUEUE)
    effect("done", now)
    clock.advance(700_000)
    Retention().run_once(store)

    assert not Effect.objects.filter(job_id="done").exists()
    assert Effect.objects.count() == 1_200


def test_events_without_a_job_go_when_they_are_old(store: Store, clock: Clock) -> None:
    JobEvent.objects.create(queue=QUEUE, stream_id="1-0", job_id="late", verb="late", at=timezone.now())
    Retention().run_once(store)
    assert JobEvent.objects.exists()
    clock.advance(91 * DAY_MS)
    Retention().run_once(store)
    assert not JobEvent.objects.exists()


def test_what_was_set_aside_and_workers_long_gone_go_too(store: Store, clock: Clock) -> None:
    now = timezone.now()
    SetAsideEvent.objects.create(queue=QUEUE, stream_id="1-0", fields={}, why="poison")
    WorkerRecord.objects.create(worker="host:1:aa", first_seen_at=now, last_seen_at=now)
    Retention().run_once(store)
    assert SetAsideEvent.objects.exists()
    assert WorkerRecord.objects.exists()
    clock.advance(91 * DAY_MS)
    Retention().run_once(store)
    assert not SetAsideEvent.objects.exists()
    assert not WorkerRecord.objects.exists()


def test_a_batch_grows_while_it_is_quick_and_shrinks_when_it_is_felt() -> None:
    size = _Size()
    for _ in range(10):
        size.after(0.001)
    assert size.rows == 500
    for _ in range(10):
        size.after(0.2)
    assert size.rows == 10


def test_a_batch_holds_its_locks_for_a_moment_only(redis: Redis, store: Store, child: Child) -> None:
    """By the time of its thread: on SQLite all of the work, whatever else the machine does."""
    for _ in range(6):
        store.enqueue(QUEUE, [new() for _ in range(100)])
        child.ack(*child.take())
    while copy_events(store, QUEUE):
        pass
    Job.objects.update(keep_until=F("since"))
    size, took = _Size(), []
    while Job.objects.exists():
        began = time.thread_time()
        prune_jobs(connection.alias, timezone.now() + timedelta(days=1), size.rows)
        took.append(time.thread_time() - began)
        size.after(took[-1])

    assert max(took) < 0.05
