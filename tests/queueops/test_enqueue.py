"""enqueue: a new job, delayed or ready; safe to repeat, by its id."""

from __future__ import annotations

import pytest

from queueops import keys
from queueops.errors import WrongKeyType
from queueops.job import MAX_PARTS, PART_BYTES, new_job_id
from queueops.states import JobState, Lane
from queueops.store import ENQUEUE_ROUND_TRIP, Store
from tests.factories import (
    QUEUE,
    SPEC,
    Child,
    Clock,
    Redis,
    counter,
    events,
    ids_in,
    ids_in_lane,
    job,
    new,
    run_at,
    seed_dead,
    seed_delayed,
    seed_discarded,
    seed_pending,
    seed_ready,
    state,
    verbs,
)
from tests.proxy import Proxy


def test_enqueue_without_a_time_is_ready(redis: Redis, store: Store, clock: Clock) -> None:
    answers = store.enqueue(QUEUE, [new("a")], actor="web")

    assert [(a.id, a.state, a.there) for a in answers] == [("a", "ready", None)]
    assert ids_in(redis, JobState.READY) == ["a"]
    assert job(redis, "a")["since"] == str(clock.now_ms)


def test_enqueue_for_later_is_delayed_to_the_millisecond(redis: Redis, store: Store, clock: Clock) -> None:
    answers = store.enqueue(QUEUE, [new("a", run_at_ms=clock.now_ms + 1)])

    assert answers[0].state == "delayed"
    assert run_at(redis, "a") == clock.now_ms + 1


@pytest.mark.parametrize("ms_ago", [0, 1, 10**12])
def test_enqueue_for_now_or_the_past_is_ready(redis: Redis, store: Store, clock: Clock, ms_ago: int) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms - ms_ago)

    assert state(redis, "a") == "ready"


def test_i11_a_hundred_years_stay_delayed_and_no_timer_overflows(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    month, century = clock.now_ms + 30 * 86_400_000, clock.now_ms + 36_525 * 86_400_000
    seed_delayed(store, "month", run_at_ms=month)
    seed_delayed(store, "century", run_at_ms=century)

    clock.advance(24_900 * 86_400)  # 24.9 days: beyond 2**31 ms
    child.register()

    assert child.take() == []
    assert run_at(redis, "month") == month
    assert run_at(redis, "century") == century


def test_the_last_instant_that_has_a_datetime_is_kept_exactly(redis: Redis, store: Store) -> None:
    last = 253_402_300_799_999  # the end of the year 9999, Unix ms

    seed_delayed(store, "a", run_at_ms=last)

    assert run_at(redis, "a") == last


def test_enqueue_records_who_and_when(redis: Redis, store: Store, clock: Clock) -> None:
    store.enqueue(QUEUE, [new("a"), new("b", run_at_ms=clock.now_ms + 5)], actor="web")

    now = str(clock.now_ms)
    assert events(redis) == [
        {"verb": "enqueue", "id": "a", "from": "", "to": "ready", "actor": "web", "at": now},
        {"verb": "enqueue", "id": "b", "from": "", "to": "delayed", "actor": "web", "at": now,
         "run_at": str(clock.now_ms + 5)},
    ]  # fmt: skip
    assert counter(redis, "enqueued") == 2


@pytest.mark.parametrize("lane", [Lane.HIGH, Lane.NORMAL, Lane.LOW])
def test_enqueue_goes_to_the_lane_of_its_priority(redis: Redis, store: Store, lane: Lane) -> None:
    seed_ready(store, "a", lane=lane)

    assert ids_in_lane(redis, lane) == ["a"]


def test_a_delayed_job_keeps_its_priority(redis: Redis, store: Store, clock: Clock, child: Child) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 5, lane=Lane.HIGH)
    clock.advance(5)

    child.claim(0)

    assert ids_in_lane(redis, Lane.HIGH) == ["a"]


