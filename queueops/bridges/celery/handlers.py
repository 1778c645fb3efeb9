"""Celery tasks as handlers: found by their registered name, run as Celery's worker runs them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from inspect import iscoroutinefunction
from types import ModuleType
from typing import Any

import celery._state
from celery import Celery, Task

from queueops.bridges.celery.request import SoftTimeLimitExceeded
from queueops.bridges.celery.running import run_by_hand, run_job, run_job_async
from queueops.handlers import Handler

_state: Any = celery._state  # it is what Celery's own tracer uses, and its stubs lack half of it

#: Celery's own tasks that are only Python: `task.map` and `task.starmap` run as one job.
_BUILT_IN = frozenset({"celery.map", "celery.starmap"})


class CeleryTasks:
    """The tasks of the site's Celery app; its own (`celery.…`) but for map and starmap are no handlers."""

    def __init__(self) -> None:
        self._handlers: dict[str, tuple[Task[..., Any], Handler]] = {}

    def find(self, name: str) -> Handler | None:
        task = site_app().tasks.get(name)
        return self._handler(task) if task is not None and _is_handler(name) else None

    def handler_of(self, task: object) -> Handler | None:
        # @shared_task gives a proxy, which says the class of the task behind it.
        return self._handler(task) if isinstance(task, Task) else None

    def adopt(self, module: ModuleType) -> None:
        """Remember whose tasks these are; each has registered itself when its module was imported."""
        site_app()

    def names(self) -> Iterable[str]:
        return [name for name in site_app().tasks if _is_handler(name) and name not in _BUILT_IN]

    def _handler(self, task: Task[..., Any]) -> Handler:
        task = task.app.tasks.get(task.name, task)  # never the proxy: it would be resolved at each use
        known = self._handlers.get(task.name)
        if known is None or known[0] is not task:
            known = self._handlers[task.name] = (task, handler_from(task))
        return known[1]


def _is_handler(name: str) -> bool:
    return name in _BUILT_IN or not name.startswith(("celery.", "queueops.fleet."))


_site: Celery[Any] | None = None


def site_app() -> Celery[Any]:
    """The app whose tasks are handlers: the one that this process made current.

    A thread starts without a current app and sees the default one, so that this one becomes it, unless
    the site chose another; also then it is the one.
    """
    global _site
    current, default = _state._tls.current_app, _state.default_app
    if current is None:
        found: Celery[Any] = _state.get_current_app() if _site is None else _site
        return found
    if default is None or default.main == "default":  # Celery's stopgap
        current.set_default()
    _site = current
    return _site


def handler_from(task: Task[..., Any]) -> Handler:
    """Return the handler of one Celery task.

    Its route and time limits count here as they do in Celery; the attribute `queueops_policy`
    names its retry policy, or is one.
    """
    is_async = iscoroutinefunction(task.run)
    return Handler(
        name=task.name,
        function=task.run if is_async else partial(run_by_hand, task),
        is_async=is_async,
        queue=queue_of(task),
        policy=getattr(task, "queueops_policy", None),
        soft_limit_s=task.soft_time_limit,
        hard_limit_s=task.time_limit,
        soft_error=SoftTimeLimitExceeded,
        perform=run_job_async(task) if is_async else run_job(task),
    )


def queue_of(task: Task[..., Any]) -> str | None:
    """Return the queue that the task's `queue` attribute or the `task_routes` setting gives it."""
    queue = getattr(task, "queue", None)
    if queue is None and task.app.conf.task_routes:
        route: Any = task.app.amqp.router.lookup_route(task.name)
        queue = route.get("queue") if isinstance(route, dict) else route
    return None if queue is None else str(getattr(queue, "name", queue))
