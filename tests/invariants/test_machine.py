"""All verbs, with repeats of each command, lost answers, children that die, jumps of the clock, lost groups
and deleted streams; the engine and a small model are compared after each step.

Hypothesis draws one half of the paths, and remembers and shrinks what fails; it likes simple paths. A
random number generator draws the other half: those are longer and fuller. MACHINE_EXAMPLES walks more
than the usual number (`make chaos`); MACHINE_SHRINK lets Hypothesis look for the shortest path to a
failure, which takes minutes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.factories import Redis
from tests.invariants.walk import Walk
from tests.proxy import Proxy

EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "10" if "TEST_REDIS" in os.environ else "30"))
STEPS = 50
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
if "MACHINE_SHRINK" in os.environ:
    PHASES.append(Phase.shrink)

T = TypeVar("T")


class HypothesisDraw:
    """Choices of Hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def one_of(self, choices: Sequence[T]) -> T:
        return self._data.draw(st.sampled_from(choices))

    def some_of(self, choices: Sequence[T], least: int, most: int) -> list[T]:
        return self._data.draw(st.lists(st.sampled_from(choices), min_size=least, max_size=most))


class RandomDraw:
    """Choices of a random number generator."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    def one_of(self, choices: Sequence[T]) -> T:
        return self._dice.choice(choices)

    def some_of(self, choices: Sequence[T], least: int, most: int) -> list[T]:
        return self._dice.choices(choices, k=self._dice.randint(least, most))


@pytest.mark.timeout(3600)
def test_the_engine_and_a_small_model_agree_on_every_path(redis: Redis, proxy: Proxy) -> None:
    class Machine(RuleBasedStateMachine):
        """One rule, since Hypothesis switches whole rules off for a path."""

        def __init__(self) -> None:
            super().__init__()
            self.walk = Walk(redis, proxy)

        @rule(data=st.data())
        def step(self, data: st.DataObject) -> None:
            note(self.walk.step(HypothesisDraw(data)))

        def teardown(self) -> None:
            self.walk.end()

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=bool(os.environ.get("CI")),
            suppress_health_check=list(HealthCheck),
            phases=PHASES,
        ),
    )


@pytest.mark.timeout(3600)
def test_the_engine_and_a_small_model_agree_on_long_random_paths(redis: Redis, proxy: Proxy) -> None:
    for _ in range(EXAMPLES):
        seed = random.getrandbits(32)  # pytest -p randomly prints what makes it the same again
        taken: list[str] = []
        try:
            walk, draw = Walk(redis, proxy), RandomDraw(seed)
            while len(taken) < 2 * STEPS:
                taken.append(walk.step(draw))
            walk.end()
        except Exception as error:
            error.add_note(f"seed {seed}, after {len(taken)} steps: {'; '.join(taken[-8:])}")
            raise
