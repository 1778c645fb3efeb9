"""fire: a slot of a schedule is settled once; its job comes with it, in one script."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queueops import keys
from queueops.errors import WrongKeyType
from queueops.slots import Action, FireCall, Fired, Slot
from queueops.states import JobState
from queueops.store import Outcome, Store
from tests.factories import (
    QUEUE,
    SPEC,
    Child,
    Clock,
    Redis,
    events,
    ids_in,
    job,
    run_at,
    seed_ready,
    state,
    verbs,
)
from tests.proxy import Proxy

KEY = "nightly"
MINUTE = 60_000


def slot(at_ms: int, action: Action = Action.FIRE, **more: Any) -> Slot:
    return Slot(at_ms, action, f"schedule:{KEY}:{at_ms}", spec=SPEC, **more)


def call(*slots: Slot, **more: Any) -> FireCall:
    settings = {"version": 1, "settled_ms": 0, "recorded": 0, "overlap": "skip", **more}
    return FireCall(QUEUE, KEY, slots=slots, **settings)


def fire(store: Store, *slots: Slot, **more: Any) -> Fired:
    answer = store.fire([call(*slots, **more)], actor="scheduler")[0]
    if isinstance(answer, Exception):
        raise answer
    return answer


def fields(redis: Redis) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in redis.hgetall(keys.schedule(QUEUE, KEY)).items()}


def place(store: Store, at_ms: int, **more: Any) -> Fired:
    return fire(store, mode="place", settled_ms=at_ms, **more)


@pytest.fixture
def t0(store: Store, clock: Clock) -> int:
    """A full minute by the store's clock, at which the schedule was placed."""
    clock.advance(-clock.now_ms % MINUTE)
    place(store, clock.now_ms)
    return clock.now_ms


def end(store: Store, child: Child) -> None:
    """Run what is ready to its end."""
    child.ack(*child.register().take())


def test_a_slot_becomes_a_ready_job_with_its_id_and_an_event(
    redis: Redis, store: Store, clock: Clock, t0: int
) -> None:
    clock.advance(MINUTE)

    answer = fire(store, slot(t0 + MINUTE))

    assert (answer.word, answer.words, answer.last_ms) == ("ok", ("fired",), t0 + MINUTE)
    assert ids_in(redis, JobState.READY) == [f"schedule:{KEY}:{t0 + MINUTE}"]
    assert [(e["verb"], e["from"], e["to"], e["actor"]) for e in events(redis)] == [
        ("fire", "", "ready", "scheduler")
    ]
    assert fields(redis)["last"] == str(t0 + MINUTE)
    assert fields(redis)["job"] == f"schedule:{KEY}:{t0 + MINUTE}"


def test_the_same_call_twice_answers_the_same_and_does_nothing_more(
    redis: Redis, store: Store, clock: Clock, t0: int
) -> None:
    clock.advance(2 * MINUTE)
    slots = (slot(t0 + MINUTE), slot(t0 + 2 * MINUTE))

    first = fire(store, *slots, overlap="allow")
    before = fields(redis)
    second = fire(store, *slots, overlap="allow")

    assert first.words == second.words == ("fired", "fired")
    assert first.decisions == second.decisions
    assert fields(redis) == before
    assert len(ids_in(redis, JobState.READY)) == 2
    assert verbs(redis) == ["fire", "fire"]


def test_a_call_whose_answer_was_lost_is_sent_again_and_fires_once(
    redis: Redis, store: Store, lossy: Store, clock: Clock, proxy: Proxy, t0: int
) -> None:
    clock.advance(MINUTE)
    lossy.now_ms = store.now_ms
    proxy.lose_replies(1)

    answer = fire(lossy, slot(t0 + MINUTE))

    assert answer.words == ("fired",)
    assert verbs(redis) == ["fire"]


def test_two_schedulers_fire_one_job(redis: Redis, store: Store, clock: Clock, t0: int) -> None:
    clock.advance(MINUTE)

    first = store.fire([call(slot(t0 + MINUTE))], actor="one")[0]
    second = store.fire([call(slot(t0 + MINUTE))], actor="two")[0]

    assert isinstance(first, Fired)
    assert isinstance(second, Fired)
    assert [decision.by for decision in second.decisions] == ["one"]
    assert verbs(redis) == ["fire"]


