"""Results of QueueTasks: what `AsyncResult(id)` says is what the job says."""

from __future__ import annotations

import sys
import time
from typing import Any
from weakref import WeakKeyDictionary

from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import Celery, states
from celery.backends.base import BaseBackend
from celery.exceptions import NotRegistered, TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeout
from celery.result import AsyncResult
from kombu.utils.functional import LRUCache

from queueops import client
from queueops.causes import POISON, TIMEOUT, UNKNOWN_HANDLER
from queueops.current import current_job
from queueops.inspector import Inspector
from queueops.job import Job
from queueops.states import JobState
from queueops.store import Store

#: A custom state that Celery's documentation made common; here it is a job's progress.
PROGRESS = "PROGRESS"
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.005, 0.25
_STATES = {
    JobState.DONE: states.SUCCESS,
    JobState.DEAD: states.FAILURE,
    JobState.DISCARDED: states.REVOKED,
}
#: Causes that are no exception of a task, as Celery's worker names them.
_ENDS: dict[str, type[Exception]] = {
    TIMEOUT: TimeLimitExceeded,
    POISON: WorkerLostError,
    UNKNOWN_HANDLER: NotRegistered,
}


class QueueResults(BaseBackend):
    """A result backend that reads jobs: their states, results and errors.

    A QueueTask has it by itself. For `AsyncResult(id)` without a task, name it in the app's
    `result_backend` as "queueops.bridges.celery:QueueResults". A result is kept as long as its job is:
    done ones for the keep time (10 minutes by default), then as the record knows them.
    """

    persistent = True
    supports_autoexpire = True

    def __init__(self, app: Celery[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(app, *args, **kwargs)
        self._queue_by_id: Any = LRUCache(limit=10_000)  # where a job was found
        from queueops.bridges.celery.adopting import adopt  # it needs this module

        adopt(app)

    def job(self, job_id: str) -> Job | None:
        """The job of a task id, None when nobody knows it."""
        queue = self._queue_by_id.get(job_id)
        job = Inspector().job(queue, job_id) if queue is not None else Inspector().find(job_id)
        if job is None:
            job = client.get_job(job_id)  # settled long ago, or not pushed yet: the record may know it
        if job is not None:
            self._queue_by_id[job_id] = job.queue
        return job

    def task_result_exists(self, task_id: str) -> bool:
        """Whether the task id is known."""
        return self.job(task_id) is not None

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_interval: Any = None,
    ) -> dict[str, Any]:
        """Wait until the job has ended. Raises celery's TimeoutError after `timeout` seconds."""
        give_up_at = None if timeout is None else time.monotonic() + timeout
        pause_s = _FIRST_PAUSE_S
        while True:
            meta: dict[str, Any] = self.get_task_meta(task_id)
            if meta["status"] in states.READY_STATES:
                return meta
            if on_interval:
                on_interval()
            if give_up_at is not None:
                left_s = give_up_at - time.monotonic()
                if left_s <= 0:
                    raise CeleryTimeout("The operation timed out.")
                pause_s = min(pause_s, left_s)
            time.sleep(pause_s)
            pause_s = min(_LAST_PAUSE_S, interval, pause_s * 1.5)

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        return _meta(task_id, self.job(task_id))

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **_: Any
    ) -> None:
        """Keep the progress that `self.update_state(meta={"current": …, "total": …})` tells.

        A job's state is the engine's to say: any other custom state is passed over.
        """
        if isinstance(result, dict) and isinstance(result.get("current"), int):
            job = current_job()
            if job.id == task_id:
                job.progress(result["current"], int(result.get("total") or 0))

    def _forget(self, task_id: str) -> None:
        """Do nothing: a job is kept as long as its queue says."""

    def ensure_chords_allowed(self) -> None:
        """Raise NotImplementedError: nobody would count the jobs of a header."""
        raise NotImplementedError("QueueResults knows no chords; `link` or a chain may follow a QueueTask.")


class JobResult(AsyncResult[Any]):
    """AsyncResult of a job: it can be revoked without a broker."""

    def revoke(
        self,
        connection: Any = None,
        terminate: bool = False,
        signal: Any = None,
        wait: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Discard the job; one that runs is asked to stop."""
        revoke(self.id)


_results: WeakKeyDictionary[Celery[Any], QueueResults] = WeakKeyDictionary()


def results_of(app: Celery[Any]) -> QueueResults:
    """The results of an app: one backend each, safe for threads."""
    found = _results.get(app)
    if found is None:
        found = _results.setdefault(app, QueueResults(app))
    return found


def revoke(job_id: str) -> bool:
    """Discard a job, or ask it to stop when it runs; whether the engine knows it."""
    try:
        job = Inspector().find(job_id) or client.get_job(job_id)
    except ValueError:  # no id of ours
        return False
    if job is None:
        return False
    store = Store()
    for _ in range(3):  # it may start, or be given back, between the two
        word = store.discard(job.queue, [job_id], actor="celery", reason="revoked")[0]
        if word == f"wrong:{JobState.PENDING}":
            word = store.cancel(job.queue, [job_id], actor="celery", reason="revoked")[0]
        if not word.startswith("wrong:") or word in {f"wrong:{state}" for state in _STATES}:
            break
    return True


def _meta(task_id: str, job: Job | None) -> dict[str, Any]:
    """What Celery's backends say of a task id, of this job."""
    state: str = states.PENDING
    result: Any = None
    if job is None:
        return {"task_id": task_id, "status": state, "result": None, "traceback": None, "children": None}
    error = job.error or {}
    if job.state in _STATES:
        state = _STATES[JobState(job.state)]
    elif job.state == JobState.PENDING and job.started_at is not None:
        state = PROGRESS if job.progress else states.STARTED
    elif job.attempts:
        state = states.RETRY
    if state == states.SUCCESS:
        result = job.result
    elif state == states.REVOKED:
        result = TaskRevokedError(job.reason or "revoked")
    elif state in {states.FAILURE, states.RETRY}:
        result = exception_of(job)
    elif state == PROGRESS:
        current, _, total = (job.progress or "").partition("/")
        result = {"current": int(current), "total": int(total or 0)}
    is_over = state in states.READY_STATES
    return {
        "task_id": task_id,
        "status": state,
        "result": result,
        "traceback": error.get("traceback") or None if state in states.EXCEPTION_STATES else None,
        "children": None,
        "date_done": job.since.isoformat() if is_over and job.since is not None else None,
        "name": job.handler,
        "args": job.args,
        "kwargs": job.kwargs,
        "retries": job.attempts,
        "queue": job.queue,
        "worker": job.child,
    }


def exception_of(job: Job) -> Exception:
    """The error of a job as an exception of its class, where this process has loaded it."""
    error = job.error or {}
    message = str(error.get("message") or "")
    if (kind := _ENDS.get(job.cause or "")) is not None:
        return kind(message)
    found = _loaded(str(error.get("error") or "Exception"))
    try:
        return found(message) if message else found()
    except Exception:  # its constructor wants something else
        return Exception(f"{error.get('error')}: {message}")


def _loaded(name: str) -> type[Exception]:
    """The exception class of this name, as `Failure.error` has it; nothing is imported for it."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, -1, -1):
        module = sys.modules.get(".".join(parts[:cut]) or "builtins")
        found: Any = module
        for part in parts[cut:] if module is not None else ():
            found = getattr(found, part, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    return type(parts[-1], (Exception,), {"__module__": ".".join(parts[:-1]) or "builtins"})
