"""Reads: right figures, pages that do not drift, and a cost that does not grow with the number of jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from queueops import keys
from queueops.causes import failure_of
from queueops.connection import Connection
from queueops.errors import StoreUnavailable
from queueops.inspector import Inspector, Page
from queueops.job import spec_parts
from queueops.payload import encode_spec
from queueops.policies import RetryPolicy
from queueops.states import LISTED, JobState, Lane
from queueops.store import Outcome, Store
from tests import factories as f
from tests.factories import PERSON, QUEUE, Child, Clock, Redis

SPEC = encode_spec("shop.charge", ["cus_1"], {"amount": 5}, tags={"customer": 42})


@pytest.fixture
def inspector(store: Store, clock: Clock) -> Inspector:
    """By the test's clock."""
    return Inspector(now_ms=store.now_ms)


def at(clock: Clock) -> Inspector:
    """By the test's clock, as it stands now."""
    return Inspector(now_ms=str(clock.now_ms))


def walk(inspector: Inspector, state: str, *, limit: int, **options: Any) -> list[str]:
    """The ids of all pages of a state."""
    ids: list[str] = []
    after: str | None = None
    while True:
        page = inspector.page(QUEUE, state, limit=limit, after=after, **options)
        ids += [job.id for job in page.jobs]
        after = page.next
        if after is None:
            return ids


# -- one job -------------------------------------------------------------------------------------


def test_job_of_every_state_says_where_it_is(
    store: Store, child: Child, clock: Clock, inspector: Inspector
) -> None:
    f.seed_delayed(store, "later", run_at_ms=clock.now_ms + 60_000, spec=SPEC)
    f.seed_dead(child, "dead", spec=SPEC)
    f.seed_discarded(store, "gone", spec=SPEC)
    child.ack(*f.seed_pending(child, "done", spec=SPEC), result='{"paid": true}')
    f.seed_pending(child, "held", spec=SPEC)
    f.seed_ready(store, "ready", spec=SPEC, lane=Lane.HIGH)

    ids = ["later", "dead", "gone", "done", "held", "ready", "nobody"]
    later, dead, gone, done, held, ready, nobody = inspector.jobs(QUEUE, ids)

    assert nobody is None
    assert [job and job.state for job in (later, dead, gone, done, held, ready)] == [
        "delayed", "dead", "discarded", "done", "pending", "ready",
    ]  # fmt: skip
    assert later is not None
    assert later.run_at is not None
    assert later.run_at.timestamp() * 1000 == pytest.approx(clock.now_ms + 60_000, abs=1)
    assert (later.handler, later.args, later.kwargs) == ("shop.charge", ["cus_1"], {"amount": 5})
    assert later.tags == {"customer": "42"}
    assert dead is not None
    assert (dead.attempts, dead.cause) == (1, "boom")
    assert dead.error is not None
    assert dead.error["message"] == "it failed"
    assert gone is not None
    assert gone.reason == ""
    assert done is not None
    assert (done.handler, done.result) == ("tests.work", {"paid": True})
    assert held is not None
    assert (held.child, held.delivery) == (child.name, 1)
    assert held.started_at is not None
    assert ready is not None
    assert ready.priority == "high"


def test_a_spec_in_parts_is_read_whole(store: Store, clock: Clock, inspector: Inspector) -> None:
    spec = encode_spec(
        "shop.charge", ["x" * 700], policy=RetryPolicy(name="own", max_retries=2, delays_s=(1.0,))
    )
    assert len(spec_parts(spec, delayed=True)) > 5
    f.seed_delayed(store, "j", run_at_ms=clock.now_ms + 5_000, spec=spec)

    job = inspector.job(QUEUE, "j")

    assert job is not None
    assert (job.args, job.spec, job.corrupt) == (["x" * 700], spec, None)
    assert isinstance(job.policy, RetryPolicy)
    assert job.policy.max_retries == 2


