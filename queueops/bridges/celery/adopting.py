"""An app with QueueTasks: its calls by name and its revocations go where the calls of its tasks go."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from celery import Celery

from queueops.bridges.celery.calling import put
from queueops.bridges.celery.results import JobResult, results_of, revoke

_adopted: WeakSet[Celery[Any]] = WeakSet()


def adopt(app: Celery[Any]) -> None:
    """Let `app.send_task` and `app.control.revoke` know the engine. Safe to repeat.

    Without it `send_task("name")` would send a message to a broker on which nobody listens any more.
    """
    if app not in _adopted:
        _adopted.add(app)
        _adopt_calls(app)
        _adopt_revocations(app)


def _adopt_calls(app: Any) -> None:
    plain_send = app.send_task

    def send_task(name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        if options.get("task_type") is None and not name.startswith("celery."):  # else Celery's own call
            task = app._tasks.get(name)
            if getattr(task, "is_queue_task", False):
                return task.apply_async(args, kwargs, **options)
            if task is None and getattr(app.Task, "is_queue_task", False):
                job = put(app, name, None, args, kwargs, options)  # of an app that has only QueueTasks
                return JobResult(job.id, backend=results_of(app), app=app)
        return plain_send(name, args, kwargs, **options)

    app.send_task = send_task


def _adopt_revocations(app: Any) -> None:
    control = app.control
    plain_revoke = control.revoke

    def revoke_both(task_id: Any, destination: Any = None, **options: Any) -> Any:
        ids = [task_id] if isinstance(task_id, str) else list(task_id)
        others = [each for each in ids if not revoke(each)]
        return plain_revoke(others, destination=destination, **options) if others else None

    control.revoke = revoke_both
