"""Bulk actions: asked for, started, watched, paused, ended and taken back."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard import acts, bulk
from dashboard.access import may, needs
from dashboard.answers import answered, wants_fragment
from dashboard.bulk import JobSet
from dashboard.forms import OperationForm
from dashboard.htmx import render_page
from queueops import models, operations
from queueops.actors import who
from queueops.operations import Plan
from queueops.rights import Right

PAGE_SIZE = 50
OPEN = set(models.Operation.OPEN)


@require_safe
@needs(Right.VIEW_JOB)
def operations_list(request: HttpRequest) -> HttpResponse:
    """Show every bulk action, those that go on first."""
    found = models.Operation.objects.order_by("-created_at", "-id")
    before = request.GET.get("before", "")
    if before:
        at, _, pk = before.rpartition("~")
        created = parse_datetime(at) if at else None
        if created is None:
            raise Http404("no such page")
        found = found.filter(Q(created_at__lt=created) | Q(pk__lt=pk), created_at__lte=created)
    trouble = ""
    try:
        rows = list(found[: PAGE_SIZE + 1])
    except DatabaseError as error:
        rows, trouble = [], type(error).__name__
    more, rows = len(rows) > PAGE_SIZE, rows[:PAGE_SIZE]
    context = {
        "rows": [shown(row) for row in rows],
        "next": f"{rows[-1].created_at.isoformat()}~{rows[-1].pk}" if more else "",
        "before": before,
        "any_open": any(row.status in OPEN for row in rows),
        "here": request.get_full_path(),
        "trouble": trouble,
    }
    return render_page(request, "dashboard/operations.html", "operation-list", context)


@require_safe
@needs(Right.VIEW_JOB)
def operation(request: HttpRequest, operation_id: str) -> HttpResponse:
    """Show one bulk action: its set, its progress, what became of it."""
    row = get_object_or_404(models.Operation, pk=operation_id)
    return render_page(request, "dashboard/operation.html", "operation-body", _context(request, row))


def _context(request: HttpRequest, row: models.Operation) -> dict[str, Any]:
    return {
        "each": shown(row),
        "row": row,
        "now": timezone.now(),
        "may_operate": may(request.user, Right.RUN_OPERATION) and may(request.user, acts.RIGHT_OF[row.verb]),
        "can_undo": row.verb == "discard" and row.done > 0 and row.status not in OPEN,
    }


def shown(row: models.Operation) -> dict[str, Any]:
    """Return an operation as pages show it."""
    seen = row.done + row.skipped
    total = row.total or 0
    results = {name: count for name, count in row.results.items() if isinstance(count, int) and name != "ok"}
    return {
        "row": row,
        "is_open": row.status in OPEN,
        "words": bulk.words(row.queue, row.from_state, row.filter),
        "percent": min(100, round(100 * seen / total)) if total else (100 if row.status == "finished" else 0),
        "seen": seen,
        "results": [{"why": acts.why(name), "count": count} for name, count in results.items()],
        "samples": _samples(row),
        "again": row.results.get("again"),
        "plan": plan_words(row.arguments),
    }


def _samples(row: models.Operation) -> list[dict[str, str]]:
    found = []
    for word, kept in (row.results.get("samples") or {}).items():
        found += [{"id": str(entry[0]), "why": acts.why(word)} for entry in kept[:3]]
    return found


def plan_words(given: dict[str, Any]) -> str:
    """Return how an operation goes about it, in words."""
    said = []
    if canary := given.get("canary"):
        said.append(f"first {canary:,}, then it waits for a look")
    if rate := given.get("rate"):
        said.append(f"{rate:g} a second")
    if spread := given.get("spread_s"):
        said.append(f"spread over {spread:g} s")
    if delay := given.get("delay_s"):
        said.append(f"{delay:g} s from now")
    if share := given.get("stop_share"):
        said.append(f"stops by itself when over {100 * share:g} % fail again")
    if (after := given.get("stop_after_s")) is not None:
        said.append(f"asked first, stopped hard after {after:g} s")
    return ", ".join(said) or "all at once"


@require_http_methods(["GET", "HEAD"])
@needs(Right.RUN_OPERATION)
def operation_form(request: HttpRequest) -> HttpResponse:
    """Show the set with its true count, and ask how to go about it."""
    wanted = _set(request.GET)
    verb = request.GET.get("verb", "")
    return _form(request, wanted, verb if verb in wanted.verbs else "")


@require_POST
@needs(Right.RUN_OPERATION)
def operation_start(request: HttpRequest) -> HttpResponse:
    """Freeze the set that was shown and start on it."""
    wanted = _set(request.POST)
    form = OperationForm(request.POST)
    verb = request.POST.get("verb", "")
    if verb not in wanted.verbs:
        return _form(request, wanted, "", "Say what is to be done.")
    if not may(request.user, acts.RIGHT_OF[verb]):
        raise PermissionDenied(acts.RIGHT_OF[verb])
    if not form.is_valid():
        field, errors = next(iter(form.errors.items()))
        return _form(request, wanted, verb, f"{field.replace('_', ' ')}: {errors[0]}")
    given = form.cleaned_data
    if acts.needs_typing(verb, wanted.count) and given["typed"] != wanted.count:
        return _form(request, wanted, verb, f"Type {wanted.count:,}, the number of jobs, to {verb} them.")
    try:
        row = operations.start(
            verb,
            wanted.selection(),
            plan(verb, given),
            **who(request.user),
            reason=given["reason"],
            total=wanted.count,
        )
    except ValueError as error:
        return _form(request, wanted, verb, str(error))
    return to_operation(request, row)


def to_operation(request: HttpRequest, row: models.Operation) -> HttpResponse:
    """Send who started an operation to its page."""
    page = reverse("operation", args=[row.pk])
    if wants_fragment(request):
        response = HttpResponse(status=HTTPStatus.NO_CONTENT)
        response["HX-Redirect"] = page
        return response
    return HttpResponseRedirect(page)


def plan(verb: str, given: dict[str, Any]) -> Plan:
    """Return what a form says of how to go about it, as far as the verb can do it."""
    runs = verb in {"requeue", "run_now"}
    return Plan(
        canary=given["canary"],
        rate=given["rate"],
        spread_s=given["spread"],
        delay_s=(given["after"] or 0.0)
        if verb == "reschedule"
        else (given["after"] if verb == "requeue" else None),
        stop_share=given["stop_percent"] / 100 if runs and given["stop_percent"] else None,
        stop_after_s=given["stop_after"] if verb == "cancel" else None,
    )


def _set(given: Any) -> JobSet:
    try:
        return JobSet.read(given)
    except (ValueError, TypeError) as error:
        raise Http404(str(error)) from None


def _form(request: HttpRequest, wanted: JobSet, verb: str, error: str = "") -> HttpResponse:
    verbs = [each for each in wanted.verbs if may(request.user, acts.RIGHT_OF[each])]
    chosen = verb or (verbs[0] if verbs else "")
    given = request.POST if request.method == "POST" else {}
    values = {
        "set": wanted,
        "verb": chosen,
        "verbs": verbs,
        "count": wanted.count,
        "must_type": {each: acts.needs_typing(each, wanted.count) for each in verbs}.get(chosen, False),
        "runs": chosen in {"requeue", "run_now"},
        "canary": given.get(
            "canary", str(bulk.CANARY) if chosen == "requeue" and wanted.count > bulk.CANARY else ""
        ),
        "stop_percent": given.get("stop_percent", str(bulk.STOP_PERCENT)),
        "given": given,
        "error": error,
        "next": _origin(wanted),
    }
    response = render_page(request, "dashboard/operation_form.html", "operation-form", values)
    if error:
        response.status_code = HTTPStatus.UNPROCESSABLE_ENTITY
    return response


def _origin(wanted: JobSet) -> str:
    if wanted.queue:
        return f"{reverse('queue', args=[wanted.queue])}?state={wanted.state.value}"
    return reverse("causes")


@require_POST
@needs(Right.RUN_OPERATION)
def operation_pause(request: HttpRequest, operation_id: str) -> HttpResponse:
    """Let it rest after its step."""
    return _turn(request, operation_id, "pause", operations.pause, "It rests")


@require_POST
@needs(Right.RUN_OPERATION)
def operation_resume(request: HttpRequest, operation_id: str) -> HttpResponse:
    """Let it go on, past its canary too."""
    return _turn(request, operation_id, "resume", operations.resume, "It goes on")


@require_POST
@needs(Right.RUN_OPERATION)
def operation_cancel(request: HttpRequest, operation_id: str) -> HttpResponse:
    """End it where it is; what it did stays done."""
    return _turn(request, operation_id, "cancel", operations.cancel, "It has ended; what it did stays done")


def _turn(request: HttpRequest, operation_id: str, verb: str, turn: Any, text: str) -> HttpResponse:
    row = get_object_or_404(models.Operation, pk=operation_id)
    if not may(request.user, acts.RIGHT_OF[row.verb]):
        raise PermissionDenied(acts.RIGHT_OF[row.verb])
    before = row.status
    did = turn(operation_id)
    row.refresh_from_db()
    acts.record(
        request.user, f"{verb}_operation", row.queue, count=int(did), operation=row.pk,
        reason=request.POST.get("reason", "")[:500], before={"status": before}, after={"status": row.status},
    )  # fmt: skip
    said = text if did else f"Not done: it is {row.get_status_display()} now"
    return answered(request, said, good=did, refresh=True, back=reverse("operation", args=[row.pk]))


@require_POST
@needs(Right.RUN_OPERATION)
def operation_undo(request: HttpRequest, operation_id: str) -> HttpResponse:
    """Restore what a bulk discard set aside, as an operation of its own."""
    row = get_object_or_404(models.Operation, pk=operation_id)
    if row.verb != "discard" or row.status in OPEN:
        raise Http404("only a discard that has ended can be taken back")
    if not may(request.user, acts.RIGHT_OF["restore"]):
        raise PermissionDenied(acts.RIGHT_OF["restore"])
    new = bulk.undo_discard(request.user, row.queue, row.pk, row.done)
    to = reverse("operation", args=[new])
    return answered(request, "They are being restored", refresh=True, back=to)
