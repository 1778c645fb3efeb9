"""What happened to jobs: the mirror's rows (`mirror` is their only writer, the outbox adds accepted ones).

A job's identity is (queue, job_id). Rows name it by these two columns and not by a foreign key: an
event may be recorded before its job's row, and outlive it.

Each index stands under the query it is for; `tests/queueops/record/test_plans.py` runs them all.
"""

from __future__ import annotations

import json
from typing import Any

from django.db import models
from django.db.models import F, Q

from queueops.errors import CorruptSpec
from queueops.job import Job as FoundJob
from queueops.models.fields import CleanJSONField, CleanTextField
from queueops.payload import Spec, decode_spec, decode_value
from queueops.states import JobState, Lane

#: States that only the record knows: before Redis has the job, and after it.
ACCEPTED, GONE = "accepted", "gone"
#: How the reason of a job begins that met another holder of its unique key.
DUPLICATE_OF = "duplicate of "
#: Those that met it on their first way to Redis, which never had them: nothing to compare or to restore.
DUPLICATES = Q(state=JobState.DISCARDED.value, enqueued_at=None, delivery=0, reason__startswith=DUPLICATE_OF)
STATES = [ACCEPTED, *(state.value for state in JobState), GONE]
#: In these a job still wants to run.
UNFINISHED = [ACCEPTED, JobState.DELAYED.value, JobState.READY.value, JobState.PENDING.value]


