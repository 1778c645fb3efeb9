"""Downloads: a list of jobs as it is filtered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard import acts, lists, payloads
from dashboard.access import needs
from dashboard.exports import csv_response
from dashboard.forms import FilterForm
from dashboard.lists import Filter, Row
from queueops.masking import mask
from queueops.rights import Right

#: A longer list is cut; the last line says so.
MOST = 100_000

HEAD = (
    "queue", "id", "state", "handler", "at", "attempts", "rescues", "delivery",
    "cause", "error", "reason", "tags", "payload",
)  # fmt: skip


@require_safe
@needs(Right.VIEW_JOB)
def jobs_export(request: HttpRequest, queue: str) -> HttpResponseBase:
    """Write a filtered list as CSV, secrets masked; that it was taken is recorded."""
    wanted = Filter.read(queue, FilterForm(request.GET))
    first = lists.read(wanted)
    acts.record(
        request.user,
        "export",
        queue,
        count=first.total or 0,
        filter={"state": wanted.state.value, **wanted.conditions},
    )
    return csv_response(f"{queue}-{wanted.state}", HEAD, _rows(wanted, first))


def _rows(wanted: Filter, page: lists.ListPage) -> Iterator[list[Any]]:
    written = 0
    while True:
        for row in page.rows:
            if not row.moved:
                yield _cells(row)
                written += 1
        if page.next is None:
            return
        if written >= MOST:
            yield [wanted.queue, f"cut after {MOST:,} jobs"]
            return
        page = lists.read(wanted, after=page.next)


def _cells(row: Row) -> list[Any]:
    job = row.job
    payload, _ = mask(payloads.payload_of(job), payloads.also_secret())
    return [
        job.queue, job.id, row.state, job.handler, row.at.isoformat() if row.at else "",
        job.attempts, job.rescues, job.delivery, job.cause, row.error, job.reason,
        " ".join(f"{name}={value}" for name, value in job.tags.items()),
        json.dumps(payload, ensure_ascii=False),
    ]  # fmt: skip
