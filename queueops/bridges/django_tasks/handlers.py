"""Django tasks as handlers, found by their module path, run with their context and Django's signals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from inspect import iscoroutinefunction
from types import ModuleType
from typing import Any

from django.utils import timezone

from queueops.bridges.django_tasks.framework import (
    DEFAULT_TASK_QUEUE_NAME,
    Task,
    TaskContext,
    TaskResult,
    TaskResultStatus,
    task_finished,
    task_started,
)
from queueops.bridges.django_tasks.results import change, new_result, task_error
from queueops.causes import failure_of
from queueops.current import current_job
from queueops.errors import SoftTimeLimit
from queueops.handlers import Call, Handler
from queueops.payload import encode_value
from queueops.policies import Bury
from queueops.store import Outcome


class DjangoTasks:
    """The tasks found in handler modules. Django keeps no registry of them; this is one."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self.tasks: dict[str, Task[..., Any]] = {}

    def find(self, name: str) -> Handler | None:
        return self._handlers.get(name)

    def handler_of(self, task: object) -> Handler | None:
        return handler_from(task) if isinstance(task, Task) else None

    def adopt(self, module: ModuleType) -> None:
        for value in list(vars(module).values()):
            # Not isinstance: it would wake whatever lazy objects the module holds.
            if issubclass(type(value), Task) and value.module_path not in self._handlers:
                self.tasks[value.module_path] = value
                self._handlers[value.module_path] = handler_from(value)

    def names(self) -> Iterable[str]:
        return list(self._handlers)


REGISTRY = DjangoTasks()


def handler_from(task: Task[..., Any]) -> Handler:
    """Return the handler of one Django task; its name is its module path, as in Django's backends."""
    is_async = iscoroutinefunction(task.func)
    function: Callable[..., Any] = task.func
    if task.takes_context:
        function = _with_context(task)
    return Handler(
        name=task.module_path,
        function=function,
        is_async=is_async,
        queue=queue_of(task),
        perform=_perform_async(task) if is_async else _perform(task),
    )


def queue_of(task: Task[..., Any]) -> str | None:
    """The queue that a task names, None for what Django says when it names none."""
    return None if task.queue_name == DEFAULT_TASK_QUEUE_NAME else task.queue_name


def _perform(task: Task[..., Any]) -> Callable[[Call], Outcome]:
    def perform(call: Call) -> Outcome:
        run = _Run(task, call)
        try:
            with call.limited():
                value = task.func(*run.args, **call.spec.kwargs)
        except BaseException as error:  # SystemExit too: a handler ends its job, not its worker
            return run.raised(error)
        return run.returned(value)

    return perform


def _perform_async(task: Task[..., Any]) -> Callable[[Call], Awaitable[Outcome]]:
    async def perform(call: Call) -> Outcome:
        run = _Run(task, call)
        soft, _ = call.limits
        try:
            try:
                async with asyncio.timeout(soft) as limit:
                    value = await task.func(*run.args, **call.spec.kwargs)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise SoftTimeLimit(f"ran longer than its soft limit of {soft:g} s") from None
        except BaseException as error:  # see above
            return run.raised(error)
        return run.returned(value)

    return perform


class _Run:
    """One run of a task, with the result that its context and Django's signals show."""

    def __init__(self, task: Task[..., Any], call: Call) -> None:
        self._task = task
        self._call = call
        # Made when somebody asks for it: for a short task it would be most of the work.
        self._made: TaskResult[Any] | None = None
        self.args: list[Any] = call.spec.args
        if task.takes_context:
            self.args = [TaskContext(task_result=self._result), *self.args]
        if task_started.receivers:
            task_started.send(sender=self._sender, task_result=self._result)

    @property
    def _result(self) -> TaskResult[Any]:
        if self._made is None:
            self._made = _running(self._task, self._call.spec.args, self._call.spec.kwargs)
        return self._made

    @property
    def _sender(self) -> type:
        from queueops.bridges.django_tasks.backend import QueueOpsBackend  # it needs this module

        return QueueOpsBackend

    def returned(self, value: Any) -> Outcome:
        """The function returned."""
        try:
            encode_value(value, what="the return value", max_bytes=1 << 30)
            self._finish(TaskResultStatus.SUCCESSFUL, _return_value=value)
        except (TypeError, ValueError, RecursionError) as error:
            return self.raised(error, Bury("fatal"))  # as in Django; another run would do its work twice
        return self._call.succeeded(value)

    def raised(self, error: BaseException, said: Bury | None = None) -> Outcome:
        """It raised. One that will be tried again has not finished."""
        outcome = self._call.failed(error, said)
        if outcome.verb == "bury" and task_finished.receivers:
            failure = failure_of(error)
            self._result.errors.append(task_error(failure.error, failure.traceback))
            self._finish(TaskResultStatus.FAILED)
        return outcome

    def _finish(self, status: TaskResultStatus, **fields: Any) -> None:
        if task_finished.receivers:
            change(self._result, status=status, finished_at=timezone.now(), **fields)
            task_finished.send(sender=self._sender, task_result=self._result)


def _with_context(task: Task[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        context = TaskContext(task_result=_running(task, list(args), kwargs))
        return task.func(context, *args, **kwargs)  # async: its coroutine

    return call


def _running(task: Task[..., Any], args: list[Any], kwargs: dict[str, Any]) -> TaskResult[Any]:
    job, now = current_job(), timezone.now()  # for the task to read: nothing here decides by it
    result = new_result(task, job.id, args, kwargs, task.backend)
    change(
        result,
        status=TaskResultStatus.RUNNING,
        started_at=now,
        last_attempted_at=now,
        # Which workers had the job is known to the record alone; their number is the attempt's.
        worker_ids=[f"{job.id}/{attempt}" for attempt in range(1, job.attempt + 1)],
    )
    return result
