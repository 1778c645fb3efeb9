"""One job: its page, and one view for each verb that a person may do to it."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard import acts, edits, hints, histories, payloads, queries
from dashboard.access import may, needs
from dashboard.answers import Undo, answered, wants_fragment
from dashboard.forms import EditForm, ReasonForm, RescheduleForm, first_error
from dashboard.histories import History
from dashboard.htmx import render_page
from dashboard.lists import Row
from queueops.actors import who
from queueops.inspector import Inspector
from queueops.job import Job, from_ms, to_ms
from queueops.rights import Right
from queueops.states import JobState
from queueops.store import Store

View = Callable[[HttpRequest, str, str], HttpResponseBase]


@require_safe
@needs(Right.VIEW_JOB)
def job(request: HttpRequest, queue: str, job_id: str) -> HttpResponse:
    """Show all that is known of one job."""
    history = histories.read(queue, job_id)
    if history is None:
        raise Http404(f"no job {job_id} in {queue}")
    return render_page(request, "dashboard/job.html", "job-body", context(request, history))


def context(request: HttpRequest, history: History, *, reveal: bool = False) -> dict[str, object]:
    """Return what a job's page is rendered from."""
    job = history.job
    state = job.state if isinstance(job.state, JobState) else None
    verbs = [v for v in acts.VERBS_IN.get(state, ()) if may(request.user, acts.RIGHT_OF[v])] if state else []
    return {
        "history": history,
        "job": job,
        "queue": job.queue,
        "digest": hints.digest(queries.summary_of(job.queue)),
        "now": history.now,
        "now_ms": to_ms(history.now),
        "payload": payloads.show(payloads.payload_of(job), reveal=reveal),
        "result": payloads.show(job.result) if job.result is not None else None,
        "command": payloads.command_for(job, reveal=reveal),
        "revealed": reveal,
        "verbs": verbs,
        "may_edit": may(request.user, Right.REQUEUE_JOB) and is_editable(job),
        "may_reveal": may(request.user, Right.VIEW_PAYLOAD),
        "timeline": histories.events_of(history),
    }


def is_editable(job: Job) -> bool:
    """Tell whether the engine lets a job's payload be replaced now."""
    is_still = job.state in {JobState.DELAYED, JobState.READY, JobState.DEAD, JobState.DISCARDED}
    return bool(is_still and job.handler and not job.corrupt)


def verb_view(verb: str) -> View:
    """Return the view that does `verb` to one job and answers with its true state."""

    @require_POST
    @needs(acts.RIGHT_OF[verb])
    def view(request: HttpRequest, queue: str, job_id: str) -> HttpResponseBase:
        form = ReasonForm(request.POST)
        reason = form.cleaned_data["reason"] if form.is_valid() else ""
        if acts.needs_typing(verb, 1) and request.POST.get("typed", "").strip() != "1":
            return _form(request, queue, job_id, verb, "Type 1, the number of jobs, to purge it.")
        outcome = acts.act(request.user, verb, queue, [job_id], reason=reason)
        return done(request, outcome, job_id)

    return view


job_requeue = verb_view("requeue")
job_run_now = verb_view("run_now")
job_discard = verb_view("discard")
job_restore = verb_view("restore")
job_purge = verb_view("purge")
job_cancel = verb_view("cancel")


@require_POST
@needs(Right.REQUEUE_JOB)
def job_reschedule(request: HttpRequest, queue: str, job_id: str) -> HttpResponseBase:
    """Give a delayed job another run-at."""
    form = RescheduleForm(request.POST)
    if not form.is_valid():
        return _form(request, queue, job_id, "reschedule", first_error(form))
    run_at_ms = form.run_at_ms(Inspector().now_ms())
    outcome = acts.act(
        request.user,
        "reschedule",
        queue,
        [job_id],
        reason=form.cleaned_data["reason"],
        argument=run_at_ms,
        details={"run_at": from_ms(run_at_ms).isoformat()},
    )
    return done(request, outcome, job_id)


def done(request: HttpRequest, outcome: acts.Outcome, job_id: str) -> HttpResponse:
    """Answer with the job as it is now: its row to a list, its page to its page."""
    good = not outcome.refused
    text = f"{outcome.words}: {job_id}"
    undo = undo_of(request, outcome)
    if request.POST.get("as") == "row":
        return answered(
            request, text, fragment=row_html(request, outcome.queue, job_id), good=good, undo=undo
        )
    page = reverse("job", args=[outcome.queue, job_id])
    if not wants_fragment(request):
        if good:
            return answered(request, text, back=page)
        history = histories.read(outcome.queue, job_id)
        if history is None:
            raise Http404(f"no job {job_id} in {outcome.queue}")
        return render(
            request,
            "dashboard/job.html",
            {**context(request, history), "notice": text},
            status=HTTPStatus.CONFLICT,
        )
    return answered(request, text, good=good, undo=undo, refresh=True, close=True)


