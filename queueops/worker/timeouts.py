"""Jobs over their hard limit: the attempt that the supervisor reports, since their process can't."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from queueops.causes import TIMEOUT, known_failure
from queueops.inspector import Inspector
from queueops.job import Delivery
from queueops.policies import RetryPolicy, decide
from queueops.store import Outcome, Store
from queueops.worker.board import Running
from queueops.worker.rules import Rules
from queueops.worker.running import failed_outcome

#: Asks what policy was declared with a handler: a name, a policy, or None.
Declared = Callable[[str], str | RetryPolicy | None]


def timed_out(store: Store, queue: str, late: Iterable[Running], declared: Declared) -> list[Outcome]:
    """The records of attempts that ran past their hard limit, by each job's own policy.

    A job that this delivery does not own any more gets none. Raises StoreUnavailable.
    """
    rules = Rules(store.connection)
    with store.connection.translating():
        rules.load(queue)
    outcomes = []
    by_id = {each.job_id: each for each in late}
    for job in Inspector(store.connection).jobs(queue, list(by_id)):
        if job is None or job.delivery != by_id[job.id].delivery:
            continue
        ran_s = time.monotonic() - by_id[job.id].started
        handler = job.handler or ""
        policy = rules.policy(queue, handler, job.policy, declared(handler))
        delivery = Delivery(queue, job.id, job.delivery, job.attempts, job.rescues, job.edition, True, 0, b"")
        failure = known_failure(TIMEOUT, f"ran {ran_s:.1f} s, over its hard limit; its process was ended")
        said = decide(policy, job.attempts + 1)
        outcomes.append(
            failed_outcome(delivery, failure, policy, said, ran_ms=int(ran_s * 1000), handler=handler)
        )
    return outcomes
