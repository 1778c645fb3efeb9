"""Recurring schedules, and the ledger of their slots."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import F, Q

from queueops.job import to_ms
from queueops.models.fields import CleanJSONField, CleanTextField
from queueops.models.queues import validate_queue_name
from queueops.schedules.definition import Definition

#: Fields of Schedule that schedulers write.
KEPT = ("version", "taken", "placed_queue", "last_slot_at", "next_slot_at", "recorded", "error")


class Schedule(models.Model):
    """A rule that enqueues a job at each of its slots."""

    class Kind(models.TextChoices):
        CRON = "cron", "cron rule"
        INTERVAL = "interval", "every so many seconds"
        ONCE = "once", "once"

    class CatchUp(models.TextChoices):
        SKIP = "skip", "skip what was missed"
        LATEST = "latest", "run the latest only"
        ALL = "all", "run all, bounded"

    class Overlap(models.TextChoices):
        ALLOW = "allow", "run beside it"
        SKIP = "skip", "skip the slot"
        QUEUE_ONE = "queue_one", "let one wait"
        CANCEL = "cancel", "ask the running one to stop"

    class Source(models.TextChoices):
        ADMIN = "admin", "made here"
        CODE = "code", "from the settings"

    key = models.CharField(
        max_length=80,
        unique=True,
        # The job's id is schedule:<key>:<slot>, at most 128 characters of these.
        validators=[RegexValidator(r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z", "letters, digits, . _ and - only")],
    )
    description = models.CharField(max_length=200, blank=True)
    queue = models.CharField(max_length=64, validators=[validate_queue_name])
    handler = models.CharField(max_length=255)
    args = CleanJSONField(default=list, blank=True)
    kwargs = CleanJSONField(default=dict, blank=True)
    policy = models.CharField(max_length=100, blank=True)
    kind = models.CharField(max_length=8, choices=Kind, default=Kind.CRON)
    #: A cron expression, seconds, or an ISO instant, by `kind`.
    rule = models.CharField(max_length=200)
    zone = models.CharField(max_length=64, default="UTC")
    catch_up = models.CharField(max_length=6, choices=CatchUp, default=CatchUp.LATEST)
    catch_up_cap = models.PositiveIntegerField(default=100)
    catch_up_max_age_s = models.FloatField(default=86_400.0)
    catch_up_rate_per_s = models.FloatField(default=1.0)
    overlap = models.CharField(max_length=9, choices=Overlap, default=Overlap.SKIP)
    jitter_s = models.FloatField(default=0.0)
    start_at = models.DateTimeField(null=True, blank=True)
    end_at = models.DateTimeField(null=True, blank=True)
    paused = models.BooleanField(default=False)
    paused_reason = CleanTextField(blank=True, max_length=500)
    #: When its last pause began; stays when it is over.
    paused_at = models.DateTimeField(null=True, blank=True)
    resume_at = models.DateTimeField(null=True, blank=True)
    source = models.CharField(max_length=5, choices=Source, default=Source.ADMIN)
    #: Redis TIME when a person saved it: slots after that are already those of the new rule.
    changed_at = models.DateTimeField(null=True, blank=True, editable=False)
    #: What schedulers keep. `taken` is the definition that they follow (Definition.to_json) under
    #: `version`; a row that says something else was edited, by whatever way, and is taken over.
    version = models.PositiveBigIntegerField(default=1, editable=False)
    taken = CleanJSONField(null=True, blank=True, editable=False)
    #: The queue whose Redis holds its state; '' before it was ever placed.
    placed_queue = models.CharField(max_length=64, blank=True, editable=False)
    #: Slots at or before this one are settled: fired, or recorded as not.
    last_slot_at = models.DateTimeField(null=True, blank=True, editable=False)
    next_slot_at = models.DateTimeField(null=True, blank=True, editable=False)
    #: The ledger has the lines of the log in Redis up to this number.
    recorded = models.PositiveBigIntegerField(default=0, editable=False)
    #: Why it can't fire: a rule that can't be read, a definition that left the code.
    error = CleanTextField(blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["key"]
        permissions = [("edit_schedule", "Can edit, pause, run and backfill schedules")]
        constraints = [
            models.CheckConstraint(condition=~Q(key=""), name="schedule_key_not_empty"),
            models.CheckConstraint(condition=Q(jitter_s__gte=0), name="schedule_jitter_not_negative"),
            models.CheckConstraint(
                condition=Q(catch_up_max_age_s__gt=0, catch_up_rate_per_s__gt=0),
                name="schedule_catch_up_over_0",
            ),
            models.CheckConstraint(
                condition=Q(end_at__isnull=True) | Q(start_at__isnull=True) | Q(end_at__gt=F("start_at")),
                name="schedule_ends_after_its_start",
            ),
            models.CheckConstraint(
                condition=Q(paused=True) | Q(resume_at__isnull=True), name="schedule_resumes_only_when_paused"
            ),
        ]

    def __str__(self) -> str:
        return self.key

    def save(self, *args: Any, **options: Any) -> None:
        """Save what can fire. Raises ValidationError: code that skips the form is held to the same rule.

        What schedulers keep is left alone unless `update_fields` names it: it may be newer by now.
        """
        self.clean()
        if not self._state.adding and not args and options.get("update_fields") is None:
            options["update_fields"] = [
                field.name
                for field in self._meta.concrete_fields
                if not field.primary_key and field.name not in KEPT
            ]
        super().save(*args, **options)

    def definition(self) -> Definition:
        """Return what the row says, whether schedulers have taken it over yet or not."""
        return Definition(
            key=self.key,
            queue=self.queue,
            handler=self.handler,
            args=self.args,
            kwargs=self.kwargs,
            policy=self.policy,
            kind=self.kind,
            rule=self.rule,
            zone=self.zone,
            catch_up=self.catch_up,
            catch_up_cap=self.catch_up_cap,
            catch_up_max_age_s=self.catch_up_max_age_s,
            catch_up_rate_per_s=self.catch_up_rate_per_s,
            overlap=self.overlap,
            jitter_s=self.jitter_s,
            start_ms=None if self.start_at is None else to_ms(self.start_at),
            end_ms=None if self.end_at is None else to_ms(self.end_at),
            paused=self.paused,
            paused_reason=self.paused_reason,
            resume_ms=None if self.resume_at is None else to_ms(self.resume_at),
            paused_ms=None if self.paused_at is None else to_ms(self.paused_at),
        )

    def clean(self) -> None:
        """Check the rule with its zone, the arguments and the numbers. Raises ValidationError by field."""
        if problems := self.definition().problems():
            raise ValidationError(problems)


class ScheduleSlot(models.Model):
    """One due time of a schedule, and what became of it. The ledger outlives changes of the rule."""

    class State(models.TextChoices):
        FIRED = "fired"  # its job is enqueued
        WAITING = "waiting"  # for the run before it
        RUNNING = "running"
        RAN = "ran"
        LATE = "late"  # ran, after its time
        SKIPPED = "skipped"  # by a rule or a person; `reason` says which
        MISSED = "missed"  # nothing could run it

    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="slots")
    slot_at = models.DateTimeField()
    #: '' for the rule's own slot; run by hand and backfilled ones have their own.
    suffix = models.CharField(max_length=32, blank=True)
    state = models.CharField(max_length=7, choices=State)
    queue = models.CharField(max_length=64, blank=True)
    job_id = models.CharField(max_length=128, blank=True)
    #: A skipped or missed one after a long downtime: this and so many - 1 before it.
    stands_for = models.PositiveBigIntegerField(default=1)
    reason = CleanTextField(blank=True)
    version = models.PositiveBigIntegerField(default=1)  # of the schedule
    actor = CleanTextField(blank=True)
    fired_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    #: State in which its job ended.
    outcome = models.CharField(max_length=9, blank=True)

    class Meta:
        ordering = ["-slot_at", "suffix"]
        constraints = [
            # WHERE schedule = s ORDER BY slot_at DESC LIMIT 60                                 its strip
            models.UniqueConstraint(fields=["schedule", "slot_at", "suffix"], name="slot_once"),
            models.CheckConstraint(
                condition=~Q(state__in=["skipped", "missed"]) | ~Q(reason=""),
                name="slot_not_run_has_a_reason",
            ),
        ]
        indexes = [
            # WHERE state IN ('fired', 'running', 'waiting') ORDER BY slot_at        what is not over yet
            models.Index(
                fields=["slot_at"],
                condition=Q(state__in=["fired", "running", "waiting"]),
                name="slot_open",
            ),
            # WHERE outcome = 'dead' ORDER BY slot_at DESC LIMIT n                   sent again meanwhile?
            models.Index(fields=["-slot_at"], condition=Q(outcome="dead"), name="slot_dead"),
            # WHERE queue = q AND job_id = i                                         from a job to its slot
            models.Index(fields=["queue", "job_id"], condition=~Q(job_id=""), name="slot_of_job"),
            # WHERE state = 'missed' AND slot_at > t                                 alarms
            models.Index(fields=["state", "-slot_at"], name="slot_by_state"),
        ]

    def __str__(self) -> str:
        return f"{self.schedule_id} at {self.slot_at:%Y-%m-%d %H:%M:%S}"
