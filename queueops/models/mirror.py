"""The mirror's own books, and the workers it has seen."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from queueops.models.fields import CleanJSONField, CleanTextField


class MirrorState(models.Model):
    """How far the record of one queue's events goes."""

    queue = models.CharField(max_length=64, primary_key=True)
    #: Id of the last event whose rows have committed.
    last_event = models.CharField(max_length=41, blank=True)
    #: The life of the Redis data that this record continues; another one in Redis: its data were lost.
    epoch = models.CharField(max_length=64, blank=True)
    lag_events = models.PositiveBigIntegerField(default=0)
    lag_s = models.FloatField(default=0)
    #: Events that the engine dropped unmirrored, and its counter of them as last seen.
    events_lost = models.PositiveBigIntegerField(default=0)
    lost_counter = models.PositiveBigIntegerField(default=0)
    #: Entries that mirrors and the engine's bound took out of the stream; null where it can't be told.
    removed = models.PositiveBigIntegerField(null=True)
    gaps = models.PositiveIntegerField(default=0)
    gap_at = models.DateTimeField(null=True)
    #: Redis TIME when the last pass began that read to the stream's end without a gap.
    whole_pass_at = models.DateTimeField(null=True)
    events_total = models.PositiveBigIntegerField(default=0)
    set_aside_total = models.PositiveBigIntegerField(default=0)
    updated_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"mirror of {self.queue}"


class SetAsideEvent(models.Model):
    """An event that no row could be made of: kept for a person, out of the others' way."""

    queue = models.CharField(max_length=64)
    stream_id = models.CharField(max_length=41)
    job_id = models.CharField(max_length=128, blank=True)
    fields = CleanJSONField()
    why = CleanTextField()
    set_aside_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["queue", "stream_id"], name="set_aside_once")]

    def __str__(self) -> str:
        return f"event {self.stream_id} of {self.queue}"


class PrunePermit(models.Model):
    """Stands only inside the transaction that prunes: rows of jobs kept until then may be deleted.

    The trigger on JobEvent looks for it; null permits all (`manage.py flush`).
    """

    kept_until = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"prune what is kept until {self.kept_until}"


class WorkerRecord(models.Model):
    """A worker that has been seen: who, where, from when until when."""

    worker = models.CharField(max_length=255, primary_key=True)
    host = models.CharField(max_length=255, blank=True)
    pid = models.PositiveBigIntegerField(null=True)
    info = CleanJSONField(default=dict)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    stopped_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(last_seen_at__gte=models.F("first_seen_at")), name="worker_seen_in_order"
            ),
        ]
        indexes = [
            # WHERE last_seen_at > t ORDER BY last_seen_at DESC
            models.Index(fields=["-last_seen_at"], name="worker_by_last_seen"),
        ]

    def __str__(self) -> str:
        return self.worker
