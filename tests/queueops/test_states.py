"""The table of moves, and that everything which must agree with it does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from queueops.scripts import LUA_DIR
from queueops.states import LISTED, LIVE, MOVES, JobState
from queueops.store import Outcome, Store
from tests.factories import (
    PERSON,
    QUEUE,
    Child,
    Clock,
    Redis,
    events,
    job,
    seed_dead,
    seed_delayed,
    seed_discarded,
    seed_pending,
    seed_ready,
    state,
)
from tests.proxy import Proxy

TESTS = Path(__file__).parent
#: Composed by the scripts of other verbs.
COMPOSED = {"promote", "hold", "lift", "rescue", "expire"}
#: Events that are no moves: a refused settlement.
NO_MOVES = {"late"}


@pytest.mark.parametrize("verb", sorted(MOVES))
def test_each_verb_has_its_lua_body_its_method_and_its_tests(verb: str) -> None:
    assert (LUA_DIR / "lib" / f"{verb}.lua").is_file()
    assert (TESTS / f"test_{verb}.py").is_file()
    assert hasattr(Store, verb) or hasattr(Outcome, verb) or verb in COMPOSED


@pytest.mark.parametrize("verb", sorted(COMPOSED))
def test_a_composed_verb_is_included_by_a_script(verb: str) -> None:
    including = [path for path in LUA_DIR.glob("*.lua") if f"-- @include {verb}\n" in path.read_text()]

    assert including


def test_the_events_that_scripts_record_are_the_verbs_of_the_table() -> None:
    recorded = set()
    for path in LUA_DIR.rglob("*.lua"):
        recorded |= set(re.findall(r"\brecord\((?:verb or )?'(\w+)'", path.read_text()))

    assert recorded - NO_MOVES <= MOVES.keys()
    # enqueue's and expire's, prune's and fire's verbs reach `record` as an argument
    assert MOVES.keys() - recorded <= {"enqueue", "expire", "prune", "fire"}


def test_listed_and_live_states_are_states_of_the_table() -> None:
    assert set(LISTED) == set(JobState) - {JobState.DONE}
    assert set(JobState) - {JobState.DONE, JobState.DEAD, JobState.DISCARDED} == LIVE


def test_every_state_but_done_can_be_left() -> None:
    left = {source for move in MOVES.values() for source in move.sources}

    assert left == set(JobState) - {JobState.DONE}


def test_the_one_exit_without_a_state_is_for_what_was_discarded() -> None:
    assert {move.verb for move in MOVES.values() if None in move.targets} == {"purge", "prune"}
    assert all(MOVES[verb].sources == {JobState.DISCARDED} for verb in ("purge", "prune"))


# -- what a person may do, in every state -------------------------------------------------------------

Act = Callable[[Store, Clock], list[str]]
ACTS: dict[str, Act] = {
    "requeue": lambda store, clock: store.requeue(QUEUE, ["a"], actor=PERSON),
    "run_now": lambda store, clock: store.run_now(QUEUE, ["a"], actor=PERSON),
    "reschedule": lambda store, clock: store.reschedule(
        QUEUE, ["a"], run_at_ms=clock.now_ms + 9000, actor=PERSON
    ),
    "cancel": lambda store, clock: store.cancel(QUEUE, ["a"], actor=PERSON),
    "edit": lambda store, clock: [store.edit(QUEUE, "a", b'{"handler": "tests.other"}', actor=PERSON)],
    "discard": lambda store, clock: store.discard(QUEUE, ["a"], actor=PERSON),
    "restore": lambda store, clock: store.restore(QUEUE, ["a"], actor=PERSON),
    "purge": lambda store, clock: store.purge(QUEUE, ["a"], actor=PERSON),
}
#: A running job is asked to stop by `cancel`; only its own handler discards it.
NOT_BY_A_PERSON = {("discard", JobState.PENDING)}


def put_in(where: JobState, child: Child, clock: Clock) -> None:
    """One job, `a`, in this state."""
    if where is JobState.DELAYED:
        seed_delayed(child.store, "a", run_at_ms=clock.now_ms + 60_000)
    elif where is JobState.READY:
        seed_ready(child.store, "a")
    elif where is JobState.PENDING:
        seed_pending(child, "a")
    elif where is JobState.DONE:
        child.ack(*seed_pending(child, "a"))
    elif where is JobState.DEAD:
        seed_dead(child, "a")
    else:
        seed_discarded(child.store, "a")


def test_every_verb_of_a_person_is_tried_here() -> None:
    assert {move.verb for move in MOVES.values() if move.by_person} == ACTS.keys()


@pytest.mark.parametrize("where", list(JobState))
@pytest.mark.parametrize("verb", sorted(ACTS))
def test_a_person_moves_a_job_from_the_states_of_the_table_and_from_no_other(
    redis: Redis, store: Store, clock: Clock, child: Child, verb: str, where: JobState
) -> None:
    put_in(where, child, clock)
    before, count = job(redis, "a"), len(events(redis))

    answer = ACTS[verb](store, clock)

    if where in MOVES[verb].sources and (verb, where) not in NOT_BY_A_PERSON:
        assert answer == ["ok"]
        assert state(redis, "a") in MOVES[verb].targets
        event = events(redis)[-1]
        assert (event["verb"], event["from"], event["actor"]) == (verb, where, PERSON)
    else:
        assert answer == [f"wrong:{where}"]
        assert job(redis, "a") == before
        assert len(events(redis)) == count


@pytest.mark.parametrize("verb", sorted(ACTS))
def test_a_person_and_a_job_that_is_not_there(redis: Redis, store: Store, clock: Clock, verb: str) -> None:
    store.register(QUEUE)

    assert ACTS[verb](store, clock) == ["missing"]
    assert events(redis) == []
    assert job(redis, "a") == {}


@pytest.mark.parametrize("verb", sorted(ACTS.keys() - {"purge"}))
@pytest.mark.parametrize("where", list(JobState))
def test_a_repeat_of_a_person_s_call_answers_as_before_and_does_nothing(
    redis: Redis, lossy: Store, clock: Clock, child: Child, proxy: Proxy, verb: str, where: JobState
) -> None:
    put_in(where, child, clock)
    legal = where in MOVES[verb].sources and (verb, where) not in NOT_BY_A_PERSON
    count = len(events(redis))

    proxy.lose_replies(1)
    answer = ACTS[verb](lossy, clock)  # the client sends it again by itself

    assert proxy.lost == 1
    assert answer == ["ok" if legal else f"wrong:{where}"]
    assert len(events(redis)) == count + legal
