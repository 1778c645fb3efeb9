"""Retry policies: the form, what it would do before it is saved, and the versions there were."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html

from queueops import operations, publishing
from queueops.actors import who
from queueops.admin.fields import DurationField, DurationsField, NamesField, words
from queueops.admin.ground import EditedAdmin, may
from queueops.admin.storm import storm_of
from queueops.conf import config
from queueops.errors import PolicyError, QueueOpsError
from queueops.models import RetryPolicy, RetryPolicyVersion
from queueops.policies import DEFAULT_POLICY, Jitter, describe, preview
from queueops.policies import RetryPolicy as Policy
from queueops.rights import Right
from queueops.selection import Selection
from queueops.states import JobState

_JITTERS = [
    (Jitter.RATIO.value, "ratio: each delay drawn from d·(1−r) to d·(1+r), at most the cap"),
    (Jitter.FULL.value, "full: drawn from 0 to d"),
    (Jitter.EQUAL.value, "equal: drawn from d/2 to d"),
    (Jitter.NONE.value, "none: exactly d, so that jobs that failed together come back together"),
]
_SHOWN_TRIES = 12


class PolicyForm(forms.ModelForm):  # type: ignore[type-arg]  # generic in the stubs only
    """A policy as a person writes it; each wrong value is told at its field."""

    max_retries = forms.IntegerField(
        initial=DEFAULT_POLICY.max_retries,
        help_text="After the first try. 0: the first error makes the job dead.",
    )
    delays_s = DurationsField(
        label="Delays",
        widget=forms.Textarea(attrs={"rows": 2, "cols": 60}),
        help_text="A list, as 5 s, 30 s, 5 min, 1 h; the last one repeats. Or leave it empty, with a base.",
    )
    base_s = DurationField(label="Base", help_text="The first delay of an exponential policy.")
    factor = forms.FloatField(
        initial=DEFAULT_POLICY.factor, help_text="Each next delay is so many times longer; 1 keeps it."
    )
    cap_s = DurationField(label="Cap", help_text="No delay is longer, jitter included. Empty: no cap.")
    jitter = forms.ChoiceField(choices=_JITTERS, initial=Jitter.RATIO.value)
    jitter_ratio = forms.FloatField(
        initial=DEFAULT_POLICY.jitter_ratio, help_text="r of the kind ratio: 0.2 is ±20 %. Under 1."
    )
    fatal = NamesField(
        label="Fatal exceptions",
        widget=forms.Textarea(attrs={"rows": 3, "cols": 60}),
        help_text="Names that no retry can cure, one a line: ValueError or shop.errors.Declined."
        " A base class covers its children.",
    )
    soft_limit_s = DurationField(label="Soft time limit", help_text="An exception inside the handler.")
    hard_limit_s = DurationField(label="Hard time limit")
    max_rescues = forms.IntegerField(required=False, min_value=0, max_value=1_000)
    done_keep_s = DurationField(label="Keep of done jobs")
    discarded_keep_s = DurationField(label="Keep of discarded jobs")
    reason = forms.CharField(
        required=False, max_length=500, help_text="Why; it stands in the activity beside the change."
    )
    apply_to_waiting = forms.BooleanField(
        required=False,
        label="Apply to jobs already waiting",
        help_text="Reschedules the retries that wait now and follow this policy, as a bulk action.",
    )

    class Meta:
        model = RetryPolicy
        fields = (
            "name", "description", "max_retries", "delays_s", "base_s", "factor", "cap_s", "jitter",
            "jitter_ratio", "fatal", "honour_retry_after", "soft_limit_s", "hard_limit_s", "max_rescues",
            "done_keep_s", "discarded_keep_s",
        )  # fmt: skip

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        conf = config()
        defaults = {
            "hard_limit_s": words(conf.hard_limit_s),
            "max_rescues": f"{conf.max_rescues}",
            "done_keep_s": words(conf.done_keep_s),
            "discarded_keep_s": words(conf.discarded_keep_s),
        }
        for name, default in defaults.items():
            if name in self.fields:
                self.fields[name].help_text = f"Empty: the queue's own, or the site's {default}."

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if not self.errors:
            try:
                policy_of(data, name=data.get("name") or self.instance.name)
            except PolicyError as error:
                self.add_error(error.field if error.field in self.fields else None, error.reason)
        return data

    def _post_clean(self) -> None:
        # The model looks at its fields together: with one missing here it would blame another.
        if not self.errors:
            super()._post_clean()  # type: ignore[misc]  # Django's hook, which the stubs leave out

    def validate_constraints(self) -> None:
        """The database's word only where the form found nothing: it would say the same in its own words."""
        if not self.errors:
            super().validate_constraints()


def policy_of(data: dict[str, Any], *, name: str) -> Policy:
    """The policy that a form's cleaned data mean. Raises PolicyError."""
    values = {field: data[field] for field in PolicyForm.Meta.fields if field in data}
    values.pop("description", None)
    return Policy(**(values | {"name": name or "unnamed"}))


class VersionsInline(admin.TabularInline):  # type: ignore[type-arg]  # takes none at run time
    """What the policy said before."""

    model = RetryPolicyVersion
    fields = readonly_fields = ("version", "said", "saved_by", "saved_at")
    extra = 0
    can_delete = False
    verbose_name_plural = "versions"

    @admin.display(description="policy")
    def said(self, version: RetryPolicyVersion) -> str:
        return describe(version.policy_then())

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return True


