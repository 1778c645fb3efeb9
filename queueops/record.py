"""The database as the client knows it: where jobs of a transaction go, and where old ones are found."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.db import DatabaseError, InterfaceError

from queueops import outbox
from queueops.client import Prepared
from queueops.job import Job
from queueops.models import Job as JobRow
from queueops.models.jobs import GONE

log = logging.getLogger(__name__)


class Record:
    """The database, as the client knows it (client.Record)."""

    def accept(self, prepared: Sequence[Prepared]) -> list[Job] | None:
        """Write jobs with the open transaction, to be pushed after it; None when none is open."""
        return outbox.accept(prepared)

    def find(self, job_id: str, queue: str | None = None) -> Job | None:
        """The job as the record knows it, the one last moved if several queues have the id."""
        return find(job_id, queue)


def find(job_id: str, queue: str | None = None) -> Job | None:
    """The job as the record knows it; None for one that is purged, or while the database is away."""
    try:
        for alias in outbox.databases():
            rows = JobRow.objects.using(alias).filter(job_id=job_id).exclude(state=GONE)
            if queue is not None:
                rows = rows.filter(queue=queue)
            row = rows.order_by("-since").first()
            if row is not None:
                return row.as_job()
    except (DatabaseError, InterfaceError) as error:
        log.warning("the record can't be asked for job %s: %s", job_id, error)
    return None