def test_a_slot_later_than_the_servers_now_is_refused(
    redis: Redis, store: Store, clock: Clock, t0: int
) -> None:
    clock.advance(MINUTE - 1)

    answer = fire(store, slot(t0 + MINUTE))

    assert answer.words == ("early",)
    assert answer.last_ms == t0
    assert ids_in(redis, JobState.READY) == []
    clock.advance(1)
    assert fire(store, slot(t0 + MINUTE)).words == ("fired",)


def test_a_slot_before_the_last_one_is_past(redis: Redis, store: Store, clock: Clock, t0: int) -> None:
    clock.advance(2 * MINUTE)
    fire(store, slot(t0 + 2 * MINUTE))

    answer = fire(store, slot(t0 + MINUTE), recorded=1)

    assert answer.words == ("past",)
    assert verbs(redis) == ["fire"]


def test_the_ledger_seeds_what_redis_lacks(store: Store, clock: Clock, t0: int) -> None:
    clock.advance(3 * MINUTE)

    assert fire(store, slot(t0 + 2 * MINUTE), settled_ms=t0 + 2 * MINUTE).words == ("past",)


def test_without_its_hash_nothing_is_fired(redis: Redis, store: Store, clock: Clock, t0: int) -> None:
    clock.advance(MINUTE)
    redis.delete(keys.schedule(QUEUE, KEY))

    assert fire(store, slot(t0 + MINUTE)).word == "lost"
    assert fire(store, slot(t0 + MINUTE), mode="take", version=2).word == "lost"
    assert redis.exists(keys.schedule(QUEUE, KEY)) == 0
    assert ids_in(redis, JobState.READY) == []


def test_an_older_definition_is_refused_once_a_newer_was_placed(store: Store, clock: Clock, t0: int) -> None:
    fire(store, mode="take", version=3, settled_ms=t0)
    clock.advance(MINUTE)

    refused = fire(store, slot(t0 + MINUTE), version=2)

    assert (refused.word, refused.version) == ("stale", 3)
    assert fire(store, slot(t0 + MINUTE), version=3).words == ("fired",)


def test_a_retired_schedule_fires_nothing_and_leaves_in_the_end(
    redis: Redis, store: Store, clock: Clock, t0: int
) -> None:
    fire(store, mode="retire", version=2)
    clock.advance(MINUTE)

    assert fire(store, slot(t0 + MINUTE), version=2).word == "stale"
    assert 0 < redis.pttl(keys.schedule(QUEUE, KEY)) <= 86_400_000
    assert place(store, t0, version=3).word == "ok"
    assert redis.pttl(keys.schedule(QUEUE, KEY)) == -1
    assert fire(store, slot(t0 + MINUTE), version=3).words == ("fired",)


def test_jitter_makes_the_job_delayed(redis: Redis, store: Store, clock: Clock, t0: int) -> None:
    clock.advance(MINUTE)
    at = t0 + MINUTE

    fire(store, slot(at, run_at=str(at + 1_500)))

    assert ids_in(redis, JobState.DELAYED) == [f"schedule:{KEY}:{at}"]
    assert run_at(redis, f"schedule:{KEY}:{at}") == at + 1_500
    assert events(redis)[0]["to"] == "delayed"


# -- overlap -----------------------------------------------------------------------------------------


def test_f13_skip_leaves_out_slots_while_the_run_before_is_not_over(
    redis: Redis, store: Store, clock: Clock, child: Child, t0: int
) -> None:
    """A minutely job that takes 150 s runs at minutes 0, 3, 6 and 9."""
    words: list[str] = []
    running: list[int] = []
    for _ in range(10):
        now = clock.advance(MINUTE)
        if running and now - running[0] >= 150_000:
            child.ack(*child.held.values())
            child.held.clear()
            running.clear()
        words += fire(store, slot(now)).words
        if taken := child.register().take():
            assert not running, "two ran at once"
            running.append(now)
            assert len(taken) == 1

    assert [i for i, word in enumerate(words) if word == "fired"] == [0, 3, 6, 9]
    assert words.count("skipped") == 6
    child.ack(*child.held.values())