class Job(models.Model):
    """One job as the newest event recorded of it says.

    `since`, `run_at` and the like are Redis TIME, whole milliseconds. `last_event` orders: a row
    takes only a newer event. `keep_until` is set where the record may forget the job.
    """

    queue = models.CharField(max_length=64)
    job_id = models.CharField(max_length=128)
    state = models.CharField(max_length=9, choices=[(state, state) for state in STATES])
    since = models.DateTimeField()
    handler = models.CharField(max_length=255, blank=True)
    lane = models.CharField(max_length=7, blank=True)
    enqueued_at = models.DateTimeField(null=True)
    run_at = models.DateTimeField(null=True)
    attempts = models.PositiveIntegerField(default=0)
    rescues = models.PositiveIntegerField(default=0)
    delivery = models.PositiveBigIntegerField(default=0)
    edition = models.PositiveIntegerField(default=0)
    requeues = models.PositiveIntegerField(default=0)
    cause = models.CharField(max_length=64, blank=True)
    #: JSON, bounded by `causes`, of the last failure.
    error = CleanTextField(blank=True)
    reason = CleanTextField(blank=True)
    #: JSON of what the handler returned.
    result = CleanTextField(blank=True)
    child = models.CharField(max_length=255, blank=True)
    actor = CleanTextField(blank=True)
    ran_ms = models.PositiveBigIntegerField(null=True)
    #: Opaque bytes, as Redis holds them; null while the mirror has not seen them.
    spec = models.BinaryField(null=True)
    unique_digest = models.CharField(max_length=64, blank=True)
    unique_for_ms = models.PositiveBigIntegerField(null=True)
    expires_at = models.DateTimeField(null=True)
    died_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    keep_until = models.DateTimeField(null=True)
    accepted_at = models.DateTimeField(null=True)
    last_event = models.CharField(max_length=40, blank=True)

    class Meta:
        constraints = [
            # SELECT … WHERE queue = q AND job_id IN (…)                   the mirror, one job's page
            # WHERE job_id = i; WHERE job_id LIKE 'prefix%' (>= and < on SQLite) ORDER BY job_id LIMIT 51
            models.UniqueConstraint(
                fields=["job_id", "queue"], name="job_once_a_queue", opclasses=["varchar_pattern_ops"] * 2
            ),
            models.CheckConstraint(condition=Q(state__in=STATES), name="job_state_is_known"),
            models.CheckConstraint(condition=~Q(queue="") & ~Q(job_id=""), name="job_has_an_identity"),
            models.CheckConstraint(
                condition=~Q(state=JobState.DELAYED.value) | Q(run_at__isnull=False),
                name="job_delayed_has_run_at",
            ),
            models.CheckConstraint(
                condition=Q(state__in=UNFINISHED, finished_at__isnull=True)
                | (~Q(state__in=UNFINISHED) & Q(finished_at__isnull=False)),
                name="job_finished_when_it_is",
            ),
            models.CheckConstraint(
                condition=Q(keep_until__isnull=True)
                | (~Q(state__in=UNFINISHED) & ~Q(state=JobState.DEAD.value)),
                name="job_forgotten_only_when_over",
            ),
            models.CheckConstraint(
                condition=~Q(state=ACCEPTED) | Q(accepted_at__isnull=False, spec__isnull=False),
                name="job_accepted_can_be_pushed",
            ),
        ]
        indexes = [
            # WHERE queue = q AND state = s AND (since, id) < (…) ORDER BY since DESC, id DESC LIMIT 51
            models.Index(F("queue"), F("state"), F("since").desc(), F("id").desc(), name="job_by_state"),
            # WHERE queue = q AND handler = h AND state = s … ORDER BY since DESC, id DESC LIMIT 51
            models.Index(
                F("queue"), F("handler"), F("state"), F("since").desc(), F("id").desc(), name="job_by_handler"
            ),
            # WHERE queue = q AND cause = c AND state = s … ORDER BY since DESC, id DESC LIMIT 51
            models.Index(
                F("queue"),
                F("cause"),
                F("state"),
                F("since").desc(),
                F("id").desc(),
                name="job_by_cause",
                condition=~Q(cause=""),
            ),
            # WHERE state = 'accepted' AND accepted_at >= t ORDER BY accepted_at, id LIMIT n       the relay
            models.Index(fields=["accepted_at", "id"], condition=Q(state=ACCEPTED), name="job_accepted"),
            # WHERE keep_until <= t ORDER BY keep_until LIMIT n                                      retention
            models.Index(fields=["keep_until"], condition=Q(keep_until__isnull=False), name="job_over"),
        ]
        permissions = [
            ("view_payload", "Can reveal masked values of a payload"),
            ("requeue_job", "Can requeue, run now, reschedule and edit jobs"),
            ("discard_job", "Can discard and restore jobs, and cancel running ones"),
            ("purge_job", "Can purge discarded jobs"),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} in {self.queue}"

    def spec_decoded(self) -> Spec | None:
        """Return what the job carries; None when it is not known or can't be read."""
        if self.spec is None:
            return None
        try:
            return decode_spec(bytes(self.spec))
        except CorruptSpec:
            return None

    def error_decoded(self) -> dict[str, Any] | None:
        """Return the last failure as a mapping; a plain text becomes its `message`."""
        return decoded_error(self.error)

    def as_job(self) -> FoundJob:
        """Return the row as the client knows a job; what its spec does not say stays empty."""
        said: dict[str, Any] = {"handler": self.handler or None}
        try:
            spec = None if self.spec is None else decode_spec(bytes(self.spec))
        except CorruptSpec as error:
            spec, said["corrupt"] = None, str(error)
        if spec is not None:
            said = {
                name: getattr(spec, name) for name in ("handler", "args", "kwargs", "tags", "policy", "extra")
            }
        return FoundJob(
            id=self.job_id,
            queue=self.queue,
            state=self.state if self.state in {ACCEPTED, GONE} else JobState(self.state),
            attempts=self.attempts,
            rescues=self.rescues,
            delivery=self.delivery,
            edition=self.edition,
            requeues=self.requeues,
            run_at=self.run_at,
            since=self.since,
            error=decoded_error(self.error),
            cause=self.cause or None,
            result=_decoded_result(self.result),
            reason=self.reason or None,
            child=self.child or None,
            priority=self.lane or Lane.NORMAL.value,
            expires_at=self.expires_at,
            unique=self.unique_digest or None,
            spec=None if self.spec is None else bytes(self.spec),
            **said,
        )


class JobTag(models.Model):
    """A tag of a job."""

    queue = models.CharField(max_length=64)
    job_id = models.CharField(max_length=128)
    name = models.CharField(max_length=64)
    value = models.CharField(max_length=200, blank=True)

    class Meta:
        constraints = [
            # WHERE queue = q AND job_id = i                                one job's tags
            models.UniqueConstraint(fields=["queue", "job_id", "name"], name="tag_once_a_job"),
        ]
        indexes = [
            # Job … WHERE EXISTS (SELECT 1 FROM tag WHERE name = n AND value = v AND queue = q AND job_id = …)
            models.Index(fields=["name", "value", "queue", "job_id"], name="tag_by_value"),
        ]

    def __str__(self) -> str:
        return f"{self.name}={self.value}" if self.value else self.name


