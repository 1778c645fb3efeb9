"""cancel: a person asks a running job to stop; its handler sees it."""

from __future__ import annotations

from queueops import keys
from queueops.causes import CANCELLED
from queueops.inspector import Inspector
from queueops.stops import Stop
from queueops.store import Store
from queueops.tallies import asked
from tests.factories import PERSON, QUEUE, Child, Clock, Redis, burying, events, job, seed_pending, state


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


# -- the hard way -----------------------------------------------------------------------------------


def ask(store: Store, *ids: str, how: str = "30000 ann", operation: str = "op1") -> list[str]:
    items = [(job_id, how) for job_id in ids]
    return store.act("cancel", QUEUE, items, actor=PERSON, operation=operation)


def test_a_supervisor_learns_ahead_which_of_its_jobs_are_stopped_and_when(
    store: Store, clock: Clock, child: Child, other: Child
) -> None:
    (a,) = seed_pending(child, "a")
    seed_pending(other, "b")
    assert ask(store, "a", "b") == ["ok", "ok"]

    renewed = store.renew(QUEUE, [child.name, "host:1:aa/2"])

    assert renewed.stops == [Stop(QUEUE, "a", a.delivery, child.name, clock.now_ms + 30_000, "ann")]
    assert store.renew(QUEUE, [other.name]).stops[0].job_id == "b"


def test_a_stop_is_for_the_delivery_that_was_asked_and_for_no_other(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    (a,) = seed_pending(child, "a")
    ask(store, "a")
    child.retry(a, delay_s=0)
    (again,) = child.take()

    assert store.renew(QUEUE, [child.name]).stops == []
    assert redis.exists(keys.queue_key(QUEUE, "stops")) == 0
    assert again.delivery == 2


def test_a_repeated_request_moves_the_end_and_asking_softly_keeps_it(
    store: Store, clock: Clock, child: Child
) -> None:
    seed_pending(child, "a")
    ask(store, "a")
    ask(store, "a", how="5000 bob", operation="op2")
    ask(store, "a", how="", operation="op3")

    (stop,) = store.renew(QUEUE, [child.name]).stops

    assert (stop.at_ms, stop.by) == (clock.now_ms + 5000, "bob")


def test_a_request_that_is_sent_twice_is_one(redis: Redis, store: Store, child: Child) -> None:
    seed_pending(child, "a")

    assert ask(store, "a") == ask(store, "a") == ["ok"]

    assert [event["verb"] for event in events(redis, "a")].count("cancel") == 1
    assert events(redis, "a")[-1]["stop_after_ms"] == "30000"


def test_what_ended_is_forgotten_with_the_next_renewal_of_anybody(
    redis: Redis, store: Store, child: Child, other: Child
) -> None:
    (a, b) = seed_pending(child, "a", "b")
    ask(store, "a", "b")
    child.ack(a)

    store.renew(QUEUE, [other.name])

    assert redis.zrange(keys.queue_key(QUEUE, "stops"), 0, -1) == [b"b"]
    child.ack(b)


def test_stops_under_a_key_of_a_wrong_type_cost_no_lease(redis: Redis, store: Store, child: Child) -> None:
    redis.set(keys.queue_key(QUEUE, "stops"), "x")

    assert store.renew(QUEUE, [child.name]).stops == []
    redis.delete(keys.queue_key(QUEUE, "stops"))


def test_an_operation_knows_whom_it_asked_and_who_obeyed(store: Store, child: Child) -> None:
    a, b, c, d, e = seed_pending(child, "a", "b", "c", "d", "e")
    ask(store, "a", "b", "c", "d", "e")
    for each in (a, d):
        assert store.look(QUEUE, child.name, each.id, each.delivery) == "cancelled"
    child.discard(a)
    child.ack(b)
    child.settle(burying(c, cause=CANCELLED, is_attempt=False))
    child.retry(e, delay_s=0)

    told = asked(Inspector(store.connection), "op1", [QUEUE])

    samples = told.pop("samples")
    assert told == {"asked": 5, "obeyed": 1, "ended": 2, "stopped": 1, "running": 1}
    assert {word: sorted(ids) for word, ids in samples.items()} == {
        "ended": ["b", "e"], "stopped": ["c"], "running": ["d"],
    }  # fmt: skip


def test_whom_an_operation_asked_is_forgotten_after_a_day(redis: Redis, store: Store, child: Child) -> None:
    (a,) = seed_pending(child, "a")
    ask(store, "a")
    assert 86_000 < redis.ttl(keys.asked(QUEUE, "op1")) <= 86_400

    redis.delete(keys.asked(QUEUE, "op1"))
    assert store.look(QUEUE, child.name, "a", a.delivery) == "cancelled"

    assert redis.exists(keys.asked(QUEUE, "op1")) == 0  # not made again, without an end
