"""The request of a Celery task that runs as a job, and what `self.retry` does in one."""

from __future__ import annotations

import socket
import sys
from contextvars import ContextVar
from functools import wraps
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded as CelerySoftTimeLimit
from celery import Task
from celery.app.task import Context
from celery.exceptions import Retry

from queueops.errors import SoftTimeLimit
from queueops.handlers import Call

#: What QueueTask keeps in a spec's `extra` for its request: see QueueTask.apply_async.
EXTRA = "celery"
_HOSTNAME = f"queueops@{socket.gethostname()}"


class SoftTimeLimitExceeded(SoftTimeLimit, CelerySoftTimeLimit):
    """Raised in a Celery task at its soft limit: tasks catch Celery's own class."""


class JobRequest(Context):
    """`self.request` of a task that runs as a job, with the fields that Celery's worker gives it."""

    id: str
    args: list[Any]
    kwargs: dict[str, Any]
    retries: int
    delivery_info: Any
    callbacks: Any  # signatures, or None; so are the next two
    errbacks: Any
    chain: Any
    soft_time_limit: float | None
    time_limit: float | None
    called_directly = False
    #: A `self.retry(throw=False)` that waits for the end of the task.
    pending_retry: Retry | None = None
    #: What `self.retry` raised because the task's own limit was reached: it ends the job.
    exhausted: BaseException | None = None

    def __init__(self, task: Task[..., Any], call: Call) -> None:
        delivery, spec = call.delivery, call.spec
        given: dict[str, Any] = spec.extra.get(EXTRA) or {}
        self.__dict__.update(
            id=delivery.id,
            task=task.name,
            args=spec.args,
            kwargs=spec.kwargs,
            retries=delivery.attempts,
            delivery_info={
                "exchange": "",
                "routing_key": delivery.queue,
                "priority": given.get("priority"),
                "redelivered": delivery.rescues > 0,
            },
            hostname=_HOSTNAME,
            correlation_id=delivery.id,
            root_id=given.get("root_id") or delivery.id,
            parent_id=given.get("parent_id"),
            callbacks=given.get("link"),
            errbacks=given.get("link_error"),
            chain=given.get("chain"),
            group=given.get("group_id"),
            group_index=given.get("group_index"),
            shadow=given.get("shadow"),
            ignore_result=given.get("ignore_result", task.ignore_result),
            headers=given.get("headers") or {},
            utc=True,
        )
        soft, hard = spec.extra.get("limits") or (task.soft_time_limit, task.time_limit)
        if soft or hard:
            self.__dict__.update(timelimit=[hard, soft], time_limit=hard, soft_time_limit=soft)


_plain_retry = Task.retry


@wraps(_plain_retry)
def _retry(
    self: Task[..., Any],
    args: Any = None,
    kwargs: Any = None,
    exc: Any = None,
    throw: bool = True,
    eta: Any = None,
    countdown: Any = None,
    max_retries: Any = None,
    **options: Any,
) -> Retry:
    """As Celery's; in a job it sends no message: the Retry that it raises delays the job itself."""
    request = self.request
    if not isinstance(request, JobRequest):
        return _plain_retry(self, args, kwargs, exc, throw, eta, countdown, max_retries, **options)
    if (
        "queue" in options
        and str(getattr(options["queue"], "name", options["queue"])) != (request.delivery_info["routing_key"])
    ):
        raise ValueError(f"retry can't move a job to another queue ({options['queue']})")
    if request.exhausted is not None:  # an autoretry that caught what the limit raised: no second count
        raise request.exhausted
    handled = sys.exc_info()[1]
    request.is_eager = True  # for this call: Celery then makes the signature and sends nothing
    try:
        found = _plain_retry(self, args, kwargs, exc, False, eta, countdown, max_retries, **options)
    except BaseException as error:
        request.exhausted = error
        raise
    finally:
        request.is_eager = False
        # Celery leaves it on the task, where another job's thread would find it.
        self.__dict__.pop("override_max_retries", None)
    found.is_eager = False  # type: ignore[attr-defined]  # the stubs lack it
    found.cause = exc if isinstance(exc, BaseException) else handled  # type: ignore[attr-defined]  # ours
    if throw:
        raise found
    request.pending_retry = found
    return found


def install() -> None:
    """Make `Task.retry` know jobs. On the class itself: a task's own override may call it by super()."""
    if Task.retry is _plain_retry:
        Task.retry = _retry  # type: ignore[method-assign]  # see above


class AsyncStack:
    """The requests of an async task, one stack for each asyncio task: its jobs share one thread."""

    def __init__(self, name: str) -> None:
        self._stack: ContextVar[tuple[Context, ...]] = ContextVar(f"requests of {name}", default=())

    @property
    def stack(self) -> list[Context]:
        """The requests, the innermost last."""
        return list(self._stack.get())

    @property
    def top(self) -> Context | None:
        """The innermost one."""
        found = self._stack.get()
        return found[-1] if found else None

    def push(self, request: Context) -> None:
        """Add one."""
        self._stack.set((*self._stack.get(), request))

    def pop(self) -> Context | None:
        """Take the innermost one."""
        found = self._stack.get()
        self._stack.set(found[:-1])
        return found[-1] if found else None

    def __len__(self) -> int:
        return len(self._stack.get())
