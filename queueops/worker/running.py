"""Run one job's handler, and say what becomes of the job."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connections

from queueops.causes import OTHER, Failure, failure_of, known_failure
from queueops.conf import config
from queueops.current import CurrentJob, Look, set_current
from queueops.errors import Dead, Discard, RetryLater, Snooze, SoftTimeLimit
from queueops.handlers import Handler
from queueops.job import Delivery
from queueops.masking import redact, secrets_in
from queueops.payload import Spec, encode_value
from queueops.policies import Bury, Retry, RetryPolicy, decide
from queueops.store import Outcome
from queueops.worker.databases import tidy_connections
from queueops.worker.limits import SoftLimits
from queueops.worker.rules import Rules

logger = logging.getLogger("queueops.worker")


class Slots(Protocol):
    """Where a Runner notes what it runs: worker.board.Board, or a Celery worker's."""

    def start(self, slot: int, queue: Any, job_id: str, delivery: int, deadline: float) -> float:
        """Note that a handler starts in `slot`; the time. `deadline` is seconds from now, 0 for none."""

    def stop(self, slot: int) -> None:
        """Note that it is over."""


class Task:
    """A claimed job with what is needed to run it."""

    __slots__ = ("delivery", "feed", "handler", "is_async", "queue_index", "since", "spec")

    def __init__(self, delivery: Delivery, spec: Spec, handler: Handler, feed: Any, queue_index: Any) -> None:
        self.delivery = delivery
        self.spec = spec
        self.handler = handler
        self.is_async = handler.is_async
        self.feed = feed  # whose queue it came from; the child's own
        self.queue_index = queue_index  # its queue as the board knows it
        self.since = time.monotonic()  # claimed


class Runner:
    """Runs handlers of one child on whatever thread or loop it is called."""

    def __init__(self, board: Slots, rules: Rules, look: Look) -> None:
        self._board = board
        self._rules = rules
        self._look = look
        self.soft = SoftLimits()
        conf = config()
        self._hard_limit_s = conf.hard_limit_s
        self._max_result_bytes = conf.max_result_bytes

    def policy(self, task: Task) -> RetryPolicy:
        """The policy that this job follows."""
        spec = task.spec
        return self._rules.policy(task.delivery.queue, spec.handler, spec.policy, task.handler.policy)

    def limits(self, task: Task) -> tuple[float | None, float]:
        """The soft and the hard limit in seconds: the job's own, its policy's, its handler's, the site's."""
        policy, handler = self.policy(task), task.handler
        soft, hard = _own_limits(task.spec.extra.get("limits"))
        return (
            soft or policy.soft_limit_s or handler.soft_limit_s,
            hard or policy.hard_limit_s or handler.hard_limit_s or self._hard_limit_s,
        )

    def _begin(self, task: Task, slot: int) -> tuple[float, float | None, float]:
        """Note the start; when it was, and the limits in seconds."""
        soft, hard = self.limits(task)
        delivery = task.delivery
        started = self._board.start(slot, task.queue_index, delivery.id, delivery.delivery, hard)
        return started, soft, hard

    def run(self, task: Task, slot: int) -> Outcome:
        """Run a plain handler on this thread. Never raises."""
        started, soft, hard = self._begin(task, slot)
        handler = task.handler
        try:
            tidy_connections()
            set_current(CurrentJob(task.delivery, self._look))
            if handler.perform is not None:
                outcome: Outcome = handler.perform(Call(self, task, started, (soft, hard)))
            else:
                if soft is None:
                    result = handler.function(*task.spec.args, **task.spec.kwargs)
                else:
                    with self.soft.watch(soft, handler.soft_error):
                        result = handler.function(*task.spec.args, **task.spec.kwargs)
                outcome = self.succeeded(task, result, started)
        except BaseException as error:  # SystemExit too: a handler ends its job, not its worker
            outcome = self.failed(task, error, started)
        set_current(None)
        tidy_connections()
        self._board.stop(slot)
        return outcome

    async def run_async(self, task: Task, slot: int) -> Outcome:
        """Run an async handler on this loop. Never raises."""
        started, soft, hard = self._begin(task, slot)
        try:
            set_current(CurrentJob(task.delivery, self._look))
            # A thread of its own for the job's ORM calls, made when it makes one.
            async with ThreadSensitiveContext() as context:
                try:
                    if task.handler.perform is not None:
                        outcome: Outcome = await task.handler.perform(Call(self, task, started, (soft, hard)))
                    else:
                        async with asyncio.timeout(soft) as limit:
                            result = await task.handler.function(*task.spec.args, **task.spec.kwargs)
                        outcome = self.succeeded(task, result, started)
                except TimeoutError:
                    if task.handler.perform is not None or not limit.expired():
                        raise
                    raise SoftTimeLimit(f"ran longer than its soft limit of {soft:g} s") from None
                finally:
                    if context in SyncToAsync.context_to_thread_executor:
                        await sync_to_async(connections.close_all)()
        except BaseException as error:  # CancelledError too: only a handler can cause it here
            outcome = self.failed(task, error, started)
        self._board.stop(slot)
        return outcome

    # -- what becomes of it -------------------------------------------------------------

    def succeeded(self, task: Task, result: Any, started: float) -> Outcome:
        """The handler returned."""
        stored: bytes | str = ""
        if result is not None:
            try:
                stored = encode_value(result, what="the result", max_bytes=self._max_result_bytes)
            except (TypeError, ValueError) as error:  # an extra: no reason to run the job again
                logger.debug("%s of %s: %s; it is not kept", task.delivery.id, task.delivery.queue, error)
        return Outcome.ack(task.delivery, handler=task.spec.handler, result=stored, ran_ms=_ms_since(started))

    def failed(
        self,
        task: Task,
        error: BaseException,
        started: float,
        told: Retry | Bury | None = None,
        *,
        is_expected: bool = False,
    ) -> Outcome:
        """The handler raised: what it said, what `told` says, or what the policy says."""
        delivery, ran_ms = task.delivery, _ms_since(started)
        try:
            if isinstance(error, Discard):
                return Outcome.discard(delivery, reason=error.reason)
            if isinstance(error, Snooze):
                return Outcome.snooze(delivery, delay_s=_finite(error.delay_s), reason=error.reason)
            failure, policy = failure_of(error, hide=_hiding(task.spec)), self.policy(task)
            ra = _finite(error.delay_s) if isinstance(error, RetryLater) else None
            said = told or decide(
                policy, delivery.attempts + 1, error=error, fatal=isinstance(error, Dead), retry_after_s=ra
            )
        except Exception:
            # Even an exception that breaks every rule must cost one job one attempt, and no worker.
            logger.exception("%s of %s: what its handler raised can't be told", delivery.id, delivery.queue)
            policy = self.policy(task)
            failure = known_failure(OTHER, type(error).__name__)
            said = told or decide(policy, delivery.attempts + 1)
        return failed_outcome(
            delivery, failure, policy, said, ran_ms=ran_ms, handler=task.spec.handler, is_expected=is_expected
        )


