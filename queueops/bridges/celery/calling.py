"""What a Celery caller asks for, as a job: the options of `apply_async` in the engine's words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from celery import Celery, Task
from celery.utils.time import maybe_make_aware
from kombu.exceptions import OperationalError

from queueops import client, keys
from queueops.bridges.celery import links
from queueops.bridges.celery.request import EXTRA
from queueops.conf import config
from queueops.errors import StoreUnavailable
from queueops.job import Job, new_job_id
from queueops.states import PRIORITIES

#: The bounds of Celery's priorities 0 to 9 where 0 comes first, as on Redis: high, normal, low.
_HIGH_BELOW, _NORMAL_BELOW = 3, 7


class QueueUnavailable(StoreUnavailable, OperationalError):
    """Redis took nothing in; Celery code catches kombu's OperationalError."""


def put(
    app: Celery[Any],
    name: str,
    task: Task[..., Any] | None,
    args: Any,
    kwargs: Any,
    options: Mapping[str, Any],
) -> Job:
    """Enqueue a call of the task `name`; `task` is None for one that this process does not know.

    Raises NotImplementedError for a member of a chord, QueueUnavailable when Redis took nothing in, and
    TypeError or ValueError as queueops.enqueue does.
    """
    if options.get("chord") is not None:
        raise NotImplementedError(
            f"{name} is a QueueTask, and a chord can't have one in its header: nobody would count them. "
            "Its body may be one, and `link` or a chain may follow a QueueTask."
        )
    job_id = options.get("task_id") or new_job_id()
    countdown, eta = options.get("countdown"), _instant(app, "eta", options.get("eta"))
    expires = options.get("expires")
    spec = client.JobSpec(
        handler=name,
        args=list(args or ()),
        kwargs=dict(kwargs or {}),
        queue=_queue(app, name, task, args, kwargs, options),
        delay=countdown or None,
        run_at=None if countdown else eta,  # Celery's rule too when both are given
        priority=lane_of(options.get("priority"), app),
        job_id=job_id,
        policy=getattr(task, "queueops_policy", None) if task is not None else None,
        expires=expires if isinstance(expires, (int, float)) else _instant(app, "expires", expires),
        extra=_extra(app, task, job_id, options),
    )
    try:
        return client.put(spec)
    except StoreUnavailable as error:
        raise QueueUnavailable(str(error)) from error


def lane_of(priority: object, app: Celery[Any]) -> str:
    """The engine's priority for Celery's: high, normal or low, or 0 to 9 as the app's broker reads it.

    On Redis 0 comes first, on RabbitMQ 9. Raises ValueError.
    """
    names = [lane.value for lane in PRIORITIES]
    if priority is None:
        return "normal"
    if priority in names:
        return str(priority)
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 9:
        raise ValueError(f"priority must be 0 to 9 or one of {', '.join(names)}, got {priority!r:.40}")
    if str(app.conf.broker_url or "").startswith(("amqp", "pyamqp", "librabbitmq")):
        priority = 9 - priority
    return names[0 if priority < _HIGH_BELOW else 1 if priority < _NORMAL_BELOW else 2]


def _queue(
    app: Celery[Any],
    name: str,
    task: Any,
    args: Any,
    kwargs: Any,
    options: Mapping[str, Any],
) -> str:
    """The queue: of the call, of the task's route, or the site's default one."""
    queue: Any = options.get("queue")
    if queue is None and app.conf.task_routes:
        route: Any = app.amqp.router.lookup_route(name, args or (), kwargs or {}, dict(options), task)
        queue = route.get("queue") if isinstance(route, dict) else route
    if queue is None:
        return config().default_queue
    return keys.check_queue(str(getattr(queue, "name", queue)))


def _extra(
    app: Celery[Any], task: Task[..., Any] | None, job_id: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """What the task's request needs and the engine does not know: only what was given."""
    parent = app.current_worker_task
    given: dict[str, Any] = {
        "link": links.stored(options.get("link"), job_id, links.LINK),
        "link_error": links.stored(options.get("link_error"), job_id, links.ERROR),
        "chain": [dict(step) for step in options.get("chain") or ()],
        "headers": dict(options.get("headers") or {}),
        "root_id": options.get("root_id") or (parent and (parent.request.root_id or parent.request.id)),
        "parent_id": options.get("parent_id") or (parent and parent.request.id),
        **{name: options.get(name) for name in ("group_id", "group_index", "priority", "shadow")},
    }
    ignored = options.get("ignore_result")
    if task is not None and ignored is not None and bool(ignored) != bool(task.ignore_result):
        given["ignore_result"] = bool(ignored)
    extra: dict[str, Any] = {}
    if given := {key: value for key, value in given.items() if value is not None and value not in ({}, [])}:
        extra[EXTRA] = given
    limits = [options.get("soft_time_limit"), options.get("time_limit")]
    if any(limits) and limits != [getattr(task, "soft_time_limit", None), getattr(task, "time_limit", None)]:
        extra["limits"] = limits
    return extra


def _instant(app: Celery[Any], name: str, value: Any) -> datetime | None:
    """An instant as Celery takes it: aware, naive (UTC, or the app's zone without `enable_utc`), ISO text."""
    if value is None:
        return None
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        raise TypeError(f"{name} must be a datetime, got {type(value).__name__}")
    return maybe_make_aware(value, app.timezone, naive_as_utc=bool(app.conf.enable_utc))
