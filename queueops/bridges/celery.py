"""Celery tasks as handlers: found by their registered name, run with a request of their own."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from inspect import iscoroutinefunction
from types import ModuleType
from typing import Any

import celery._state
from celery import Celery, Task
from celery.app.trace import task_has_custom

from queueops.current import current_job
from queueops.handlers import Handler, register_resolver

_state: Any = celery._state  # it is what Celery's own tracer uses, and its stubs lack half of it


class CeleryTasks:
    """The tasks of the current Celery app; its own (`celery.…`) are no handlers."""

    def __init__(self) -> None:
        self._handlers: dict[str, tuple[Task[..., Any], Handler]] = {}

    def find(self, name: str) -> Handler | None:
        task = _app().tasks.get(name)
        return None if task is None or name.startswith("celery.") else self._handler(task)

    def handler_of(self, task: object) -> Handler | None:
        # @shared_task gives a proxy, which says the class of the task behind it.
        return self._handler(task) if isinstance(task, Task) else None

    def adopt(self, module: ModuleType) -> None:
        """Do nothing: a task registers itself when its module is imported."""

    def names(self) -> Iterable[str]:
        return [name for name in _app().tasks if not name.startswith("celery.")]

    def _handler(self, task: Task[..., Any]) -> Handler:
        task = _app().tasks.get(task.name, task)  # never the proxy: it would be resolved at each use
        known = self._handlers.get(task.name)
        if known is None or known[0] is not task:
            known = self._handlers[task.name] = (task, handler_from(task))
        return known[1]


def handler_from(task: Task[..., Any]) -> Handler:
    """Return the handler of one Celery task.

    Its route and time limits count here as they do in Celery; the attribute `queueops_policy`
    names its retry policy, or is one.
    """
    is_async = iscoroutinefunction(task.run)
    return Handler(
        name=task.name,
        # On the event loop requests of many jobs would meet on one stack: there it gets none.
        function=task.run if is_async else partial(_run, task),
        is_async=is_async,
        queue=_queue_of(task),
        policy=getattr(task, "queueops_policy", None),
        soft_limit_s=task.soft_time_limit,
        hard_limit_s=task.time_limit,
    )


def _run(task: Task[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a task as Celery's worker does, so that `self.request` and `current_task` are its own."""
    request: dict[str, Any] = {"args": args, "kwargs": kwargs}
    try:
        job = current_job()
    except RuntimeError:
        pass  # called by hand, outside of a worker
    else:
        request |= {
            "id": job.id,
            "retries": job.attempt - 1,
            "delivery_info": {"routing_key": job.queue, "redelivered": job.delivery > 1},
        }
    _state._task_stack.push(task)
    task.push_request(**request)
    try:
        return (task if task_has_custom(task, "__call__") else task.run)(*args, **kwargs)
    finally:
        task.pop_request()
        _state._task_stack.pop()


def _queue_of(task: Task[..., Any]) -> str | None:
    """Return the queue that the task's `queue` attribute or the `task_routes` setting gives it."""
    queue = getattr(task, "queue", None)
    if queue is None and task.app.conf.task_routes:
        route: Any = task.app.amqp.router.lookup_route(task.name)
        queue = route.get("queue") if isinstance(route, dict) else route
    return None if queue is None else str(getattr(queue, "name", queue))


def _app() -> Celery[Any]:
    app: Celery[Any] = _state.get_current_app()
    return app


register_resolver(CeleryTasks())
