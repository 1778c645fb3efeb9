"""What people hold back of a queue. The truth is here; Redis gets a published copy with the settings."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from queueops.holds import Hold, HoldKind
from queueops.job import to_ms
from queueops.models.fields import CleanTextField


class QueueHold(models.Model):
    """A hold that is in force; its row goes when it is lifted (`OperatorAction` keeps who and why).

    Ids only grow: a job that a person let past the holds of then goes past those up to an id.
    """

    queue = models.CharField(max_length=64)
    kind = models.CharField(max_length=7, choices=[(each.value, each.value) for each in HoldKind])
    value = models.CharField(max_length=300)
    reason = CleanTextField(blank=True, max_length=500)
    until = models.DateTimeField(null=True, blank=True)  # None: a person lifts it
    at = models.DateTimeField(default=timezone.now)
    by = models.CharField(max_length=150, blank=True)

    class Meta:
        ordering = ["queue", "id"]
        verbose_name = "hold"
        constraints = [
            models.UniqueConstraint(fields=["queue", "kind", "value"], name="hold_once"),
            models.CheckConstraint(
                condition=models.Q(kind__in=[each.value for each in HoldKind]), name="hold_kind_is_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.value} of {self.queue}"

    def hold(self) -> Hold:
        """Return it as the engine knows it."""
        return Hold(
            self.pk,
            HoldKind(self.kind),
            self.value,
            to_ms(self.until) if self.until else None,
            self.reason,
            self.by,
            to_ms(self.at),
        )
