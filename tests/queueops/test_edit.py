"""edit: a person replaces a job's spec: a new edition with a new idempotency key."""

from __future__ import annotations

import pytest

from queueops import keys
from queueops.store import Store
from tests.factories import (
    PERSON,
    QUEUE,
    Child,
    Clock,
    Redis,
    events,
    job,
    new,
    seed_dead,
    seed_discarded,
    seed_ready,
    state,
)
from tests.proxy import Proxy

OTHER_SPEC = b'{"handler": "tests.work", "args": [2]}'


def test_edit_and_requeue_runs_the_new_payload_under_a_new_key(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_dead(child, "a")

    assert store.edit(QUEUE, "a", OTHER_SPEC, actor=PERSON, reason="typo") == "ok"
    store.requeue(QUEUE, ["a"], actor=PERSON)

    (again,) = child.take()
    assert (again.spec, again.edition, again.idempotency_key) == (OTHER_SPEC, 1, "a:e1")


def test_edit_is_an_event_that_carries_the_new_spec(redis: Redis, store: Store, clock: Clock) -> None:
    seed_ready(store, "a")

    store.edit(QUEUE, "a", OTHER_SPEC, actor=PERSON, reason="typo")

    assert events(redis, "a")[-1] == {
        "verb": "edit", "id": "a", "from": "ready", "to": "ready", "actor": PERSON,
        "at": str(clock.now_ms), "reason": "typo", "edition": "1", "spec": OTHER_SPEC.decode(),
    }  # fmt: skip


def test_a_second_edit_is_a_second_edition(store: Store, child: Child) -> None:
    seed_ready(store, "a")
    store.edit(QUEUE, "a", b"one", actor=PERSON)
    store.edit(QUEUE, "a", b"two", actor=PERSON)

    assert [(j.idempotency_key, j.spec) for j in child.take()] == [("a:e2", b"two")]


def test_editing_what_was_stored_in_parts_leaves_none_of_them(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    store.enqueue(QUEUE, [new("a", run_at_ms=clock.now_ms + 1, spec=b"x" * 1500)])
    assert "spec1" in job(redis, "a")

    store.edit(QUEUE, "a", OTHER_SPEC, actor=PERSON)

    assert [name for name in job(redis, "a") if name.startswith("spec")] == ["spec"]
    clock.advance(1)
    assert child.take()[0].spec == OTHER_SPEC


def test_edit_does_not_change_since(redis: Redis, store: Store, clock: Clock) -> None:
    seed_ready(store, "a")
    since = job(redis, "a")["since"]
    clock.advance(500)

    store.edit(QUEUE, "a", OTHER_SPEC, actor=PERSON)

    assert job(redis, "a")["since"] == since


@pytest.mark.parametrize("restored", [True, False])
def test_a_discarded_job_can_be_edited(redis: Redis, store: Store, child: Child, restored: bool) -> None:
    seed_discarded(store, "a")

    assert store.edit(QUEUE, "a", OTHER_SPEC, actor=PERSON) == "ok"
    if restored:
        store.restore(QUEUE, ["a"], actor=PERSON)
        assert child.take()[0].spec == OTHER_SPEC
    else:
        assert state(redis, "a") == "discarded"


def test_edit_mends_a_job_whose_spec_is_gone(redis: Redis, store: Store, child: Child) -> None:
    seed_dead(child, "a")
    redis.hdel(keys.job(QUEUE, "a"), "spec")

    assert store.edit(QUEUE, "a", OTHER_SPEC, actor=PERSON) == "ok"
    store.requeue(QUEUE, ["a"], actor=PERSON)

    assert child.take()[0].spec == OTHER_SPEC


def test_g6_a_lost_answer_makes_one_edition(redis: Redis, store: Store, lossy: Store, proxy: Proxy) -> None:
    seed_ready(store, "a")
    proxy.lose_replies(1)

    assert lossy.edit(QUEUE, "a", OTHER_SPEC, actor=PERSON) == "ok"

    assert proxy.lost == 1
    assert job(redis, "a")["edition"] == "1"
