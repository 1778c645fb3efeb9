"""What the drill's jobs do: charge an account at a service that keeps books."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

from django.conf import settings

from queueops.current import current_job
from queueops.drill.ledger import Ledger

NAME = "queueops.drill.charge"


@cache
def _ledger() -> Ledger:
    path: str = getattr(settings, "DRILL_LEDGER")  # noqa: B009 - of the drill's own settings module
    return Ledger(Path(path))


def charge(amount: int, before_s: float, after_s: float, fails: str) -> int:
    """Charge `amount` at the service, slowly; `fails` says whether the first attempt does, and where."""
    job, ledger = current_job(), _ledger()
    ledger.start(job.id, job.delivery)
    time.sleep(before_s)
    if fails == "before" and job.attempt == 1:
        raise RuntimeError("the service did not answer")
    ledger.charge(job.idempotency_key, job.id, job.delivery, amount)
    time.sleep(after_s)
    if fails == "after" and job.attempt == 1:
        raise RuntimeError("the service charged, and its answer was lost")
    return amount
