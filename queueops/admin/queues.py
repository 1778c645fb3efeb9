"""Queue settings: pause, limits, lease, default policy, keep times."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest

from queueops import publishing
from queueops.actors import who
from queueops.admin.fields import DurationField, words
from queueops.admin.ground import EditedAdmin, may
from queueops.admin.policies import apply_to_waiting
from queueops.conf import config
from queueops.models import Queue
from queueops.models.queues import Audit
from queueops.rights import Right

PAUSE_FIELDS = ("paused", "paused_reason", "paused_until")
_LIMIT_FIELDS = ("concurrency", "rate_per_s", "rate_burst")
_RUN_FIELDS = ("default_policy", "lease_s", "max_rescues")
_KEEP_FIELDS = ("done_keep_s", "discarded_keep_s", "record_done_s", "record_discarded_s", "record_dead_s")
_RECORD_FIELDS = ("audit", "events_max")
_OTHERS = ("description", *_LIMIT_FIELDS, *_RUN_FIELDS, *_KEEP_FIELDS, *_RECORD_FIELDS)
#: Field -> name of the site's default in `conf`.
_DEFAULTS = {
    **{name: name for name in ("lease_s", "max_rescues", *_KEEP_FIELDS, *_RECORD_FIELDS)},
}


def _shown(name: str, default: Any) -> str:
    if name.endswith("_s"):
        return words(default)
    return f"{default:,}" if isinstance(default, int) else str(default)


class QueueForm(forms.ModelForm):  # type: ignore[type-arg]  # generic in the stubs only
    """Settings as a person writes them; an empty one means the site's default, which it names."""

    lease_s = DurationField(label="Lease")
    done_keep_s = DurationField(label="Redis keeps done jobs for")
    discarded_keep_s = DurationField(label="Discarded jobs can be restored for")
    record_done_s = DurationField(label="The record keeps done jobs for")
    record_discarded_s = DurationField(label="The record keeps discarded jobs for")
    record_dead_s = DurationField(label="The record keeps jobs that were dead for")
    reason = forms.CharField(
        required=False, max_length=500, help_text="Why; it stands in the activity beside the change."
    )
    apply_to_waiting = forms.BooleanField(
        required=False,
        label="Apply the default policy to jobs already waiting",
        help_text="Reschedules the retries of this queue that wait now and follow it, as a bulk action.",
    )

    class Meta:
        model = Queue
        fields = ("name", *PAUSE_FIELDS, *_OTHERS)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        conf = config()
        for name, of in _DEFAULTS.items():
            if name in self.fields:
                self.fields[name].help_text = f"Empty: the site's {_shown(name, getattr(conf, of))}."
        if "audit" in self.fields:
            self.fields["audit"].choices = [("", "the site's default"), *Audit.choices]  # type: ignore[attr-defined]
        labels = {
            "rate_per_s": "Rate, jobs a second",
            "rate_burst": "Burst",
            "events_max": "Most events that wait for the mirror",
            "audit": "Events that are recorded",
        }
        for name, label in labels.items():
            if name in self.fields:
                self.fields[name].label = label
        if "paused_reason" in self.fields:
            self.fields["paused_reason"].widget.attrs |= {"rows": 2}
        helps = {
            "concurrency": "Jobs of this queue that run at once, over all workers. Empty: no limit.",
            "rate_per_s": "Jobs a second, over all workers. Empty: no limit.",
            "rate_burst": "Jobs that may start at once after a quiet time. Empty: one second's worth.",
            "paused_until": "The queue goes on by itself then. Empty: until a person resumes it.",
        }
        for name, text in helps.items():
            if name in self.fields:
                self.fields[name].help_text = text

    def validate_constraints(self) -> None:
        """The database's word only where the form found nothing: it would say the same in its own words."""
        if not self.errors:
            super().validate_constraints()


@admin.register(Queue)
class QueueAdmin(EditedAdmin):
    """Queue settings, published to running workers."""

    form = QueueForm
    edit_rights = (Right.EDIT_POLICY, Right.PAUSE_QUEUE)
    list_display = ("name", "state", "concurrency", "rate_per_s", "default_policy", "version", "updated_at")
    list_select_related = ("default_policy",)
    search_fields = ("name", "description")
    fieldsets = (
        (None, {"fields": ("name", "description", "version")}),
        ("Pause", {"fields": PAUSE_FIELDS, "description": "What runs goes on; nothing new starts."}),
        ("Limits", {"fields": _LIMIT_FIELDS}),
        ("Retries and lost processes", {"fields": _RUN_FIELDS}),
        ("Keep times", {"fields": _KEEP_FIELDS}),
        ("Record", {"fields": _RECORD_FIELDS}),
        ("This change", {"fields": ("reason", "apply_to_waiting")}),
    )

    class Media:
        css = {"all": ("queueops/admin.css",)}

    @admin.display(description="state")
    def state(self, row: Queue) -> str:
        if not row.paused:
            return "running"
        until = f" until {row.paused_until:%Y-%m-%d %H:%M} UTC" if row.paused_until else ""
        return f"paused{until}" + (f": {row.paused_reason}" if row.paused_reason else "")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # a queue is there as long as Redis has it

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        fixed: tuple[str, ...] = ("version",) if obj is None else ("name", "version")
        if not may(request, Right.EDIT_POLICY):
            fixed += _OTHERS
        if not may(request, Right.PAUSE_QUEUE):
            fixed += PAUSE_FIELDS
        return fixed

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if not self.has_change_permission(request, obj):
            return self.fieldsets[:-1]
        if may(request, Right.RUN_OPERATION) and obj is not None:
            return self.fieldsets
        return (*self.fieldsets[:-1], ("This change", {"fields": ("reason",)}))

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: bool) -> None:
        changes = {
            name: form.cleaned_data[name]
            for name in form.changed_data
            if name in (*PAUSE_FIELDS, *_OTHERS) and name in form.cleaned_data
        }
        reason = form.cleaned_data.get("reason", "")
        if changes or not change:
            is_pause = bool(changes) and changes.keys() <= set(PAUSE_FIELDS)
            verb = ("pause" if obj.paused else "resume") if is_pause else "edit_queue"
            saved = publishing.change_queue(obj.name, changes, reason=reason, verb=verb, **who(request.user))
            obj.version = saved.version
        if form.cleaned_data.get("apply_to_waiting") and obj.default_policy:
            apply_to_waiting(self, request, obj.default_policy.name, obj.name, reason)
