"""Jobs that a person wants stopped, and that did not stop when they were asked: what the supervisor knows of
them from its renewals, and what becomes of them when their process was ended for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from queueops.causes import CANCELLED, known_failure
from queueops.job import Delivery
from queueops.stops import Renewed, Stop
from queueops.store import Outcome
from queueops.worker.board import Running


@dataclass(frozen=True)
class Due:
    """A stop, and when it is due: monotonic seconds of this host."""

    stop: Stop
    at: float


class Stops:
    """What is to be stopped in the processes of one worker, as of their last renewal."""

    def __init__(self) -> None:
        self._due: dict[tuple[str, str, int], Due] = {}

    def told(self, queue: str, children: Iterable[str], renewed: Renewed) -> None:
        """Take what a renewal of these children answered: it is all there is for them."""
        now, mine = time.monotonic(), set(children)
        kept = {key: due for key, due in self._due.items() if key[0] != queue or due.stop.child not in mine}
        for stop in renewed.stops:
            at = now + (stop.at_ms * 1000 - renewed.server_us) / 1e6
            kept[queue, stop.job_id, stop.delivery] = Due(stop, at)
        self._due = kept

    def forget(self, child: str) -> None:
        """A process is gone, and nothing of it can be stopped any more."""
        self._due = {key: due for key, due in self._due.items() if due.stop.child != child}

    def of(self, queue: str, job_id: str, delivery: int) -> Due | None:
        """When a running delivery is to be stopped; None when nobody wants that."""
        return self._due.get((queue, job_id, delivery)) if self._due else None


def stopped(queue: str, jobs: Sequence[tuple[Running, Stop]]) -> list[Outcome]:
    """The records of jobs whose process was ended for them: dead, no attempt, and who wanted it.

    Dead, not discarded: what was cut off half-way may have taken effect, so a person looks at it.
    """
    outcomes = []
    for each, stop in jobs:
        ran_s = time.monotonic() - each.started
        asked = f"{stop.by or 'a person'} asked it to stop"
        failure = known_failure(
            CANCELLED, f"{asked}; it ran on, and after {ran_s:.1f} s its process was ended"
        )
        job = Delivery(queue, each.job_id, each.delivery, 0, 0, 0, True, 0, b"")
        cause, text, error = failure.cause, failure.cause_text, failure.to_json()
        outcomes.append(
            Outcome.bury(
                job, cause=cause, cause_text=text, error=error, is_attempt=False, ran_ms=int(ran_s * 1000)
            )
        )
    return outcomes