@pytest.mark.damages("that is what it is about")
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda r, key: r.hset(key, "spec", b"\xff\xfe"), "is not UTF-8"),
        (lambda r, key: r.hset(key, "spec", "{"), "is not JSON"),
        (lambda r, key: r.hdel(key, "spec"), "it has no spec"),
        (lambda r, key: r.hset(key, "parts", 3), "a part of its spec is missing"),
        (lambda r, key: r.hset(key, "state", "lost"), "its state is 'lost'"),
        (lambda r, key: r.hdel(key, "state"), "it has no state"),
        (lambda r, key: (r.delete(key), r.set(key, "x")), "does not hold a job"),
        (lambda r, key: r.hset(key, mapping={"attempts": "many", "since": "1e999", "run_at": "x"}), None),
        (lambda r, key: r.hset(key, "error", b"\xff not json"), None),
    ],
)
def test_what_can_not_be_read_is_said_and_never_raised(
    damage: Callable[[Redis, str], object], said: str | None, store: Store, redis: Redis, inspector: Inspector
) -> None:
    f.seed_ready(store, "j", "sound", spec=SPEC)
    damage(redis, keys.job(QUEUE, "j"))

    job = inspector.job(QUEUE, "j")

    assert job is not None
    assert (job.corrupt is None) if said is None else (said in str(job.corrupt))
    assert {each.id for each in inspector.page(QUEUE, "ready").jobs} == {"j", "sound"}


def test_find_looks_into_every_queue(store: Store, clock: Clock, inspector: Inspector) -> None:
    f.seed_ready(store, "same", queue="a")
    clock.advance(10)
    f.seed_ready(store, "same", queue="b")
    f.seed_ready(store, "one", queue="c")

    found = inspector.find("same")
    assert found is not None
    assert found.queue == "b", "the last moved"
    one = inspector.find("one")
    assert one is not None
    assert one.queue == "c"
    assert inspector.find("nobody") is None


# -- pages ---------------------------------------------------------------------------------------


