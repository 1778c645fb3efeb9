"""What a claimed job asks for: a handler and its arguments, or how the job is settled without one."""

from __future__ import annotations

import logging

from queueops.causes import CORRUPT, known_failure
from queueops.errors import CorruptSpec
from queueops.handlers import Handler, get_handler
from queueops.job import Delivery
from queueops.payload import Spec, decode_spec
from queueops.store import Outcome

logger = logging.getLogger("queueops.worker")

#: A job whose handler nobody knows here is tried again after this: another worker may know it. Seconds.
UNKNOWN_AGAIN_S = 10.0


class Intake:
    """Reads the jobs of one process."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}  # the registries ask more questions than this

    def read(self, job: Delivery) -> tuple[Spec, Handler] | Outcome:
        """Return what to run; an outcome when the job can't be read, or nobody knows its handler here."""
        try:
            spec = decode_spec(job.spec)
        except CorruptSpec as error:
            failure = known_failure(CORRUPT, str(error), traceback=error.raw)
            logger.error("%s of %s is dead: %s", job.id, job.queue, error)
            cause, text = failure.cause, failure.cause_text
            return Outcome.bury(job, cause=cause, cause_text=text, error=failure.to_json(), is_attempt=False)
        handler = self._handlers.get(spec.handler) or get_handler(spec.handler)
        if handler is None:
            reason = f"no handler is named {spec.handler}"
            logger.warning("%s of %s: %s here; again in %g s", job.id, job.queue, reason, UNKNOWN_AGAIN_S)
            return Outcome.snooze(job, delay_s=UNKNOWN_AGAIN_S, reason=reason, unknown=True)
        self._handlers[spec.handler] = handler
        return spec, handler
