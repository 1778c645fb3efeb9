"""Run one delivery of a job whose handler is a Celery task, as Celery's own tracer runs a message.

The order of hooks and signals, and what they are given, is that of `celery.app.trace`. Where Celery
stores a state, the job gets its outcome.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import celery._state
from asgiref.sync import sync_to_async
from billiard.einfo import ExceptionInfo
from celery import Task, signals, states
from celery.app.trace import task_has_custom
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.functional import maybe_list
from celery.utils.time import maybe_make_aware
from celery.utils.time import rate as rate_of

from queueops import errors
from queueops.bridges.celery import links
from queueops.bridges.celery.request import EXTRA, AsyncStack, JobRequest, SoftTimeLimitExceeded, install
from queueops.conf import config
from queueops.current import current_job
from queueops.errors import StoreUnavailable
from queueops.handlers import Call
from queueops.inspector import Inspector
from queueops.job import to_ms
from queueops.payload import Spec
from queueops.policies import Bury
from queueops.policies import Retry as RetryIn
from queueops.store import Outcome, Store

_state: Any = celery._state
logger = logging.getLogger("queueops.worker")

#: Between two tries of a job that a task handed back by Reject(requeue=True). Seconds.
REQUEUE_S = 1.0


class _End:
    """How a run ended: its state and return value as Celery tells them, and the job's outcome."""

    __slots__ = ("outcome", "retval", "state")

    def __init__(self, outcome: Outcome, state: str, retval: Any) -> None:
        self.outcome = outcome
        self.state = state
        self.retval = retval


