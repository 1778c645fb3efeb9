"""Engine events become rows: one writer, safe to repeat, per-job ordered, and never stopped by one event."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
from django.db import DataError, OperationalError

from queueops import keys
from queueops.events import BadEvent, order_of, parse
from queueops.mirror import catch_up, copy_events, health, rows, run_once
from queueops.mirror.copy import copy_reading
from queueops.mirror.reading import read
from queueops.models import Attempt, Effect, Job, JobEvent, JobTag, MirrorState, SetAsideEvent
from queueops.payload import encode_spec
from queueops.signals import events_mirrored
from queueops.store import Outcome, Store
from tests.factories import (
    PERSON,
    QUEUE,
    Child,
    Clock,
    Redis,
    new,
    seed_dead,
    seed_delayed,
    seed_discarded,
    seed_pending,
    seed_ready,
    set_up,
)

pytestmark = pytest.mark.django_db
EVENTS = keys.queue_key(QUEUE, "events")


def row(job_id: str) -> Job:
    return Job.objects.get(queue=QUEUE, job_id=job_id)


def recorded(job_id: str) -> list[str]:
    return list(JobEvent.objects.filter(job_id=job_id).order_by("id").values_list("verb", flat=True))


def snapshot() -> list[Any]:
    """Every row but its own number."""
    return [
        sorted(
            tuple(str(value) for name, value in values.items() if name not in {"id", "updated_at"})
            for values in model.objects.values()
        )
        for model in (Job, JobEvent, Attempt, JobTag)
    ]


# -- what a life becomes ------------------------------------------------------------------------------


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
    assert recorded("a") == ["enqueue", "claim", "retry", "promote", "claim", "ack"]
    attempt = Attempt.objects.get()
    assert (attempt.number, attempt.delivery, attempt.delay_ms, attempt.is_last) == (1, 1, 5_000, False)
    assert (attempt.policy, attempt.policy_version) == ("default", 1)
    assert JobTag.objects.get().value == "12"
    assert redis.xlen(EVENTS) == 0
    assert MirrorState.objects.get().lag_events == 0
    assert not SetAsideEvent.objects.exists()


def test_the_row_is_the_same_however_the_events_are_cut_into_batches(
    redis: Redis, store: Store, child: Child, clock: Clock
) -> None:
    """Every prefix is a state that the job had; the last one is that of a single batch."""
    seed_dead(child, "a")
    store.requeue(QUEUE, ["a"], actor=PERSON)
    child.snooze(*child.take())
    store.reschedule(QUEUE, ["a"], run_at_ms=clock.now_ms + 500, actor=PERSON)
    store.discard(QUEUE, ["a"], actor=PERSON, reason="no")
    store.restore(QUEUE, ["a"], actor=PERSON)
    clock.advance(600)
    child.die(ran=["a"]) if child.take() else None
    entries = redis.xrange(EVENTS)
    copy_events(store, QUEUE)
    whole = snapshot()
    Job.objects.all().delete()
    Attempt.objects.all().delete()
    for stream_id, fields in entries:
        redis.xadd(EVENTS + "2", fields, id=stream_id)
    redis.rename(EVENTS + "2", EVENTS)

    states = []
    while copy_events(store, QUEUE, limit=1):
        states.append(row("a").state)

    assert states == [
        "ready", "pending", "dead", "ready", "pending", "delayed", "delayed", "discarded", "delayed", "ready",
        "pending", "ready",
    ]  # fmt: skip
    assert snapshot() == whole
    assert row("a").rescues == 1


def test_a_job_that_died_has_its_attempt_its_cause_and_its_error(store: Store, child: Child) -> None:
    seed_dead(child, "a", cause="boom")
    copy_events(store, QUEUE)

    job = row("a")
    assert (job.state, job.cause, job.attempts) == ("dead", "boom", 1)
    assert job.error_decoded() == {"class": "boom", "message": "it failed", "traceback": ""}
    assert (job.died_at, job.keep_until) == (job.finished_at, None)
    attempt = Attempt.objects.get()
    assert (attempt.is_last, attempt.delay_ms, attempt.cause) == (True, None, "boom")


def test_a_lost_process_is_no_attempt(store: Store, child: Child) -> None:
    seed_pending(child, "a")
    child.die(ran=["a"])
    copy_events(store, QUEUE)

    assert (row("a").rescues, row("a").state) == (1, "ready")
    assert not Attempt.objects.exists()


def test_a_late_settlement_is_an_event_and_moves_nothing(redis: Redis, store: Store, child: Child) -> None:
    (lost,) = seed_pending(child, "a")
    child.die()
    child.register()
    assert child.settle(Outcome.ack(lost, handler="tests.work")) == ["lost"]
    copy_events(store, QUEUE)

    assert row("a").state == "ready"
    assert recorded("a") == ["enqueue", "claim", "release", "late"]


def test_a_purged_job_is_gone_and_stays_on_record(redis: Redis, store: Store) -> None:
    seed_discarded(store, "a")
    store.purge(QUEUE, ["a"], actor=PERSON, reason="privacy")
    copy_events(store, QUEUE)

    assert (row("a").state, row("a").reason) == ("gone", "privacy")
    assert row("a").keep_until is not None


def test_an_edit_is_a_new_edition_with_the_new_spec(store: Store) -> None:
    seed_ready(store, "a")
    copy_events(store, QUEUE)
    spec = encode_spec("shop.refund", tags=["urgent"])
    store.edit(QUEUE, "a", spec, actor=PERSON)
    copy_events(store, QUEUE)

    job = row("a")
    assert (job.edition, job.handler, bytes(job.spec or b"")) == (1, "shop.refund", spec)
    assert JobTag.objects.get().name == "urgent"


def test_the_spec_of_a_waiting_job_is_read_from_its_parts(store: Store, clock: Clock) -> None:
    spec = encode_spec("shop.charge", ["x" * 700])
    store.enqueue(QUEUE, [new("a", spec=spec, run_at_ms=clock.now_ms + 9_000, unique="u" * 32)])
    copy_events(store, QUEUE)

    job = row("a")
    assert bytes(job.spec or b"") == spec
    assert (job.state, job.unique_digest) == ("delayed", "u" * 32)


def test_an_id_that_is_used_again_begins_a_new_life(redis: Redis, store: Store, child: Child) -> None:
    spec = encode_spec("shop.charge", tags=["first"])
    store.enqueue(QUEUE, [new("nightly", spec=spec)])
    child.retry(*child.take(), delay_s=0)
    child.ack(*child.take())
    copy_events(store, QUEUE)
    redis.delete(keys.job(QUEUE, "nightly"))  # its tombstone's time is over

    store.enqueue(QUEUE, [new("nightly", spec=encode_spec("shop.refund"))])
    copy_events(store, QUEUE)

    job = row("nightly")
    assert (job.state, job.attempts, job.delivery, job.handler) == ("ready", 0, 0, "shop.refund")
    assert (job.finished_at, job.result, job.ran_ms) == (None, "", None)
    assert not Attempt.objects.exists()
    assert not JobTag.objects.exists()
    assert recorded("nightly")[-1] == "enqueue"


def test_with_audit_outcome_a_job_is_one_event_at_its_end(redis: Redis, store: Store, child: Child) -> None:
    set_up(store, audit="outcome")
    seed_ready(store, "a", "b")
    child.register()
    child.settle(*[Outcome.ack(job, handler="tests.work", ran_ms=3) for job in child.take(1)])
    child.bury(*child.take(1))

    assert copy_events(store, QUEUE) == 2
    assert (row("a").state, row("b").state) == ("done", "dead")
    assert row("a").spec is not None
    assert row("b").spec is not None


# -- safe to repeat, ordered --------------------------------------------------------------------------


def test_the_same_events_read_twice_are_written_once(redis: Redis, store: Store, child: Child) -> None:
    """Two mirrors, or one that died between its commit and its trim."""
    child.retry(*seed_pending(child, "a"))
    first, second = read(store, QUEUE), read(store, QUEUE)
    copy_reading(store, first)
    before = snapshot()
    copy_reading(store, second)

    assert snapshot() == before
    assert redis.xlen(EVENTS) == 0


def test_a_slower_mirror_does_not_put_a_row_back(redis: Redis, store: Store, child: Child) -> None:
    seed_pending(child, "a")
    old = read(store, QUEUE)
    child.ack(*child.held.values())
    copy_events(store, QUEUE)
    copy_reading(store, old)

    assert row("a").state == "done"


def test_nothing_leaves_the_stream_before_its_rows_have_committed(
    redis: Redis, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed_ready(store, "a")

    def away(*_: object) -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr(rows, "write_events", away)
    with pytest.raises(OperationalError):
        copy_events(store, QUEUE)
    assert redis.xlen(EVENTS) == 1
    assert not Job.objects.exists()
    monkeypatch.undo()

    assert copy_events(store, QUEUE) == 1


def test_events_that_came_meanwhile_stay_in_the_stream(redis: Redis, store: Store) -> None:
    seed_ready(store, "a")
    reading = read(store, QUEUE)
    seed_ready(store, "b")
    copy_reading(store, reading)

    assert redis.xlen(EVENTS) == 1


def test_listeners_hear_of_it_after_the_commit(store: Store) -> None:
    seed_ready(store, "a")
    heard: list[dict[str, Any]] = []

    def listen(**told: Any) -> None:
        heard.append(told)

    events_mirrored.connect(listen)
    try:
        copy_events(store, QUEUE)
    finally:
        events_mirrored.disconnect(listen)

    assert [(told["queue"], told["states"]) for told in heard] == [(QUEUE, {"a": "ready"})]


def test_run_once_copies_every_queue_in_turn(redis: Redis, store: Store) -> None:
    for queue in ("mail", "reports"):
        seed_ready(store, *[f"j{n}" for n in range(1_200)], queue=queue)

    assert run_once(store) == 2_400
    assert Job.objects.count() == JobEvent.objects.count() == 2_400
    assert [redis.xlen(keys.queue_key(queue, "events")) for queue in ("mail", "reports")] == [0, 0]


# -- gaps and lag ------------------------------------------------------------------------------------


def test_events_that_the_engine_dropped_are_a_gap_and_counted(redis: Redis, store: Store) -> None:
    seed_ready(store, "a")
    copy_events(store, QUEUE)
    set_up(store, events_max=3)
    seed_ready(store, *[f"b{n}" for n in range(8)])

    assert catch_up(store, QUEUE) is False
    state = MirrorState.objects.get()
    assert (state.events_lost, state.gaps) == (5, 1)
    assert state.gap_at is not None
    assert catch_up(store, QUEUE) is True
    assert health(store)[0].events_lost == 5


def test_a_stream_trimmed_by_another_hand_is_a_gap(redis: Redis, store: Store) -> None:
    seed_ready(store, "a")
    copy_events(store, QUEUE)
    seed_ready(store, "b", "c")
    redis.xtrim(EVENTS, maxlen=1, approximate=False)
    if "entries-added" not in redis.xinfo_stream(EVENTS):
        pytest.skip("this server does not count what a stream had")

    assert catch_up(store, QUEUE) is False
    assert MirrorState.objects.get().gaps == 1
    assert catch_up(store, QUEUE) is True


def test_a_deleted_stream_is_a_gap(redis: Redis, store: Store) -> None:
    seed_ready(store, "a", "b")
    copy_events(store, QUEUE)
    seed_ready(store, "c")
    redis.delete(EVENTS)
    seed_ready(store, "d")
    if "entries-added" not in redis.xinfo_stream(EVENTS):
        pytest.skip("this server does not count what a stream had")

    assert catch_up(store, QUEUE) is False
    assert catch_up(store, QUEUE) is True


def test_long_passes_and_second_mirrors_are_no_gap(redis: Redis, store: Store) -> None:
    seed_ready(store, *[f"a{n}" for n in range(2_300)])
    run_once(store)
    seed_ready(store, *[f"b{n}" for n in range(30)])
    one, two = read(store, QUEUE, limit=20), read(store, QUEUE, limit=10)
    copy_reading(store, one)
    copy_reading(store, two)
    assert catch_up(store, QUEUE) is True
    seed_ready(store, "c")
    assert catch_up(store, QUEUE) is True
    assert MirrorState.objects.get().gaps == 0


@pytest.mark.parametrize("waiting", [0, 2])
def test_what_a_slow_mirror_read_long_ago_is_no_gap(redis: Redis, store: Store, waiting: int) -> None:
    seed_ready(store, "a")
    catch_up(store, QUEUE)
    for n in range(waiting):
        seed_ready(store, f"b{n}")
    slow = read(store, QUEUE)
    seed_ready(store, *[f"c{n}" for n in range(30)])
    catch_up(store, QUEUE)

    copy_reading(store, slow)

    assert MirrorState.objects.get().gaps == 0
    assert catch_up(store, QUEUE) is True


def test_an_own_trim_is_no_gap(redis: Redis, store: Store) -> None:
    for job_id in "abc":
        seed_ready(store, job_id)
        assert catch_up(store, QUEUE) is True
    assert MirrorState.objects.get().gaps == 0


def test_health_tells_the_lag_of_now(redis: Redis, store: Store) -> None:
    seed_ready(store, "a", "b")
    (state,) = health(store)

    assert (state.queue, state.lag_events, state.is_store_lost) == (QUEUE, 2, False)
    assert 0 <= state.lag_s < 5

    copy_events(store, QUEUE)
    redis.flushall()
    store.register(QUEUE)
    assert health(store)[0].is_store_lost


# -- poison -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"verb": "ack"},
        {"verb": "enqueue", "id": "x", "to": "ready", "at": "soon"},
        {"verb": "enqueue", "id": "x", "to": "nowhere", "at": "1700000000000"},
        {"verb": "retry", "id": "x", "to": "delayed", "at": "1700000000000", "attempts": "many"},
        {"verb": "retry", "id": "x", "to": "delayed", "at": "1700000000000", "attempts": "9" * 40},
        {"verb": "enqueue", "id": "x" * 500, "to": "ready", "at": "1700000000000"},
        {"verb": "enqueue", "id": "x", "to": "ready", "at": "9" * 30},
        {b"\xff\x00": b"\xff\xfe\x00"},
    ],
)
def test_an_event_that_is_none_is_set_aside_and_the_rest_goes_on(
    redis: Redis, store: Store, fields: dict[Any, Any]
) -> None:
    seed_ready(store, "before")
    redis.xadd(EVENTS, fields)
    seed_ready(store, "after")

    assert copy_events(store, QUEUE) == 3
    assert {job.job_id for job in Job.objects.all()} == {"before", "after"}
    aside = SetAsideEvent.objects.get()
    assert aside.why
    assert aside.queue == QUEUE
    assert redis.xlen(EVENTS) == 0
    assert health(store)[0].set_aside == 1


def test_a_row_that_the_database_refuses_is_found_by_halves(
    redis: Redis, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed_ready(store, *[f"j{n}" for n in range(40)])
    write = rows.write_jobs

    def refuse(using: str, jobs: Any) -> None:
        jobs = list(jobs)
        if any(job.job_id == "j17" for job in jobs):
            raise DataError("the database refuses this one")
        write(using, jobs)

    monkeypatch.setattr(rows, "write_jobs", refuse)

    assert copy_events(store, QUEUE) == 40
    assert Job.objects.count() == 39
    assert SetAsideEvent.objects.get().job_id == "j17"
    assert MirrorState.objects.get().events_total == 39


def test_strange_texts_are_recorded(redis: Redis, store: Store, child: Child) -> None:
    spec = encode_spec("shop.charge", ["nul \0, emoji \N{PILE OF POO}, half \ud83d"])
    store.enqueue(QUEUE, [new("a", spec=spec)])
    (job,) = child.take()
    child.settle(
        Outcome.bury(
            job, cause="boom", cause_text="boom", error=b'{"message": "\xff \x00 \xf0\x9f"}', ran_ms=1
        )
    )
    store.discard(QUEUE, ["a"], actor=PERSON, reason="nul \0 here")

    copy_events(store, QUEUE)

    assert not SetAsideEvent.objects.exists()
    found = row("a")
    assert bytes(found.spec or b"") == spec
    assert found.reason == "nul \u2400 here"
    assert "\u2400" in found.error


def test_a_spec_that_is_no_utf_8_is_kept_as_it_is(redis: Redis, store: Store) -> None:
    store.enqueue(QUEUE, [new("a", spec=b"\xff\xfe\x00")])
    copy_events(store, QUEUE)

    assert bytes(row("a").spec or b"") == b"\xff\xfe\x00"
    assert row("a").as_job().corrupt


# -- parse ---------------------------------------------------------------------------------------------


def test_orders_sort_as_stream_ids_do() -> None:
    ids = ["5-0", "9-3", "9-20", "10-1", "1700000000000-0", "1700000000000-18446744073709551615"]

    assert sorted(ids, key=order_of) == ids


def test_parse_names_what_is_missing() -> None:
    with pytest.raises(BadEvent, match="it has no id"):
        parse("1-0", {b"verb": b"ack"})


# -- killed at any line ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_mirror_killed_at_random_loses_and_doubles_nothing(
    redis: Redis, store: Store, child: Child, site_env: dict[str, str]
) -> None:
    """Mirrors run in other processes and are killed -9 every few hundred ms while jobs flow."""
    deadline = time.monotonic() + 12
    mirrors: list[subprocess.Popen[bytes]] = []
    started = enqueued = 0

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "manage.py", "runmirror"], env=site_env)

    kill_at = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        while len(mirrors) < 2:
            mirrors.append(start())
            started += 1
        ids = [f"j{enqueued + n}" for n in range(50)]
        enqueued += 50
        seed_ready(store, *ids)
        child.register()
        jobs = child.take(50)
        child.retry(*jobs[:5], delay_s=0)
        child.ack(*jobs[5:])
        child.ack(*child.take(5))
        if time.monotonic() > kill_at:
            victim = mirrors.pop(0)
            victim.kill()
            victim.wait()
            kill_at = time.monotonic() + 1.2
    for mirror in mirrors:
        mirror.kill()
        mirror.wait()
    while run_once(store):
        pass

    assert started >= 4
    assert Job.objects.filter(state="done").count() == Job.objects.count() == enqueued
    assert JobEvent.objects.count() == 3 * enqueued + 3 * (enqueued // 10)
    assert Attempt.objects.count() == enqueued // 10
    assert not SetAsideEvent.objects.exists()
    assert MirrorState.objects.get().gaps == 0


def test_effects_of_an_earlier_life_go_with_it(redis: Redis, store: Store, child: Child) -> None:
    child.ack(*seed_pending(child, "a"))
    copy_events(store, QUEUE)
    ended = row("a").finished_at
    assert ended is not None
    Effect.objects.create(
        queue=QUEUE, idempotency_key="a", key="charge", job_id="a", delivery=1, result="1", created_at=ended
    )
    redis.delete(keys.job(QUEUE, "a"))
    later = Clock(int(ended.timestamp() * 1000) + 700_000)
    seed_delayed(later.drive(store), "a", run_at_ms=later.now_ms + 1_000)
    copy_events(store, QUEUE)

    assert not Effect.objects.exists()
