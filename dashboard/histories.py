"""One job's life: the path of its states, its attempts, what comes next, and who touched it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db import DatabaseError

from dashboard import known, payloads
from dashboard.lists import as_job
from dashboard.templatetags.dashboard import duration
from queueops import models
from queueops.connection import connection
from queueops.errors import QueueOpsError
from queueops.inspector import Inspector
from queueops.inspector.workers import Running
from queueops.job import Job, from_ms
from queueops.policies import (
    RetryPolicy,
    delay_before_jitter_s,
    describe,
    duration_text,
    jitter_band,
)
from queueops.states import LIVE, JobState
from queueops.worker.rules import Rules

MOST_ATTEMPTS, MOST_EVENTS, MOST_TRIES = 50, 200, 6


@dataclass(frozen=True)
class Step:
    """A place on the path of a job's states."""

    label: str
    at: datetime | None = None
    note: str = ""
    state: str = ""  # colours it


@dataclass(frozen=True)
class Attempt:
    """One attempt as the page shows it."""

    row: models.Attempt
    error: dict[str, str]
    band: str  # "30 s ±20 %"
    changed: bool  # it failed otherwise than the attempt before

    @property
    def worker(self) -> tuple[str, str]:
        """Its host, and its child without the host."""
        host, _, rest = self.row.child.partition(":")
        return host, rest


@dataclass(frozen=True)
class NextTry:
    """A try that comes if the ones before it fail: the earliest and the latest wait before it."""

    number: int
    low_s: float
    high_s: float
    at: datetime | None = None


@dataclass
class History:
    """All that is known of one job."""

    job: Job
    now: datetime
    record: models.Job | None = None
    attempts: list[Attempt] = field(default_factory=list)
    events: list[models.JobEvent] = field(default_factory=list)
    actions: list[models.OperatorAction] = field(default_factory=list)
    operation: models.Operation | None = None
    slot: models.ScheduleSlot | None = None
    running: Running | None = None
    policy: RetryPolicy | None = None
    cause_count: int | None = None
    redis_trouble: str = ""
    record_trouble: str = ""

    @property
    def is_here(self) -> bool:
        """Whether Redis has the job."""
        return self.job.state in set(JobState)

    @cached_property
    def error(self) -> dict[str, str]:
        return payloads.error_of(self.job)

    @property
    def idempotency_key(self) -> str:
        return self.job.id if not self.job.edition else f"{self.job.id}:e{self.job.edition}"

    @property
    def policy_words(self) -> str:
        return describe(self.policy) if self.policy else ""

    @property
    def allowed(self) -> int | None:
        """Attempts that its policy lets it have."""
        return self.policy.max_retries + 1 if self.policy else None

    @property
    def path(self) -> list[Step]:
        """How it came to be where it is."""
        job, record = self.job, self.record
        begun = record.enqueued_at if record else None
        if begun is None and self.events:
            begun = self.events[-1].at
        steps = [Step("Enqueued", begun)] if begun else []
        first = self._first_start()
        if first is not None:
            waited = f"after {duration(max(0.0, (first - begun).total_seconds()))}" if begun else ""
            steps.append(Step("First attempt", first, waited))
        if job.requeues:
            times = f"{job.requeues} times" if job.requeues > 1 else "once"
            steps.append(Step("Requeued", self._last_of("requeue"), times))
        if job.attempts > 1:
            retries = job.attempts - 1
            since = [each.row for each in self.attempts if each.row.number <= job.attempts]
            span = (since[0].ended_at - since[-1].ended_at).total_seconds() if len(since) > 1 else 0
            over = f"over {duration(span)}" if span > 0 else ""
            steps.append(Step("1 retry" if retries == 1 else f"{retries} retries", None, over))
        if job.rescues:
            steps.append(Step(f"{job.rescues} lost with {'its' if job.rescues == 1 else 'their'} process"))
        name = str(job.state or "unknown")
        steps.append(Step(name.capitalize(), job.since, "", name))
        return steps

    def _first_start(self) -> datetime | None:
        starts = [each.row.started_at for each in self.attempts if each.row.started_at]
        starts += [each.at for each in self.events if each.verb == "claim"]
        if self.job.started_at:
            starts.append(self.job.started_at)
        return min(starts, default=None)

    def _last_of(self, verb: str) -> datetime | None:
        return next((each.at for each in self.events if each.verb == verb), None)

    @property
    def next_tries(self) -> list[NextTry]:
        """The tries to come; of a dead job none."""
        policy, job = self.policy, self.job
        if policy is None or job.state not in LIVE:
            return []
        tries: list[NextTry] = []
        failed = job.attempts
        if job.state is JobState.DELAYED:
            tries.append(NextTry(failed + 1, 0, 0, job.run_at))
        for attempt in range(failed + 1, min(policy.max_retries, failed + MOST_TRIES) + 1):
            low, high = jitter_band(policy, attempt)
            tries.append(NextTry(attempt + 1, low, high))
        return tries[:MOST_TRIES]

    @property
    def tries_left_out(self) -> int:
        """Tries that the policy allows beyond the ones shown."""
        tries = self.next_tries
        return max(0, (self.policy.max_retries + 1 if self.policy else 0) - tries[-1].number) if tries else 0