def undo_of(request: HttpRequest, outcome: acts.Outcome) -> Undo | None:
    """Return how a discard is taken back."""
    if outcome.verb == "discard" and outcome.done and outcome.action:
        return Undo(reverse("action-undo", args=[outcome.action]))
    return None


def row_html(request: HttpRequest, queue: str, job_id: str) -> str:
    """Render a job's row for a list in which it stood before: in its new state, if that is another."""
    inspector = Inspector()
    found = inspector.job(queue, job_id) or Job(id=job_id, queue=queue, state="gone")
    row = Row(found, found.since, moved=True)
    return render_to_string(
        "dashboard/_job_row.html",
        {"row": row, "columns": 3, "verbs": [], "page": {"now": from_ms(inspector.now_ms())}},
        request,
    )


@require_POST
@needs(Right.VIEW_PAYLOAD)
def job_reveal(request: HttpRequest, queue: str, job_id: str) -> HttpResponse:
    """Show a payload with its secrets; that it was looked at is recorded first."""
    history = histories.read(queue, job_id)
    if history is None:
        raise Http404(f"no job {job_id} in {queue}")
    acts.record(
        request.user, "reveal", queue, job_id=job_id, count=1, reason=request.POST.get("reason", "")[:500]
    )
    return render_page(request, "dashboard/job.html", "payload", context(request, history, reveal=True))


@require_safe
@needs(Right.REQUEUE_JOB)
def job_edit_form(request: HttpRequest, queue: str, job_id: str) -> HttpResponse:
    """Offer a job's payload for editing, its secrets masked."""
    found = _editable(queue, job_id)
    return _edit_page(request, found, edits.editable(found))


@require_POST
@needs(Right.REQUEUE_JOB)
def job_edit(request: HttpRequest, queue: str, job_id: str) -> HttpResponse:
    """Replace a job's payload: show the difference, then save it as a new edition; requeue a dead job."""
    found = _editable(queue, job_id)
    form = EditForm(request.POST)
    if not form.is_valid():
        return _edit_page(request, found, request.POST.get("payload", ""), error=first_error(form))
    text = form.cleaned_data["payload"]
    try:
        edit = edits.read(found, text)
    except ValueError as error:
        return _edit_page(request, found, text, error=str(error))
    if edit.is_same:
        return _edit_page(request, found, text, error="Nothing has changed.")
    if request.POST.get("save") != "1":
        return _edit_page(request, found, text, edit=edit, reason=form.cleaned_data["reason"])
    reason = form.cleaned_data["reason"]
    word = Store().edit(queue, job_id, edit.spec, actor=who(request.user)["actor"], reason=reason)
    acts.record(
        request.user,
        "edit",
        queue,
        job_id=job_id,
        count=int(word == "ok"),
        reason=reason,
        before={"spec": edits.kept(found.spec), "state": str(found.state)},
        after={"spec": edits.kept(edit.spec), "answer": word},
    )
    if word != "ok" or found.state is not JobState.DEAD:
        return done(request, acts.Outcome("edit", queue, {job_id: word}), job_id)
    return done(request, acts.act(request.user, "requeue", queue, [job_id], reason=reason), job_id)


def _editable(queue: str, job_id: str) -> Job:
    found = Inspector().job(queue, job_id)
    if found is None or not found.handler:
        raise Http404(f"no job {job_id} in {queue} that can be edited")
    return found


def _edit_page(
    request: HttpRequest,
    found: Job,
    text: str,
    *,
    error: str = "",
    edit: edits.Edit | None = None,
    reason: str = "",
) -> HttpResponse:
    values = {
        "job": found,
        "queue": found.queue,
        "text": text,
        "error": error,
        "edit": edit,
        "reason": reason,
        "is_dead": found.state is JobState.DEAD,
    }
    response = render_page(request, "dashboard/job_edit.html", "edit-form", values)
    if error:
        response.status_code = HTTPStatus.UNPROCESSABLE_ENTITY
    return response


@require_safe
@needs(Right.VIEW_JOB)
def job_form(request: HttpRequest, queue: str, job_id: str, verb: str) -> HttpResponse:
    """Ask what a verb needs to know before it is done to one job."""
    if verb not in acts.RIGHT_OF or verb == "edit":
        raise Http404(verb)
    return _form(request, queue, job_id, verb)


def _form(request: HttpRequest, queue: str, job_id: str, verb: str, error: str = "") -> HttpResponse:
    if not may(request.user, acts.RIGHT_OF[verb]):
        raise PermissionDenied(acts.RIGHT_OF[verb])
    values = {
        "verb": verb,
        "queue": queue,
        "ids": [job_id],
        "count": 1,
        "single": job_id,
        "action": reverse(f"job-{verb.replace('_', '-')}", args=[queue, job_id]),
        "must_type": acts.needs_typing(verb, 1),
        "error": error,
        "given": request.POST,
        "next": reverse("job", args=[queue, job_id]),
    }
    response = render_page(request, "dashboard/act_form.html", "act-form", values)
    if error:
        response.status_code = HTTPStatus.UNPROCESSABLE_ENTITY
    return response
