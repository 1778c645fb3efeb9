"""The record, to be read: nothing here can be changed, whatever a person's rights."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model
from django.http import HttpRequest
from django.utils.functional import cached_property

from queueops.admin.ground import may
from queueops.conf import config
from queueops.masking import mask, mask_text
from queueops.models import (
    Attempt,
    Effect,
    Job,
    JobEvent,
    MirrorState,
    Operation,
    OperatorAction,
    SetAsideEvent,
    WorkerRecord,
)
from queueops.rights import Right

#: A list counts so far; pages beyond it are reached by a filter.
_MOST_COUNTED = 10_000


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # takes none at run time
    """Counts to a bound: a page must not cost what its table holds."""

    @cached_property
    def count(self) -> int:
        found: Any = self.object_list
        return int(found[:_MOST_COUNTED].count())


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # takes none at run time
    """Rows that the mirror or the engine wrote."""

    paginator = BoundedPaginator
    show_full_result_count = False
    actions = None
    list_per_page = 50

    def has_module_permission(self, request: HttpRequest) -> bool:
        return may(request, Right.VIEW_JOB)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return may(request, Right.VIEW_JOB)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)[:100_000]


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Jobs. Payloads are shown masked; revealing one is for the job's page, which records it."""

    list_display = ("job_id", "queue", "state", "handler", "attempts", "cause", "since")
    list_filter = ("state", "queue")
    search_fields = ("=job_id",)
    search_help_text = "The whole id of a job."
    ordering = ("-pk",)
    exclude = ("spec", "error", "result", "last_event", "unique_digest")
    readonly_fields = ("payload", "last_error", "returned")

    @admin.display(description="payload, masked")
    def payload(self, row: Job) -> str:
        spec = row.spec_decoded()
        if spec is None:
            return "not known, or it can't be read"
        return _pretty(mask({"args": spec.args, "kwargs": spec.kwargs}, config().secret_names)[0])

    @admin.display(description="last error")
    def last_error(self, row: Job) -> str:
        error = row.error_decoded()
        return mask_text(_pretty(error), config().secret_names) if error else "–"

    @admin.display(description="result, masked")
    def returned(self, row: Job) -> str:
        return _pretty(mask(row.as_job().result, config().secret_names)[0]) if row.result else "–"


@admin.register(JobEvent)
class JobEventAdmin(ReadOnlyAdmin):
    list_display = ("at", "queue", "job_id", "verb", "from_state", "to_state", "actor")
    search_fields = ("=job_id",)
    ordering = ("-pk",)

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        if not search_term:
            return queryset, False
        # By the index on (queue, job): an id alone has none.
        places = Job.objects.filter(job_id=search_term.strip()).values_list("queue", flat=True)
        return queryset.filter(queue__in=list(places), job_id=search_term.strip()), False


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin):
    list_display = ("ended_at", "queue", "job_id", "number", "cause", "policy", "policy_version", "is_last")
    exclude = ("error",)
    readonly_fields = ("failure",)
    ordering = ("-pk",)

    @admin.display(description="error")
    def failure(self, row: Attempt) -> str:
        error = row.error_decoded()
        return mask_text(_pretty(error), config().secret_names) if error else "–"


@admin.register(Effect)
class EffectAdmin(ReadOnlyAdmin):
    list_display = ("created_at", "queue", "idempotency_key", "key", "delivery")
    exclude = ("result",)
    ordering = ("-pk",)


@admin.register(MirrorState)
class MirrorStateAdmin(ReadOnlyAdmin):
    list_display = (
        "queue", "lag_events", "lag_s", "events_lost", "gaps", "gap_at", "set_aside_total", "updated_at",
    )  # fmt: skip
    ordering = ("queue",)


@admin.register(SetAsideEvent)
class SetAsideEventAdmin(ReadOnlyAdmin):
    list_display = ("set_aside_at", "queue", "stream_id", "job_id", "why")
    exclude = ("fields",)
    readonly_fields = ("said",)

    @admin.display(description="fields, masked")
    def said(self, row: SetAsideEvent) -> str:
        return mask_text(_pretty(row.fields), config().secret_names)


@admin.register(Operation)
class OperationAdmin(ReadOnlyAdmin):
    list_display = ("created_at", "verb", "queue", "status", "total", "done", "skipped", "actor")
    list_filter = ("status", "verb")


@admin.register(OperatorAction)
class OperatorActionAdmin(ReadOnlyAdmin):
    list_display = ("at", "actor_name", "verb", "queue", "job_id", "count", "reason")
    search_fields = ("=actor_name", "=queue")
    ordering = ("-at", "-id")


@admin.register(WorkerRecord)
class WorkerRecordAdmin(ReadOnlyAdmin):
    list_display = ("worker", "host", "pid", "first_seen_at", "last_seen_at", "stopped_at")
    ordering = ("-last_seen_at",)
