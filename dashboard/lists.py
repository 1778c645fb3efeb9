"""The jobs of one state of a queue, a page at a time: from Redis as they are, or filtered from the record.

A list without a filter, and the dead of one cause, are read from Redis. Every other filter asks the record,
whose page says how far behind it is; the state of each row it shows is Redis's again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from urllib.parse import urlencode

from django.db import connections
from django.db.models import Q, QuerySet

from dashboard import known, payloads
from dashboard.forms import FilterForm
from dashboard.visible import one_line
from queueops import keys, models
from queueops.inspector import Inspector
from queueops.inspector.decode import with_spec
from queueops.job import Job, from_ms, to_ms
from queueops.states import JobState

PAGE_SIZE = 50
#: Matches are counted up to here when a page opens; the true count is for who selects them all.
COUNT_TO = 10_000
#: Sorts after every character that an id may have.
_AFTER_ANY_ID = "{"
#: States whose last to come is shown first.
NEWEST_FIRST = frozenset({JobState.DEAD, JobState.DISCARDED})


@dataclass(frozen=True)
class Filter:
    """One view of a queue, as its URL says it."""

    queue: str
    state: JobState = JobState.DELAYED
    handler: str = ""
    cause: str = ""
    tag: str = ""
    id: str = ""
    order: str = ""

    @classmethod
    def read(cls, queue: str, form: FilterForm) -> Filter:
        """Return what a form says; a field that can't be read counts as empty."""
        form.is_valid()
        given = form.cleaned_data
        texts = {
            name: str(given.get(name) or "").strip() for name in ("handler", "cause", "tag", "id", "order")
        }
        return cls(queue, JobState(given.get("state") or JobState.DELAYED), **texts)

    @property
    def newest(self) -> bool:
        """Whether the list goes from new to old."""
        return self.order == "newest" if self.order else self.state in NEWEST_FIRST

    @property
    def is_plain(self) -> bool:
        """Whether Redis itself keeps this list."""
        return not (self.handler or self.tag or self.id or (self.cause and self.state is not JobState.DEAD))

    @property
    def is_filtered(self) -> bool:
        return bool(self.handler or self.tag or self.id or self.cause)

    @cached_property
    def conditions(self) -> dict[str, str]:
        """What narrows the state, for an operation and for words: name -> value."""
        return {name: value for name in ("handler", "cause", "tag", "id") if (value := getattr(self, name))}

    @property
    def words(self) -> str:
        """The filter as a person reads it: "dead, handler webhook.deliver"."""
        return ", ".join([self.state.value, *(f"{name} {value}" for name, value in self.conditions.items())])

    def query(self, **changes: str) -> str:
        """Return the URL's query of this view, with `changes` to it."""
        given = {"state": self.state.value, **self.conditions, "order": self.order, **changes}
        return urlencode({name: value for name, value in given.items() if value})


@dataclass(frozen=True)
class Row:
    """A job in a list. `at` is what its state sorts by; `moved`: it is in this state no more."""

    job: Job
    at: datetime | None
    moved: bool = False

    @cached_property
    def _secrets(self) -> frozenset[str]:
        return payloads.secrets_of(self.job)

    @cached_property
    def summary(self) -> str:
        return payloads.summary(self.job) if self.job.handler else ""

    @cached_property
    def error(self) -> str:
        """The last error in one line, without secrets."""
        if not self.job.error:
            return ""
        told = payloads.clean_error(self.job.error, self._secrets)
        name = told["error"].rpartition(".")[2]  # in a list the module takes the message's place
        words = ": ".join(part for part in (name, told["message"]) if part)
        return one_line(words or told["cause_text"], 160)

    @property
    def state(self) -> str:
        return str(self.job.state or "unknown")


@dataclass(frozen=True)
class ListPage:
    """A page of rows. `total` is None where more than COUNT_TO match; `next` is the next page's cursor."""

    filter: Filter
    rows: Sequence[Row]
    total: int | None
    next: str | None
    now_ms: int
    from_record: bool = False
    newcomers: int = 0  # rows that would stand on this page if it were read anew
    more_newcomers: bool = False
    note: str = ""  # what the reader must know about how this list came about

    @property
    def now(self) -> datetime:
        return from_ms(self.now_ms)


def read(wanted: Filter, *, after: str = "", shown: Sequence[str] = ()) -> ListPage:
    """Return a page. With `shown` the rows stay those that are shown, as they are now; newcomers are counted.

    Raises ValueError for a cursor that is none, StoreUnavailable, and DatabaseError for a filtered list.
    """
    inspector = Inspector()
    page = (
        _from_redis(inspector, wanted, after) if wanted.is_plain else _from_record(inspector, wanted, after)
    )
    return _held(inspector, page, shown) if shown else page


def count(wanted: Filter) -> int:
    """Return how many match, exactly."""
    if wanted.is_plain:
        if wanted.cause:
            return Inspector().page(wanted.queue, wanted.state, limit=1, cause=wanted.cause).total
        return Inspector().counts(wanted.queue)[wanted.state]
    return matching(wanted).count()


def matching(wanted: Filter) -> QuerySet[models.Job]:
    """Return the record's jobs that match, in no order."""
    found = models.Job.objects.filter(queue=wanted.queue, state=wanted.state.value)
    if wanted.handler:
        found = found.filter(handler=wanted.handler)
    if wanted.cause:
        found = found.filter(cause=wanted.cause)
    if wanted.id:
        found = with_prefix(found, wanted.id)
    if wanted.tag:
        name, _, value = wanted.tag.partition("=")
        tags = models.JobTag.objects.filter(queue=wanted.queue, name=name.strip(), value=value.strip())
        found = found.filter(job_id__in=tags.values("job_id"))  # from the tag: few jobs have it
    return found