class _Tracer:
    """Runs one task; what its class overrides is looked up once."""

    def __init__(self, task: Task[..., Any]) -> None:
        self.task = task
        self.function: Callable[..., Any] = task if task_has_custom(task, "__call__") else task.run
        self.interval_s = _interval_s(task.rate_limit)
        self.before_start, self.on_success, self.on_retry, self.on_failure, self.after_return = (
            getattr(task, name) if task_has_custom(task, name) else None
            for name in ("before_start", "on_success", "on_retry", "on_failure", "after_return")
        )

    # -- the run --------------------------------------------------------------------------

    def run(self, call: Call) -> Outcome:
        """Run it on this thread."""
        if self.interval_s and (early := self._too_early(call)):
            return early
        task = self.task
        request = JobRequest(task, call)
        started = time.monotonic()
        _state._task_stack.push(task)
        task.request_stack.push(request)
        end: _End | None = None
        try:
            self._begin(request)
            try:
                if self.before_start is not None:
                    self.before_start(request.id, request.args, request.kwargs)
                if call.limits[0] is None:
                    result = self.function(*request.args, **request.kwargs)
                else:
                    with call.limited():
                        result = self.function(*request.args, **request.kwargs)
            except BaseException as error:  # SystemExit too: a handler ends its job, not its worker
                end = self._raised(call, request, error)
            else:
                end = self._returned(call, request, result, started)
            return self._after(end, request)
        finally:
            self._postrun(request, end)
            _state._task_stack.pop()
            task.request_stack.pop()

    async def run_async(self, call: Call) -> Outcome:
        """Run it on this loop; what may wait for Redis runs beside it."""
        if self.interval_s and (early := await sync_to_async(self._too_early)(call)):
            return early
        task = self.task
        request = JobRequest(task, call)
        started = time.monotonic()
        task.request_stack.push(request)
        end: _End | None = None
        try:
            self._begin(request)
            try:
                result = await self._limited(call, request)
            except BaseException as error:  # see above
                raised = sync_to_async(self._raised) if request.errbacks else _at_once(self._raised)
                end = await raised(call, request, error)
            else:
                links_wait = request.callbacks or request.chain
                returned = sync_to_async(self._returned) if links_wait else _at_once(self._returned)
                end = await returned(call, request, result, started)
            return self._after(end, request)
        finally:
            self._postrun(request, end)
            task.request_stack.pop()

    async def _limited(self, call: Call, request: JobRequest) -> Any:
        soft, _ = call.limits
        try:
            async with asyncio.timeout(soft) as limit:
                if self.before_start is not None:
                    self.before_start(request.id, request.args, request.kwargs)
                return await self.function(*request.args, **request.kwargs)
        except TimeoutError:
            if not limit.expired():
                raise
            raise SoftTimeLimitExceeded(soft) from None

    def _begin(self, request: JobRequest) -> None:
        task = self.task
        if signals.task_prerun.receivers:
            signals.task_prerun.send(
                sender=task, task_id=request.id, task=task, args=request.args, kwargs=request.kwargs
            )
        task.app.loader.on_task_init(request.id, task)

    def _after(self, end: _End, request: JobRequest) -> Outcome:
        if self.after_return is not None and end.state in {states.SUCCESS, states.FAILURE}:
            _try(self.after_return, end.state, end.retval, request.id, request.args, request.kwargs, None)
        return end.outcome

    def _postrun(self, request: JobRequest, end: _End | None) -> None:
        if signals.task_postrun.receivers:
            task = self.task
            signals.task_postrun.send(
                sender=task, task_id=request.id, task=task, args=request.args, kwargs=request.kwargs,
                retval=end and end.retval, state=end and end.state,
            )  # fmt: skip

    # -- how it ended ---------------------------------------------------------------------

    def _returned(self, call: Call, request: JobRequest, result: Any, started: float) -> _End:
        if request.pending_retry is not None:
            return self._retried(call, request, request.pending_retry)
        if request.callbacks or request.chain:
            try:
                links.succeeded(self.task.app, request, result)
            except Exception as error:  # what it did is done: another run would not mend the link
                return self._failed(call, request, error, call.failed(error, Bury("link")))
        outcome = call.succeeded(None if request.ignore_result else result)
        if self.on_success is not None:
            _try(self.on_success, result, request.id, request.args, request.kwargs)
        if signals.task_success.receivers:
            runtime = time.monotonic() - started
            signals.task_success.send(sender=self.task, result=result, runtime=runtime)
        return _End(outcome, states.SUCCESS, result)

    def _raised(self, call: Call, request: JobRequest, error: BaseException) -> _End:
        task = self.task
        if isinstance(error, Retry):
            return self._retried(call, request, error)
        if isinstance(error, Reject):
            return self._rejected(call, error)
        if isinstance(error, Ignore):
            return _End(call.succeeded(None), states.IGNORED, error)
        if isinstance(error, (errors.Discard, errors.Snooze)):
            return _End(call.failed(error), states.IGNORED, error)
        is_expected = bool(task.throws) and isinstance(error, task.throws)
        said = Bury("fatal") if is_expected or self._has_said_its_retries(request) else None
        if isinstance(error, errors.RetryLater):
            said = None
        outcome = call.failed(error, said, is_expected=is_expected)
        if outcome.verb != "retry":
            return self._failed(call, request, error, outcome)
        delay_s = int(outcome.arguments[0]) / 1000  # a retry's first argument is its delay, ms
        when: Any = delay_s
        reason = Retry(exc=error if isinstance(error, Exception) else None, when=when)
        return self._told_retry(request, reason, error, outcome)

    def _has_said_its_retries(self, request: JobRequest) -> bool:
        """Whether this error is final in Celery: the task's own limit is reached, or it is none of those
        that the task retries."""
        return request.exhausted is not None or bool(getattr(self.task, "autoretry_for", ()))

    def _retried(self, call: Call, request: JobRequest, reason: Any) -> _End:
        cause = getattr(reason, "cause", None) or reason.exc or reason
        # Asked for by the task itself: Celery logs it as information.
        outcome = call.failed(cause, RetryIn(self._delay_s(reason.when)), is_expected=True)
        changed = _changed_spec(call.spec, request, reason.sig)
        if changed is not None:
            try:
                outcome = outcome.with_spec(changed.encode(max_bytes=config().max_payload_bytes))
            except (TypeError, ValueError) as error:
                return self._failed(call, request, error, call.failed(error, Bury("fatal")))
        return self._told_retry(request, reason, cause, outcome)

    def _told_retry(self, request: JobRequest, reason: Retry, cause: BaseException, outcome: Outcome) -> _End:
        if self.on_retry is not None or signals.task_retry.receivers:
            info = _info(reason, cause)
            if self.on_retry is not None:
                _try(self.on_retry, reason.exc, request.id, request.args, request.kwargs, info)
            signals.task_retry.send(sender=self.task, request=request, reason=reason, einfo=info)
        return _End(outcome, states.RETRY, reason)

    def _rejected(self, call: Call, error: Any) -> _End:
        if error.requeue:
            reason = f"rejected, to be tried again: {error.reason}"
            outcome = Outcome.snooze(call.delivery, delay_s=REQUEUE_S, reason=reason[:200])
        else:
            cause = error.reason if isinstance(error.reason, BaseException) else error
            outcome = call.failed(cause, Bury("rejected"))
        return _End(outcome, states.REJECTED, error)

    def _failed(self, call: Call, request: JobRequest, error: BaseException, outcome: Outcome) -> _End:
        if request.errbacks:
            links.failed(self.task.app, call.delivery, request, error)
        if self.on_failure is not None or signals.task_failure.receivers:
            info = _info(error, error)
            if self.on_failure is not None:
                _try(self.on_failure, error, request.id, request.args, request.kwargs, info)
            signals.task_failure.send(
                sender=self.task, task_id=request.id, exception=error, args=request.args,
                kwargs=request.kwargs, traceback=error.__traceback__, einfo=info,
            )  # fmt: skip
        return _End(outcome, states.FAILURE, error)

    # -- times ----------------------------------------------------------------------------

    def _delay_s(self, when: Any) -> float:
        """Seconds until a Retry's `when`: a number of them, or an instant, by Redis' clock."""
        if when is None:
            return 0.0
        if not isinstance(when, datetime):
            return max(0.0, float(when))
        app = self.task.app
        at_ms = to_ms(maybe_make_aware(when, app.timezone, naive_as_utc=bool(app.conf.enable_utc)))
        try:
            now_ms: float = Inspector().now_ms()
        except StoreUnavailable:
            now_ms = time.time() * 1000  # the settlement waits for Redis anyway
        return max(0.0, (at_ms - now_ms) / 1000)

    def _too_early(self, call: Call) -> Outcome | None:
        """A snooze until the job's turn under the task's rate limit, None when it is its turn."""
        try:
            wait_s = Store().pace(self.task.name, call.delivery.id, self.interval_s)
        except StoreUnavailable as error:
            logger.warning("%s of %s: %s", call.delivery.id, call.delivery.queue, error)
            wait_s = self.interval_s
        if not wait_s:
            return None
        reason = f"rate limit {self.task.rate_limit} of {self.task.name}"
        return Outcome.snooze(call.delivery, delay_s=wait_s, reason=reason)


