"""Tasks of every kind, as a site's own module has them; the setting of test_handlers names it."""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task

try:
    from django.tasks import task  # type: ignore[import-not-found,unused-ignore]  # Django 6
except ImportError:
    from django_tasks import task  # type: ignore[no-redef,unused-ignore]


@shared_task
def add(x: int, y: int = 0) -> int:
    return x + y


class Gentle(Task):  # type: ignore[type-arg]  # not subscriptable when it runs
    queueops_policy = "gentle"


@shared_task(base=Gentle, name="named.elsewhere", soft_time_limit=5, time_limit=9)
def declared() -> None:
    return None


@shared_task(bind=True)
def bound(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    request = self.request
    return {
        "name": self.name,
        "id": request.id,
        "retries": request.retries,
        "args": request.args,
        "kwargs": request.kwargs,
        "queue": (request.delivery_info or {}).get("routing_key"),
    }


@shared_task
def current() -> str:
    from celery import current_task

    return str(current_task.name)


class Loud(Task):  # type: ignore[type-arg]  # see Gentle
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return f"loud {self.run(*args, **kwargs)}"


@shared_task(base=Loud)
def loud() -> str:
    return "hello"


@shared_task
async def asynchronous(x: int) -> int:
    return x + 1


@task
def plain(x: int) -> int:
    return x * 2


@task(queue_name="default")
async def plain_async(x: int) -> int:
    return x * 3


@task(takes_context=True)
def with_context(context: Any, x: int) -> list[Any]:
    return [context.task_result.id, context.attempt, x]


def undecorated() -> None:
    return None