def with_prefix(found: QuerySet[models.Job], prefix: str) -> QuerySet[models.Job]:
    """Narrow to ids that begin so, by an index: SQLite's LIKE knows no case and so uses none."""
    if connections[found.db].vendor == "sqlite":
        return found.filter(job_id__gte=prefix, job_id__lt=prefix + _AFTER_ANY_ID)
    return found.filter(job_id__startswith=prefix)


def _from_redis(inspector: Inspector, wanted: Filter, after: str) -> ListPage:
    page = inspector.page(
        wanted.queue,
        wanted.state,
        limit=PAGE_SIZE,
        after=after or None,
        newest=wanted.newest,
        cause=wanted.cause or None,
    )
    rows = [Row(each.job, each.at) for each in page.rows]
    return ListPage(wanted, rows, page.total, page.next, page.now_ms)


def _from_record(inspector: Inspector, wanted: Filter, after: str) -> ListPage:
    found = matching(wanted)
    total = found[: COUNT_TO + 1].count()
    if after:
        at, _, key = after.partition("~")
        if not (at.isdigit() and key.isdigit()):
            raise ValueError(f"no such page: {after!r:.80}")
        since, pk = from_ms(int(at)), int(key)
        # The bound on `since` alone is what the index can use.
        if wanted.newest:
            found = found.filter(Q(since__lt=since) | Q(pk__lt=pk), since__lte=since)
        else:
            found = found.filter(Q(since__gt=since) | Q(pk__gt=pk), since__gte=since)
    order = ("-since", "-pk") if wanted.newest else ("since", "pk")
    records = list(found.order_by(*order)[: PAGE_SIZE + 1])
    more, records = len(records) > PAGE_SIZE, records[:PAGE_SIZE]
    rows = [
        Row(job, at, moved=job.state != wanted.state)
        for job, at in zip(_live(inspector, records), _own_times(inspector, records), strict=True)
    ]
    last = f"{to_ms(records[-1].since)}~{records[-1].pk}" if more else None
    return ListPage(
        wanted,
        rows,
        total if total <= COUNT_TO else None,
        last,
        inspector.now_ms(),
        from_record=True,
    )


def _own_times(inspector: Inspector, records: Sequence[models.Job]) -> list[datetime | None]:
    """Return what Redis sorts each state by: when a job is due, its keep time ends, or it came there.

    The record's indexes go by the last of them.
    """
    if not records or records[0].state != JobState.DISCARDED:
        return [record.run_at if record.state == JobState.DELAYED else record.since for record in records]
    connection = inspector.connection
    key = keys.jobs_in(records[0].queue, JobState.DISCARDED)
    with connection.translating():
        ends = connection.client.zmscore(key, [record.job_id for record in records])
    return [from_ms(int(end)) if end is not None else None for end in ends]


def _live(inspector: Inspector, records: Sequence[models.Job]) -> list[Job]:
    """Return each job as Redis knows it now, or as the record did when Redis knows it no more."""
    if not records:
        return []
    found = inspector.jobs(records[0].queue, [record.job_id for record in records])
    return [job or as_job(record) for record, job in zip(records, found, strict=True)]


def as_job(record: models.Job) -> Job:
    """Return a job as the record has it."""
    spec = record.spec_decoded()
    job = Job(
        id=record.job_id,
        queue=record.queue,
        state=record.state,
        handler=record.handler or None,
        attempts=record.attempts,
        rescues=record.rescues,
        delivery=record.delivery,
        edition=record.edition,
        requeues=record.requeues,
        run_at=record.run_at,
        since=record.since,
        error=record.error_decoded(),
        cause=record.cause or None,
        reason=record.reason or None,
        child=record.child or None,
        expires_at=record.expires_at,
        unique=record.unique_digest or None,
        priority=record.lane or "normal",
        spec=bytes(record.spec) if record.spec is not None else None,
    )
    return with_spec(job, spec) if spec is not None else job


def _held(inspector: Inspector, page: ListPage, shown: Sequence[str]) -> ListPage:
    """Keep the rows that a person looks at in their places; say how many others have come."""
    wanted = page.filter
    here = {row.job.id: row for row in page.rows}
    gone = [job_id for job_id in shown if job_id not in here]
    others = {
        job_id: _elsewhere(job, wanted)
        for job_id, job in zip(gone, inspector.jobs(wanted.queue, gone) if gone else [], strict=True)
        if job is not None
    }
    rows = [row for job_id in shown if (row := here.get(job_id) or others.get(job_id)) is not None]
    if not any(not row.moved for row in rows):
        return page  # nothing is left to hold still
    newcomers = len(here.keys() - set(shown))
    return replace(page, rows=rows, newcomers=newcomers, more_newcomers=newcomers >= PAGE_SIZE)


def _elsewhere(job: Job, wanted: Filter) -> Row:
    """A row that this page would not show: it moved to another state, or only further down."""
    left = job.state != wanted.state or bool(wanted.cause and job.cause != wanted.cause)
    at = job.run_at if job.state is JobState.DELAYED else job.since
    return Row(job, at, moved=left)


def known_handlers(page: ListPage) -> list[str]:
    """Return handler names to choose from: the registered ones, and those on this page."""
    return sorted({*known.names(), *(row.job.handler for row in page.rows if row.job.handler)})


def ids_of(values: Iterable[str]) -> list[str]:
    """Return distinct ids in their order; a text may hold several, parted by spaces."""
    return list(dict.fromkeys(job_id for value in values for job_id in value.split() if job_id))
