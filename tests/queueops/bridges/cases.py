"""Celery tasks, defined once and registered in two apps: one of Celery alone, one of QueueTasks.

Each notes what it sees and what is told about it, a line of JSON under its `key`, so that a test can
compare the two.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from celery import Celery, Task, signals
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from queueops.current import current_job

_F = TypeVar("_F", bound=Callable[..., Any])

#: Told about in each note, in an order that does not depend on who runs the task.
_SIGNALS = {
    "prerun": signals.task_prerun,
    "postrun": signals.task_postrun,
    "success": signals.task_success,
    "failure": signals.task_failure,
    "retry": signals.task_retry,
}


def note(app: str, key: str, what: str, **fields: Any) -> None:
    """Add a line to the notes of this app."""
    line = json.dumps({"key": key, "what": what, **fields}, default=str) + "\n"
    path = Path(os.environ["NOTES_DIR"]) / f"{app}.jsonl"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, line.encode())
    os.close(fd)


def notes(folder: Path, app: str, key: str) -> list[dict[str, Any]]:
    """The notes of one call, in their order."""
    path = folder / f"{app}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [
        {name: value for name, value in line.items() if name != "key"} for line in lines if line["key"] == key
    ]


class Declined(Exception):
    """An error of these tasks."""


def listen(app: Celery[Any]) -> None:
    """Note Celery's signals of the tasks below."""

    def listener(name: str) -> Any:
        def heard(sender: Any = None, **given: Any) -> None:
            if not sender.name.startswith("cases.") or sender.app.main != app.main:
                return  # a process may have loaded both apps
            request = given.get("request") or sender.request
            fields: dict[str, Any] = {"task": sender.name, "state": given.get("state")}
            if "exception" in given:
                fields |= {"error": type(given["exception"]).__name__, "text": str(given["exception"])}
                fields["einfo"] = type(given["einfo"].exception).__name__
            if "reason" in given:
                fields["reason"] = str(given["reason"])
            if "result" in given:
                fields["result"] = given["result"]
            if "retval" in given:
                fields["retval"] = str(given["retval"])
            note(app.main, request.args[0] if request.args else "-", name, **fields)

        return heard

    for name, signal in _SIGNALS.items():
        signal.connect(listener(name), weak=False)


