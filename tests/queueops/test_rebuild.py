"""rebuild: what Redis lost comes back from the record, in its state and with its attempts."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command

from queueops import keys, publishing
from queueops.mirror import compare_all, copy_events, run_once
from queueops.models import Job, JobEvent, MirrorState, OperatorAction
from queueops.rebuild import DELIVERIES_AHEAD, RebuildRefused, rebuild
from queueops.states import JobState, Lane
from queueops.store import Outcome, Store
from tests.factories import (
    PERSON,
    QUEUE,
    Child,
    Clock,
    Redis,
    failing,
    ids_in,
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

pytestmark = pytest.mark.django_db


def lose_everything(redis: Redis, store: Store) -> None:
    """Let the record catch up, and then Redis lose its data."""
    run_once(store)
    redis.flushall()


def one_in_each_state(store: Store, child: Child, clock: Clock) -> None:
    seed_dead(child, "dead")
    child.retry(*seed_pending(child, "retried"), delay_s=60)
    seed_pending(child, "pending")
    seed_delayed(store, "delayed", run_at_ms=clock.now_ms + 90_000)
    seed_discarded(store, "aside")
    seed_ready(store, "done", lane=Lane.FIRST)
    child.ack(*child.take(1))
    seed_ready(store, "ready")


def test_rebuild_brings_each_unfinished_job_back_in_its_state_with_its_attempts(
    redis: Redis, store: Store, child: Child, clock: Clock
) -> None:
    one_in_each_state(store, child, clock)
    lose_everything(redis, store)

    report = rebuild(store)

    assert dict(report.by_state) == {
        "dead": 1, "delayed": 2, "pending": 1, "ready": 1, "discarded": 1,
    }  # fmt: skip
    assert report.lost == [QUEUE]
    names = ("dead", "retried", "pending", "ready", "delayed", "aside")
    assert {name: state(redis, name) for name in names} == {
        "dead": "dead", "retried": "delayed", "pending": "ready", "ready": "ready", "delayed": "delayed",
        "aside": "discarded",
    }  # fmt: skip
    assert state(redis, "done") is None
    assert job(redis, "retried")["attempts"] == "1"
    assert failing(redis) == 1
    assert run_at(redis, "delayed") == clock.now_ms + 90_000
    assert run_at(redis, "retried") == clock.now_ms + 60_000
    assert job(redis, "dead")["error"].startswith("{")
    assert ids_in(redis, JobState.DEAD) == ["dead"]


def test_rebuild_counts_the_lost_process_of_a_pending_job(redis: Redis, store: Store, child: Child) -> None:
    seed_pending(child, "a")
    lose_everything(redis, store)

    rebuild(store)

    assert job(redis, "a")["rescues"] == "1"


def test_rebuild_lets_no_process_from_before_the_loss_settle(
    redis: Redis, store: Store, child: Child
) -> None:
    (before,) = seed_pending(child, "a")
    lose_everything(redis, store)
    rebuild(store)
    child.register()
    (after,) = child.take()

    assert after.delivery == before.delivery + DELIVERIES_AHEAD + 1
    assert child.settle(Outcome.ack(before, handler="tests.work")) == ["lost"]
    assert child.ack(after) == ["ok"]


def test_rebuild_twice_adds_nothing(redis: Redis, store: Store, child: Child, clock: Clock) -> None:
    one_in_each_state(store, child, clock)
    lose_everything(redis, store)
    first = rebuild(store)
    hashes = {key: redis.hgetall(key) for key in redis.scan_iter(b"queueops:*:job:*")}

    second = rebuild(store)

    assert (first.total, second.total, second.known) == (6, 0, 6)
    assert {key: redis.hgetall(key) for key in redis.scan_iter(b"queueops:*:job:*")} == hashes


def test_a_dry_run_prints_counts_and_changes_nothing(
    redis: Redis, store: Store, child: Child, clock: Clock
) -> None:
    one_in_each_state(store, child, clock)
    lose_everything(redis, store)
    said = io.StringIO()

    call_command("rebuild", "--dry-run", stdout=said)

    assert said.getvalue().startswith(
        "6 jobs would come back: 1 dead, 2 delayed, 1 discarded, 1 pending, 1 ready"
    )
    assert ids_in(redis, JobState.DELAYED) == []
    assert not OperatorAction.objects.exists()


def test_rebuild_is_refused_while_the_record_is_behind_and_nothing_was_lost(
    redis: Redis, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed_ready(store, "a")
    run_once(store)
    monkeypatch.setattr("queueops.rebuild.catch_up", lambda store, queue: False)

    with pytest.raises(RebuildRefused, match="shows no loss"):
        rebuild(store)
    with pytest.raises(CommandError, match="let the mirror catch up"):
        call_command("rebuild")


def test_what_was_lost_without_a_new_epoch_comes_back_once_the_record_is_whole(
    redis: Redis, store: Store, child: Child
) -> None:
    """A fail-over to a replica that lacked the last jobs."""
    seed_ready(store, "kept", "lost")
    run_once(store)
    entry = job(redis, "lost")["entry"].removeprefix("normal/")
    redis.delete(keys.job(QUEUE, "lost"))
    redis.xdel(keys.ready(QUEUE, "normal"), entry)

    report = rebuild(store)

    assert (report.total, report.lost) == (1, [])
    assert {each.id for each in child.take()} == {"kept", "lost"}


def test_rebuild_says_how_many_completions_may_run_again(redis: Redis, store: Store, child: Child) -> None:
    seed_pending(child, "a", "b")
    run_once(store)
    child.ack(*child.held.values())  # unrecorded when the data go
    redis.flushall()

    report = rebuild(store)

    assert report.may_run_again == 2
    assert "up to 2 completions after that may run again" in report.lines()[-1]


def test_the_record_follows_the_new_life_though_its_clock_is_behind(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_ready(store, "a")
    run_once(store)
    Job.objects.update(last_event="9999999999999999-00000000000000000000")  # a host an age ahead wrote it
    redis.flushall()
    rebuild(store)
    child.register()
    child.ack(*child.take())
    copy_events(store, QUEUE)

    assert Job.objects.get().state == "done"
    assert [event.verb for event in JobEvent.objects.order_by("id")] == ["enqueue", "rebuild", "claim", "ack"]


def test_a_job_that_meets_another_holder_of_its_unique_key_is_set_aside(redis: Redis, store: Store) -> None:
    store.enqueue(QUEUE, [new("old", unique="k" * 32)])
    lose_everything(redis, store)
    store.enqueue(QUEUE, [new("young", unique="k" * 32)])

    report = rebuild(store)

    assert report.held == ["old: young"]
    old = Job.objects.get(job_id="old")
    assert (old.state, old.reason) == ("discarded", "duplicate of young")
    assert (state(redis, "old"), job(redis, "old")["reason"]) == ("discarded", "duplicate of young")
    run_once(store)
    assert compare_all(store) == []
    assert store.restore(QUEUE, ["old"], actor=PERSON) == ["held:young"]
    store.discard(QUEUE, ["young"], actor=PERSON)
    assert store.restore(QUEUE, ["old"], actor=PERSON) == ["ok"]
    assert state(redis, "old") == "ready"


def test_a_job_that_holds_its_unique_key_holds_it_again(redis: Redis, store: Store) -> None:
    store.enqueue(QUEUE, [new("a", unique="k" * 32)])
    lose_everything(redis, store)
    rebuild(store)

    (answer,) = store.enqueue(QUEUE, [new("b", unique="k" * 32)])

    assert answer.there == "a"


def test_what_was_enqueued_after_the_loss_under_the_same_id_stays(redis: Redis, store: Store) -> None:
    store.enqueue(QUEUE, [new("a", spec=b'["tests.old"]')])
    lose_everything(redis, store)
    store.enqueue(QUEUE, [new("a", spec=b'["tests.new"]')])

    assert rebuild(store).total == 0
    assert job(redis, "a")["spec"] == '["tests.new"]'


def test_a_restored_job_goes_back_to_the_state_that_the_record_has(
    redis: Redis, store: Store, clock: Clock
) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 90_000)
    store.discard(QUEUE, ["a"], actor=PERSON, reason="not now")
    lose_everything(redis, store)
    rebuild(store)

    assert store.restore(QUEUE, ["a"], actor=PERSON) == ["ok"]
    assert run_at(redis, "a") == clock.now_ms + 90_000


@pytest.mark.django_db(transaction=True)
def test_a_queue_that_was_paused_is_paused_before_its_jobs_are_back(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_ready(store, "a")
    publishing.pause(QUEUE, actor=PERSON, reason="the bank is down")
    lose_everything(redis, store)
    rebuild(store)
    child.register()

    assert child.claim().word == "paused"


def test_the_epoch_is_the_new_one_when_all_is_back(redis: Redis, store: Store) -> None:
    seed_ready(store, "a")
    lose_everything(redis, store)
    before = MirrorState.objects.get().epoch
    rebuild(store)

    assert MirrorState.objects.get().epoch == store.epoch() != before
    assert OperatorAction.objects.get(verb="rebuild").count == 1


def test_a_long_spec_of_a_delayed_job_comes_back_whole(redis: Redis, store: Store, clock: Clock) -> None:
    spec = b'["tests.work", ["' + b"x" * 700 + b'"]]'
    store.enqueue(QUEUE, [new("a", spec=spec, run_at_ms=clock.now_ms + 5_000)])
    lose_everything(redis, store)
    rebuild(store)
    clock.advance(6_000)
    child = Child(store, "host:1:aa/1").register()

    assert child.take()[0].spec == spec


def test_rebuild_is_one_script_whose_repeat_adds_nothing(redis: Redis, store: Store) -> None:
    fields = ["a", "ready", 0, "normal", "", 1, "delivery", 7, 1, b'["tests.work"]']

    assert store.rebuild(QUEUE, [fields], actor=PERSON) == ["ok"]
    assert store.rebuild(QUEUE, [fields], actor=PERSON) == ["known"]
    assert verbs(redis, "a") == ["rebuild"]