def test_f13_allow_runs_beside(redis: Redis, store: Store, clock: Clock, t0: int) -> None:
    for _ in range(10):
        assert fire(store, slot(clock.advance(MINUTE)), overlap="allow").words == ("fired",)

    assert len(ids_in(redis, JobState.READY)) == 10


def test_f13_queue_one_lets_one_wait_and_runs_it_right_after(
    redis: Redis, store: Store, clock: Clock, child: Child, t0: int
) -> None:
    first, second, third = (t0 + n * MINUTE for n in (1, 2, 3))
    clock.advance(MINUTE)
    fire(store, slot(first), overlap="queue_one")
    child.register().take()
    clock.advance(MINUTE)
    assert fire(store, slot(second), overlap="queue_one").words == ("waiting",)
    clock.advance(MINUTE)
    answer = fire(store, slot(second), slot(third), overlap="queue_one")
    assert answer.words == ("waiting", "skipped")
    assert answer.waiting == (second,)

    child.ack(*child.held.values())
    answer = fire(store, slot(second), overlap="queue_one")

    assert (answer.words, answer.waiting) == (("fired",), ())
    assert [job.id for job in child.register().take()] == [f"schedule:{KEY}:{second}"]
    assert [(d.at_ms, d.state) for d in answer.decisions] == [
        (first, "fired"),
        (second, "waiting"),
        (third, "skipped"),
        (second, "fired"),
    ]


def test_cancel_asks_the_running_one_to_stop_and_sets_aside_one_that_did_not_begin(
    redis: Redis, store: Store, clock: Clock, child: Child, t0: int
) -> None:
    clock.advance(MINUTE)
    fire(store, slot(t0 + MINUTE), overlap="cancel")
    child.register().take()
    clock.advance(MINUTE)
    fire(store, slot(t0 + 2 * MINUTE), overlap="cancel")
    clock.advance(MINUTE)
    fire(store, slot(t0 + 3 * MINUTE), overlap="cancel")

    assert job(redis, f"schedule:{KEY}:{t0 + MINUTE}")["cancel"] == "scheduler"
    assert state(redis, f"schedule:{KEY}:{t0 + 2 * MINUTE}") == "discarded"
    assert state(redis, f"schedule:{KEY}:{t0 + 3 * MINUTE}") == "ready"


@pytest.mark.parametrize("how", ["retrying", "dead"])
def test_a_run_that_will_be_tried_again_is_not_over_and_a_dead_one_is(
    redis: Redis, store: Store, clock: Clock, child: Child, t0: int, how: str
) -> None:
    clock.advance(MINUTE)
    fire(store, slot(t0 + MINUTE))
    taken = child.register().take()
    if how == "dead":
        child.bury(*taken)
    else:
        child.retry(*taken, delay_s=3600)
    clock.advance(MINUTE)

    assert fire(store, slot(t0 + 2 * MINUTE)).words == (("skipped",) if how == "retrying" else ("fired",))


def test_a_run_by_hand_overlaps_too(store: Store, clock: Clock, t0: int) -> None:
    seed_ready(store, "by-hand")
    clock.advance(MINUTE)

    assert fire(store, slot(t0 + MINUTE), others=("by-hand",)).words == ("skipped",)


def test_slots_caught_up_run_one_after_the_other_and_no_faster_than_their_rate(
    redis: Redis, store: Store, clock: Clock, child: Child, t0: int
) -> None:
    clock.advance(3 * MINUTE)
    slots = [slot(t0 + n * MINUTE, Action.CATCH_UP) for n in (1, 2, 3)]
    assert fire(store, *slots, gap_ms=1000).words == ("fired", "waiting", "waiting")
    end(store, child)

    assert fire(store, slots[1], gap_ms=1000).words == ("fired",)
    end(store, child)
    assert fire(store, slots[2], gap_ms=1000).words == ("waiting",)
    clock.advance(1000)
    assert fire(store, slots[2], gap_ms=1000).words == ("fired",)


