"""What is done to the ticked rows of a list: a view a verb, and the forms of verbs that ask something."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from dashboard import acts, hints, lists
from dashboard.access import may, needs
from dashboard.answers import answered, next_url
from dashboard.forms import ReasonForm, RescheduleForm, StopForm, first_error
from dashboard.htmx import render_page
from dashboard.views.jobs import undo_of
from dashboard.views.operations import to_operation
from queueops import operations
from queueops.actors import who
from queueops.inspector import Inspector
from queueops.job import from_ms
from queueops.operations import Plan, Selection
from queueops.rights import Right

#: More rows than this are no selection but a filter: an operation does them.
MOST = 500
#: So long a person waits for all of them to be asked, at most; the rest is asked by a runner. Seconds.
ASK_S = 1.0

View = Callable[[HttpRequest, str], HttpResponseBase]


def verb_view(verb: str) -> View:
    """Return the view that does `verb` to the jobs that are named."""

    @require_POST
    @needs(acts.RIGHT_OF[verb])
    def view(request: HttpRequest, queue: str) -> HttpResponseBase:
        ids = _ids(request)
        if not ids:
            return answered(request, "Nothing is ticked.", good=False, status=HTTPStatus.UNPROCESSABLE_ENTITY)
        if acts.needs_typing(verb, len(ids)) and _typed(request) != len(ids):
            return _form(request, queue, verb, ids, error=f"Type {len(ids)}, the number of jobs.")
        argument: object = ""
        details = {}
        if verb == "reschedule":
            when = RescheduleForm(request.POST)
            if not when.is_valid():
                message = next(f"{each}" for errors in when.errors.values() for each in errors)
                return _form(request, queue, verb, ids, error=message)
            argument = when.run_at_ms(Inspector().now_ms())
            details = {"run_at": from_ms(int(str(argument))).isoformat()}
        form = ReasonForm(request.POST)
        reason = form.cleaned_data["reason"] if form.is_valid() else ""
        outcome = acts.act(request.user, verb, queue, ids, reason=reason, argument=argument, details=details)
        # Where some were taken and some not, the text says so; nobody was first for all of them.
        return answered(
            request,
            outcome.words,
            good=bool(outcome.done),
            undo=undo_of(request, outcome),
            refresh=True,
            close=True,
            back=reverse("queue", args=[queue]),
        )

    return view


jobs_requeue = verb_view("requeue")
jobs_run_now = verb_view("run_now")
jobs_reschedule = verb_view("reschedule")
jobs_discard = verb_view("discard")
jobs_restore = verb_view("restore")
jobs_purge = verb_view("purge")


@require_POST
@needs(acts.RIGHT_OF["cancel"])
def jobs_cancel(request: HttpRequest, queue: str) -> HttpResponseBase:
    """Ask these running jobs to stop, and hard after a while: an operation, which tells who obeyed."""
    ids, form = _ids(request), StopForm(request.POST)
    if not ids:
        return answered(request, "Nothing is ticked.", good=False, status=HTTPStatus.UNPROCESSABLE_ENTITY)
    if not form.is_valid():
        return _form(request, queue, "cancel", ids, error=first_error(form))
    row = operations.start(
        "cancel",
        Selection.for_verb("cancel", queue=queue, ids=ids),
        Plan(stop_after_s=form.cleaned_data["stop_after"]),
        **who(request.user),
        reason=form.cleaned_data["reason"],
    )
    # Asked at once; a runner tells what became of them.
    operations.Runner(row.pk).run_guarded(time.monotonic() + ASK_S)
    hints.hint(queue)
    return to_operation(request, row)


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Right.VIEW_JOB)
def jobs_form(request: HttpRequest, queue: str, verb: str) -> HttpResponse:
    """Ask what a verb needs to know; changes nothing. POST only because a list of ids may be long."""
    if verb not in acts.RIGHT_OF or verb == "edit":
        raise Http404(verb)
    return _form(request, queue, verb, _ids(request))


def _form(request: HttpRequest, queue: str, verb: str, ids: list[str], error: str = "") -> HttpResponse:
    if not may(request.user, acts.RIGHT_OF[verb]):
        raise PermissionDenied(acts.RIGHT_OF[verb])
    values = {
        "verb": verb,
        "queue": queue,
        "ids": ids,
        "count": len(ids),
        "action": reverse(f"jobs-{verb.replace('_', '-')}", args=[queue]),
        "must_type": acts.needs_typing(verb, len(ids)),
        "error": error or ("" if ids else "Nothing is ticked."),
        "given": request.POST,
        "next": next_url(request, reverse("queue", args=[queue])),
    }
    response = render_page(request, "dashboard/act_form.html", "act-form", values)
    if error:
        response.status_code = HTTPStatus.UNPROCESSABLE_ENTITY
    return response


def _ids(request: HttpRequest) -> list[str]:
    given = request.POST if request.method == "POST" else request.GET
    ids = lists.ids_of(given.getlist("id"))
    if len(ids) > MOST:
        raise PermissionDenied(f"at most {MOST} jobs by name: use a filter")
    return ids


def _typed(request: HttpRequest) -> int | None:
    text = request.POST.get("typed", "").replace(",", "").strip()
    return int(text) if text.isdigit() else None