class Attempt(models.Model):
    """A delivery that ended in an error or a time-out."""

    queue = models.CharField(max_length=64)
    job_id = models.CharField(max_length=128)
    delivery = models.PositiveBigIntegerField()
    number = models.PositiveIntegerField()  # of attempts, with this one, in its cycle
    child = models.CharField(max_length=255, blank=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField()
    ran_ms = models.PositiveBigIntegerField(null=True)
    cause = models.CharField(max_length=64, blank=True)
    error = CleanTextField(blank=True)
    is_last = models.BooleanField(default=False)  # it ended dead
    #: What chose the next run, and how long it waits; null when it is dead.
    policy = models.CharField(max_length=100, blank=True)
    policy_version = models.PositiveBigIntegerField(null=True)
    delay_ms = models.PositiveBigIntegerField(null=True)

    class Meta:
        constraints = [
            # WHERE queue = q AND job_id = i ORDER BY delivery              one job's attempts
            models.UniqueConstraint(fields=["queue", "job_id", "delivery"], name="attempt_once_a_delivery"),
            models.CheckConstraint(
                condition=Q(is_last=True, delay_ms__isnull=True) | Q(is_last=False, delay_ms__isnull=False),
                name="attempt_waits_unless_last",
            ),
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.job_id} in {self.queue}"

    def error_decoded(self) -> dict[str, Any] | None:
        """Return the failure as a mapping; a plain text becomes its `message`."""
        return decoded_error(self.error)


class JobEvent(models.Model):
    """One move, as the engine reported it. Append-only: a trigger refuses the rest (`append_only`)."""

    queue = models.CharField(max_length=64)
    stream_id = models.CharField(max_length=41)
    job_id = models.CharField(max_length=128)
    verb = models.CharField(max_length=20)
    from_state = models.CharField(max_length=9, blank=True)
    to_state = models.CharField(max_length=9, blank=True)
    actor = CleanTextField(blank=True)
    at = models.DateTimeField()
    delivery = models.PositiveBigIntegerField(null=True)
    #: What else the event says, by name; a spec and an error stand with the job and the attempt.
    details = CleanJSONField(default=dict)

    class Meta:
        constraints = [
            # INSERT … ON CONFLICT (queue, stream_id) DO NOTHING                 the mirror
            models.UniqueConstraint(fields=["queue", "stream_id"], name="event_once"),
        ]
        indexes = [
            # WHERE queue = q AND job_id = i ORDER BY id                         one job's timeline
            models.Index(fields=["queue", "job_id", "id"], name="event_of_job"),
        ]

    def __str__(self) -> str:
        return f"{self.verb} of {self.job_id} in {self.queue}"


class Effect(models.Model):
    """That `once(key, func)` has run for a job's idempotency key, and what it returned."""

    queue = models.CharField(max_length=64)
    idempotency_key = models.CharField(max_length=160)
    key = models.CharField(max_length=200)
    job_id = models.CharField(max_length=128)
    delivery = models.PositiveBigIntegerField()
    result = CleanTextField()
    created_at = models.DateTimeField()
    #: When an earlier job of this id had ended, if the record said so then: tells lives of an id apart.
    earlier_end = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            # WHERE queue = q AND idempotency_key = i AND key = k                once()
            models.UniqueConstraint(fields=["queue", "idempotency_key", "key"], name="effect_once"),
        ]
        indexes = [
            # DELETE … WHERE queue = q AND job_id IN (…)                         retention
            models.Index(fields=["queue", "job_id"], name="effect_of_job"),
            # WHERE created_at < t ORDER BY created_at LIMIT n                retention, of jobs without a row
            models.Index(fields=["created_at"], name="effect_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.key} of {self.idempotency_key} in {self.queue}"


def decoded_error(text: str) -> dict[str, Any] | None:
    """Return a stored failure as a mapping; a plain text becomes its `message`; None for ''."""
    if not text:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"message": text}


def _decoded_result(text: str) -> Any:
    try:
        return decode_value(text) if text else None
    except ValueError:
        return text
