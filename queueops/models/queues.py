"""What people edit about a queue and about retrying. The truth is here; Redis gets a published copy."""

from __future__ import annotations

import json
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models, router, transaction
from django.db.models import F, Q

from queueops.errors import PolicyError
from queueops.keys import check_queue
from queueops.models.fields import CleanJSONField, CleanTextField
from queueops.policies import MAX_DELAY_S, MAX_RETRIES, MIN_DELAY_S, MIN_DONE_KEEP_S, Jitter
from queueops.policies import RetryPolicy as Policy


def validate_queue_name(value: str) -> None:
    """Raise ValidationError when `value` is no queue name."""
    try:
        check_queue(value)
    except (TypeError, ValueError) as error:
        raise ValidationError(str(error)) from error


#: Ten years.
_LONGEST_S = 10 * MAX_DELAY_S


def _between(least: float, most: float) -> tuple[MinValueValidator, MaxValueValidator]:
    return MinValueValidator(least), MaxValueValidator(most)


class Audit(models.TextChoices):
    """How much of a job's life the engine reports."""

    FULL = "full", "every move"
    OUTCOME = "outcome", "one event a job, at its end"


class Queue(models.Model):
    """One queue's settings; an empty one means the site's default (`conf.py`). Seconds.

    `version` grows with every change that workers must see, and is published with it.
    """

    name = models.CharField(max_length=64, primary_key=True, validators=[validate_queue_name])
    description = models.CharField(max_length=200, blank=True)
    paused = models.BooleanField(default=False)
    paused_reason = CleanTextField(blank=True, max_length=500)
    paused_until = models.DateTimeField(null=True, blank=True)
    paused_at = models.DateTimeField(null=True, blank=True, editable=False)
    paused_by = models.CharField(max_length=150, blank=True, editable=False)
    concurrency = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    rate_per_s = models.FloatField(null=True, blank=True, validators=[*_between(0.001, 1_000_000)])
    rate_burst = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    lease_s = models.FloatField(null=True, blank=True, validators=[*_between(1, 3_600)])
    max_rescues = models.PositiveIntegerField(null=True, blank=True, validators=[MaxValueValidator(1_000)])
    default_policy = models.ForeignKey(
        "RetryPolicy", null=True, blank=True, on_delete=models.SET_NULL, related_name="queues"
    )
    audit = models.CharField(max_length=8, choices=Audit, blank=True)
    events_max = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1_000)])
    #: How long Redis answers for a done job, and lets a discarded one be restored.
    done_keep_s = models.FloatField(
        null=True, blank=True, validators=[*_between(MIN_DONE_KEEP_S, MAX_DELAY_S)]
    )
    discarded_keep_s = models.FloatField(null=True, blank=True, validators=[*_between(60, MAX_DELAY_S)])
    #: How long the record keeps a job that ended well, one that was set aside, one that was ever dead.
    record_done_s = models.FloatField(null=True, blank=True, validators=[*_between(60, _LONGEST_S)])
    record_discarded_s = models.FloatField(
        null=True, blank=True, validators=[*_between(60, 10 * MAX_DELAY_S)]
    )
    record_dead_s = models.FloatField(null=True, blank=True, validators=[*_between(60, _LONGEST_S)])
    version = models.PositiveBigIntegerField(default=1, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        permissions = [("pause_queue", "Can pause and resume a queue")]
        constraints = [
            models.CheckConstraint(condition=~Q(name=""), name="queue_name_not_empty"),
            models.CheckConstraint(
                condition=Q(paused=True) | Q(paused_until__isnull=True), name="queue_resumes_only_when_paused"
            ),
            models.CheckConstraint(
                condition=Q(rate_per_s__isnull=True) | Q(rate_per_s__gt=0), name="queue_rate_over_0"
            ),
            models.CheckConstraint(
                condition=Q(lease_s__isnull=True) | Q(lease_s__gt=0), name="queue_lease_over_0"
            ),
            models.CheckConstraint(
                condition=Q(done_keep_s__isnull=True) | Q(done_keep_s__gte=MIN_DONE_KEEP_S),
                name="queue_done_keep_at_least_5_min",
            ),
            models.CheckConstraint(
                condition=Q(discarded_keep_s__isnull=True) | Q(discarded_keep_s__gt=0),
                name="queue_discarded_keep_over_0",
            ),
            models.CheckConstraint(condition=Q(version__gte=1), name="queue_version_from_1"),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Check the fields together. Raises ValidationError at the field that is wrong."""
        if self.rate_burst is not None and self.rate_per_s is None:
            raise ValidationError({"rate_burst": "A burst needs a rate."})
        if not self.paused and (self.paused_until is not None or self.paused_reason):
            field = "paused_until" if self.paused_until is not None else "paused_reason"
            raise ValidationError({field: 'This is for a paused queue: tick "paused" too.'})


class RetryPolicy(models.Model):
    """A retry policy as it is now. Each save that changes it is a new version (RetryPolicyVersion)."""

    name = models.CharField(max_length=100, unique=True)
    version = models.PositiveBigIntegerField(default=1, editable=False)
    description = models.CharField(max_length=200, blank=True)
    max_retries = models.PositiveIntegerField(default=4)
    delays_s = models.JSONField(default=list, blank=True)
    base_s = models.FloatField(null=True, blank=True)
    factor = models.FloatField(default=2.0)
    cap_s = models.FloatField(null=True, blank=True)
    jitter = models.CharField(
        max_length=8, default=Jitter.RATIO.value, choices=[(each.value, each.value) for each in Jitter]
    )
    jitter_ratio = models.FloatField(default=0.2)
    fatal = models.JSONField(default=list, blank=True)
    honour_retry_after = models.BooleanField(default=True)
    soft_limit_s = models.FloatField(null=True, blank=True)
    hard_limit_s = models.FloatField(null=True, blank=True)
    max_rescues = models.PositiveIntegerField(null=True, blank=True)
    done_keep_s = models.FloatField(null=True, blank=True)
    discarded_keep_s = models.FloatField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        verbose_name_plural = "retry policies"
        permissions = [("edit_policy", "Can edit retry policies and queue settings")]
        # The database knows what the arithmetic can't live with; `clean` says it at the field.
        constraints = [
            models.CheckConstraint(condition=~Q(name=""), name="policy_name_not_empty"),
            models.CheckConstraint(
                condition=Q(max_retries__gte=0, max_retries__lte=MAX_RETRIES), name="policy_retries_in_range"
            ),
            models.CheckConstraint(
                condition=Q(base_s__isnull=True) | Q(base_s__gte=MIN_DELAY_S, base_s__lte=MAX_DELAY_S),
                name="policy_base_in_range",
            ),
            models.CheckConstraint(
                condition=Q(factor__gte=1, factor__lt=1e300), name="policy_factor_at_least_1"
            ),
            models.CheckConstraint(
                condition=Q(cap_s__isnull=True) | Q(cap_s__gte=MIN_DELAY_S, cap_s__lte=MAX_DELAY_S),
                name="policy_cap_in_range",
            ),
            models.CheckConstraint(
                condition=Q(cap_s__isnull=True) | Q(base_s__isnull=True) | Q(base_s__lte=F("cap_s")),
                name="policy_base_under_cap",
            ),
            models.CheckConstraint(
                condition=Q(jitter_ratio__gte=0, jitter_ratio__lt=1), name="policy_jitter_ratio_in_range"
            ),
            models.CheckConstraint(
                condition=Q(jitter__in=[each.value for each in Jitter]), name="policy_jitter_is_known"
            ),
            models.CheckConstraint(
                condition=Q(hard_limit_s__isnull=True) | Q(hard_limit_s__gt=0),
                name="policy_hard_limit_over_0",
            ),
            models.CheckConstraint(condition=Q(version__gte=1), name="policy_version_from_1"),
        ]

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    def save(self, **options: Any) -> None:
        """Save; what changes the policy is a new version of its name, kept beside those that were before.

        One that can't be, past `clean`, is stored as it is where the database takes it, and is no version.
        """
        using = options.get("using") or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using):
            old = type(self).objects.using(using).select_for_update().filter(pk=self.pk).first()
            said = self.definition()
            if old is not None and old.name == self.name:
                self.version = old.version + (said is not None and said != old.definition())
            else:  # a name that another policy had before goes on where that one ended
                versions = RetryPolicyVersion.objects.using(using).filter(name=self.name)
                newest = versions.aggregate(newest=models.Max("version"))["newest"]
                self.version = self.version if newest is None else newest + 1
            if options.get("update_fields") is not None:
                options["update_fields"] = {*options["update_fields"], "version"}
            super().save(**options)
            if said is not None:
                RetryPolicyVersion.objects.using(using).get_or_create(
                    name=self.name, version=self.version, defaults={"policy": self, "definition": said}
                )

    def clean(self) -> None:
        """Check the fields together. Raises ValidationError at the field that is wrong."""
        try:
            self.policy()
        except PolicyError as error:
            raise ValidationError({error.field: error.reason}) from error

    def definition(self) -> dict[str, Any] | None:
        """Return what the policy says, less its version, as JSON has it; None for one that can't be."""
        try:
            said: dict[str, Any] = json.loads(self.policy().to_json())
        except PolicyError:
            return None
        said.pop("version", None)
        return said

    def policy(self) -> Policy:
        """Return the policy for the arithmetic. Raises PolicyError, which names the field."""
        return Policy(
            name=self.name,
            version=self.version,
            max_retries=self.max_retries,
            delays_s=self.delays_s,
            base_s=self.base_s,
            factor=self.factor,
            cap_s=self.cap_s,
            jitter=self.jitter,  # type: ignore[arg-type]  # checked and converted there
            jitter_ratio=self.jitter_ratio,
            fatal=self.fatal,
            honour_retry_after=self.honour_retry_after,
            soft_limit_s=self.soft_limit_s,
            hard_limit_s=self.hard_limit_s,
            max_rescues=self.max_rescues,
            done_keep_s=self.done_keep_s,
            discarded_keep_s=self.discarded_keep_s,
        )


class RetryPolicyVersion(models.Model):
    """What a policy said in one version; an Attempt names the version that chose its delay."""

    policy = models.ForeignKey(RetryPolicy, null=True, on_delete=models.SET_NULL, related_name="versions")
    name = models.CharField(max_length=100)
    version = models.PositiveBigIntegerField()
    definition = CleanJSONField()
    saved_by = models.CharField(max_length=150, blank=True)
    saved_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name", "-version"]
        constraints = [models.UniqueConstraint(fields=["name", "version"], name="policy_version_once")]

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    def policy_then(self) -> Policy:
        """Return the policy as it was in this version."""
        definition: dict[str, Any] = self.definition
        return Policy.from_json(definition)