def read(queue: str, job_id: str) -> History | None:
    """Return what is known of a job, or None when neither Redis nor the record knows it."""
    job, now, running, cause_count, redis_trouble = _from_redis(queue, job_id)
    history = History(
        job or Job(id=job_id, queue=queue, state=None),
        now or from_ms(0),
        running=running,
        cause_count=cause_count,
        redis_trouble=redis_trouble,
    )
    try:
        _add_record(history)
    except DatabaseError as error:
        history.record_trouble = type(error).__name__
    if job is None and history.record is None and not (redis_trouble or history.record_trouble):
        return None
    if job is None and history.record is not None:
        history.job = as_job(history.record)
    elif history.record is not None and job is not None and job.state is JobState.DONE:
        # A tombstone has no spec: the record still knows what the job carried.
        recorded = as_job(history.record)
        history.job = replace(
            recorded,
            state=job.state,
            since=job.since,
            result=job.result,
            delivery=job.delivery,
            child=job.child,
        )
    return history


def _from_redis(
    queue: str, job_id: str
) -> tuple[Job | None, datetime | None, Running | None, int | None, str]:
    inspector = Inspector()
    try:
        job = inspector.job(queue, job_id)
        now = from_ms(inspector.now_ms())
        running, cause_count = None, None
        if job is not None and job.state is JobState.PENDING:
            running = next((each for each in inspector.running([queue]) if each.job.id == job_id), None)
        if job is not None and job.cause:
            cause_count = sum(
                each.dead + each.failing
                for each in inspector.causes(queue, limit=1_000)
                if each.cause == job.cause
            )
    except QueueOpsError as error:
        return None, None, None, None, str(error)
    return job, now, running, cause_count, ""


def _add_record(history: History) -> None:
    queue, job_id = history.job.queue, history.job.id
    mine = {"queue": queue, "job_id": job_id}
    history.record = models.Job.objects.filter(**mine).first()
    rows = list(models.Attempt.objects.filter(**mine).order_by("-delivery")[:MOST_ATTEMPTS])
    history.events = list(models.JobEvent.objects.filter(**mine).order_by("-id")[:MOST_EVENTS])
    history.actions = list(models.OperatorAction.objects.filter(**mine).order_by("-at", "-id")[:50])
    if history.job.operation:
        history.operation = models.Operation.objects.filter(pk=history.job.operation).first()
    history.slot = (
        models.ScheduleSlot.objects.filter(**mine).select_related("schedule").first()
        if job_id.startswith("schedule:")
        else None
    )
    secrets = payloads.secrets_of(history.job if history.job.handler else _known(history))
    history.attempts = _attempts(rows, secrets)
    history.policy = _policy(history)


def _known(history: History) -> Job:
    return as_job(history.record) if history.record else history.job


def _attempts(rows: Sequence[models.Attempt], secrets: frozenset[str]) -> list[Attempt]:
    policies = _policies_then(rows)
    found = []
    for i, row in enumerate(rows):
        before = rows[i + 1] if i + 1 < len(rows) else None
        error = payloads.clean_error(row.error_decoded(), secrets)
        changed = before is not None and before.cause != row.cause
        found.append(
            Attempt(row, error, _band(policies.get((row.policy, row.policy_version)), row.number), changed)
        )
    return found


def _policies_then(rows: Sequence[models.Attempt]) -> dict[tuple[str, int | None], RetryPolicy]:
    wanted = {(row.policy, row.policy_version) for row in rows if row.policy}
    found: dict[tuple[str, int | None], RetryPolicy] = {}
    for kept in models.RetryPolicyVersion.objects.filter(name__in={name for name, _ in wanted}):
        if (kept.name, kept.version) in wanted:
            found[kept.name, kept.version] = kept.policy_then()
    return found


def _band(policy: RetryPolicy | None, attempt: int) -> str:
    """Return what the delay was drawn from: "30 s ±20 %"."""
    if policy is None or not policy.max_retries:
        return ""
    delay = delay_before_jitter_s(policy, attempt)
    low, high = jitter_band(policy, attempt)
    if low == high:
        return duration_text(delay)
    if policy.jitter == "ratio" and abs((high - delay) - (delay - low)) < 1e-9:
        return f"{duration_text(delay)} ±{policy.jitter_ratio * 100:g} %"
    return f"{duration_text(low)} to {duration_text(high)}"


def _policy(history: History) -> RetryPolicy | None:
    """Return the policy that the job follows now."""
    job = history.job if history.job.handler else _known(history)
    if not job.handler or history.redis_trouble:
        return None
    try:
        rules = Rules(connection())
        rules.load(job.queue)
        handler = known.handler(job.handler)
        return rules.policy(job.queue, job.handler, job.policy, handler.policy if handler else None)
    except (QueueOpsError, OSError):
        return None


def events_of(history: History) -> list[dict[str, Any]]:
    """Return the timeline, newest first: when, which move, by whom, and what else it says."""
    secrets = payloads.secrets_of(history.job)
    return [{"event": each, "notes": _notes(each.details or {}, secrets)} for each in history.events]


def _notes(details: dict[str, Any], secrets: frozenset[str]) -> list[str]:
    """Return what a person wants to know of an event beside its move, in words."""
    found = []
    if (ran := details.get("ran_ms")) not in (None, ""):
        found.append(f"ran {duration(_number(ran) / 1000)}")
    if (wait := details.get("delay_ms")) not in (None, ""):
        found.append(f"next in {duration(_number(wait) / 1000)}")
    for name, label in (("reason", ""), ("why", ""), ("policy", "policy "), ("edition", "edition ")):
        if value := details.get(name):
            found.append(label + payloads.redacted(str(value), secrets))
    return found


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return 0.0