@pytest.mark.parametrize("where", list(JobState))
def test_a_known_id_is_the_same_job_in_every_state(
    redis: Redis, store: Store, clock: Clock, child: Child, where: JobState
) -> None:
    match where:
        case JobState.DELAYED:
            seed_delayed(store, "a", run_at_ms=clock.now_ms + 5)
        case JobState.READY:
            seed_ready(store, "a")
        case JobState.PENDING:
            seed_pending(child, "a")
        case JobState.DONE:
            child.ack(*seed_pending(child, "a"))
        case JobState.DEAD:
            seed_dead(child, "a")
        case JobState.DISCARDED:
            seed_discarded(store, "a")
    before = job(redis, "a")

    answer = store.enqueue(QUEUE, [new("a", spec=b"another", lane=Lane.HIGH)])[0]

    assert (answer.state, answer.there) == (where, "a")
    assert job(redis, "a") == before
    assert verbs(redis, "a").count("enqueue") == 1


def test_a15_an_id_whose_job_is_long_done_starts_from_nothing(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    failed = seed_pending(child, "nightly")
    child.retry(*failed, delay_s=0)
    child.ack(*child.take())
    redis.delete(keys.job(QUEUE, "nightly"))  # as the end of its keep time does

    seed_ready(store, "nightly")

    assert job(redis, "nightly").keys() == {"state", "since", "spec", "entry"}
    assert child.take()[0].delivery == 1


def test_the_same_id_twice_in_one_call_is_one_job(redis: Redis, store: Store) -> None:
    answers = store.enqueue(QUEUE, [new("a"), new("a")])

    assert [(a.state, a.there) for a in answers] == [("ready", None), ("ready", "a")]
    assert ids_in(redis, JobState.READY) == ["a"]


def test_a_queue_is_registered_before_its_first_job(redis: Redis, store: Store) -> None:
    seed_ready(store, "a", queue="new.queue")

    assert redis.sismember(keys.QUEUES, "new.queue")
    assert redis.hget(keys.queue_key("new.queue", "settings"), "lease_ms") == b"30000"


def test_1200_jobs_in_one_call_keep_their_order(redis: Redis, store: Store) -> None:
    ids = [new_job_id() for _ in range(2 * ENQUEUE_ROUND_TRIP + 200)]

    answers = store.enqueue(QUEUE, [new(job_id) for job_id in ids])

    assert [a.id for a in answers] == ids
    assert {a.state for a in answers} == {"ready"}
    assert ids_in(redis, JobState.READY) == ids


def test_bulk_enqueue_of_a_fresh_queue_registers_it(redis: Redis, store: Store) -> None:
    ids = [new_job_id() for _ in range(250)]  # three scripts in one round trip, each answering 'fresh'

    store.enqueue(QUEUE, [new(job_id) for job_id in ids])

    assert sorted(ids_in(redis, JobState.READY)) == sorted(ids)


def test_no_jobs_is_no_command(redis: Redis, store: Store) -> None:
    assert store.enqueue(QUEUE, []) == []
    assert redis.keys() == []


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, PART_BYTES * MAX_PARTS, 100_000])
@pytest.mark.parametrize("is_delayed", [True, False])
def test_any_bytes_come_back_as_they_went_in(
    redis: Redis, store: Store, clock: Clock, child: Child, size: int, is_delayed: bool
) -> None:
    spec = (bytes(range(256)) * (size // 256 + 1))[:size]
    if is_delayed:
        seed_delayed(store, "a", run_at_ms=clock.now_ms + 1, spec=spec)
        clock.advance(1)
    else:
        seed_ready(store, "a", spec=spec)

    assert child.take()[0].spec == spec


def test_large_integers_and_empty_lists_are_opaque_to_lua(store: Store, child: Child) -> None:
    spec = b'{"args": [], "kwargs": {"n": 12345678901234567890, "none": []}}'
    seed_ready(store, "a", spec=spec)

    assert child.take()[0].spec == spec


def test_g6_a_lost_answer_adds_nothing_twice(redis: Redis, lossy: Store, proxy: Proxy) -> None:
    lossy.register(QUEUE)
    proxy.lose_replies(1)

    lossy.enqueue(QUEUE, [new("a"), new("b")])

    assert proxy.lost == 1
    assert ids_in(redis, JobState.READY) == ["a", "b"]
    assert counter(redis, "enqueued") == 2


def test_g6_a_lost_answer_to_a_round_trip_of_many_adds_nothing_twice(
    redis: Redis, lossy: Store, proxy: Proxy
) -> None:
    lossy.register(QUEUE)
    ids = [new_job_id() for _ in range(300)]
    proxy.lose_replies(1)

    answers = lossy.enqueue(QUEUE, [new(job_id) for job_id in ids])

    assert proxy.lost == 1
    assert [a.id for a in answers] == ids
    assert sorted(ids_in(redis, JobState.READY)) == sorted(ids)


def test_g6_a_repeat_after_the_job_went_on_adds_nothing(redis: Redis, store: Store, child: Child) -> None:
    child.ack(*seed_pending(child, "a"))

    answer = store.enqueue(QUEUE, [new("a")])[0]

    assert (answer.state, answer.there) == ("done", "a")
    assert child.take() == []


@pytest.mark.parametrize("name", ["delayed", "events"])
def test_a_wrong_type_under_a_structure_refuses_a_delayed_job_whole(
    redis: Redis, store: Store, clock: Clock, name: str
) -> None:
    store.register(QUEUE)
    redis.set(keys.queue_key(QUEUE, name), "foreign")

    with pytest.raises(WrongKeyType, match="doctor"):
        store.enqueue(QUEUE, [new("a", run_at_ms=clock.now_ms + 5, unique="u")])

    assert job(redis, "a") == {}
    assert not redis.exists(keys.unique(QUEUE, "u"))
    redis.delete(keys.queue_key(QUEUE, name))


def test_i07_a_wrong_type_under_the_lane_refuses_a_ready_job_whole(redis: Redis, store: Store) -> None:
    store.register(QUEUE)
    redis.set(keys.ready(QUEUE, Lane.NORMAL), "foreign")

    with pytest.raises(WrongKeyType):
        store.enqueue(QUEUE, [new("a", unique="u")])

    assert job(redis, "a") == {}
    assert not redis.exists(keys.unique(QUEUE, "u"))
    redis.delete(keys.ready(QUEUE, Lane.NORMAL))


@pytest.mark.parametrize("name", ["stats_total", "wake", "clock"])
def test_a_wrong_type_under_what_only_helps_does_not_refuse_a_job(
    redis: Redis, store: Store, name: str
) -> None:
    store.register(QUEUE)
    redis.delete(keys.queue_key(QUEUE, name))
    redis.set(keys.queue_key(QUEUE, name), "foreign")

    seed_ready(store, "a")

    assert state(redis, "a") == "ready"
    redis.delete(keys.queue_key(QUEUE, name))


def test_a_wrong_type_under_a_job_s_key_is_a_clear_error(redis: Redis, store: Store) -> None:
    store.register(QUEUE)
    redis.set(keys.job(QUEUE, "a"), "foreign")

    with pytest.raises(WrongKeyType):
        store.enqueue(QUEUE, [new("a")])

    assert ids_in(redis, JobState.READY) == []
    redis.delete(keys.job(QUEUE, "a"))


def test_a_delayed_job_takes_under_700_bytes(redis: Redis, store: Store, clock: Clock) -> None:
    """What 1,000 of them add to used memory; `make bench` reports the figure of 100,000."""
    seed_delayed(store, "first", run_at_ms=clock.now_ms + 1, spec=SPEC * 4)
    redis.memory_purge()
    before = redis.info("memory")["used_memory"]

    seed_delayed(store, *[new_job_id() for _ in range(2000)], run_at_ms=clock.now_ms + 60_000, spec=SPEC * 4)
    redis.delete(keys.queue_key(QUEUE, "events"))  # the mirror takes these away

    a_job = (redis.info("memory")["used_memory"] - before) / 2000
    assert a_job < 700
