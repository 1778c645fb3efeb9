"""hold: a claim delays a job that a hold keeps back; nothing is counted, and what is behind it runs."""

from __future__ import annotations

import pytest

from queueops import keys
from queueops.holds import Hold, HoldKind, check, of_setting, to_setting
from queueops.inspector import Inspector
from queueops.job import from_ms
from queueops.payload import encode_spec
from queueops.states import JobState, Lane
from queueops.store import Store
from tests.factories import (
    PERSON,
    QUEUE,
    Child,
    Clock,
    Redis,
    events,
    failing,
    ids_in,
    ids_in_lane,
    job,
    run_at,
    seed_delayed,
    seed_ready,
    set_up,
    state,
    verbs,
)

CHARGE, MAIL = encode_spec("shop.charge", [1]), encode_spec("shop.mail", [1])
HOUR_MS = 3_600_000
NO_END = 32_503_680_000_000


def on_handler(number: int = 1, value: str = "shop.charge", until_ms: int | None = None) -> Hold:
    return Hold(number, HoldKind.HANDLER, value, until_ms)


def keep_back(store: Store, *holds: Hold) -> None:
    """Publish these holds and no others."""
    set_up(store, holds=to_setting(holds))


def test_a_held_job_is_delayed_and_what_is_behind_it_runs(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a", spec=CHARGE)
    seed_ready(store, "b", spec=MAIL)
    keep_back(store, on_handler())

    assert [each.id for each in child.take(1)] == ["b"]

    held = job(redis, "a")
    assert (held["state"], held["held"], held["run_at"]) == ("delayed", "1", str(clock.now_ms))
    assert not {"delivery", "attempts", "child", "entry"} & held.keys()
    assert run_at(redis, "a") == NO_END
    assert events(redis, "a")[-1] == {
        "verb": "hold", "id": "a", "from": "ready", "to": "delayed", "actor": "queueops",
        "at": str(clock.now_ms), "hold": "1", "run_at": str(clock.now_ms),
        "reason": "held: handler shop.charge",
    }  # fmt: skip


def test_a_hold_with_an_end_is_over_by_itself_and_nobody_looks_before(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a", spec=CHARGE)
    keep_back(store, on_handler(until_ms=clock.now_ms + HOUR_MS))
    assert child.take() == []
    assert run_at(redis, "a") == clock.now_ms + HOUR_MS

    for _ in range(3):
        child.register()
        claimed = child.claim(1)
        assert (claimed.jobs, claimed.wait_us) == ([], HOUR_MS * 1000)
    assert verbs(redis, "a") == ["enqueue", "hold"]

    clock.advance(HOUR_MS)
    child.register()
    assert [each.id for each in child.take()] == ["a"]
    assert "attempts" not in job(redis, "a")
    assert redis.exists(keys.held_by(QUEUE, 1), keys.queue_key(QUEUE, "held")) == 0


@pytest.mark.parametrize(
    ("hold", "is_held"),
    [
        (Hold(1, HoldKind.TAG, "customer=42"), {"a"}),
        (Hold(1, HoldKind.TAG, "customer=43"), set()),
        (Hold(1, HoldKind.HANDLER, "shop.charge"), {"a", "b"}),
        (Hold(1, HoldKind.HANDLER, "shop.char"), set()),
        (Hold(1, HoldKind.TAG, "stadt=Köln"), {"b"}),
    ],
)
def test_what_a_hold_means_it_keeps_back_and_nothing_else(
    redis: Redis, store: Store, child: Child, hold: Hold, is_held: set[str]
) -> None:
    seed_ready(store, "a", spec=encode_spec("shop.charge", [1], tags={"x": "1", "customer": "42"}))
    # The same text among the arguments is no tag.
    seed_ready(store, "b", spec=encode_spec("shop.charge", [{"customer": "42"}], tags={"stadt": "Köln"}))
    seed_ready(store, "c", spec=MAIL)
    keep_back(store, hold)

    taken = {each.id for each in child.take()}

    assert taken == {"a", "b", "c"} - is_held
    assert set(ids_in(redis, JobState.DELAYED)) == is_held


def test_a_cause_keeps_back_the_retries_of_what_failed_of_it(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_ready(store, "a", "b", "c", spec=CHARGE)
    a, b, c = child.take()
    child.retry(a, delay_s=0, cause="declined")
    child.retry(b, delay_s=0, cause="timeout")
    child.ack(c)
    keep_back(store, Hold(7, HoldKind.CAUSE, "declined"))

    assert [each.id for each in child.take()] == ["b"]
    assert (job(redis, "a")["held"], job(redis, "a")["attempts"]) == ("7", "1")
    assert failing(redis, "declined") == 1


def test_a_delayed_job_whose_spec_is_cut_is_told_by_its_whole_spec(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    long = encode_spec("shop." + "x" * 90, ["y" * 200], tags={"customer": "42"})
    seed_delayed(store, "a", "b", run_at_ms=clock.now_ms + 5, spec=long)
    assert "parts" in job(redis, "a")
    keep_back(store, Hold(1, HoldKind.TAG, "customer=42"))
    clock.advance(5)

    assert child.take() == []
    assert ids_in(redis, JobState.DELAYED) == ["a", "b"]


def test_a_suspect_that_was_held_is_a_suspect_still(redis: Redis, store: Store, child: Child) -> None:
    seed_ready(store, "a", spec=CHARGE)
    child.take()
    child.die(ran=["a"])
    keep_back(store, on_handler())
    probation = Child(store, "host:1:aa/probation", suspects=True).register()
    assert probation.take(1) == []
    assert state(redis, "a") == "delayed"

    keep_back(store)
    child.register().take()

    assert ids_in_lane(redis, Lane.SUSPECT) == ["a"]
    assert job(redis, "a")["rescues"] == "1"


def test_more_held_jobs_than_one_claim_looks_at_are_held_by_the_next_ones(
    redis: Redis, store: Store, child: Child
) -> None:
    for first in range(0, 450, 50):
        seed_ready(store, *[f"a{n:03}" for n in range(first, first + 50)], spec=CHARGE)
    seed_ready(store, "b", spec=MAIL)
    keep_back(store, on_handler())

    for looked_at in (100, 200, 300, 400):
        claimed = child.claim(1)
        assert (claimed.jobs, claimed.wait_us) == ([], 0)  # at once again: there may be more behind them
        assert redis.zcard(keys.held_by(QUEUE, 1)) == looked_at

    assert [each.id for each in child.claim(1).jobs] == ["b"]
    assert redis.zcard(keys.held_by(QUEUE, 1)) == 450


def test_a_held_job_uses_no_token_of_the_rate_limit(store: Store, child: Child) -> None:
    seed_ready(store, *[f"a{n}" for n in range(5)], spec=CHARGE)
    seed_ready(store, "b", spec=MAIL)
    set_up(store, rate=1, rate_burst=1, holds=to_setting([on_handler()]))

    assert [each.id for each in child.take()] == ["b"]


def test_a_job_that_a_person_runs_now_goes_past_the_holds_of_then_only(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_ready(store, "a", "b", spec=CHARGE)
    keep_back(store, on_handler(1), Hold(2, HoldKind.CAUSE, "boom"))
    assert child.take() == []

    assert store.run_now(QUEUE, ["a"], actor=PERSON) == ["ok"]
    (a,) = child.take()
    child.retry(a, delay_s=0)
    assert [each.id for each in child.take()] == ["a"]

    child.release(*[each for each in child.held.values() if each.id == "a"])
    keep_back(store, on_handler(3))
    child.take()
    assert job(redis, "a")["held"] == "3"


def test_what_a_person_does_to_a_held_job_takes_it_out_of_its_hold(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a", "b", spec=CHARGE)
    due = clock.now_ms
    keep_back(store, on_handler())
    child.take()
    clock.advance(1000)

    store.reschedule(QUEUE, ["a"], run_at_ms=clock.now_ms + 500, actor=PERSON)
    store.discard(QUEUE, ["b"], actor=PERSON)

    assert redis.zrange(keys.held_by(QUEUE, 1), 0, -1) == []
    assert (run_at(redis, "a"), "held" in job(redis, "a")) == (clock.now_ms + 500, False)
    store.restore(QUEUE, ["b"], actor=PERSON)  # to when it was due, not to the end of the hold
    assert run_at(redis, "b") == due
    clock.advance(500)
    assert child.register().take() == []
    assert {job(redis, each)["held"] for each in "ab"} == {"1"}


def test_a_repeat_of_a_claim_that_held_jobs_holds_them_once(redis: Redis, store: Store, child: Child) -> None:
    seed_ready(store, "a", spec=CHARGE)
    keep_back(store, on_handler())

    child.claim(5)
    child.claim(5, again=True)

    assert verbs(redis, "a") == ["enqueue", "hold"]


def test_an_expired_job_expires_though_it_is_held(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a", spec=CHARGE, expires_ms=clock.now_ms + 5)
    keep_back(store, on_handler())
    clock.advance(5)

    assert child.take() == []
    assert state(redis, "a") == "discarded"


@pytest.mark.damages("a string stands where the index of holds belongs")
def test_an_index_of_a_wrong_type_stops_the_claim_before_it_moved_anything(
    redis: Redis, store: Store, child: Child
) -> None:
    seed_ready(store, "a", spec=CHARGE)
    seed_ready(store, "b", spec=MAIL)
    keep_back(store, on_handler())
    redis.set(keys.queue_key(QUEUE, "held"), "x")

    with pytest.raises(Exception, match="holds a string where a zset belongs"):
        child.take()

    assert ids_in(redis, JobState.READY) == ["a", "b"]


def test_pages_know_the_holds_and_how_many_jobs_they_keep_back(
    store: Store, clock: Clock, child: Child
) -> None:
    seed_ready(store, "a", "b", spec=CHARGE)
    due = clock.now_ms
    hold = Hold(1, HoldKind.HANDLER, "shop.charge", clock.now_ms + HOUR_MS, "API down", "alice", clock.now_ms)
    over = Hold(2, HoldKind.CAUSE, "boom", clock.now_ms)
    keep_back(store, hold, over)
    child.take()
    inspector = Inspector(store.connection, now_ms=store.now_ms)

    (found,) = inspector.summary(QUEUE).holds

    assert found == Hold(**{**vars(hold), "jobs": 2})
    held = inspector.job(QUEUE, "a")
    assert held is not None
    assert (held.held, held.run_at) == (1, from_ms(due))


def test_settings_are_read_back_and_nonsense_is_no_hold() -> None:
    holds = [
        Hold(1, HoldKind.TAG, "a=b=c", 5, "why", "alice", 3),
        Hold(2, HoldKind.CAUSE, "c"),
        Hold(3, HoldKind.HANDLER, 'odd"name'),
    ]

    assert of_setting(to_setting(reversed(holds)).encode()) == holds
    assert of_setting(to_setting(holds).encode(), now_ms=5) == holds[1:]
    assert to_setting([]) == ""
    for raw in (None, b"", b"{", b'{"id": 1}', b'[{"id": "x"}]', b"[1]"):
        assert of_setting(raw) == []


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("colour", "red", "a hold is on a handler, a cause, a tag, not on 'colour'"),
        ("tag", "customer", "a tag is named as name=value, got 'customer'"),
        ("handler", "", "handler must be 1 to 300 printable characters, got ''"),
        ("cause", "a\nb", "printable"),
    ],
)
def test_what_no_hold_can_mean_is_refused(kind: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(kind, value)