def test_a_new_definition_skips_what_waits(store: Store, clock: Clock, child: Child, t0: int) -> None:
    clock.advance(MINUTE)
    fire(store, slot(t0 + MINUTE), overlap="queue_one")
    clock.advance(MINUTE)
    fire(store, slot(t0 + 2 * MINUTE), overlap="queue_one")

    answer = fire(store, mode="take", version=2, settled_ms=clock.now_ms, clear="it was changed")

    assert answer.waiting == ()
    assert (answer.decisions[-1].state, answer.decisions[-1].reason) == ("skipped", "it was changed")


# -- what it keeps -------------------------------------------------------------------------------------


def test_lines_that_the_ledger_has_are_dropped_but_for_the_last_slots(
    store: Store, clock: Clock, t0: int
) -> None:
    for _ in range(3):
        answer = fire(store, slot(clock.advance(MINUTE)), overlap="allow")
    assert [decision.number for decision in answer.decisions] == [1, 2, 3]

    answer = fire(store, overlap="allow", recorded=3)

    assert [decision.number for decision in answer.decisions] == [3]


def test_the_log_is_bounded_and_says_what_it_lost(redis: Redis, store: Store, clock: Clock, t0: int) -> None:
    clock.advance(2_200 * 1000)
    for start in range(0, 2_200, 100):
        slots = [Slot(t0 + 1000 * (start + n + 1), Action.MISS, reason="nobody") for n in range(100)]
        answer = fire(store, *slots)

    assert len(answer.decisions) == 2_000
    assert fields(redis)["log_lost"] == "200"


def test_reasons_keep_to_their_line(store: Store, clock: Clock, t0: int) -> None:
    clock.advance(MINUTE)

    answer = fire(store, Slot(t0 + MINUTE, Action.SKIP, reason="two\nlines\tand a tab", stands_for=7))

    assert [(d.reason, d.stands_for) for d in answer.decisions] == [("two lines and a tab", 7)]


@pytest.mark.damages("a key holds a foreign type")
@pytest.mark.parametrize("which", ["schedule", "job"])
def test_a_key_of_another_type_changes_nothing_and_holds_nobody_up(
    redis: Redis, store: Store, clock: Clock, t0: int, which: str
) -> None:
    clock.advance(2 * MINUTE)
    bad = (
        keys.schedule(QUEUE, KEY)
        if which == "schedule"
        else keys.job(QUEUE, f"schedule:{KEY}:{t0 + 2 * MINUTE}")
    )
    redis.delete(bad)
    redis.set(bad, "foreign")
    place_other = replace(call(mode="place", settled_ms=t0), schedule="other")
    store.fire([place_other], actor="scheduler")

    both = [
        call(slot(t0 + MINUTE), slot(t0 + 2 * MINUTE)),
        replace(call(replace(slot(t0 + MINUTE), job_id="schedule:other:1")), schedule="other"),
    ]
    answers = store.fire(both, actor="scheduler")

    assert isinstance(answers[0], WrongKeyType)
    assert isinstance(answers[1], Fired)
    assert answers[1].words == ("fired",)
    assert verbs(redis) == ["fire"]


def test_a_queue_that_was_never_published_is_registered_first(
    redis: Redis, store: Store, clock: Clock
) -> None:
    answer = store.fire([replace(call(mode="place", settled_ms=1), queue="fresh")], actor="scheduler")[0]

    assert isinstance(answer, Fired)
    assert answer.word == "ok"
    assert redis.sismember(keys.QUEUES, "fresh")


def test_a_fired_job_is_run_like_any_other(
    redis: Redis, store: Store, clock: Clock, child: Child, t0: int
) -> None:
    clock.advance(MINUTE)
    fire(store, slot(t0 + MINUTE))

    (taken,) = child.register().take()
    assert child.settle(Outcome.ack(taken, handler="tests.work", ran_ms=1)) == ["ok"]
    assert (taken.spec, taken.id) == (SPEC, f"schedule:{KEY}:{t0 + MINUTE}")
