"""What follows a Celery task: its `link` and chain when it returned, its `link_error` when it is dead.

What follows is sent before the job is settled, so that no crash loses it, under ids that come from the
job's own: a job that is run again, since its process died between the two, sends nothing twice.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from celery import Celery, Signature
from celery.exceptions import NotRegistered
from celery.utils.functional import maybe_list

from queueops.bridges.celery.request import JobRequest
from queueops.errors import StoreUnavailable
from queueops.inspector import Inspector
from queueops.job import Delivery

logger = logging.getLogger("queueops.worker")

LINK, ERROR = "link", "error"
#: Between two tries to send what follows while Redis is away, at most. Seconds.
LAST_PAUSE_S = 2.0


def stored(signatures: Any, job_id: str, kind: str) -> list[dict[str, Any]]:
    """Signatures as they are kept with the job `job_id`, each with an id of its own.

    Raises TypeError for what is no signature.
    """
    found = []
    for number, each in enumerate(maybe_list(signatures) or []):
        if not isinstance(each, dict) or not each.get("task"):
            raise TypeError(f"link and link_error take signatures, got {each!r:.80}")
        found.append(_named(copy.deepcopy(dict(each)), f"{job_id}.{kind}{number}"))
    return found


def _named(signature: dict[str, Any], job_id: str) -> dict[str, Any]:
    """Give a signature, and each member of one that has several, an id, where it has none."""
    members = (signature.get("kwargs") or {}).get("tasks")
    if signature.get("subtask_type") in {"group", "chain"} and members:
        signature["kwargs"]["tasks"] = [
            _named(dict(each), f"{job_id}.{number}") for number, each in enumerate(members)
        ]
    else:
        signature["options"] = {"task_id": job_id, **(signature.get("options") or {})}
    return signature


def succeeded(app: Celery[Any], request: JobRequest, result: Any) -> None:
    """Send the callbacks and the next step of the chain. Raises what sending raises, but waits for Redis."""
    for each in request.callbacks or []:
        _insist(partial(_send, request, Signature.from_dict(each, app=app), result))
    if request.chain:
        step = Signature.from_dict(request.chain[-1], app=app)
        _insist(partial(_send, request, step, result, chain=request.chain[:-1]))


def failed(app: Celery[Any], delivery: Delivery, request: JobRequest, error: BaseException) -> None:
    """Call or send the errbacks of a job that is dead; what goes wrong with one is logged."""
    requeues = None
    for each in distinct(request.errbacks or []):
        errback = Signature.from_dict(each, app=app)
        try:
            if takes_the_error(app, errback):
                errback(request, error, error.__traceback__)
                continue
            if requeues is None:
                requeues = _insist(partial(_requeues, delivery))
            errback.set(task_id=id_of(errback, requeues))
            _insist(partial(_send, request, errback, request.id))
        except Exception:
            logger.exception("%s of %s: its link_error failed", delivery.id, delivery.queue)


def id_of(errback: Signature[Any], requeues: int) -> str:
    """The id of a call of an errback: in another life of its job it shall run again."""
    own = str(errback.options.get("task_id"))
    return f"{own}.{requeues}" if requeues else own


def takes_the_error(app: Celery[Any], errback: Signature[Any]) -> bool:
    """Whether Celery calls this errback here, with the request and the error, instead of sending it."""
    try:
        header = getattr(errback.type, "__header__", None)
    except NotRegistered:
        return False  # another worker may know it
    backend: Any = app.backend
    return header is not None and bool(backend._errback_arity_greater(errback, 1))


def _send(request: JobRequest, signature: Signature[Any], argument: Any, **options: Any) -> None:
    amqp: Any = signature.app.amqp
    family = {"parent_id": request.id, "root_id": request.root_id}
    amqp._retry_publish(signature.apply_async, (argument,), **family, **options)


def _insist(send: Callable[[], Any]) -> Any:
    """Do it, again and again while Redis is away: the job's own outcome waits for Redis as well."""
    pause_s = 0.05
    while True:
        try:
            return send()
        except StoreUnavailable as error:
            logger.warning("what follows a task can't be sent, again in %.1f s: %s", pause_s, error)
            time.sleep(pause_s)
            pause_s = min(LAST_PAUSE_S, pause_s * 2)


def _requeues(delivery: Delivery) -> int:
    job = Inspector().job(delivery.queue, delivery.id)
    return job.requeues if job is not None else 0


def distinct(signatures: Iterable[Any]) -> list[Any]:
    """Each signature once, as Celery calls them."""
    found: list[Any] = []
    for each in signatures:
        if each not in found:
            found.append(each)
    return found
