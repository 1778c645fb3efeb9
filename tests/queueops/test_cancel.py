"""cancel: a person asks a running job to stop; its handler sees it."""

from __future__ import annotations

from queueops.store import Store
from tests.factories import PERSON, QUEUE, Child, Clock, Redis, events, job, seed_pending, state


def test_cancel_leaves_the_job_running_and_tells_its_handler(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    (a,) = seed_pending(child, "a")
    assert store.look(QUEUE, child.name, "a", a.delivery) == "ok"

    assert store.cancel(QUEUE, ["a"], actor=PERSON, reason="wrong customer") == ["ok"]

    assert state(redis, "a") == "pending"
    assert store.look(QUEUE, child.name, "a", a.delivery) == "cancelled"
    assert events(redis, "a")[-1] == {
        "verb": "cancel", "id": "a", "from": "pending", "to": "pending", "actor": PERSON,
        "at": str(clock.now_ms), "reason": "wrong customer", "delivery": "1",
    }  # fmt: skip
    assert child.discard(a) == ["ok"]


def test_look_keeps_progress_of_the_owner_only(
    redis: Redis, store: Store, child: Child, other: Child
) -> None:
    (a,) = seed_pending(child, "a")

    assert store.look(QUEUE, child.name, "a", a.delivery, "3/10") == "ok"
    assert store.look(QUEUE, other.name, "a", a.delivery, "9/10") == "lost"
    assert store.look(QUEUE, child.name, "a", a.delivery + 1, "9/10") == "lost"

    assert job(redis, "a")["progress"] == "3/10"


def test_look_at_a_settled_job_is_lost(store: Store, child: Child) -> None:
    (a,) = seed_pending(child, "a")
    child.ack(a)

    assert store.look(QUEUE, child.name, "a", a.delivery) == "lost"


def test_look_at_a_job_that_is_gone_is_lost(redis: Redis, store: Store, child: Child) -> None:
    (a,) = seed_pending(child, "a")
    redis.flushall()

    assert store.look(QUEUE, child.name, "a", a.delivery) == "lost"


def test_a_requeue_clears_the_request(store: Store, child: Child) -> None:
    seed_pending(child, "a")
    store.cancel(QUEUE, ["a"], actor=PERSON)
    child.bury(*child.held.values())
    store.requeue(QUEUE, ["a"], actor=PERSON)

    (again,) = child.take()

    assert store.look(QUEUE, child.name, "a", again.delivery) == "ok"
