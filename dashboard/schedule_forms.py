"""What people type about a schedule: read into a definition, every fault at its field."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from django import forms

from dashboard import edits
from dashboard.forms import DurationField, ZonedForm, duration_s, in_zone
from dashboard.payloads import also_secret
from dashboard.templatetags.dashboard import duration
from queueops.conf import config
from queueops.cron import check_zone
from queueops.errors import ScheduleError
from queueops.job import from_ms, to_ms
from queueops.masking import mask
from queueops.models import Schedule
from queueops.schedules.definition import Definition
from queueops.schedules.reads import problems_of

LOCAL = ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M"]
#: Field of a definition -> of the form, where they differ.
_FIELDS = {"start_ms": "start_at", "end_ms": "end_at", "resume_ms": "resume_at"}


class ScheduleForm(forms.Form):
    """A schedule; the dates are those of a clock in its zone."""

    key = forms.CharField(max_length=80, help_text="names it for good, in the ids of its jobs too")
    description = forms.CharField(max_length=200, required=False)
    kind = forms.ChoiceField(choices=Schedule.Kind.choices, initial=Schedule.Kind.CRON, label="Repeats by")
    rule = forms.CharField(
        max_length=200,
        help_text="cron: minute hour day month weekday, seconds before them if need be; "
        "interval: 90, 5m, 2h or 1d; once: 2026-05-01 14:00",
    )
    zone = forms.CharField(max_length=64, initial="UTC", help_text="like Europe/Berlin", label="Time zone")
    start_at = forms.DateTimeField(required=False, input_formats=LOCAL, label="Not before")
    end_at = forms.DateTimeField(required=False, input_formats=LOCAL, label="Not after")
    handler = forms.CharField(max_length=255)
    args = forms.CharField(required=False, initial="[]", label="Arguments", help_text="a JSON list")
    kwargs = forms.CharField(required=False, initial="{}", label="Named arguments", help_text="a JSON object")
    queue = forms.CharField(max_length=64)
    policy = forms.CharField(
        max_length=100, required=False, label="Retry policy", help_text="empty: the handler's"
    )
    catch_up = forms.ChoiceField(
        choices=Schedule.CatchUp.choices, initial=Schedule.CatchUp.LATEST, label="After a downtime"
    )
    catch_up_cap = forms.IntegerField(initial=100, label="At most, slots")
    catch_up_max_age_s = DurationField(initial="1 d", label="Not older than")
    catch_up_rate_per_s = forms.FloatField(initial=1, label="A second")
    overlap = forms.ChoiceField(
        choices=Schedule.Overlap.choices,
        initial=Schedule.Overlap.SKIP,
        label="When the run before is not over",
    )
    jitter_s = DurationField(
        initial="0",
        required=False,
        label="Jitter",
        help_text="each slot is put off by up to this, always alike",
    )

    def __init__(self, *args: Any, schedule: Schedule | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.schedule = schedule
        if schedule is not None:
            self.fields["key"].disabled = True
            self.initial = {**_initial(schedule), **self.initial}
        else:
            self.fields["queue"].initial = config().default_queue
        for name, field in self.fields.items():
            field.widget.attrs |= {"class": "field", "autocomplete": "off", "spellcheck": "false"}
            if name in {"args", "kwargs", "rule", "handler"}:
                field.widget.attrs["class"] = "field mono"
            if name in {"handler", "policy"}:
                field.widget.attrs["list"] = f"{name}-names"

    def clean_key(self) -> str:
        key: str = self.cleaned_data["key"]
        if self.schedule is None:
            if key in config().schedules:
                raise forms.ValidationError(f"the settings have a schedule {key}: choose another name")
            if Schedule.objects.filter(key=key).exists():
                raise forms.ValidationError(f"there is a schedule {key} already")
        return key

    def clean_args(self) -> Any:
        given = _json(self.cleaned_data["args"] or "[]", 'a JSON list, like [1, "two"]')
        return self._unmasked(given, "args")

    def clean_kwargs(self) -> Any:
        given = _json(self.cleaned_data["kwargs"] or "{}", 'a JSON object, like {"day": 1}')
        return self._unmasked(given, "kwargs")

    def _unmasked(self, given: Any, name: str) -> Any:
        """Put secrets back that the form showed masked."""
        if self.schedule is None:
            return given
        try:
            return edits.unmask(given, getattr(self.schedule, name))
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None

    def clean_jitter_s(self) -> float:
        return self.cleaned_data["jitter_s"] or 0.0

    def clean(self) -> dict[str, Any]:
        """Check the fields together; what the definition finds wrong is said at the field."""
        data = super().clean() or {}
        for name in ("start_at", "end_at"):
            data[name] = self._instant(data.get(name), data.get("zone"))
        for name, reason in problems_of(self.definition(data)).items():
            field = _FIELDS.get(name, name)
            if field not in self.errors:
                self.add_error(field if field in self.fields else None, reason)
        return data

    def definition(self, data: dict[str, Any] | None = None) -> Definition:
        """Return what was typed as a definition, as far as it could be read."""
        given = self.cleaned_data if data is None else data
        before = self.schedule.definition() if self.schedule else Definition("", "")
        names = (
            "key", "handler", "queue", "args", "kwargs", "policy", "kind", "rule", "zone", "catch_up",
            "catch_up_cap", "catch_up_max_age_s", "catch_up_rate_per_s", "overlap", "jitter_s",
        )  # fmt: skip
        said = {name: given.get(name, getattr(before, name)) for name in names}
        start, end = given.get("start_at"), given.get("end_at")
        return Definition(
            **said,
            start_ms=to_ms(start) if start else None,
            end_ms=to_ms(end) if end else None,
            paused=before.paused,
            paused_reason=before.paused_reason,
            resume_ms=before.resume_ms,
            paused_ms=before.paused_ms,
        )

    def apply(self, schedule: Schedule) -> None:
        """Put what was typed into a row."""
        for name, value in self.cleaned_data.items():
            setattr(schedule, name, value)

    def _instant(self, at: datetime | None, zone: str | None) -> datetime | None:
        if at is None:
            return None
        try:
            return in_zone(at, check_zone(zone or ""))
        except ScheduleError:
            return at.replace(tzinfo=UTC)


def _json(text: str, wanted: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise forms.ValidationError(f"must be {wanted}: {error}") from None


def _initial(schedule: Schedule) -> dict[str, Any]:
    definition = schedule.definition()
    found = {
        name: getattr(schedule, name)
        for name in (
            "key", "description", "kind", "rule", "zone", "handler", "queue", "policy", "catch_up",
            "catch_up_cap", "catch_up_rate_per_s", "overlap",
        )
    }  # fmt: skip
    for name in ("args", "kwargs"):
        found[name] = json.dumps(mask(getattr(schedule, name), also_secret())[0], ensure_ascii=False)
    found |= {name: _words(getattr(schedule, name)) for name in ("catch_up_max_age_s", "jitter_s")}
    for name, ms in (("start_at", definition.start_ms), ("end_at", definition.end_ms)):
        found[name] = "" if ms is None else _local(ms, definition.zone)
    return found


def _words(seconds: float) -> str:
    """Write a duration so that it reads back as the same."""
    short = duration(seconds)
    return short if duration_s(short) == seconds else f"{seconds:g} s"


def _local(ms: int, zone: str) -> str:
    at = from_ms(ms)
    try:
        at = at.astimezone(check_zone(zone))
    except ScheduleError:
        pass
    return f"{at:%Y-%m-%d %H:%M:%S}".removesuffix(":00")


class BackfillForm(ZonedForm):
    """Which past slots to run, by a clock in the schedule's zone, and how fast."""

    from_at = forms.DateTimeField(input_formats=LOCAL)
    until_at = forms.DateTimeField(input_formats=LOCAL)
    rate = forms.FloatField(min_value=0.01, max_value=1_000, initial=1)

    def range_ms(self) -> tuple[int, int]:
        """Return its first and last instant, Unix ms."""
        given = self.cleaned_data
        first, last = (to_ms(in_zone(given[name], given["zone"])) for name in ("from_at", "until_at"))
        return first, last


class SlotForm(forms.Form):
    """One slot to run, and the wish's own name, by which a second press is the same wish."""

    reason = forms.CharField(max_length=500, required=False)
    slot = forms.IntegerField(required=False, min_value=0, max_value=253_402_300_799_000)
    token = forms.RegexField(r"\A[A-Za-z0-9]{6,12}\Z")
