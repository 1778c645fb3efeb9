"""Bulk actions with their progress, and who did what and why."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from queueops.models.fields import CleanJSONField, CleanTextField


class Operation(models.Model):
    """A bulk action: one verb on the jobs in `from_state` since `frozen_ms` or before that match."""

    class Status(models.TextChoices):
        WAITING = "waiting"  # no runner has begun it
        RUNNING = "running"
        PAUSED = "paused"
        FINISHED = "finished"
        CANCELLED = "cancelled"  # by a person
        STOPPED = "stopped"  # by itself: a bound was reached
        FAILED = "failed"  # `error` says why

    OPEN = (Status.WAITING, Status.RUNNING, Status.PAUSED)

    id = models.CharField(max_length=64, primary_key=True)
    verb = models.CharField(max_length=20)
    queue = models.CharField(max_length=64)
    from_state = models.CharField(max_length=9, blank=True)
    filter = CleanJSONField(default=dict, blank=True)
    arguments = CleanJSONField(default=dict, blank=True)
    frozen_ms = models.BigIntegerField()  # Unix ms by Redis TIME
    total = models.PositiveBigIntegerField(null=True)  # jobs that matched when it was frozen
    done = models.PositiveBigIntegerField(default=0)
    skipped = models.PositiveBigIntegerField(default=0)
    results = CleanJSONField(default=dict, blank=True)  # answer -> count, and samples of the skipped
    status = models.CharField(max_length=9, choices=Status, default=Status.WAITING)
    cursor = CleanJSONField(default=dict, blank=True)
    actor = CleanTextField()
    reason = CleanTextField(blank=True)
    error = CleanTextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        permissions = [("run_operation", "Can start and cancel bulk actions")]
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=["waiting", "running", "paused"], finished_at__isnull=True)
                | Q(status__in=["finished", "cancelled", "stopped", "failed"], finished_at__isnull=False),
                name="operation_finished_when_it_is",
            ),
        ]
        indexes = [
            # WHERE status IN ('waiting', 'running', 'paused') ORDER BY created_at          the runner
            models.Index(
                fields=["created_at"],
                condition=Q(status__in=["waiting", "running", "paused"]),
                name="operation_open",
            ),
            # ORDER BY created_at DESC, id DESC LIMIT 51                                    its page
            models.Index(fields=["-created_at", "-id"], name="operation_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.verb} in {self.queue} ({self.id})"


class OperatorAction(models.Model):
    """What a person (or a rule, as `queueops`) did: who, when, what, to how many, why, from what to what."""

    at = models.DateTimeField(auto_now_add=True)
    actor = CleanTextField()  # user:<pk>, or what else acts
    actor_name = models.CharField(max_length=150, blank=True)  # as it was then
    verb = models.CharField(max_length=40)
    queue = models.CharField(max_length=64, blank=True)
    job_id = models.CharField(max_length=128, blank=True)
    filter = CleanJSONField(default=dict, blank=True)
    count = models.PositiveBigIntegerField(default=0)
    reason = CleanTextField(blank=True)
    before = CleanJSONField(null=True, blank=True)
    after = CleanJSONField(null=True, blank=True)
    operation = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [
            # ORDER BY at DESC, id DESC LIMIT 51; WHERE at >= t …                            /activity/
            models.Index(fields=["-at", "-id"], name="action_newest"),
            # WHERE actor_name = a ORDER BY at DESC, id DESC LIMIT 51
            models.Index(fields=["actor_name", "-at", "-id"], name="action_by_actor"),
            # WHERE queue = q ORDER BY at DESC, id DESC LIMIT 51
            models.Index(fields=["queue", "-at", "-id"], name="action_by_queue"),
            # WHERE job_id = i AND queue = q ORDER BY at DESC, id DESC LIMIT 51                 one job's page
            models.Index(
                fields=["job_id", "queue", "-at", "-id"], condition=~Q(job_id=""), name="action_of_job"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.verb} by {self.actor_name or self.actor}"
