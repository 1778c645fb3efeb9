"""Django tasks of every kind, run by Django's immediate backend and through QueueOps."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from queueops.bridges.django_tasks.framework import task_finished, task_started
from queueops.current import current_job

try:
    from django.tasks import task  # type: ignore[import-not-found,unused-ignore]  # Django 6
except ImportError:
    from django_tasks import task  # type: ignore[no-redef,unused-ignore]

from tests.queueops.bridges.cases import Declined, note


def _heard(name: str) -> Any:
    def heard(sender: Any, task_result: Any, **_: Any) -> None:
        args = task_result.args or [task_result.kwargs.get("key", "-")]
        if task_result.task.module_path.startswith(__name__) and os.environ.get("NOTES_DIR"):
            note("django", str(args[0]), name, status=str(task_result.status), attempts=task_result.attempts)

    return heard


for _name, _signal in (("started", task_started), ("finished", task_finished)):
    _signal.connect(_heard(_name), weak=False, dispatch_uid=f"cases.{_name}")


@task
def add(key: str, x: int, y: int = 0) -> int:
    """Return a sum."""
    return x + y


@task
async def add_async(key: str, x: int, y: int = 0) -> int:
    """Return a sum, from the event loop."""
    return x + y


@task
def fails(key: str) -> None:
    """Raise an exception of its own."""
    raise Declined("never works")


@task
async def fails_async(key: str) -> None:
    """Raise a built-in one, from the event loop."""
    raise ValueError("never works")


@task(takes_context=True)
def with_context(context: Any, key: str) -> list[Any]:
    """Return what the context says."""
    result = context.task_result
    return [context.attempt, result.id, str(result.status), result.args, result.kwargs]


@task(takes_context=True)
async def with_context_async(context: Any, key: str) -> list[Any]:
    """The same, from the event loop."""
    result = context.task_result
    return [context.attempt, result.id, str(result.status), result.args, result.kwargs]


@task
def complex_value(key: str) -> dict[str, Any]:
    """Return JSON with a tuple in it."""
    return {"list": [1, (2, 3)], "none": None, "text": "ü"}


@task
def not_json(key: str) -> object:
    """Return what JSON has no form for."""
    return object()


@task
def holds(key: str) -> str:
    """Run until a test lets it go."""
    deadline = time.monotonic() + 20
    while not (Path(os.environ["NOTES_DIR"]) / f"go-{key}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return "done"


@task(takes_context=True)
def second_time(context: Any, key: str) -> str:
    """Fail the first attempt."""
    if current_job().attempt == 1:
        raise Declined("not yet")
    return f"attempt {context.attempt}"