@admin.register(RetryPolicy)
class PolicyAdmin(EditedAdmin):
    """Retry policies. Each save that changes one is a new version, published to running workers."""

    form = PolicyForm
    list_display = ("name", "version", "said", "fatal_names", "updated_at")
    search_fields = ("name", "description")
    readonly_fields = ("version",)
    change_form_template = "admin/queueops/retrypolicy/change_form.html"
    fieldsets = (
        (None, {"fields": ("name", "version", "description")}),
        ("Retries", {"fields": ("max_retries", "delays_s", "base_s", "factor", "cap_s")}),
        ("Jitter", {"fields": ("jitter", "jitter_ratio")}),
        ("What is not retried, and who may ask for more", {"fields": ("fatal", "honour_retry_after")}),
        (
            "Limits and keep times",
            {"fields": ("soft_limit_s", "hard_limit_s", "max_rescues", "done_keep_s", "discarded_keep_s")},
        ),
        ("This change", {"fields": ("reason", "apply_to_waiting")}),
    )

    class Media:
        css = {"all": ("queueops/admin.css",)}
        js = ("queueops/policy_preview.js",)

    @admin.display(description="policy")
    def said(self, row: RetryPolicy) -> str:
        try:
            return describe(row.policy())
        except PolicyError as error:
            return f"can't be used: {error}"

    @admin.display(description="fatal")
    def fatal_names(self, row: RetryPolicy) -> str:
        return ", ".join(row.fatal) or "–"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        # Code and queues name a policy by its name.
        return ("version",) if obj is None else ("name", "version")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if not self.has_change_permission(request, obj):
            return self.fieldsets[:-1]
        if obj is not None and may(request, Right.RUN_OPERATION):
            return self.fieldsets
        return (*self.fieldsets[:-1], ("This change", {"fields": ("reason",)}))

    def get_inlines(self, request: HttpRequest, obj: Any) -> Any:
        return () if obj is None else (VersionsInline,)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.preview_view)
        return [path("preview/", view, name="queueops_retrypolicy_preview"), *super().get_urls()]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **options: Any
    ) -> HttpResponse:
        form = context["adminform"].form
        context |= {"preview_url": reverse("admin:queueops_retrypolicy_preview"), **_preview_of(form)}
        return super().render_change_form(request, context, *args, **options)

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        """Show what the policy on the form would do, saving nothing: a part of the page, or its own."""
        if not self.has_view_permission(request):
            return HttpResponse(status=403)
        form = PolicyForm(request.GET)
        form.fields["name"].required = False
        template = "_preview" if request.headers.get("X-Requested-With") else "preview"
        context = {**self.admin_site.each_context(request), "title": "Preview", **_preview_of(form)}
        return TemplateResponse(request, f"admin/queueops/retrypolicy/{template}.html", context)

    def save_model(self, request: HttpRequest, obj: RetryPolicy, form: Any, change: bool) -> None:
        publishing.save_policy(obj, reason=form.cleaned_data.get("reason", ""), **who(request.user))
        for warning in obj.policy().warnings():
            self.message_user(request, warning, messages.WARNING)
        if form.cleaned_data.get("apply_to_waiting") and may(request, Right.RUN_OPERATION):
            apply_to_waiting(self, request, obj.name, "", form.cleaned_data.get("reason", ""))

    def delete_model(self, request: HttpRequest, obj: RetryPolicy) -> None:
        publishing.delete_policy(obj, **who(request.user))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[RetryPolicy]) -> None:
        for policy in queryset:
            publishing.delete_policy(policy, **who(request.user))


def apply_to_waiting(page: EditedAdmin, request: HttpRequest, policy: str, queue: str, reason: str) -> None:
    """Start the bulk action that reschedules waiting retries by a policy, and say so."""
    selection = Selection(queue=queue, state=JobState.DELAYED.value, policy=policy)
    try:
        operation = operations.start(
            "reschedule", selection, operations.Plan(policy=policy), reason=reason or f"policy {policy}",
            **who(request.user),
        )  # fmt: skip
    except (QueueOpsError, ValueError) as error:
        page.message_user(request, f"The jobs already waiting stay as they are: {error}", messages.ERROR)
    else:
        text = format_html("Jobs already waiting are rescheduled by the bulk action {}.", operation.pk)
        page.message_user(request, text)


def _preview_of(form: Any) -> dict[str, Any]:
    """What a template needs to show what the form's policy would do; the errors where it can't be told."""
    try:
        if form.is_bound:
            form.is_valid()
            policy = policy_of(form.cleaned_data, name=form.cleaned_data.get("name") or "unnamed")
            if form.errors:
                return {"preview_errors": _labelled(form)}
        elif form.instance.pk:
            policy = form.instance.policy()
        else:
            policy = DEFAULT_POLICY
    except PolicyError as error:  # a stored one has no form that was checked
        return {"preview_errors": _labelled(form) or [(error.field.replace("_", " "), error.reason)]}
    except (KeyError, TypeError):
        return {"preview_errors": _labelled(form)}
    tries = preview(policy, _SHOWN_TRIES)
    longest_s = tries[-1].since_hi_s if tries else 0.0
    return {
        "policy": policy,
        "described": describe(policy),
        "warnings": policy.warnings(),
        "tries": [(each, _band(each.since_lo_s, each.since_hi_s, longest_s)) for each in tries],
        "more_tries": max(0, policy.max_retries - len(tries)),
        "storm": storm_of(policy),
    }


def _labelled(form: Any) -> list[tuple[str, str]]:
    return [
        (form.fields[name].label or name.replace("_", " ") if name in form.fields else "", text)
        for name, texts in form.errors.items()
        for text in texts
    ]


def _band(low_s: float, high_s: float, longest_s: float) -> tuple[float, float]:
    """Where a try falls on a bar of 100 units that ends with the last one: start and width."""
    if not longest_s:
        return 0.0, 100.0
    start = 100 * low_s / longest_s
    return round(start, 2), round(max(0.6, 100 * (high_s - low_s) / longest_s), 2)
