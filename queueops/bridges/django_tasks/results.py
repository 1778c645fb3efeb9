"""Jobs as Django's TaskResults."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.apps import apps
from django.db import DatabaseError, InterfaceError

from queueops.bridges.django_tasks.framework import Task, TaskError, TaskResult, TaskResultStatus
from queueops.job import Job
from queueops.states import JobState

_STATUSES = {
    JobState.DONE: TaskResultStatus.SUCCESSFUL,
    JobState.DEAD: TaskResultStatus.FAILED,
    JobState.DISCARDED: TaskResultStatus.FAILED,
}
#: So many of a job's last attempts are shown.
_MAX_ATTEMPTS = 100


@dataclass
class Recorded:
    """What the record knows of a job and Redis does not keep: its first arguments, each attempt."""

    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    enqueued_at: datetime | None = None
    started_at: datetime | None = None  # the first start
    last_start: datetime | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    children: list[str] = field(default_factory=list)


def recorded(job: Job) -> Recorded:
    """Ask the record; empty where there is none, or while the database is away."""
    if not apps.is_installed("queueops"):
        return Recorded()
    from queueops.models import Attempt
    from queueops.models import Job as JobRow

    try:
        row = JobRow.objects.filter(queue=job.queue, job_id=job.id).first()
        attempts = Attempt.objects.filter(queue=job.queue, job_id=job.id).order_by("-delivery")
        tries = list(attempts[:_MAX_ATTEMPTS])[::-1]
    except (DatabaseError, InterfaceError):
        return Recorded()
    found = Recorded(
        errors=[error for each in tries if (error := each.error_decoded())],
        children=[each.child for each in tries],
        started_at=tries[0].started_at if tries else None,
        last_start=tries[-1].started_at if tries else None,
    )
    if row is not None:
        found.enqueued_at = row.enqueued_at or row.accepted_at
        if (spec := row.spec_decoded()) is not None:
            found.args, found.kwargs = spec.args, spec.kwargs
    return found


def new_result(
    task: Task[..., Any], job_id: str, args: list[Any], kwargs: dict[str, Any], alias: str
) -> TaskResult[Any]:
    """A result of which nothing is known yet. Raises TypeError for what Django has no JSON for."""
    return TaskResult(
        task=task,
        id=job_id,
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def change(result: TaskResult[Any], **fields: Any) -> None:
    """Set fields of a result, which is frozen, as Django's own backends do."""
    for name, value in fields.items():
        object.__setattr__(result, name, value)


def task_error(error: str, traceback: str) -> TaskError:
    """One error; `error` as a Failure has it, builtins without their module."""
    path = error if "." in error else f"builtins.{error}"
    return TaskError(exception_class_path=path, traceback=traceback)


def result_of(task: Task[..., Any], job: Job, alias: str) -> TaskResult[Any]:
    """A job as a result, from Redis and, as far as it knows it, the record."""
    known = recorded(job)
    result = new_result(
        task,
        job.id,
        job.args if known.args is None else known.args,
        job.kwargs if known.kwargs is None else known.kwargs,
        alias,
    )
    is_running = job.state == JobState.PENDING and job.started_at is not None
    status = _STATUSES.get(job.state) if isinstance(job.state, JobState) else None
    if status is None:
        status = TaskResultStatus.RUNNING if is_running else TaskResultStatus.READY
    is_over = status in {TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED}
    starts = job.attempts + int(is_running or job.state == JobState.DONE)
    last_start = job.started_at or known.last_start or (job.since if starts else None)
    last_error = [job.error] if job.error else []
    change(
        result,
        status=status,
        enqueued_at=known.enqueued_at,
        started_at=known.started_at or last_start,
        last_attempted_at=last_start,
        finished_at=job.since if is_over else None,
        errors=[
            task_error(str(each.get("error") or "Exception"), str(each.get("traceback") or ""))
            for each in known.errors or last_error
        ],
        worker_ids=[
            *known.children[:starts],
            *(f"{job.id}/{number}" for number in range(len(known.children) + 1, starts + 1)),
        ],
        _return_value=job.result if status == TaskResultStatus.SUCCESSFUL else None,
    )
    return result
