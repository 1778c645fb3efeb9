"""The backend of Django's tasks: `task.enqueue()` makes a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.core import checks
from django.utils import timezone

from queueops import client
from queueops.bridges.django_tasks.framework import (
    BaseTaskBackend,
    Task,
    TaskException,
    TaskResult,
    TaskResultDoesNotExist,
    task_enqueued,
)
from queueops.bridges.django_tasks.handlers import REGISTRY, queue_of
from queueops.bridges.django_tasks.results import change, new_result, result_of
from queueops.conf import config
from queueops.errors import PolicyError
from queueops.handlers import load_handlers
from queueops.job import new_job_id
from queueops.policies import RetryPolicy

_OPTIONS = ("POLICY", "QUEUE_POLICIES", "TASK_POLICIES")


class QueueOpsBackend(BaseTaskBackend):
    """For `TASKS`: `"BACKEND": "queueops.bridges.django_tasks.QueueOpsBackend"`.

    A queue of Django is the engine's of that name; a priority above 0 is `high`, below 0 `low`. Inside
    `transaction.atomic()` the job is written with the transaction. OPTIONS say which retry policy jobs
    follow, each a policy's name or a mapping of its fields: TASK_POLICIES by a task's module path,
    QUEUE_POLICIES by queue, POLICY for all others; without one it is what the engine says of the queue.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def enqueue(self, task: Task[..., Any], args: Any, kwargs: Any) -> TaskResult[Any]:
        """Enqueue a job; its id is the result's. Raises what validate_task and queueops.enqueue raise."""
        self.validate_task(task)
        # Made first: it refuses arguments that Django has no JSON for.
        result: TaskResult[Any] = new_result(task, new_job_id(), list(args), dict(kwargs), self.alias)
        run_at = task.run_after
        if run_at is not None and timezone.is_naive(run_at):  # right without USE_TZ
            run_at = timezone.make_aware(run_at)
        client.put(
            client.JobSpec(
                handler=task.module_path,
                args=result.args,
                kwargs=result.kwargs,
                queue=queue_of(task) or config().default_queue,
                run_at=run_at,
                priority="high" if task.priority > 0 else "low" if task.priority < 0 else "normal",
                job_id=result.id,
                policy=self._policy(task),
            )
        )
        change(result, enqueued_at=timezone.now())
        task_enqueued.send(sender=type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """Return a job as a result.

        Raises TaskResultDoesNotExist for an id that nobody knows, or whose task this process does not.
        """
        try:
            job = client.get_job(result_id)
        except (TypeError, ValueError):  # no id of ours
            job = None
        load_handlers()
        task = REGISTRY.tasks.get(job.handler or "") if job is not None else None
        if job is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        return result_of(self._as_here(task, job.queue), job, self.alias)

    def _as_here(self, task: Task[..., Any], queue: str) -> Task[..., Any]:
        """The task as it was enqueued: a result asks its task's backend to refresh itself."""
        for name in (queue, None):
            try:
                return task.using(backend=self.alias, queue_name=name)
            except TaskException:  # a queue that this backend no longer has
                continue
        return task

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Check OPTIONS."""
        yield from super().check(**kwargs)
        for name in self.options.keys() - set(_OPTIONS):
            yield self._error(f"has no option {name}, only {', '.join(_OPTIONS)}")
        given = {"POLICY": self.options.get("POLICY")}
        for option in ("QUEUE_POLICIES", "TASK_POLICIES"):
            given |= {f"{option}[{key!r}]": value for key, value in self.options.get(option, {}).items()}
        for name, value in given.items():
            try:
                _policy(value)
            except PolicyError as error:
                yield self._error(f"{name}: {error}")

    def _error(self, what: str) -> checks.Error:
        return checks.Error(f"TASKS[{self.alias!r}] OPTIONS {what}", id="queueops.E101")

    def _policy(self, task: Task[..., Any]) -> str | RetryPolicy | None:
        by_task, by_queue = self.options.get("TASK_POLICIES", {}), self.options.get("QUEUE_POLICIES", {})
        if task.module_path in by_task:
            return _policy(by_task[task.module_path])
        return _policy(by_queue.get(task.queue_name, self.options.get("POLICY")))


def _policy(given: Any) -> str | RetryPolicy | None:
    """A policy as OPTIONS give it. Raises PolicyError."""
    if given is None or isinstance(given, (str, RetryPolicy)):
        return given
    return RetryPolicy.from_json(given)
