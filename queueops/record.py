"""What the client and the pages ask the record: one job, and whether it agrees with Redis."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from django.db import DatabaseError, InterfaceError, connections, router
from django.db.models import Exists, OuterRef, QuerySet

from queueops import outbox
from queueops.client import Prepared
from queueops.job import Job
from queueops.models import Job as JobRow
from queueops.models import JobTag
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


# -- lists of the pages: each query stands beside its index in models/jobs.py -------------------------


def jobs_in(queue: str, state: str) -> QuerySet[JobRow]:
    """Jobs of a queue in a state, last moved first; page it by `before`."""
    return JobRow.objects.filter(queue=queue, state=state).order_by("-since", "-id")


def before(rows: QuerySet[JobRow], row: JobRow) -> QuerySet[JobRow]:
    """The rows after `row` in the order of jobs_in: the next page."""
    return rows.extra(where=["(since, id) < (%s, %s)"], params=[_since(row), row.pk])


def _since(row: JobRow) -> Any:
    return connections[router.db_for_read(JobRow)].ops.adapt_datetimefield_value(row.since)


def with_id_prefix(rows: QuerySet[JobRow], prefix: str) -> QuerySet[JobRow]:
    """Those whose id starts so, by an index on either database."""
    if connections[rows.db].vendor == "postgresql":
        return rows.filter(job_id__startswith=prefix)
    # SQLite's LIKE with ESCAPE uses no index; its texts compare by bytes.
    return rows.filter(job_id__gte=prefix, job_id__lt=prefix + "\x7f")


def with_tag(rows: QuerySet[JobRow], name: str, value: str = "") -> QuerySet[JobRow]:
    """Those that carry a tag."""
    tags = JobTag.objects.filter(name=name, value=value, queue=OuterRef("queue"), job_id=OuterRef("job_id"))
    return rows.filter(Exists(tags))
