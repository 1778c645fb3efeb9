"""Counters, events and their bounds: what pages and the mirror read."""

from __future__ import annotations

import pytest

from queueops import keys
from queueops.states import Lane
from queueops.stats import BOUNDS_MS, buckets, quantile_ms
from queueops.store import Store
from tests.factories import (
    PERSON,
    QUEUE,
    Child,
    Clock,
    Redis,
    counter,
    events,
    seed_delayed,
    seed_discarded,
    seed_pending,
    seed_ready,
    set_up,
    verbs,
)


def minute(redis: Redis, at_ms: int) -> dict[str, int]:
    found = redis.hgetall(keys.stats(QUEUE, at_ms // 60_000))
    return {name.decode(): int(n) for name, n in found.items()}


# -- counters ---------------------------------------------------------------------------------------


def test_counters_stand_under_their_minute_and_in_the_total(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    clock.advance(60_000 - clock.now_ms % 60_000)
    child.register()
    child.ack(*seed_pending(child, "a"))
    first = clock.now_ms
    clock.advance(60_000)
    child.register()
    child.ack(*seed_pending(child, "b", "c"))

    assert minute(redis, first)["done"] == 1
    assert minute(redis, clock.now_ms)["done"] == 2
    assert counter(redis, "done") == 3


def test_a_minute_is_kept_25_hours_from_its_first_counter(redis: Redis, store: Store, clock: Clock) -> None:
    seed_ready(store, "a")

    assert 89_000 < redis.ttl(keys.stats(QUEUE, clock.now_ms // 60_000)) <= 90_000
    assert redis.ttl(keys.queue_key(QUEUE, "stats_total")) == -1


def test_every_minute_expires_whichever_counter_comes_first(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    jobs = seed_pending(child, "a")
    clock.advance(60_000)
    child.register()

    child.bury(*jobs)

    assert redis.ttl(keys.stats(QUEUE, clock.now_ms // 60_000)) > 0


@pytest.mark.parametrize(
    ("late_ms", "bucket"), [(0, "1"), (1, "1"), (2, "2"), (3, "5"), (1001, "2000"), (4_000_000, "more")]
)
def test_lateness_is_counted_from_the_run_at(
    redis: Redis, store: Store, clock: Clock, child: Child, late_ms: int, bucket: str
) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 10)
    clock.advance(10 + late_ms)
    child.register()

    child.take()

    assert counter(redis, f"lateness:{bucket}") == 1


def test_a_ready_job_is_late_from_when_it_became_ready(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a")
    clock.advance(150)

    child.take()

    assert counter(redis, "lateness:200") == 1


def test_quantiles_read_what_scripts_count(redis: Redis, store: Store, clock: Clock, child: Child) -> None:
    for n in range(100):
        seed_ready(store, f"j{n}")
    clock.advance(150)
    child.take(100)

    counted = minute(redis, clock.now_ms)
    assert sum(count for _, count in buckets(counted, "lateness")) == 100
    median = quantile_ms(counted, "lateness", 0.5)
    assert median is not None
    assert 100 < median <= 200
    assert len(buckets(counted, "lateness")) == len(BOUNDS_MS) + 1


def test_each_way_to_fail_is_counted_under_its_cause(redis: Redis, child: Child) -> None:
    a, b = seed_pending(child, "a", "b")
    child.retry(a, cause="flaky")
    child.bury(b, cause="flaky")

    assert (counter(redis, "failed"), counter(redis, "failed:flaky"), counter(redis, "dead")) == (2, 2, 1)


# -- events -----------------------------------------------------------------------------------------


def test_events_are_read_from_their_start_in_the_order_of_the_moves(
    redis: Redis, store: Store, child: Child
) -> None:
    child.retry(*seed_pending(child, "a"), delay_s=0)
    child.ack(*child.take())

    assert verbs(redis, "a") == ["enqueue", "claim", "retry", "promote", "claim", "ack"]


def test_over_its_bound_the_stream_drops_its_oldest_and_counts_them(redis: Redis, store: Store) -> None:
    set_up(store, events_max=50)

    for n in range(40):
        seed_ready(store, f"j{n}", f"k{n}")

    assert redis.xlen(keys.queue_key(QUEUE, "events")) == 50
    assert events(redis)[0]["id"] == "j15"
    assert redis.hget(keys.queue_key(QUEUE, "settings"), "events_lost") == b"30"


def test_within_its_bound_nothing_is_lost(redis: Redis, store: Store) -> None:
    set_up(store, events_max=50)

    seed_ready(store, *[f"j{n}" for n in range(50)])

    assert redis.xlen(keys.queue_key(QUEUE, "events")) == 50
    assert redis.hget(keys.queue_key(QUEUE, "settings"), "events_lost") is None


def test_one_script_that_adds_many_stays_exactly_in_the_bound(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    set_up(store, events_max=120)
    seed_delayed(store, *[f"j{n}" for n in range(100)], run_at_ms=clock.now_ms + 1)
    clock.advance(1)

    child.take(100)  # promotes and claims: 200 events

    assert redis.xlen(keys.queue_key(QUEUE, "events")) == 120
    assert redis.hget(keys.queue_key(QUEUE, "settings"), "events_lost") == b"180"


def test_the_bound_counts_what_waits_and_not_what_the_mirror_took(redis: Redis, store: Store) -> None:
    set_up(store, events_max=50)
    for n in range(20):
        seed_ready(store, *[f"j{n}-{i}" for i in range(10)])
        redis.xtrim(keys.queue_key(QUEUE, "events"), maxlen=0)  # by MINID, after its rows committed

    assert redis.hget(keys.queue_key(QUEUE, "settings"), "events_lost") is None


def test_audit_outcome_keeps_only_how_jobs_end_and_what_brings_them_back(
    redis: Redis, store: Store, child: Child
) -> None:
    set_up(store, audit="outcome")
    child.retry(*seed_pending(child, "a"), delay_s=0)
    child.ack(*child.take())
    child.bury(*seed_pending(child, "b"))
    store.requeue(QUEUE, ["b"], actor=PERSON)
    child.release(*child.take())
    seed_discarded(store, "c")
    store.purge(QUEUE, ["c"], actor=PERSON)

    assert verbs(redis, "a") == ["ack"]
    assert verbs(redis, "b") == ["bury", "requeue"]
    assert verbs(redis, "c") == ["discard", "purge"]


def test_a_late_settlement_is_an_event_of_its_own(redis: Redis, child: Child, other: Child) -> None:
    jobs = seed_pending(child, "a")
    child.die()
    other.take()
    child.register()
    child.retry(*jobs)

    late = events(redis, "a")[-1]
    assert (late["verb"], late["outcome"], late["actor"], late["delivery"]) == (
        "late",
        "retry",
        child.name,
        "1",
    )


def test_a_wrong_type_under_a_minute_costs_the_counters_and_no_job(
    redis: Redis, store: Store, clock: Clock
) -> None:
    store.register(QUEUE)
    redis.set(keys.stats(QUEUE, clock.now_ms // 60_000), "foreign", px=60_000)

    seed_ready(store, "a", lane=Lane.HIGH)

    assert counter(redis, "enqueued") == 1
