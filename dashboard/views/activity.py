"""Who did what and why: every operator action, with filters, an export and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.http import urlencode
from django.views.decorators.http import require_POST, require_safe

from dashboard import acts, bulk, edits, hints, payloads
from dashboard.access import may, needs
from dashboard.answers import answered
from dashboard.exports import csv_response
from dashboard.htmx import render_page
from dashboard.views.holds import lift
from queueops import models, publishing
from queueops.actors import who
from queueops.errors import CorruptSpec, StoreUnavailable
from queueops.masking import mask
from queueops.payload import decode_spec
from queueops.rights import Right

PAGE_SIZE = 50
UNDO_S = 86_400
EXPORT_MOST = 100_000


@require_safe
@needs(Right.VIEW_JOB)
def activity(request: HttpRequest) -> HttpResponse:
    """Show what people did, newest first; the URL holds the filter."""
    wanted = _filter(request)
    found = _matching(wanted)
    before = request.GET.get("before", "")
    if before:
        at, _, pk = before.rpartition("~")
        seen = parse_datetime(at) if at else None
        if seen is None or not pk.isdigit():
            raise Http404("no such page")
        found = found.filter(Q(at__lt=seen) | Q(pk__lt=int(pk)), at__lte=seen)
    trouble, verbs, people = "", [], []
    try:
        rows = list(found.order_by("-at", "-id")[: PAGE_SIZE + 1])
        verbs, people = _distinct("verb"), _people()
    except DatabaseError as error:
        rows, trouble = [], type(error).__name__
    more, rows = len(rows) > PAGE_SIZE, rows[:PAGE_SIZE]
    context = {
        "rows": [{**shown(row), "can_undo": can_undo(row) and may_undo(request, row)} for row in rows],
        "wanted": wanted,
        "before": before,
        "query": urlencode({name: value for name, value in wanted.items() if value}),
        "next": f"{rows[-1].at.isoformat()}~{rows[-1].pk}" if more else "",
        "verbs": verbs,
        "people": people,
        "trouble": trouble,
        "now": timezone.now(),
        "here": request.get_full_path(),
    }
    return render_page(request, "dashboard/activity.html", "activity-list", context)


def _filter(request: HttpRequest) -> dict[str, str]:
    return {name: request.GET.get(name, "").strip()[:150] for name in ("person", "queue", "verb", "job")}


def _matching(wanted: dict[str, str]) -> QuerySet[models.OperatorAction]:
    found = models.OperatorAction.objects.all()
    if wanted["person"]:
        found = found.filter(actor_name=wanted["person"])
    if wanted["queue"]:
        found = found.filter(queue=wanted["queue"])
    if wanted["verb"]:
        found = found.filter(verb=wanted["verb"])
    if wanted["job"]:
        found = found.filter(job_id=wanted["job"])
    return found


def _distinct(field: str) -> list[str]:
    """Return what a filter may choose from, by the newest thousand actions."""
    newest = models.OperatorAction.objects.order_by("-at", "-id").values_list(field, flat=True)[:1_000]
    return sorted(set(newest))


def _people() -> list[str]:
    return [name for name in _distinct("actor_name") if name]


def shown(row: models.OperatorAction) -> dict[str, Any]:
    """Return an action as the page shows it."""
    after = row.after if isinstance(row.after, dict) else {}
    before = row.before if isinstance(row.before, dict) else {}
    given = row.filter if isinstance(row.filter, dict) else {}
    return {
        "row": row,
        "of": _of(row, given),
        "answers": [acts.why(word) for word in (after.get("answers") or {}) if word != "ok"],
        "changes": _changes(before, after),
        "difference": _difference(before, after),
    }


def _of(row: models.OperatorAction, given: dict[str, Any]) -> str:
    if worker := given.get("worker"):
        return f"worker {worker}"
    if policy := given.get("policy"):
        return f"policy {policy}"
    if row.job_id:
        return ""
    if given:
        return bulk.words(row.queue, str(given.get("state", "")), given)
    return ""


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return what changed of settings: "rate_per_s: none to 5"."""
    hidden = {"spec", "answers", "answer", "states", "state", "status", "paused", "paused_reason"}
    found = []
    for name in after:
        if name not in hidden and name in before and before[name] != after[name]:
            old, new = (_value(value) for value in (before[name], after[name]))
            found.append(f"{name.replace('_', ' ')}: {old} to {new}")
    return found


