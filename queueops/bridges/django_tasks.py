"""Django tasks as handlers: those of Django 6, and on 5.2 those of the django-tasks package."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from inspect import iscoroutinefunction
from types import ModuleType
from typing import TYPE_CHECKING, Any

import django

from queueops.current import current_job
from queueops.handlers import Handler, register_resolver

if TYPE_CHECKING or django.VERSION < (6, 0):
    from django_tasks.base import DEFAULT_TASK_QUEUE_NAME, Task, TaskContext, TaskResult, TaskResultStatus
else:
    from django.tasks.base import DEFAULT_TASK_QUEUE_NAME, Task, TaskContext, TaskResult, TaskResultStatus


class DjangoTasks:
    """The tasks found in handler modules. Django keeps no registry of them; this is one."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def find(self, name: str) -> Handler | None:
        return self._handlers.get(name)

    def handler_of(self, task: object) -> Handler | None:
        return handler_from(task) if isinstance(task, Task) else None

    def adopt(self, module: ModuleType) -> None:
        for value in list(vars(module).values()):
            # Not isinstance: it would wake whatever lazy objects the module holds.
            if issubclass(type(value), Task) and value.module_path not in self._handlers:
                self._handlers[value.module_path] = handler_from(value)

    def names(self) -> Iterable[str]:
        return list(self._handlers)


def handler_from(task: Task[..., Any]) -> Handler:
    """Return the handler of one Django task; its name is its module path, as in Django's backends."""
    is_async = iscoroutinefunction(task.func)
    function: Callable[..., Any] = task.func
    if task.takes_context:
        function = _with_context(task)
    declared = None if task.queue_name == DEFAULT_TASK_QUEUE_NAME else task.queue_name
    return Handler(name=task.module_path, function=function, is_async=is_async, queue=declared)


def _with_context(task: Task[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return task.func(_context(task, args, kwargs), *args, **kwargs)  # async: its coroutine

    return call


def _context(task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> TaskContext:
    job, now = current_job(), datetime.now(UTC)  # for the task to read: nothing here decides by it
    return TaskContext(
        task_result=TaskResult(
            task=task,
            id=job.id,
            status=TaskResultStatus.RUNNING,
            enqueued_at=None,
            started_at=now,
            finished_at=None,
            last_attempted_at=now,
            args=list(args),
            kwargs=kwargs,
            backend=task.backend,
            errors=[],
            # Which workers had the job is known to the record alone; their number is the attempt's.
            worker_ids=[f"{job.id}/{attempt}" for attempt in range(1, job.attempt + 1)],
        )
    )


register_resolver(DjangoTasks())
