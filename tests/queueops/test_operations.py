"""Bulk actions: a frozen set, exact counts, a pace, and no harm when the runner dies or two run."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from django.db import connections

from queueops import doctor, keys, operations
from queueops.connection import connection
from queueops.errors import StoreUnavailable
from queueops.inspector import Inspector
from queueops.models import Operation, OperatorAction
from queueops.operations import Plan, Runner, Selection
from queueops.payload import encode_spec
from queueops.states import JobState, Lane
from queueops.store import Store
from tests import factories as f
from tests.factories import PERSON, QUEUE, Child, Clock, Redis

pytestmark = pytest.mark.django_db

Status = Operation.Status


@pytest.fixture
def store(redis: Redis) -> Store:
    """By the server's own clock: operations ask it, too."""
    return Store()


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few hundred jobs are several steps."""
    monkeypatch.setattr(operations, "STEP", 100)


def dead(child: Child, n: int, prefix: str = "job", **fields: Any) -> list[str]:
    """`n` dead jobs, claimed a hundred at a time."""
    ids = [f"{prefix}-{i:04}" for i in range(n)]
    for start in range(0, n, 100):
        f.seed_dead(child, *ids[start : start + 100], **fields)
    return ids


def begin(verb: str, plan: Plan | None = None, **filters: Any) -> Operation:
    filters.setdefault("queue", QUEUE)
    return operations.start(verb, Selection.for_verb(verb, **filters), plan, actor=PERSON, reason="fixed")


def run(verb: str, plan: Plan | None = None, **filters: Any) -> Operation:
    return Runner(begin(verb, plan, **filters).pk).run()


# -- what it takes -------------------------------------------------------------------------------


def test_requeue_takes_all_the_dead_and_says_so(child: Child, redis: Redis) -> None:
    ids = dead(child, 250)

    operation = run("requeue")

    assert (operation.status, operation.total, operation.done, operation.skipped) == ("finished", 250, 250, 0)
    assert operation.results == {"ok": 250}
    assert operation.started_at
    assert operation.finished_at
    assert sorted(f.ids_in(redis, JobState.READY)) == ids
    [action] = OperatorAction.objects.all()
    assert (action.verb, action.count, action.actor, action.reason) == ("requeue", 250, PERSON, "fixed")
    assert action.operation == operation.pk


def test_jobs_that_die_after_the_freeze_do_not_join(child: Child, redis: Redis) -> None:
    dead(child, 3, "early")
    operation = begin("requeue")
    redis.eval("local t = redis.call('TIME') repeat until redis.call('TIME')[2] ~= t[2]", 0)
    late = dead(child, 2, "late")

    operation = Runner(operation.pk).run()

    assert (operation.total, operation.done) == (3, 3)
    assert sorted(f.ids_in(redis, JobState.DEAD)) == late


def test_d10_requeue_all_starts_each_job_once_though_it_fails_at_once(child: Child, redis: Redis) -> None:
    ids = dead(child, 1000)
    starts: Counter[str] = Counter()
    operation = begin("requeue")
    runner = Runner(operation.pk)
    while runner.is_open:
        runner.step()
        jobs = child.take(100)
        starts.update(job.id for job in jobs)
        child.bury(*jobs)
    while jobs := child.take(100):
        starts.update(job.id for job in jobs)
        child.bury(*jobs)

    assert starts == Counter(ids), "each exactly once more"
    assert redis.zcard(keys.jobs_in(QUEUE, JobState.DEAD)) == 1000
    assert runner.row.done == 1000
    assert runner.row.results == {"ok": 1000}


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({"handler": "shop.charge"}, {"a", "b"}),
        ({"tag": "customer=42"}, {"b", "c"}),
        ({"tag": "customer"}, {"b", "c", "d"}),
        ({"handler": "shop.charge", "tag": "customer=42"}, {"b"}),
        ({"id_prefix": "c"}, {"c"}),
        ({"cause": "boom"}, {"a", "b", "c"}),
        ({"cause": "other-cause"}, {"d"}),
        ({"cause": "boom", "handler": "shop.ship"}, {"c"}),
        ({"ids": ["a", "d"]}, {"a", "d"}),
        ({"older_than_s": 3600}, set()),
    ],
)
def test_a_filter_takes_what_matches_and_nothing_else(
    filters: dict[str, Any], wanted: set[str], child: Child, redis: Redis
) -> None:
    f.seed_dead(child, "a", spec=encode_spec("shop.charge"))
    f.seed_dead(child, "b", spec=encode_spec("shop.charge", tags={"customer": 42}))
    f.seed_dead(child, "c", spec=encode_spec("shop.ship", tags={"customer": 42}))
    f.seed_dead(child, "d", spec=encode_spec("shop.ship", tags={"customer": 7}), cause="other-cause")

    selection = Selection.for_verb("requeue", queue=QUEUE, **filters)
    assert operations.count(Inspector(), selection, "requeue") == len(wanted)

    operation = run("requeue", **filters)

    assert set(f.ids_in(redis, JobState.READY)) == wanted
    assert (operation.total, operation.done, operation.skipped) == (len(wanted), len(wanted), 0)


def test_g11_a_filtered_action_never_touches_another_queue(child: Child, store: Store, redis: Redis) -> None:
    mail = dead(child, 30)
    others = Child(store, "host:9:zz/1", "orders").register()
    f.seed_dead(others, *[f"other-{i}" for i in range(70)])

    page = Inspector().page(QUEUE, "dead", limit=20)
    first = run("requeue", ids=[job.id for job in page.jobs])
    assert (first.total, first.done) == (20, 20)

    rest = run("requeue", state="dead")
    assert (rest.total, rest.done) == (10, 10)
    assert sorted(f.ids_in(redis, JobState.READY)) == mail
    assert redis.zcard(keys.jobs_in("orders", JobState.DEAD)) == 70


def test_without_a_queue_every_queue_is_meant(child: Child, store: Store, redis: Redis) -> None:
    f.seed_dead(child, "a", "b")
    f.seed_dead(Child(store, "host:9:zz/1", "orders").register(), "c")
    f.seed_ready(store, "idle", queue="empty")

    operation = run("requeue", queue="", cause="boom")

    assert (operation.total, operation.done) == (3, 3)
    assert redis.zcard(keys.jobs_in("orders", JobState.DEAD)) == 0


@pytest.mark.parametrize("state", ["delayed", "ready", "dead"])
def test_discard_takes_a_state_and_restore_by_operation_undoes_it(
    state: str, store: Store, child: Child, redis: Redis
) -> None:
    ids = [f"j-{i:03}" for i in range(130)]
    match state:
        case "delayed":
            f.seed_delayed(store, *ids, run_at_ms=Inspector().now_ms() + 600_000)
        case "ready":
            f.seed_ready(store, *ids)
        case "dead":
            dead(child, 130)
    f.seed_discarded(store, "discarded-before")

    done = run("discard", state=state)
    assert (done.total, done.done) == (130, 130)
    assert len(f.ids_in(redis, JobState.DISCARDED)) == 131

    undone = run("restore", operation=done.pk)
    assert (undone.total, undone.done) == (130, 130)
    assert f.ids_in(redis, JobState.DISCARDED) == ["discarded-before"]
    assert len(f.ids_in(redis, JobState(state))) == 130


def test_run_now_of_ready_jobs_ends_though_they_stay_ready(store: Store, redis: Redis) -> None:
    f.seed_ready(store, *[f"j-{i}" for i in range(250)])

    operation = run("run_now", state="ready")

    assert (operation.total, operation.done, operation.results) == (250, 250, {"ok": 250})
    assert len(f.ids_in_lane(redis, Lane.FIRST)) == 250


def test_reschedule_moves_each_job_once_and_spreads(store: Store, redis: Redis) -> None:
    now_ms = Inspector().now_ms()
    f.seed_delayed(store, *[f"j-{i}" for i in range(250)], run_at_ms=now_ms + 1_000_000)

    operation = run("reschedule", Plan(delay_s=2_000, spread_s=1_000))

    assert (operation.done, operation.results) == (250, {"ok": 250})
    due = [
        at - now_ms for _, at in redis.zrange(keys.jobs_in(QUEUE, JobState.DELAYED), 0, -1, withscores=True)
    ]
    assert min(due) >= 2_000_000
    assert max(due) <= 3_010_000
    assert max(due) - min(due) > 800_000
    assert f.verbs(redis).count("reschedule") == 250


def test_requeue_with_a_spread_delays_what_it_sends(child: Child, redis: Redis) -> None:
    dead(child, 100)

    operation = run("requeue", Plan(spread_s=600))

    assert operation.done == 100
    due = Inspector().forecast(12, queues=[QUEUE])[QUEUE]
    assert sum(each.count for each in due) == 100
    assert max(each.count for each in due) < 40


def test_cancel_asks_running_jobs_to_stop(
    child: Child, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "SEEN_S", 0)
    [job, _] = f.seed_pending(child, "a", "b")

    operation = run("cancel")

    assert (operation.done, operation.status) == (2, "finished")
    assert operation.error == "2 of them still run"
    assert child.store.look(QUEUE, child.name, "a", job.delivery) == "cancelled"
    child.ack(*child.held.values())


def test_purge_takes_only_what_is_discarded(store: Store, redis: Redis) -> None:
    f.seed_discarded(store, "a", "b")
    f.seed_ready(store, "c")

    operation = run("purge")

    assert (operation.total, operation.done) == (2, 2)
    assert [f.state(redis, job_id) for job_id in "abc"] == [None, None, "ready"]


def test_what_was_not_taken_is_counted_by_word_with_samples(store: Store, child: Child, redis: Redis) -> None:
    f.seed_dead(child, "free", unique="u")
    f.seed_dead(child, "mine", unique="key")
    f.seed_ready(store, "holder", unique="key")

    operation = run("requeue", ids=["free", "mine", "holder", "nobody"])

    assert operation.total == 2
    assert operation.results == {
        "ok": 1,
        "held": 1,
        "wrong:ready": 1,
        "missing": 1,
        "samples": {"held": [["mine", "holder"]], "wrong:ready": [["holder"]], "missing": [["nobody"]]},
    }
    assert (operation.done, operation.skipped, operation.status) == (1, 3, "finished")


def test_purge_of_an_unknown_id_is_not_counted_as_done(store: Store, redis: Redis) -> None:
    f.seed_discarded(store, "a")

    operation = run("purge", ids=["a", "nobody"])

    assert operation.results["ok"] == 1
    assert operation.results["missing"] == 1


@pytest.mark.parametrize(
    ("verb", "filters", "plan", "said"),
    [
        ("explode", {}, {}, "no bulk action is called"),
        ("requeue", {"state": "ready"}, {}, "requeue takes dead jobs, not ready ones"),
        ("discard", {"state": "pending"}, {}, "discard takes"),
        ("run_now", {}, {}, "say which, or give ids"),
        ("requeue", {"state": "lost"}, {}, "no jobs are listed in state 'lost'"),
        ("requeue", {"queue": "no queue"}, {}, "is not allowed"),
        ("requeue", {"ids": ["a b"]}, {}, "is not allowed"),
        ("requeue", {"queue": "", "ids": ["a"]}, {}, "ids need their queue"),
        ("requeue", {"older_than_s": -1}, {}, "older_than"),
        ("requeue", {"older_than_s": float("nan")}, {}, "older_than"),
        ("requeue", {}, {"rate": 0}, "rate must be"),
        ("requeue", {}, {"rate": float("nan")}, "rate must be"),
        ("requeue", {}, {"spread_s": -5}, "spread_s must be"),
        ("requeue", {}, {"canary": 0}, "canary must be"),
        ("requeue", {}, {"stop_share": 2}, "stop_share must be"),
        ("reschedule", {}, {}, "needs a time"),
        ("discard", {"state": "dead"}, {"delay_s": 5}, "takes no delay"),
        ("discard", {"state": "dead"}, {"stop_share": 0.5}, "don't run again"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    verb: str, filters: dict[str, Any], plan: dict[str, Any], said: str, redis: Redis
) -> None:
    with pytest.raises(ValueError, match=said):
        begin(verb, Plan(**plan), **filters)
    assert not Operation.objects.exists()


# -- how it goes about it ------------------------------------------------------------------------


def test_a_step_is_short_for_everybody_else(child: Child, redis: Redis) -> None:
    dead(child, 500)
    redis.config_resetstat()
    redis.config_set("slowlog-log-slower-than", 20_000)
    redis.slowlog_reset()

    run("requeue")

    slow = [entry for entry in redis.slowlog_get(20) if b"EVALSHA" in entry["command"]]
    calls = redis.info("commandstats")["cmdstat_evalsha"]
    assert not slow, "no script of the action came near the bound of 5 ms, machine's noise allowed for"
    assert calls["usec_per_call"] < 5_000


def test_the_rate_is_kept_and_pauses_are_not_made_up_for(child: Child, redis: Redis) -> None:
    dead(child, 60)
    runner = Runner(begin("requeue", Plan(rate=20)).pk)
    start = runner.store.now_ms = ""
    now = Inspector().now_ms()

    def at(ms: int) -> int:
        runner.inspector.clock = str(now + ms)
        while runner.step() or runner.wait_s() == 0:
            if not runner.is_open:
                break
        return runner.row.done

    assert start == ""
    assert at(0) == 1
    assert at(500) == 11
    assert at(1_000) == 21
    operations.pause(runner.row.pk)
    assert at(60_000) == 21
    operations.resume(runner.row.pk)
    assert at(60_000) <= 41, "a second's worth at most after a rest"
    assert at(70_000) == 60 or at(71_000) == 60


def test_the_canary_rests_until_a_person_has_looked(child: Child, redis: Redis) -> None:
    dead(child, 120)
    runner = Runner(begin("requeue", Plan(canary=7)).pk)

    runner.run()
    assert (runner.row.status, runner.row.done) == ("paused", 7)
    assert "7 done as a canary" in runner.row.error
    assert redis.zcard(keys.jobs_in(QUEUE, JobState.DEAD)) == 113
    assert operations.run_once() == 0

    assert operations.resume(runner.row.pk)
    runner.run()
    assert (runner.row.status, runner.row.done, runner.row.error) == ("finished", 120, "")


def test_it_stops_by_itself_when_its_jobs_fail_again(child: Child, redis: Redis) -> None:
    dead(child, 1_000)
    runner = Runner(begin("requeue", Plan(stop_share=0.5)).pk)

    for _ in range(10):
        runner.step()
    assert runner.row.done == 100, "no more than that is out before it is known how they do"
    assert runner.wait_s() > 0
    while runner.is_open:
        jobs = child.take(100)
        child.settle(*[f.burying(job) if i % 3 else f.retrying(job) for i, job in enumerate(jobs)])
        runner.step()

    assert runner.row.status == Status.STOPPED
    assert "failed again" in runner.row.error
    assert runner.row.done < 300
    assert runner.row.results["again"]["failed"] >= 10
    assert runner.row.finished_at is not None


def test_it_goes_on_when_its_jobs_do_well(child: Child, redis: Redis) -> None:
    dead(child, 300)
    runner = Runner(begin("requeue", Plan(stop_share=0.5)).pk)

    while runner.is_open:
        runner.step()
        child.ack(*child.take(100))

    assert (runner.row.status, runner.row.done) == ("finished", 300)


def test_cancel_ends_it_where_it_is(child: Child, redis: Redis) -> None:
    dead(child, 500)
    runner = Runner(begin("requeue").pk)
    runner.step()
    runner.step()

    assert operations.cancel(runner.row.pk)
    assert not operations.cancel(runner.row.pk)
    runner.run()

    assert (runner.row.status, runner.row.done) == ("cancelled", 100)
    assert redis.zcard(keys.jobs_in(QUEUE, JobState.DEAD)) == 400
    assert not operations.resume(runner.row.pk)


def test_a_pause_in_the_middle_of_a_step_loses_no_count(child: Child, redis: Redis) -> None:
    dead(child, 300)
    runner = Runner(begin("requeue").pk)
    runner.step()
    act = runner.store.act

    def paused_meanwhile(*args: Any, **kwargs: Any) -> list[str]:
        operations.pause(runner.row.pk)
        return act(*args, **kwargs)

    runner.store.act = paused_meanwhile  # type: ignore[method-assign]
    runner.step()
    assert (runner.row.status, runner.row.done) == ("paused", 100)

    operations.resume(runner.row.pk)
    done = Runner(runner.row.pk).run()
    assert (done.status, done.done, done.results) == ("finished", 300, {"ok": 300})


# -- when the runner dies ------------------------------------------------------------------------


@pytest.mark.parametrize("script", [1, 2, 5])
def test_a_step_that_was_cut_short_is_counted_once(script: int, child: Child, redis: Redis) -> None:
    ids = dead(child, 250)
    runner = Runner(begin("requeue").pk)
    act, calls = runner.store.act, 0

    class Killed(BaseException):
        pass

    def dies(*args: Any, **kwargs: Any) -> list[str]:
        nonlocal calls
        calls += 1
        answer = act(*args, **kwargs)
        if calls == script:
            raise Killed  # the reply is lost with the process
        return answer

    runner.store.act = dies  # type: ignore[method-assign]
    with pytest.raises(Killed):
        runner.run()

    done = Runner(runner.row.pk).run()

    assert (done.status, done.done, done.skipped, done.results) == ("finished", 250, 0, {"ok": 250})
    assert f.verbs(redis).count("requeue") == 250
    assert sorted(f.ids_in(redis, JobState.READY)) == ids


def test_two_runners_at_once_count_each_job_once(child: Child, redis: Redis) -> None:
    dead(child, 400)
    operation = begin("requeue")
    one, two = Runner(operation.pk), Runner(operation.pk)
    act = one.store.act

    def other_first(*args: Any, **kwargs: Any) -> list[str]:
        two.step()  # plans from the same row, does the same step, and writes first
        return act(*args, **kwargs)

    one.store.act = other_first  # type: ignore[method-assign]
    while one.is_open:
        one.step()

    done = Operation.objects.get(pk=operation.pk)
    assert (done.status, done.done, done.results) == ("finished", 400, {"ok": 400})
    assert f.verbs(redis).count("requeue") == 400


def test_redis_away_leaves_it_to_go_on(child: Child, lossy: Store, proxy: Any, redis: Redis) -> None:
    dead(child, 150)
    operation = begin("requeue")
    Runner(operation.pk).step()
    proxy.refuse_requests(100)
    with pytest.raises(StoreUnavailable):
        Runner(operation.pk, store=Store(lossy.connection)).run()
    assert Operation.objects.get(pk=operation.pk).status == Status.RUNNING
    proxy.refuse_requests(0)

    assert operations.run_once(budget_s=5) == 150
    assert Operation.objects.get(pk=operation.pk).status == Status.FINISHED


def test_what_can_not_go_on_has_failed_and_the_others_go_on(child: Child, redis: Redis) -> None:
    dead(child, 5)
    bad = begin("requeue")
    Operation.objects.filter(pk=bad.pk).update(verb="explode")
    good = begin("requeue")

    operations.run_once(budget_s=5)

    bad.refresh_from_db()
    good.refresh_from_db()
    assert (bad.status, bool(bad.error)) == (Status.FAILED, True)
    assert (good.status, good.done) == (Status.FINISHED, 5)


def test_run_once_shares_its_time_between_operations(child: Child, redis: Redis) -> None:
    dead(child, 400)
    f.seed_discarded(child.store, *[f"gone-{i}" for i in range(50)])
    first, second = begin("requeue"), begin("purge")

    for _ in range(3):
        operations.run_once(budget_s=0)

    for operation in (first, second):
        operation.refresh_from_db()
    assert 0 < first.done < 400
    assert second.done == 50


def test_a_filter_that_must_look_at_each_job_is_counted_first(child: Child, redis: Redis) -> None:
    f.seed_dead(child, *[f"n-{i}" for i in range(60)], spec=encode_spec("shop.other"))
    f.seed_dead(child, *[f"y-{i}" for i in range(40)], spec=encode_spec("shop.charge"))
    operation = begin("requeue", handler="shop.charge")
    assert operation.total is None

    runner = Runner(operation.pk)
    runner.step()
    assert (runner.row.total, runner.row.done) == (40, 0)
    assert runner.run().done == 40


def test_a05_reschedule_beside_promotion_answers_the_truth(redis: Redis) -> None:
    store = Store()
    ids = [f"j-{i:03}" for i in range(500)]
    runs: Counter[str] = Counter()
    words: dict[str, str] = {}
    early: set[str] = set()
    stop = threading.Event()
    moved_to = Inspector().now_ms() + 2_500

    def work(n: int) -> None:
        child = Child(store, f"host:{n}:pp/1").register()
        while not stop.is_set():
            for job in child.take(20):
                runs[job.id] += 1
                if Inspector().now_ms() < moved_to:
                    early.add(job.id)
                child.ack(job)
        connections.close_all()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for job_id in ids:
        f.seed_delayed(store, job_id, run_at_ms=Inspector().now_ms() + 10)
        [words[job_id]] = store.reschedule(QUEUE, [job_id], run_at_ms=moved_to, actor=PERSON)
    deadline = Inspector().now_ms() + 20_000
    while sum(runs.values()) < 500 and Inspector().now_ms() < deadline:
        threading.Event().wait(0.02)
    stop.set()
    for thread in threads:
        thread.join()

    assert runs == Counter(ids), "each exactly once"
    moved = {job_id for job_id in ids if words[job_id] == "ok"}
    assert moved
    assert not moved & early, "what was answered ok ran at its new time"
    assert {word for word in words.values() if word != "ok"} <= {"wrong:ready", "wrong:pending", "wrong:done"}
    doctor.assert_each_job_in_one_place(connection())


def test_c07_each_requeue_gives_a_fresh_cycle(child: Child, redis: Redis, clock: Clock) -> None:
    store = clock.drive(child.store)
    f.seed_ready(store, "j")
    for press in range(3):
        if press:
            assert store.requeue(QUEUE, ["j"], actor=PERSON) == ["ok"]
        delays = []
        for attempt in range(3):
            [job] = child.register().take(1)
            assert (job.attempts, job.rescues) == (attempt, 0)
            if attempt < 2:
                child.retry(job, delay_s=10 * 2**attempt)
                delays.append(int(f.run_at(redis, "j")) - clock.now_ms)
                clock.advance(60_000)
            else:
                child.bury(job)
        assert delays == [10_000, 20_000], "the backoff starts at its base"
        found = Inspector().job(QUEUE, "j")
        assert found is not None
        assert (found.state, found.attempts, found.delivery, found.requeues) == (
            "dead",
            3,
            3 * (press + 1),
            press,
        )
