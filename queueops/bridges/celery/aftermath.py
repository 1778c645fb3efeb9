"""The `link_error` of a job that died where no process of it was left to call it: lost at every start, over
its hard limit, or of a task that nobody knows.

Who records events finds such a job, and sends what its own process would have. An errback that takes
(request, exc, traceback) is a job as well, since nothing but a child runs the code of a site. All of it
happens before the event leaves the stream, under ids that come from the job's: a crash neither loses nor
doubles it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from celery import Signature, Task, shared_task
from celery.app.task import Context

from queueops import client
from queueops.bridges.celery import links
from queueops.bridges.celery.handlers import site_app
from queueops.bridges.celery.request import EXTRA
from queueops.bridges.celery.results import exception_of
from queueops.causes import POISON, TIMEOUT, UNKNOWN_HANDLER
from queueops.errors import StoreUnavailable
from queueops.events import Event
from queueops.job import Job
from queueops.payload import Spec
from queueops.signals import events_recorded

logger = logging.getLogger("queueops.worker")

#: The handler of an errback that takes the error.
ERRBACK = "queueops.errback"
_CAUSES = frozenset({POISON, TIMEOUT, UNKNOWN_HANDLER})


def _heard(sender: Any, queue: str, events: Sequence[Event], **_: Any) -> None:
    """Send the errbacks of those that died so. Raises StoreUnavailable: then they come again."""
    dead = [each.job_id for each in events if each.verb == "bury" and each.texts.get("cause") in _CAUSES]
    if not dead:
        return
    from queueops.models import Job as JobRow

    for row in JobRow.objects.filter(queue=queue, job_id__in=dead):
        spec = row.spec_decoded()
        errbacks = (spec.extra.get(EXTRA) or {}).get("link_error") if spec is not None else None
        if spec is None or not errbacks:
            continue
        job = client.get_job(row.job_id, queue)
        if job is not None:
            _send(job, spec, links.distinct(errbacks))


def _send(job: Job, spec: Spec, errbacks: list[dict[str, Any]]) -> None:
    app = site_app()
    root_id = (spec.extra.get(EXTRA) or {}).get("root_id") or job.id
    family: dict[str, Any] = {"parent_id": job.id, "root_id": root_id}
    for each in errbacks:
        errback = Signature.from_dict(each, app=app)
        task_id = links.id_of(errback, job.requeues)
        try:
            if links.takes_the_error(app, errback):
                request = {"args": list(spec.args), "kwargs": spec.kwargs, "retries": job.attempts, **family}
                said = client.JobSpec(
                    ERRBACK, (dict(each), job.queue, job.id, request), queue=job.queue, job_id=task_id
                )
                client.put(said)
            else:
                errback.apply_async((job.id,), task_id=task_id, **family)
        except StoreUnavailable:
            raise
        except Exception:
            logger.exception("%s of %s: its link_error failed", job.id, job.queue)


@shared_task(name=ERRBACK, base=Task, bind=True, ignore_result=True)
def call_errback(
    self: Any, signature: dict[str, Any], queue: str, job_id: str, given: dict[str, Any]
) -> None:
    """Call an errback with the request of its dead job, the error, and no traceback."""
    job = client.get_job(job_id, queue)
    if job is None:
        return  # purged meanwhile
    where = {"exchange": "", "routing_key": queue, "redelivered": job.rescues > 0}
    request = Context(id=job_id, task=job.handler, delivery_info=where, **given)
    Signature.from_dict(signature, app=self.app)(request, exception_of(job), None)


events_recorded.connect(_heard, weak=False, dispatch_uid="queueops.errbacks")
