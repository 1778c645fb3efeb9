"""Once the mirror has caught up, record and Redis must agree; the doctor says where they don't."""

from __future__ import annotations

import io

import pytest
from django.core.management import call_command

from queueops import keys
from queueops.mirror import compare, compare_all, run_once
from queueops.models import Job
from queueops.store import Store
from tests.factories import (
    PERSON,
    QUEUE,
    Child,
    Clock,
    Redis,
    seed_dead,
    seed_delayed,
    seed_discarded,
    seed_pending,
    seed_ready,
    set_up,
)

pytestmark = pytest.mark.django_db


def said(store: Store) -> list[str]:
    return [f"{finding.severity} {finding}" for finding in compare(store, QUEUE)]


def test_a_record_that_has_caught_up_agrees(redis: Redis, store: Store, child: Child, clock: Clock) -> None:
    seed_dead(child, "dead", "again")
    seed_pending(child, "pending")
    seed_delayed(store, "delayed", run_at_ms=clock.now_ms + 9_000)
    seed_discarded(store, "aside")
    seed_ready(store, "ready", "edited")
    store.edit(QUEUE, "edited", b'["tests.other"]', actor=PERSON)
    clock.advance(500)
    store.requeue(QUEUE, ["again"], actor=PERSON)
    store.cancel(QUEUE, ["pending"], actor=PERSON)
    run_once(store)

    assert compare_all(store) == []


def test_a_record_that_is_behind_is_not_compared(redis: Redis, store: Store) -> None:
    seed_ready(store, "a")
    run_once(store)
    seed_ready(store, "b", "c")

    assert said(store) == ["warning mail: the record is 2 events behind: it was not compared with Redis"]


def test_what_differs_is_told(redis: Redis, store: Store, child: Child) -> None:
    seed_pending(child, "a")
    seed_ready(store, "b", "lost")
    run_once(store)
    redis.hset(keys.job(QUEUE, "a"), "attempts", 3)
    Job.objects.filter(job_id="b").update(state="discarded", finished_at="2026-01-01T00:00:00Z")
    Job.objects.create(queue=QUEUE, job_id="ghost", state="ready", since="2026-01-01T00:00:00Z")
    Job.objects.filter(job_id="lost").delete()

    found = said(store)

    assert "error mail/a: its attempts is 3 in Redis and 0 in the record" in found
    assert "error mail/b: its state is ready in Redis and discarded in the record" in found
    assert "error mail/ghost: it is ready in the record, and Redis does not know it" in found
    assert "error mail/lost: it is ready in Redis, and the record does not know it" in found
    assert "error mail: 2 jobs are ready in Redis and 1 in the record" in found
    with pytest.raises(SystemExit):
        call_command("doctor", stdout=io.StringIO())
    redis.hdel(keys.job(QUEUE, "a"), "attempts")


def test_after_a_gap_a_difference_is_no_error(redis: Redis, store: Store) -> None:
    seed_ready(store, "a")
    run_once(store)
    set_up(store, events_max=1)
    seed_ready(store, "b")
    seed_ready(store, "c")
    run_once(store)

    assert {finding.severity for finding in compare(store, QUEUE)} == {"warning"}


def test_a_lost_redis_is_told_and_not_compared(redis: Redis, store: Store) -> None:
    seed_ready(store, "a")
    run_once(store)
    redis.flushall()
    store.register(QUEUE)

    assert said(store) == [
        "warning mail: Redis lost its data and the record has them: run 'manage.py rebuild'"
    ]


def test_with_audit_outcome_only_ends_are_compared(redis: Redis, store: Store, child: Child) -> None:
    set_up(store, audit="outcome")
    child.register()
    seed_dead(child, "dead")
    seed_ready(store, "ready")
    run_once(store)

    assert said(store) == []
