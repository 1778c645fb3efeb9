"""What people type and choose: filters, reasons, times. Each form says at the field what is wrong."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django import forms

from queueops import models
from queueops.holds import HoldKind, check
from queueops.states import LISTED, JobState

_DURATION = re.compile(r"\s*(\d{1,9}(?:\.\d{1,3})?)\s*(min|ms|m|sec|s|h|d)?\s*", re.IGNORECASE)
_UNITS_S = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}


def first_error(form: forms.BaseForm) -> str:
    """Return the first thing that is wrong with a form that is not valid."""
    return next(f"{each}" for errors in form.errors.values() for each in errors)


def duration_s(text: str) -> float:
    """Read "90", "90 s", "5 min", "1h 30min"; seconds. Raises ValueError."""
    total, at = 0.0, 0
    while match := _DURATION.match(text, at):
        if match.end() == at:
            break
        total += float(match[1]) * _UNITS_S[(match[2] or "s").lower()]
        at = match.end()
    if at != len(text) or not text.strip():
        raise ValueError(f"{text[:40]!r} is no duration: write 90 s, 5 min, 2 h or 1 d")
    return total


class DurationField(forms.CharField):
    """A duration in words; its value is seconds. `most_s` bounds it."""

    def __init__(self, *, most_s: float = 366 * 86_400, **options: Any) -> None:
        super().__init__(**options)
        self.most_s = most_s

    def clean(self, value: Any) -> float | None:
        """Return seconds, or None for nothing typed."""
        text = super().clean(value)
        if not text:
            return None
        try:
            seconds = duration_s(text)
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None
        if seconds > self.most_s:
            raise forms.ValidationError(f"at most {self.most_s / 86_400:g} days")
        return seconds


class FilterForm(forms.Form):
    """The view of a queue's list: all of it stands in the URL."""

    state = forms.ChoiceField(choices=[(state.value, state.value) for state in LISTED], required=False)
    handler = forms.CharField(max_length=255, required=False)
    cause = forms.CharField(max_length=64, required=False)
    tag = forms.CharField(max_length=266, required=False)
    id = forms.CharField(max_length=128, required=False)
    order = forms.ChoiceField(choices=[("newest", "newest"), ("oldest", "oldest")], required=False)

    def clean_state(self) -> str:
        return self.cleaned_data["state"] or JobState.DELAYED.value

    def clean_tag(self) -> str:
        tag: str = self.cleaned_data["tag"]
        if tag and not tag.partition("=")[0].strip():
            raise forms.ValidationError("write it as name=value")
        return tag


class ReasonForm(forms.Form):
    """Why; kept with what was done."""

    reason = forms.CharField(max_length=500, required=False)


class ZonedForm(ReasonForm):
    """A form with a time as the person's clock shows it; `zone` is their time zone's name."""

    zone = forms.CharField(max_length=64, required=False)

    def clean_zone(self) -> ZoneInfo:
        """Return the zone; UTC for none, and for one that nobody knows."""
        try:
            return ZoneInfo(self.cleaned_data["zone"] or "UTC")
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return ZoneInfo("UTC")


class RescheduleForm(ZonedForm):
    """Another run-at: at a time, or in a while."""

    at = forms.DateTimeField(required=False, input_formats=["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"])
    after = DurationField(required=False, max_length=40)

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        at, after = data.get("at"), data.get("after")
        if not self.errors and (at is None) == (after is None):
            raise forms.ValidationError("give a time or a wait, one of the two")
        if at is not None:
            data["at"] = in_zone(at, data["zone"])
        return data

    def run_at_ms(self, now_ms: int) -> int:
        """Return the chosen time, Unix ms; a wait counts from `now_ms`."""
        at: datetime | None = self.cleaned_data["at"]
        after: float = self.cleaned_data["after"] or 0.0
        if at is None:
            return now_ms + round(after * 1000)
        return round(at.timestamp() * 1000)


class PauseForm(ZonedForm):
    """Stop a queue: why, and when it goes on by itself."""

    resume_after = DurationField(required=False, max_length=40)
    resume_at = forms.DateTimeField(required=False, input_formats=["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"])

    def until(self, now: datetime) -> datetime | None:
        """Return when it resumes, or None for when a person says so."""
        if at := self.cleaned_data["resume_at"]:
            return in_zone(at, self.cleaned_data["zone"])
        after: float | None = self.cleaned_data["resume_after"]
        return now + timedelta(seconds=after) if after else None


class HoldForm(PauseForm):
    """Hold a part of a queue back: what, why, and when it is lifted by itself."""

    handler = forms.CharField(max_length=255, required=False)
    cause = forms.CharField(max_length=64, required=False)
    tag = forms.CharField(max_length=266, required=False)

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        given = [(kind.value, data[kind.value]) for kind in HoldKind if data.get(kind.value)]
        if self.errors:
            return data
        if len(given) != 1:
            raise forms.ValidationError("name a handler, a cause or a tag, one of the three")
        data["kind"], data["value"] = given[0]
        try:
            check(*given[0])
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None
        return data


class LimitsForm(ReasonForm):
    """How fast a queue may run; an empty field is no limit."""

    concurrency = forms.IntegerField(min_value=1, max_value=1_000_000, required=False)
    rate_per_s = forms.FloatField(min_value=0.001, max_value=1_000_000, required=False)
    rate_burst = forms.IntegerField(min_value=1, max_value=1_000_000, required=False)
    default_policy = forms.ModelChoiceField(
        models.RetryPolicy.objects.all(), to_field_name="name", required=False
    )


class StopForm(ReasonForm):
    """Ask running jobs to stop; what still runs after a while is stopped hard."""

    stop_after = DurationField(required=False, max_length=40, most_s=86_400)


class OperationForm(StopForm):
    """How a bulk action goes about it: how many first, how fast, and when it stops by itself."""

    verb = forms.CharField(max_length=20)
    canary = forms.IntegerField(min_value=1, max_value=1_000_000, required=False)
    rate = forms.FloatField(min_value=0.01, max_value=1_000_000, required=False)
    spread = DurationField(required=False, max_length=40)
    after = DurationField(required=False, max_length=40)
    stop_percent = forms.FloatField(min_value=1, max_value=100, required=False)
    typed = forms.CharField(max_length=20, required=False)

    def clean_typed(self) -> int | None:
        text = self.cleaned_data["typed"].replace(",", "").strip()
        return int(text) if text.isdecimal() else None


class EditForm(ReasonForm):
    """A job's payload, as JSON."""

    payload = forms.CharField(strip=False, max_length=4_000_000, widget=forms.Textarea)


def in_zone(at: datetime, zone: ZoneInfo) -> datetime:
    """Return what a clock in `zone` showed as an instant: Django read it as if in the site's zone."""
    return at.replace(tzinfo=zone).astimezone(UTC)
