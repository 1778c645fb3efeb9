"""What fails: the causes over all queues, and one of them."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard import acts, bulk, causes
from dashboard.access import may, needs
from dashboard.bulk import JobSet
from dashboard.htmx import render_page
from queueops.errors import QueueOpsError
from queueops.rights import Right
from queueops.states import JobState


@require_safe
@needs(Right.VIEW_JOB)
def causes_list(request: HttpRequest) -> HttpResponse:
    """Show failing and dead jobs by cause."""
    context: dict[str, Any] = {"causes": [], "more": 0, "now": None, "trouble": ""}
    try:
        context["causes"], context["more"], context["now"] = causes.read()
    except QueueOpsError as error:
        context["trouble"] = str(error)
    return render_page(request, "dashboard/causes.html", "cause-list", context)


@require_safe
@needs(Right.VIEW_JOB)
def cause(request: HttpRequest, cause: str) -> HttpResponse:
    """Show one cause, and offer what can be done about its jobs."""
    context: dict[str, Any] = {"cause_id": cause, "each": None, "trouble": ""}
    try:
        found = causes.read_one(cause)
        if found is None:
            raise Http404(f"no cause {cause}")
        context["each"], context["now"] = found
        verb = request.GET.get("verb", "")
        context |= action(request, cause, found[0], verb if verb in ("requeue", "discard") else "requeue")
    except QueueOpsError as error:
        context["trouble"] = str(error)
    return render_page(request, "dashboard/cause.html", "cause-body", context)


def action(request: HttpRequest, cause: str, shown: causes.Shown, verb: str) -> dict[str, Any]:
    """Return what the form for a whole cause needs: its dead jobs in every queue."""
    dead = JobSet("", JobState.DEAD, cause=cause)
    verbs = [each for each in ("requeue", "discard") if may(request.user, acts.RIGHT_OF[each])]
    may_operate = bool(verbs) and may(request.user, Right.RUN_OPERATION)
    count = shown.summary.dead
    return {
        "may_operate": may_operate,
        "set": dead,
        "count": count,
        "verbs": verbs,
        "verb": verb if verb in verbs else (verbs[0] if verbs else ""),
        "runs": verb == "requeue",
        "must_type": acts.needs_typing(verb, count),
        "canary": str(bulk.CANARY) if verb == "requeue" and count > bulk.CANARY else "",
        "stop_percent": str(bulk.STOP_PERCENT),
        "given": {},
    }