def _value(value: Any) -> str:
    """Return a setting as a person reads it; an instant to the second."""
    if value in (None, ""):
        return "none"
    at = parse_datetime(value) if isinstance(value, str) and len(value) >= 16 else None
    return f"{at:%Y-%m-%d %H:%M:%S} UTC" if at is not None else str(value)


def _difference(before: dict[str, Any], after: dict[str, Any]) -> list[edits.Line]:
    """Return what an edit of a payload changed, secrets masked."""
    if "spec" not in before or "spec" not in after:
        return []
    old, new = (_payload(side["spec"]) for side in (before, after))
    return edits.difference(old, new) if old is not None and new is not None else []


def _payload(kept: str) -> Any:
    import base64
    import binascii

    try:
        spec = decode_spec(base64.b64decode(kept, validate=True))
    except (CorruptSpec, binascii.Error, ValueError):
        return None
    value, _ = mask(
        {"args": payloads.plain(spec.args), "kwargs": payloads.plain(spec.kwargs)}, payloads.also_secret()
    )
    return value


def can_undo(row: models.OperatorAction) -> bool:
    """Tell whether a button can take this back: a discard, a pause or a hold of the last 24 hours."""
    recent = (timezone.now() - row.at).total_seconds() < UNDO_S
    return recent and row.count > 0 and row.verb in {"discard", "pause", "hold"}


def may_undo(request: HttpRequest, row: models.OperatorAction) -> bool:
    """Tell whether the viewer has the rights that taking this back asks for."""
    if row.verb in {"pause", "hold"}:
        return may(request.user, Right.PAUSE_QUEUE)
    is_bulk = bool(row.operation)
    return may(request.user, acts.RIGHT_OF["restore"]) and (
        not is_bulk or may(request.user, Right.RUN_OPERATION)
    )


@require_safe
@needs(Right.VIEW_JOB)
def activity_export(request: HttpRequest) -> HttpResponseBase:
    """Write the filtered actions as CSV."""
    rows = _matching(_filter(request)).order_by("-at", "-id")[:EXPORT_MOST]
    head = ("at", "who", "what", "queue", "job", "of", "count", "reason", "changes", "operation")
    return csv_response("activity", head, _cells(rows))


def _cells(rows: QuerySet[models.OperatorAction]) -> Iterator[list[Any]]:
    for row in rows.iterator(chunk_size=500):
        each = shown(row)
        yield [
            row.at.isoformat(), row.actor_name or row.actor, row.verb, row.queue, row.job_id, each["of"],
            row.count, row.reason, "; ".join(each["changes"] + each["answers"]), row.operation,
        ]  # fmt: skip


@require_POST
@needs(Right.VIEW_JOB)
def action_undo(request: HttpRequest, action_id: int) -> HttpResponse:
    """Take an action back: restore what it discarded, resume what it paused, lift what it held."""
    row = get_object_or_404(models.OperatorAction, pk=action_id)
    if not can_undo(row):
        raise Http404("this can't be taken back")
    if not may_undo(request, row):
        raise PermissionDenied("undo")
    if row.verb == "pause":
        return _resume(request, row)
    if row.verb == "hold":
        [(kind, value)] = (row.filter or {}).items()
        held = models.QueueHold.objects.filter(queue=row.queue, kind=kind, value=value).first()
        return lift(request, row.queue, held.pk if held else 0)
    back = reverse("activity")
    if row.operation:
        new = bulk.undo_discard(request.user, row.queue, row.operation, row.count)
        to = reverse("operation", args=[new])
        return answered(request, "They are being restored", back=to, refresh=True)
    ids = [row.job_id] if row.job_id else [str(each) for each in (row.filter or {}).get("ids", [])]
    outcome = acts.act(request.user, "restore", row.queue, ids, reason=f"undo of action {row.pk}")
    return answered(request, outcome.words, good=bool(outcome.done), refresh=True, back=back)


def _resume(request: HttpRequest, row: models.OperatorAction) -> HttpResponse:
    queue = models.Queue.objects.filter(pk=row.queue).first()
    if queue is None or not queue.paused:
        return answered(request, f"{row.queue} is not paused", good=False, back=reverse("activity"))
    try:
        publishing.resume(
            row.queue,
            **who(request.user),
            reason=f"undo of action {row.pk}",
        )
    except StoreUnavailable:
        text = f"{row.queue} will be resumed as soon as Redis answers"
        return answered(request, text, good=False, status=HTTPStatus.ACCEPTED, back=reverse("activity"))
    hints.hint(row.queue)
    return answered(request, f"{row.queue} goes on", refresh=True, back=reverse("activity"))
