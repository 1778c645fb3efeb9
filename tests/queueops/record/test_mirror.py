"""Engine events become rows: one writer, safe to repeat, per-job ordered."""

from __future__ import annotations

import pytest

from queueops import keys
from queueops.mirror import copy_events
from queueops.models import Attempt, Job, JobEvent, JobTag, MirrorState, SetAsideEvent
from queueops.payload import encode_spec
from queueops.store import Store
from tests.factories import QUEUE, Child, Clock, Redis, new

pytestmark = pytest.mark.django_db(transaction=True)


def row(job_id: str) -> Job:
    return Job.objects.get(queue=QUEUE, job_id=job_id)


def events_left(redis: Redis) -> int:
    return int(redis.xlen(keys.queue_key(QUEUE, "events")))


def test_a_whole_life_becomes_one_row_and_every_move_an_event(
    redis: Redis, store: Store, child: Child, clock: Clock
) -> None:
    spec = encode_spec("shop.charge", [7], {"to": "a"}, tags={"order": "12"})
    store.enqueue(QUEUE, [new("a", spec=spec)])
    child.retry(*child.take())
    clock.advance(6_000)
    child.ack(*child.take(), result='{"ok": true}')

    assert copy_events(store, QUEUE) == 6

    job = row("a")
    assert (job.state, job.attempts, job.delivery, job.handler) == ("done", 1, 2, "shop.charge")
    assert bytes(job.spec or b"") == spec
    assert job.as_job().result == {"ok": True}
    assert [e.verb for e in JobEvent.objects.order_by("id")] == [
        "enqueue", "claim", "retry", "promote", "claim", "ack",
    ]  # fmt: skip
    attempt = Attempt.objects.get()
    assert (attempt.number, attempt.delivery, attempt.delay_ms, attempt.is_last) == (1, 1, 5_000, False)
    assert (attempt.policy, attempt.policy_version) == ("default", 1)
    assert JobTag.objects.get().value == "12"
    assert events_left(redis) == 0
    assert MirrorState.objects.get().lag_events == 0
    assert not SetAsideEvent.objects.exists()