def seed(state: str, n: int, store: Store, child: Child, clock: Clock) -> list[str]:
    """`n` jobs in a state, in the order in which it keeps them."""
    ids = [f"j-{i:03}" for i in range(n)]
    for start in range(0, n, 50):
        part = ids[start : start + 50]
        clock.advance(10)
        match state:
            case "delayed":
                for i, job_id in enumerate(part):  # many at the same millisecond
                    f.seed_delayed(store, job_id, run_at_ms=clock.now_ms + 60_000 + i // 20)
            case "ready":
                f.seed_ready(store, *part)
            case "pending":
                f.seed_pending(child, *part)
            case "dead":
                f.seed_dead(child, *part)
            case "discarded":
                f.seed_discarded(store, *part)
    return ids


@pytest.mark.parametrize("state", [state.value for state in LISTED])
@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("limit", [1, 7, 150, 1000])
def test_pages_hold_every_row_once_in_order(
    state: str, newest: bool, limit: int, store: Store, child: Child, clock: Clock
) -> None:
    ids = seed(state, 120 if limit > 1 else 25, store, child, clock)

    assert walk(at(clock), state, limit=limit, newest=newest) == (ids[::-1] if newest else ids)
    page = at(clock).page(QUEUE, state, limit=limit)
    assert (page.total, page.state) == (len(ids), state)


def test_the_dead_and_the_discarded_begin_with_the_newest(store: Store, child: Child, clock: Clock) -> None:
    seed("dead", 120, store, child, clock)
    assert at(clock).page(QUEUE, "dead", limit=1).jobs[0].id == "j-119"


@pytest.mark.parametrize("state", ["delayed", "ready", "dead", "discarded"])
def test_pages_do_not_drift_while_rows_move(state: str, store: Store, child: Child, clock: Clock) -> None:
    """Rows before the cursor leave, and the row of the cursor itself: nothing is lost or doubled."""
    ids = seed(state, 100, store, child, clock)
    inspector = at(clock)
    first = inspector.page(QUEUE, state, limit=40, newest=False)
    assert [job.id for job in first.jobs] == ids[:40]
    away = [*ids[:20], ids[39]]
    match state:
        case "delayed" | "ready":
            store.discard(QUEUE, away, actor=PERSON)
        case "dead":
            store.requeue(QUEUE, away, actor=PERSON)
        case "discarded":
            store.purge(QUEUE, away, actor=PERSON)

    rest = walk_from(inspector, state, first)

    assert rest == ids[40:]


def walk_from(inspector: Inspector, state: str, page: Page) -> list[str]:
    ids: list[str] = []
    after = page.next
    while after is not None:
        more = inspector.page(QUEUE, state, limit=40, after=after, newest=page.newest)
        ids += [job.id for job in more.jobs]
        after = more.next
    return ids


def test_a_page_goes_on_in_the_middle_of_equal_scores_though_its_last_row_left(
    store: Store, clock: Clock
) -> None:
    ids = [f"j-{i:04}" for i in range(2_000)]
    store.enqueue(QUEUE, [f.new(job_id, run_at_ms=clock.now_ms + 60_000) for job_id in ids])
    first = at(clock).page(QUEUE, "delayed", limit=500)
    store.discard(QUEUE, ids[450:500], actor=PERSON)
    store.discard(QUEUE, ids[:10], actor=PERSON)

    after = first.next
    assert [job.id for job in at(clock).page(QUEUE, "delayed", limit=5, after=after).jobs] == ids[500:505]
    back = at(clock).page(QUEUE, "delayed", limit=5, after=after, newest=True)
    assert [job.id for job in back.jobs] == ids[449:444:-1]


def test_the_dead_of_one_cause_are_a_page_of_their_own(child: Child, clock: Clock) -> None:
    f.seed_dead(child, "a", "b")
    clock.advance(5)
    f.seed_dead(child, "c", cause="other-cause")

    page = at(clock).page(QUEUE, "dead", cause="boom")
    assert ([job.id for job in page.jobs], page.total) == (["b", "a"], 2)
    assert at(clock).page(QUEUE, "dead", cause="unknown").rows == []


def test_ready_rows_are_those_that_nobody_has(store: Store, child: Child, inspector: Inspector) -> None:
    f.seed_ready(store, "n-1", "n-2", "n-3")
    f.seed_ready(store, "high", lane=Lane.HIGH)
    f.seed_ready(store, "low", lane=Lane.LOW)
    child.take(2)  # the high one, and n-1

    page = inspector.page(QUEUE, "ready")

    assert ([job.id for job in page.jobs], page.total) == (["n-2", "n-3", "low"], 3)
    assert walk(inspector, "ready", limit=1) == ["n-2", "n-3", "low"]
    assert [job.id for job in inspector.page(QUEUE, "pending").jobs] == ["high", "n-1"]


@pytest.mark.parametrize(
    ("state", "options", "said"),
    [
        ("done", {}, "on no list"),
        ("lost", {}, "not a valid JobState"),
        ("dead", {"limit": 0}, "limit must be 1 to 1000"),
        ("dead", {"limit": 1001}, "limit must be 1 to 1000"),
        ("dead", {"after": "1e5~x"}, "no such page"),
        ("dead", {"after": "../../etc"}, "no such page"),
        ("dead", {"after": "12"}, "no such page"),
        ("ready", {"after": "5~j"}, "no such page"),
        ("ready", {"after": "lost~5-1"}, "no such page"),
        ("ready", {"cause": "boom"}, "only the dead are listed by cause"),
    ],
)
def test_a_page_that_can_not_be_meant_is_refused(
    state: str, options: dict[str, Any], said: str, redis: Redis
) -> None:
    with pytest.raises(ValueError, match=said):
        Inspector().page(QUEUE, state, **options)


def test_a_queue_that_nobody_knows_is_empty(redis: Redis) -> None:
    inspector = Inspector()
    assert inspector.overview() == []
    assert inspector.counts("nowhere") == dict.fromkeys(LISTED, 0)
    for state in LISTED:
        assert inspector.page("nowhere", state).rows == []
    summary = inspector.summary("nowhere")
    assert (summary.total, summary.oldest_ready_s, summary.broken) == (0, None, None)
    assert inspector.causes() == []
    assert inspector.workers() == []
    assert inspector.running() == []
    assert inspector.forecast() == {}
    assert inspector.totals() == {}


# -- figures -------------------------------------------------------------------------------------


def test_overview_counts_each_state(store: Store, child: Child, clock: Clock) -> None:
    f.seed_delayed(store, "a", "b", run_at_ms=clock.now_ms + 60_000)
    f.seed_dead(child, "c")
    f.seed_discarded(store, "d")
    f.seed_pending(child, "e", "g")
    f.seed_ready(store, "h", "i", "k")
    f.seed_ready(store, "x", queue="orders")

    mail, orders = at(clock).overview()

    assert (mail.queue, orders.queue) == ("mail", "orders")
    assert (mail.delayed, mail.ready, mail.pending, mail.dead, mail.discarded) == (2, 3, 2, 1, 1)
    assert (mail.total, orders.total, orders.ready) == (9, 1, 1)
    assert (mail.workers, orders.workers) == (1, 0)
    assert mail.oldest_ready_s is not None
    assert 0 <= mail.oldest_ready_s < 30
    assert mail.events == len(f.events(child.store.connection.client))
    assert at(clock).counts(QUEUE) == {
        JobState.DELAYED: 2,
        JobState.READY: 3,
        JobState.PENDING: 2,
        JobState.DEAD: 1,
        JobState.DISCARDED: 1,
    }


def test_overview_says_limits_and_pauses(store: Store, clock: Clock) -> None:
    f.set_up(store, concurrency=5, rate="2.5", paused="1", paused_reason="why", audit="outcome")
    [summary] = at(clock).overview()
    assert (summary.concurrency, summary.rate, summary.audit) == (5, 2.5, "outcome")
    assert (summary.paused, summary.paused_reason, summary.paused_until_ms) == (True, "why", None)

    f.set_up(store, paused_until=clock.now_ms + 5_000)
    assert at(clock).summary(QUEUE).paused
    clock.advance(5_000)
    assert not at(clock).summary(QUEUE).paused, "its time has come, whoever has seen it"


def test_oldest_ready_is_the_first_that_nobody_has(store: Store, child: Child, redis: Redis) -> None:
    f.seed_ready(store, "old", "new")
    stream = keys.ready(QUEUE, Lane.NORMAL)
    entry = redis.xrange(stream)[0][0]
    child.take(1)
    second = redis.xrange(stream)[-1][0]
    waits = Inspector().summary(QUEUE).oldest_ready_s
    assert waits is not None
    assert waits * 1000 <= redis.time()[0] * 1000 + 1000 - int(second.split(b"-")[0])
    assert entry != second
    child.take(1)
    assert Inspector().summary(QUEUE).oldest_ready_s is None


def test_rates_and_history_follow_the_minutes(store: Store, child: Child, clock: Clock) -> None:
    clock.advance(60_000 - clock.now_ms % 60_000)  # a minute begins
    child.register()
    child.ack(*f.seed_pending(child, *[f"a-{i}" for i in range(60)]))
    clock.advance(59_999)
    child.register()
    summary = at(clock).summary(QUEUE)
    assert summary.done_per_s == pytest.approx(1.0)
    assert summary.history[-1] == (60, 0)
    assert len(summary.history) == 60

    clock.advance(30_001)
    child.register()
    child.bury(*f.seed_pending(child, *[f"b-{i}" for i in range(6)]))
    summary = at(clock).summary(QUEUE)
    assert summary.done_per_s == pytest.approx(0.5)
    assert summary.failed_per_s == pytest.approx(0.1)
    assert summary.history[-2:] == ((60, 0), (0, 6))

    clock.advance(10 * 60_000)
    summary = at(clock).summary(QUEUE)
    assert (summary.done_per_s, summary.failed_per_s) == (0.0, 0.0)
    assert summary.history[-12] == (60, 0)

    last = at(clock).stats(QUEUE, 12)
    assert last[0].count("done") == 60
    assert sum(each.count("failed") for each in last) == 6
    assert at(clock).totals()[QUEUE].count("done") == 60
    assert last[0].quantile_ms("ran", 0.5) == pytest.approx(2.5, abs=2.5)


def test_lateness_is_a_quantile_of_the_last_minutes(store: Store, child: Child, clock: Clock) -> None:
    f.seed_delayed(store, *[f"j-{i}" for i in range(10)], run_at_ms=clock.now_ms + 1_000)
    clock.advance(1_000 + 400)
    child.register().take(10)
    found = at(clock).summary(QUEUE).lateness_p99_ms
    assert found is not None
    assert 200 < found <= 500


def test_a_minute_that_is_over_is_read_once(store: Store, child: Child, redis: Redis) -> None:
    f.seed_ready(store, "a")
    Inspector().overview()
    before = calls(redis)
    Inspector().overview()
    assert calls(redis) - before < 40, "not 60 minutes again"


def calls(redis: Redis) -> int:
    told = redis.info("commandstats")
    return sum(found["calls"] for name, found in told.items() if name != "cmdstat_info")


def test_forecast_counts_what_falls_due_each_minute(store: Store, clock: Clock) -> None:
    start = clock.now_ms // 60_000 * 60_000
    for i, minute in enumerate([1, 1, 1, 3, 60, 61]):
        f.seed_delayed(store, f"j-{i}", run_at_ms=start + minute * 60_000 + 500)
    f.seed_delayed(store, "x", queue="orders", run_at_ms=start + 2 * 60_000)

    due = at(clock).forecast(61)

    assert [each.count for each in due["mail"][:4]] == [0, 3, 0, 1]
    assert sum(each.count for each in due["mail"]) == 5
    assert due["mail"][1].at_ms == start + 60_000
    assert [each.count for each in due["orders"][:3]] == [0, 0, 1]
    by_ten = at(clock).forecast(70, queues=["mail"], step=10)["mail"]
    assert [each.count for each in by_ten] == [4, 0, 0, 0, 0, 0, 2]
    clock.advance(3 * 60_000)
    assert at(clock).forecast(10)["mail"][0].count == 4, "what is due already counts in the first"


def test_causes_count_failing_and_dead_jobs_over_all_queues(store: Store, child: Child, clock: Clock) -> None:
    f.seed_dead(child, "a", "b")
    child.retry(*f.seed_pending(child, "c", "d", "e"))
    child.retry(*f.seed_pending(child, "g"), cause="rare")
    orders = Child(store, "host:9:zz/1", "orders").register()
    f.seed_dead(orders, "x")

    boom, rare = at(clock).causes()

    assert (boom.cause, boom.dead, boom.failing, boom.failures) == ("boom", 3, 3, 6)
    assert [each.queue for each in boom.queues] == ["mail", "orders"]
    assert boom.text == "boom: it failed"
    assert boom.sample in {("mail", "b"), ("mail", "a")}
    assert boom.first_ms is not None
    assert boom.first_ms <= boom.last_ms <= clock.now_ms
    assert (rare.cause, rare.failing, rare.dead, rare.sample) == ("rare", 1, 0, None)
    assert [each.dead for each in at(clock).causes("orders")] == [1]
    assert at(clock).cause_history(QUEUE, "boom", 3)[-1] == 5

    store.requeue(QUEUE, ["a", "b"], actor=PERSON)
    assert {each.cause: each.dead for each in at(clock).causes("mail")}["boom"] == 0
    child.ack(*child.register().take(10))
    store.run_now(QUEUE, ["c", "d", "e", "g"], actor=PERSON)
    child.ack(*child.take(10))
    assert at(clock).causes("mail") == []
    assert len(at(clock).causes("mail", with_gone=True)) == 2


def test_a_real_failure_is_shown_as_it_was(child: Child, inspector: Inspector) -> None:
    [job] = f.seed_pending(child, "j", spec=SPEC)
    try:
        raise ValueError("card 4242 declined <script>")
    except ValueError as error:
        failure = failure_of(error)
    child.settle(
        Outcome.bury(job, cause=failure.cause, cause_text=failure.cause_text, error=failure.to_json())
    )

    found = inspector.job(QUEUE, "j")

    assert found is not None
    assert found.error is not None
    assert found.error["error"] == "ValueError"
    assert found.error["message"] == "card 4242 declined <script>"
    assert "test_inspector" in found.error["traceback"]
    assert found.cause == failure.cause


# -- workers -------------------------------------------------------------------------------------


def test_workers_have_children_with_leases_and_what_they_run(
    store: Store, child: Child, other: Child, clock: Clock, redis: Redis
) -> None:
    worker = child.name.rpartition("/")[0]
    redis.zadd(keys.WORKERS, {worker: clock.now_ms - 2_000})
    redis.hset(keys.WORKER_INFO, worker, json.dumps({"host": "host", "version": "1"}))
    f.seed_pending(child, "slow", spec=SPEC)
    clock.advance(7_000)
    child.register()
    f.seed_pending(child, "quick", spec=SPEC)
    Child(store, child.name, "orders").register()

    first, second = at(clock).workers()

    assert (first.worker, first.info["version"], first.queues) == (worker, "1", ["mail", "orders"])
    assert first.seen_s == pytest.approx(9.0, abs=0.1)
    [one] = first.children
    assert one.lease_left_s["mail"] == pytest.approx(30.0, abs=0.1)
    assert [each.job.id for each in one.running] == ["slow", "quick"]
    assert one.running[0].running_s == pytest.approx(7.0, abs=0.1)
    assert one.running[0].job.handler == "shop.charge"
    assert (second.worker, second.seen_s, second.info, second.running) == ("host:2:bb", None, {}, [])
    clock.advance(31_000)
    lease = at(clock).workers()[0].children[0].lease_left_s["mail"]
    assert lease < 0, "it ran out, and says so"
    assert at(clock).summary(QUEUE).workers == 0


@pytest.mark.damages("that is what it is about")
def test_strange_worker_data_are_no_trouble(redis: Redis) -> None:
    redis.zadd(keys.WORKERS, {b"\xffhost": 5})
    redis.hset(keys.WORKER_INFO, b"\xffhost", b"[1]")
    [worker] = Inspector().workers()
    assert worker.info == {}


# -- the server, and what is away -----------------------------------------------------------------


def test_server_warns_of_what_endangers_jobs(redis: Redis) -> None:
    redis.config_set("maxmemory-policy", "volatile-lru")
    try:
        facts = Inspector().server()
    finally:
        redis.config_set("maxmemory-policy", "noeviction")
    assert facts.eviction_policy == "volatile-lru"
    assert any("maxmemory-policy is volatile-lru" in warning for warning in facts.warnings)
    assert any("no persistence" in warning for warning in facts.warnings), "the run's server has none"
    assert facts.version
    assert facts.used_memory > 0


def test_redis_away_is_one_error() -> None:
    inspector = Inspector(Connection("redis://:secret@127.0.0.1:1/0"))
    for ask in (
        inspector.overview,
        inspector.queues,
        inspector.now_ms,
        inspector.server,
        lambda: inspector.job(QUEUE, "j"),
        lambda: inspector.page(QUEUE, "dead"),
        lambda: inspector.counts(QUEUE),
    ):
        with pytest.raises(StoreUnavailable, match=r"redis://:\*\*\*@127.0.0.1:1/0"):
            ask()


@pytest.mark.damages("a key of a wrong type")
def test_a_key_of_a_wrong_type_is_said_and_the_rest_is_shown(store: Store, redis: Redis) -> None:
    f.seed_ready(store, "a", "b")
    redis.set(keys.jobs_in(QUEUE, JobState.DEAD), "x")
    redis.set(keys.queue_key(QUEUE, "causes"), "x")

    [summary] = Inspector().overview()

    assert (summary.ready, summary.dead) == (2, 0)
    assert summary.broken is not None
    assert Inspector().causes() == []
    assert Inspector().forecast(5)[QUEUE][0].count == 0


# -- what it costs -------------------------------------------------------------------------------


def page_of(state: JobState) -> Callable[[Inspector], object]:
    return lambda inspector: inspector.page(QUEUE, state, limit=20)


READS: dict[str, Callable[[Inspector], object]] = {
    "overview": lambda i: i.overview(),
    "counts": lambda i: i.counts(QUEUE),
    "causes": lambda i: i.causes(),
    "forecast": lambda i: i.forecast(60),
    "stats": lambda i: i.stats(QUEUE),
    "workers": lambda i: i.workers(),
    "find": lambda i: i.find("j-000"),
    "totals": lambda i: i.totals(),
    **{state.value: page_of(state) for state in LISTED},
}


def trace(redis: Redis, ask: Callable[[], object]) -> list[str]:
    """The commands that `ask` sends, less their arguments' values where these vary."""
    with redis.monitor() as monitor:
        ask()
        redis.echo("the end")
        commands: list[str] = []
        for seen in monitor.listen():
            if "the end" in seen["command"]:
                return commands
            if seen["client_type"] != "lua":
                commands.append(str(seen["command"]))
    raise AssertionError


@pytest.mark.parametrize("what", READS)
def test_no_read_grows_with_the_number_of_jobs(what: str, store: Store, child: Child, redis: Redis) -> None:
    if redis.info("cluster").get("cluster_enabled"):
        pytest.skip("MONITOR shows one node of a Cluster")
    now_ms = Inspector().now_ms()

    def add(start: int, n: int) -> None:
        ids = [f"j-{i:03}" for i in range(start, start + n)]
        child.register()
        store.enqueue(QUEUE, [f.new(f"d{job_id}", run_at_ms=now_ms + 600_000) for job_id in ids])
        f.seed_dead(child, *[f"x{job_id}" for job_id in ids])
        f.seed_discarded(store, *[f"g{job_id}" for job_id in ids])
        f.seed_ready(store, *ids)

    add(0, 30)
    READS[what](Inspector())  # what is over is remembered
    few = trace(redis, lambda: READS[what](Inspector()))
    for start in range(30, 430, 100):
        f.seed_ready(store)
        child.settle(*[Outcome.release(job) for job in child.held.values()])
        child.held.clear()
        taken = child.take(100)
        child.settle(*[Outcome.ack(job, handler="x") for job in taken])
        add(start, 90)
    many = trace(redis, lambda: READS[what](Inspector()))

    assert len(many) <= len(few) + 4
    for command in many:
        words = command.split()
        assert words[0] not in {"KEYS", "SMEMBERS", "SCAN", "SORT"}, command
        if words[0] in {"ZRANGE", "ZREVRANGE"}:
            assert words[3] != "-1" or words[2] == "-1", command
        if words[0] in {"XRANGE", "XREVRANGE"}:
            assert "COUNT" in words, command


def test_fifty_queues_are_a_few_round_trips(store: Store, redis: Redis) -> None:
    for n in range(50):
        f.seed_ready(store, "a", queue=f"q-{n}")
    conn = Connection()
    trips = 0
    inspector = Inspector(conn)
    answers = inspector.answers

    def counted(pipe: Any) -> list[Any]:
        nonlocal trips
        trips += 1
        return answers(pipe)

    inspector.answers = counted  # type: ignore[method-assign]
    assert len(inspector.overview()) == 50
    assert trips <= 3


# -- cases ---------------------------------------------------------------------------------------


def test_g13_counters_are_true_after_a_crash_and_never_negative(
    store: Store, child: Child, other: Child, clock: Clock
) -> None:
    f.seed_pending(child, "a", "b", "c")

    def total() -> int:
        summary = at(clock).summary(QUEUE)
        assert min(summary.ready, summary.pending, summary.delayed, summary.dead, summary.discarded) >= 0
        return summary.total

    assert (at(clock).summary(QUEUE).pending, total()) == (3, 3)
    store.discard(QUEUE, ["a"], actor=PERSON)  # while it runs: refused
    assert total() == 3
    clock.advance(30_001)  # its host is gone; the lease ends
    other.register()
    assert total() == 3
    other.claim(0)  # a look by anybody rescues
    assert (at(clock).summary(QUEUE).pending, at(clock).summary(QUEUE).ready, total()) == (0, 3, 3)
    probation = Child(store, "host:2:bb/probation", suspects=True).register()
    while jobs := probation.take(1):
        probation.ack(*jobs)
    assert total() == 0