class Call:
    """One delivery for a handler that says itself what becomes of its job (handlers.Call)."""

    __slots__ = ("_runner", "_started", "_task", "delivery", "limits", "spec")

    def __init__(
        self, runner: Runner, task: Task, started: float, limits: tuple[float | None, float]
    ) -> None:
        self._runner = runner
        self._task = task
        self._started = started
        self.delivery = task.delivery
        self.spec = task.spec
        self.limits: tuple[float | None, float | None] = limits

    @property
    def policy(self) -> RetryPolicy:
        """The policy that the job follows."""
        return self._runner.policy(self._task)

    def limited(self) -> AbstractContextManager[None]:
        """Let the block, on this thread, run no longer than the soft limit."""
        soft, _ = self.limits
        if soft is None:
            return nullcontext()
        return self._runner.soft.watch(soft, self._task.handler.soft_error)

    def succeeded(self, result: Any) -> Outcome:
        """Say that it returned."""
        return self._runner.succeeded(self._task, result, self._started)

    def failed(
        self, error: BaseException, said: Retry | Bury | None = None, *, is_expected: bool = False
    ) -> Outcome:
        """Say that it raised."""
        return self._runner.failed(self._task, error, self._started, said, is_expected=is_expected)


def failed_outcome(
    delivery: Delivery,
    failure: Failure,
    policy: RetryPolicy,
    said: Any,
    *,
    ran_ms: int,
    handler: str,
    is_expected: bool = False,
) -> Outcome:
    """The record of an attempt that failed, with one log line; information when it was expected."""
    named = f"{policy.name}@{policy.version}"
    attempt = delivery.attempts + 1
    if isinstance(said, Retry):
        logger.log(
            logging.INFO if is_expected else logging.WARNING,
            "%s of %s (%s) failed, attempt %d: %s; again in %.1f s",
            delivery.id, delivery.queue, handler, attempt, failure.cause_text, said.delay_s,
        )  # fmt: skip
        return Outcome.retry(
            delivery, delay_s=said.delay_s, cause=failure.cause, cause_text=failure.cause_text,
            error=failure.to_json(), policy=named, ran_ms=ran_ms,
        )  # fmt: skip
    logger.log(
        logging.INFO if is_expected else logging.ERROR,
        "%s of %s (%s) is dead (%s) after attempt %d: %s",
        delivery.id, delivery.queue, handler, said.why, attempt, failure.cause_text,
    )  # fmt: skip
    return Outcome.bury(
        delivery, cause=failure.cause, cause_text=failure.cause_text, error=failure.to_json(),
        policy=named, ran_ms=ran_ms,
    )  # fmt: skip


def _hiding(spec: Spec) -> Callable[[str], str]:
    """What takes the secrets of a job's arguments out of an error's text, before anybody keeps it."""
    secrets = secrets_in((spec.args, spec.kwargs), config().secret_names)
    return lambda text: redact(text, secrets)


def _own_limits(given: Any) -> tuple[float | None, float | None]:
    """The limits that the job itself carries: two numbers or None; anything else counts as none."""
    if not isinstance(given, list) or len(given) != 2:
        return None, None
    soft, hard = (each if isinstance(each, (int, float)) and 0 < each < 1e9 else None for each in given)
    return soft, hard


def _ms_since(started: float) -> int:
    return int((time.monotonic() - started) * 1000)


def _finite(delay_s: float) -> float:
    if not math.isfinite(delay_s):
        raise ValueError(f"a delay must be a number of seconds, got {delay_s}")
    return max(0.0, delay_s)
