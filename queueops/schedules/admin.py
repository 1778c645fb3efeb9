"""Schedules in Django's admin: edited there by the same rules as on /schedules/, which shows more."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from queueops.actors import who
from queueops.cron import CLOCK_CHANGE_RULE, clock_changes
from queueops.errors import QueueOpsError, ScheduleError
from queueops.inspector import Inspector
from queueops.job import from_ms, to_ms
from queueops.models import Schedule, ScheduleSlot
from queueops.rights import Right
from queueops.schedules import by_hand, reads
from queueops.schedules.definition import without_pause


def _may(user: AbstractBaseUser | AnonymousUser) -> bool:
    return bool(user.has_perm(f"queueops.{Right.EDIT_SCHEDULE}"))  # type: ignore[union-attr]  # an admin's user


def _now_ms() -> int:
    """Redis TIME; this host's clock while Redis is away, for looking only."""
    try:
        return Inspector().now_ms()
    except QueueOpsError:
        return to_ms(timezone.now())


class ScheduleForm(ModelForm):  # type: ignore[type-arg]  # generic in the stubs only
    """What a row says, checked with what only this site knows: its handlers and policies."""

    class Meta:
        model = Schedule
        exclude = ()  # noqa: DJ006  # the admin's fieldsets choose

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        row = Schedule(**{name: value for name, value in data.items() if hasattr(Schedule, name)})
        row.key = row.key or self.instance.key
        for name, reason in reads.problems_of(row.definition()).items():
            if name in self.fields and name not in self.errors:
                self.add_error(name, reason)
        return data


@admin.register(Schedule)
class ScheduleAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows of schedules; those from the code are shown, and can be paused."""

    form = ScheduleForm
    list_display = ("key", "in_words", "queue", "handler", "paused", "next_slot_at", "source", "error")
    list_filter = ("paused", "source", "queue")
    search_fields = ("key", "description", "handler")
    actions = ("pause_selected", "resume_selected")
    readonly_fields = ("what_happens", "clock_changes", "source", "next_slot_at", "last_slot_at", "error")
    fieldsets = (
        (None, {"fields": ("key", "description", "source", "error")}),
        ("When", {"fields": ("kind", "rule", "zone", "start_at", "end_at", "clock_changes", "what_happens")}),
        ("What", {"fields": ("handler", "args", "kwargs", "queue", "policy")}),
        (
            "If it goes wrong",
            {
                "fields": (
                    "catch_up",
                    "catch_up_cap",
                    "catch_up_max_age_s",
                    "catch_up_rate_per_s",
                    "overlap",
                    "jitter_s",
                )
            },
        ),
        ("Pause", {"fields": ("paused", "paused_reason", "resume_at", "last_slot_at", "next_slot_at")}),
    )

    @admin.display(description="rule")
    def in_words(self, row: Schedule) -> str:
        return row.definition().describe()

    @admin.display(description="what happens next")
    def what_happens(self, row: Schedule) -> SafeString | str:
        """Say what saving, pausing or resuming does now, and the next five slots."""
        if row.pk is None:
            return "Said when it is saved."
        now_ms = _now_ms()
        definition = row.definition()
        if definition.problems():
            return "Nothing until it is mended."
        said = reads.effect_of(row, definition, now_ms)
        if row.paused:
            said += ["If it is resumed now:", *reads.effect_of(row, without_pause(definition), now_ms)]
        slots = format_html_join("", "<li>{}</li>", ((slot.words,) for slot in reads.ahead(row, now_ms)))
        return format_html("{}<ol>{}</ol>", " ".join(said), slots)

    @admin.display(description="clock changes")
    def clock_changes(self, row: Schedule) -> str:
        """Say the rule for clock changes, and the next two in the schedule's zone."""
        try:
            coming = "; ".join(str(change) for change in clock_changes(row.zone, from_ms(_now_ms()), 2))
        except ScheduleError:
            coming = ""
        return f"{CLOCK_CHANGE_RULE} Next in {row.zone}: {coming or 'none in three years'}."

    def get_readonly_fields(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        return (*self.readonly_fields, "key") if obj is not None else self.readonly_fields

    # -- rights ------------------------------------------------------------------------------------

    def has_view_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        return _may(request.user)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return _may(request.user)

    def has_change_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        return _may(request.user) and (obj is None or obj.source != Schedule.Source.CODE)

    def has_delete_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        is_of_the_code = obj is not None and obj.source == Schedule.Source.CODE and not obj.error
        return _may(request.user) and not is_of_the_code

    # -- edits -------------------------------------------------------------------------------------

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        """Save, record who did it, and say what happens next."""
        before = Schedule.objects.filter(pk=obj.pk).first() if change else None
        now_ms = _now_ms()
        obj.changed_at = from_ms(now_ms)
        if obj.paused and not (before and before.paused):
            obj.paused_at = obj.changed_at
        if not obj.paused:
            obj.resume_at = None
        effect = reads.effect_of(before, obj.definition(), now_ms)
        super().save_model(request, obj, form, change)
        by_hand.note_edit(
            obj,
            before=before.definition().to_json() if before else None,
            verb="edit_schedule" if change else "make_schedule",
            **who(request.user),
        )
        messages.info(request, " ".join(effect))

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        by_hand.note_edit(obj, before=obj.definition().to_json(), verb="delete_schedule", **who(request.user))
        super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        for row in queryset:
            self.delete_model(request, row)

    @admin.action(description="Pause the selected schedules")
    def pause_selected(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        for row in queryset.filter(paused=False):
            by_hand.pause(row, reason="paused in the admin", **who(request.user))
            messages.info(request, f"{row.key} is paused: its slots are skipped until it is resumed.")

    @admin.action(description="Resume the selected schedules")
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        for row in queryset.filter(paused=True):
            effect = reads.effect_of(row, without_pause(row.definition()), _now_ms())
            by_hand.resume(row, **who(request.user))
            messages.info(request, f"{row.key} goes on. {' '.join(effect)}")


@admin.register(ScheduleSlot)
class ScheduleSlotAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """The ledger, to look at."""

    list_display = (
        "schedule",
        "slot_at",
        "suffix",
        "state",
        "outcome",
        "started_at",
        "finished_at",
        "reason",
    )
    list_filter = ("state", "schedule")
    list_select_related = ("schedule",)
    show_full_result_count = False

    def has_view_permission(self, request: HttpRequest, obj: ScheduleSlot | None = None) -> bool:
        return bool(request.user.has_perm(f"queueops.{Right.VIEW_JOB}"))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: ScheduleSlot | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: ScheduleSlot | None = None) -> bool:
        return False