def run_job(task: Task[..., Any]) -> Callable[[Call], Outcome]:
    """Return what runs one delivery of a task."""
    install()
    return _Tracer(task).run


def run_job_async(task: Task[..., Any]) -> Callable[[Call], Awaitable[Outcome]]:
    """Return what runs one delivery of an async task on the event loop."""
    install()
    type(task).request_stack = AsyncStack(task.name)  # type: ignore[assignment]  # a stack, as the one before
    return _Tracer(task).run_async


def run_by_hand(task: Task[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a task as a function, with a request that knows the job around it, if there is one."""
    request: dict[str, Any] = {"args": args, "kwargs": kwargs}
    try:
        job = current_job()
    except RuntimeError:
        pass  # called outside of a worker
    else:
        request |= {
            "id": job.id,
            "retries": job.attempt - 1,
            "delivery_info": {"exchange": "", "routing_key": job.queue, "redelivered": job.rescues > 0},
        }
    _state._task_stack.push(task)
    task.push_request(**request)
    try:
        return (task if task_has_custom(task, "__call__") else task.run)(*args, **kwargs)
    finally:
        task.pop_request()
        _state._task_stack.pop()


def _interval_s(rate_limit: object) -> float:
    """Seconds between two starts of a task with this rate limit, 0 for none."""
    per_s = rate_of(rate_limit) if rate_limit else 0  # type: ignore[arg-type]  # '10/m' or a number
    return 1 / per_s if per_s else 0.0


def _changed_spec(spec: Spec, request: JobRequest, sig: Any) -> Spec | None:
    """The spec that a retry's signature asks for, None when it is the job's own."""
    if sig is None:
        return None
    options, extra = sig.options, dict(spec.extra)
    given = dict(extra.get(EXTRA) or {})
    for name, kind in (("link", links.LINK), ("link_error", links.ERROR)):
        if (new := maybe_list(options.get(name))) and new != given.get(name):
            given[name] = links.stored(new, request.id, kind)
    if given:
        extra[EXTRA] = given
    limits = [options.get("soft_time_limit"), options.get("time_limit")]
    if any(limits) and limits != [request.soft_time_limit, request.time_limit]:
        extra["limits"] = limits
    args, kwargs = list(sig.args or ()), dict(sig.kwargs or {})
    if args == list(spec.args) and kwargs == spec.kwargs and extra == spec.extra:
        return None
    return Spec(spec.handler, args, kwargs, spec.policy, spec.tags, extra)


def _info(error: BaseException, cause: BaseException) -> ExceptionInfo:
    return ExceptionInfo((type(error), error, error.__traceback__ or cause.__traceback__))


def _try(hook: Callable[..., Any], *args: Any) -> None:
    """Call a hook of a task; what it raises does not change what became of the job."""
    try:
        hook(*args)
    except Exception:
        logger.exception("%s of a task raised", getattr(hook, "__qualname__", hook))


def _at_once(function: Callable[..., _End]) -> Callable[..., Awaitable[_End]]:
    async def call(*args: Any) -> _End:
        return function(*args)

    return call
