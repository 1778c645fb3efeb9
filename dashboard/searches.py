"""Search over all states and queues: the exact id first, then ids that begin so, handlers, causes, tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db import DatabaseError
from django.db.models import Exists, OuterRef

from dashboard import known, lists
from dashboard.lists import Row
from queueops import models
from queueops.errors import QueueOpsError
from queueops.inspector import CauseSummary, Inspector
from queueops.job import Job, from_ms
from queueops.keys import check_job_id
from queueops.states import JobState

MOST, MOST_TAGGED, MOST_CAUSES, MOST_HANDLERS = 50, 1_000, 10, 8
COUNT_TO = 10_000
#: States of a handler's newest jobs that a search shows, what needs a person first.
_SHOWN_STATES = (JobState.DEAD, JobState.PENDING, JobState.READY, JobState.DELAYED, JobState.DISCARDED)


@dataclass
class Found:
    """What a search found."""

    text: str
    exact: list[Row] = field(default_factory=list)
    jobs: list[Row] = field(default_factory=list)
    jobs_are: str = ""  # what the jobs have in common, as a heading
    count: int | None = None  # of them all; None: more than COUNT_TO
    handlers: list[tuple[str, list[str]]] = field(default_factory=list)  # name, and queues that know it
    causes: list[CauseSummary] = field(default_factory=list)
    now: datetime = field(default_factory=lambda: from_ms(0))
    redis_trouble: str = ""
    record_trouble: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.exact or self.jobs or self.handlers or self.causes)


def search(text: str) -> Found:
    """Return what matches; a part that can't be asked says so in the answer."""
    found = Found(text)
    try:
        _in_redis(found)
    except QueueOpsError as error:
        found.redis_trouble = str(error)
    try:
        _in_record(found)
    except DatabaseError as error:
        found.record_trouble = type(error).__name__
    return found


def _in_redis(found: Found) -> None:
    inspector = Inspector()
    found.now = from_ms(inspector.now_ms())
    if _is_id(found.text):
        job = inspector.find(found.text)
        if job is not None:
            found.exact.append(_row(job))
    needle = found.text.lower()
    for each in inspector.causes(limit=1_000):
        if needle == each.cause or needle in each.text.lower():
            found.causes.append(each)
            if len(found.causes) >= MOST_CAUSES:
                break


def _in_record(found: Found) -> None:
    text = found.text
    if "=" in text:
        _tagged(found, *(part.strip() for part in text.split("=", 1)))
        return
    seen = {(row.job.queue, row.job.id) for row in found.exact}
    if _is_id(text):
        same = list(models.Job.objects.filter(job_id=text)[:20])
        found.exact += [_row(lists.as_job(each)) for each in same if (each.queue, each.job_id) not in seen]
        if not found.exact and len(text) >= 3:
            begun = lists.with_prefix(models.Job.objects.all(), text).order_by("job_id")[:MOST]
            found.jobs, found.jobs_are = _rows(list(begun)), f"Ids that begin with {text}"
            found.count = len(found.jobs)
    if not found.exact:
        _by_handler(found)


def _tagged(found: Found, name: str, value: str) -> None:
    tags = models.JobTag.objects.filter(name=name, value=value)
    places = list(tags.order_by("-queue", "-job_id").values_list("queue", "job_id")[:MOST_TAGGED])
    by_queue: dict[str, list[str]] = {}
    for queue, job_id in places:
        by_queue.setdefault(queue, []).append(job_id)
    records: list[models.Job] = []
    for queue, ids in list(by_queue.items())[:10]:
        records += models.Job.objects.filter(queue=queue, job_id__in=ids[:MOST_TAGGED])
    records.sort(key=lambda each: each.since, reverse=True)
    total = len(places) if len(places) < MOST_TAGGED else tags[: COUNT_TO + 1].count()
    found.count = total if total <= COUNT_TO else None
    found.jobs, found.jobs_are = _rows(records[:MOST]), f"Tagged {name}={value}"


def _by_handler(found: Found) -> None:
    """Find handlers by name, or by a part of one that this site knows, and the newest jobs of the first."""
    needle = found.text.lower()
    names = [found.text, *(name for name in known.names() if needle in name.lower())]
    for name in list(dict.fromkeys(names))[:MOST_HANDLERS]:
        of_it = models.Job.objects.filter(queue=OuterRef("name"), handler=name)
        queues = list(models.Queue.objects.filter(Exists(of_it)).values_list("name", flat=True)[:20])
        if queues or name in known.names():
            found.handlers.append((name, queues))
    if found.handlers and found.handlers[0][1] and not found.jobs:
        name, [queue, *_] = found.handlers[0]
        records: list[models.Job] = []
        for state in _SHOWN_STATES:
            mine = models.Job.objects.filter(queue=queue, handler=name, state=state.value)
            records += mine.order_by("-since", "-pk")[:10]
        found.jobs, found.jobs_are = _rows(records), f"Newest of {name} in {queue}"


def _rows(records: Sequence[models.Job]) -> list[Row]:
    """Return rows with each job as Redis knows it now; as the record does while Redis is away."""
    inspector = Inspector()
    by_queue: dict[str, list[str]] = {}
    for each in records:
        by_queue.setdefault(each.queue, []).append(each.job_id)
    live: dict[tuple[str, str], Job] = {}
    try:
        for queue, ids in by_queue.items():
            for job in inspector.jobs(queue, ids):
                if job is not None:
                    live[queue, job.id] = job
    except QueueOpsError:
        live = {}
    return [_row(_merged(lists.as_job(each), live.get((each.queue, each.job_id)))) for each in records]


def _merged(known: Job, live: Job | None) -> Job:
    return live if live is not None and live.handler and live.state is not JobState.DONE else known


def _row(job: Job) -> Row:
    return Row(job, job.since)


def _is_id(text: str) -> bool:
    try:
        check_job_id(text)
    except ValueError:
        return False
    return True
