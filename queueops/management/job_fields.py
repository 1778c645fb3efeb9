"""A job as the commands print it: the fields of the Python interface, with secrets masked."""

from __future__ import annotations

from typing import Any

from queueops import masking
from queueops.conf import config
from queueops.job import Job
from queueops.policies import RetryPolicy


def plain_job(job: Job, *, reveal: bool = False) -> dict[str, Any]:
    """The job as JSON can hold it. Secret-looking values are masked unless `reveal`."""
    also = config().secret_names
    payload = {"args": job.args, "kwargs": job.kwargs}
    error = job.error
    if not reveal:
        secrets = masking.secrets_in(payload, also)
        payload, _ = masking.mask(payload, also)
        if error is not None:
            error = {k: masking.redact(v, secrets) if isinstance(v, str) else v for k, v in error.items()}
    return {
        "id": job.id,
        "queue": job.queue,
        "handler": job.handler,
        "state": str(job.state) if job.state is not None else None,
        "attempts": job.attempts,
        "rescues": job.rescues,
        "delivery": job.delivery,
        "run_at": job.run_at,
        "error": error,
        "result": job.result if reveal else masking.mask(job.result, also)[0],
        "since": job.since,
        "cause": job.cause,
        "reason": job.reason,
        "child": job.child,
        "started_at": job.started_at,
        "expires_at": job.expires_at,
        "progress": job.progress,
        "cancelled": job.cancelled,
        "held": job.held,
        "edition": job.edition,
        "requeues": job.requeues,
        "priority": job.priority,
        "policy": job.policy.name if isinstance(job.policy, RetryPolicy) else job.policy,
        "tags": job.tags,
        **payload,
        "corrupt": job.corrupt,
    }