def define(app: Any) -> None:
    """Register the tasks."""
    main = app.main

    class Hooked(app.Task):  # type: ignore[misc]  # the app's own base
        abstract = True

        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
            note(main, args[0], "before_start", args=args)

        def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
            note(main, args[0], "on_success", retval=retval)

        def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            note(main, args[0], "on_retry", error=repr(exc), einfo=type(einfo.exception).__name__)

        def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            note(main, args[0], "on_failure", error=repr(exc), einfo=type(einfo.exception).__name__)

        def after_return(
            self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
        ) -> None:
            note(main, args[0], "after_return", status=status, retval=str(retval))

    def task(**options: Any) -> Callable[[_F], _F]:
        def register(function: _F) -> _F:
            registered: _F = app.task(name=f"cases.{function.__name__}", shared=False, **options)(function)
            return registered

        return register

    @task(bind=True)
    def context(self: Task[..., Any], key: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        request: Any = self.request
        delivery = request.delivery_info
        return {
            "same id": request.id,
            "retries": request.retries,
            "args": request.args,
            "kwargs": request.kwargs,
            "queue": delivery["routing_key"],
            "exchange": delivery["exchange"],
            "redelivered": delivery["redelivered"],
            "called_directly": request.called_directly,
            "is_eager": request.is_eager,
            "task": request.task,
            "correlated": request.correlation_id == request.id,
            "root": request.root_id == request.id,
            "parent": request.parent_id,
            "headers": {k: v for k, v in (request.headers or {}).items() if k == "mine"},
            "timelimit": list(request.timelimit or [None, None]),
            "has host": "@" in request.hostname,
            "self is current": app.current_task.name == self.name,
        }

    @task(bind=True)
    def countdown(self: Task[..., Any], key: str, s: float, times: int) -> str:
        note(main, key, "run", retries=self.request.retries, at=time.time())
        if self.request.retries < times:
            raise self.retry(countdown=s)
        return f"after {self.request.retries}"

    @task(bind=True)
    def eta(self: Task[..., Any], key: str) -> str:
        note(main, key, "run", retries=self.request.retries)
        if self.request.retries == 0:
            raise self.retry(eta=datetime.now(UTC) + timedelta(seconds=0.3))
        return "done"

    @task(bind=True, max_retries=2, default_retry_delay=0.3)
    def with_exc(self: Task[..., Any], key: str) -> None:
        note(main, key, "run", retries=self.request.retries)
        try:
            raise Declined("no money")
        except Declined as error:
            raise self.retry(exc=error) from error

    @task(bind=True, max_retries=1, default_retry_delay=0.3)
    def without_exc(self: Task[..., Any], key: str) -> None:
        note(main, key, "run", retries=self.request.retries)
        raise self.retry()

    @task(bind=True, max_retries=1, default_retry_delay=0.3)
    def gives_up(self: Task[..., Any], key: str) -> str:
        note(main, key, "run", retries=self.request.retries)
        try:
            raise self.retry()
        except self.MaxRetriesExceededError:
            return "gave up"

    @task(bind=True)
    def override(self: Task[..., Any], key: str) -> None:
        note(main, key, "run", retries=self.request.retries)
        raise self.retry(exc=Declined("again"), countdown=0.3, max_retries=1)

    @task(bind=True, max_retries=None)
    def endless(self: Task[..., Any], key: str, times: int) -> int:
        if self.request.retries < times:
            raise self.retry(countdown=0.3)
        return self.request.retries

    @task(bind=True)
    def other_args(self: Task[..., Any], key: str, a: int, b: int = 0) -> list[int]:
        note(main, key, "run", a=a, b=b, args=self.request.args, kwargs=self.request.kwargs)
        if self.request.retries == 0:
            raise self.retry(args=(key, a + 1), countdown=0.3)
        if self.request.retries == 1:
            raise self.retry(kwargs={"b": 5}, countdown=0.3)
        return [a, b]

    @task(autoretry_for=(Declined,), retry_kwargs={"max_retries": 2, "countdown": 0.3})
    def auto(key: str, error: str = "Declined") -> None:
        note(main, key, "run")
        raise {"Declined": Declined, "ValueError": ValueError}[error]("again")

    @task(
        autoretry_for=(Exception,), dont_autoretry_for=(ValueError,), max_retries=2, default_retry_delay=0.3
    )
    def auto_but(key: str, error: str) -> None:
        note(main, key, "run")
        raise {"Declined": Declined, "ValueError": ValueError}[error]("again")

    @task(
        bind=True,
        autoretry_for=(Declined,),
        retry_backoff=1,
        retry_backoff_max=2,
        retry_jitter=False,
        max_retries=2,
    )
    def backoff(self: Task[..., Any], key: str) -> str:
        note(main, key, "run", at=time.time())
        if self.request.retries < 2:
            raise Declined("later")
        return "done"

    @task(throws=(Declined,))
    def expected(key: str) -> None:
        raise Declined("as expected")

    @task()
    def fails(key: str) -> None:
        raise ValueError("never works")

    @task()
    def ignored(key: str) -> None:
        note(main, key, "run")
        raise Ignore

    @task()
    def rejected(key: str) -> None:
        note(main, key, "run")
        raise Reject("no reason", requeue=False)

    @task(acks_late=True)
    def requeued(key: str) -> str:
        note(main, key, "run")
        if len(notes(Path(os.environ["NOTES_DIR"]), main, key)) < 5:  # prerun, run, postrun, prerun, run
            raise Reject("not now", requeue=True)
        return "done"

    @task(soft_time_limit=1)
    def soft_caught(key: str) -> str:
        try:
            time.sleep(0)
            end = time.monotonic() + 5
            while time.monotonic() < end:
                time.sleep(0.01)
        except SoftTimeLimitExceeded:
            return "cleaned up"
        return "not limited"

    @task()
    def soft(key: str) -> None:
        end = time.monotonic() + 5
        while time.monotonic() < end:
            time.sleep(0.01)

    @task(time_limit=1)
    def hard(key: str) -> None:
        note(main, key, "run")
        time.sleep(30)

    @task(rate_limit="5/s")
    def limited(key: str) -> None:
        note(main, key, "run", at=time.time())

    @task(ignore_result=True)
    def without_result(key: str) -> int:
        return 7

    @task()
    def add(key: str, x: Any, y: Any) -> Any:
        return x + y

    @task()
    def follow(result: Any, key: str) -> Any:
        note(main, key, "follow", result=result)
        return result

    @task()
    def errback_id(task_id: str, key: str) -> None:
        note(main, key, "errback", id=task_id)

    @task()
    def errback_request(request: Any, exc: Any, traceback: Any) -> None:
        note(main, request.args[0], "errback", error=repr(exc), id=request.id, traceback=bool(traceback))

    @task(base=Hooked, bind=True, max_retries=1)
    def hooked(self: Task[..., Any], key: str, how: str) -> str:
        note(main, key, "run")
        if how == "retry":
            raise self.retry(exc=Declined("once more"), countdown=0.3)
        if how == "fail":
            raise ValueError("never works")
        return "done"

    @task()
    def types(key: str, *args: Any) -> str:
        return " ".join(f"{type(arg).__name__}={arg}" for arg in args)

    @task(bind=True)
    def progressing(self: Task[..., Any], key: str) -> str:
        self.update_state(state="PROGRESS", meta={"current": 3, "total": 8})
        deadline = time.monotonic() + 20
        while not (Path(os.environ["NOTES_DIR"]) / f"go-{key}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return "done"

    @task()
    def holds(key: str) -> str:
        note(main, key, "run", pid=os.getpid(), at=time.time())
        deadline = time.monotonic() + 30
        while not (Path(os.environ["NOTES_DIR"]) / f"go-{key}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        note(main, key, "effect", pid=os.getpid())
        return "done"

    @task()
    def where(key: str, number: int) -> None:
        note(main, key, "run", pid=os.getpid(), number=number)

    @task()
    def dies(key: str, number: int) -> None:
        note(main, key, "run", pid=os.getpid())
        os.kill(os.getpid(), number)

    @task()
    async def asynchronous(key: str, x: int) -> int:
        note(main, key, "run")
        await asyncio.sleep(0)
        return x + 1

    @task(bind=True)
    def watches(self: Task[..., Any], key: str) -> str:
        note(main, key, "run")
        job, deadline = current_job(), time.monotonic() + 20
        job.progress(1, 2)
        while not job.cancelled and time.monotonic() < deadline:
            time.sleep(0.05)
        return f"cancelled: {job.cancelled}"

    @task()
    def calls_another(key: str) -> str:
        child: Any = app.tasks["cases.context"].delay(key)
        return str(child.id)


def make(main: str, **settings: Any) -> Celery[Any]:
    """An app with the tasks, listening."""
    app: Celery[Any] = Celery(main, **settings)
    define(app)
    listen(app)
    return app
