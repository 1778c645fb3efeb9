"""What is done to a queue as a whole: pause, resume, limits."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard import acts, estimates, hints
from dashboard.access import needs
from dashboard.answers import Undo, answered, next_url
from dashboard.forms import LimitsForm, PauseForm, ReasonForm, first_error
from dashboard.htmx import render_page
from dashboard.templatetags.dashboard import count, duration
from queueops import models, publishing
from queueops.actors import who
from queueops.errors import PolicyError, QueueOpsError, StoreUnavailable
from queueops.inspector import Inspector
from queueops.job import from_ms
from queueops.policies import DEFAULT_POLICY, describe
from queueops.rights import Right

LIMITS = ("concurrency", "rate_per_s", "rate_burst", "default_policy")


@require_safe
@needs(Right.PAUSE_QUEUE)
def queue_pause_form(request: HttpRequest, queue: str) -> HttpResponse:
    """Ask why, and until when."""
    must_exist(queue)
    return _pause_page(request, queue)


@require_POST
@needs(Right.PAUSE_QUEUE)
def queue_pause(request: HttpRequest, queue: str) -> HttpResponse:
    """Stop claims from a queue; what runs goes on. One that is paused gets another reason and end."""
    must_exist(queue)
    form = PauseForm(request.POST)
    if not form.is_valid():
        return _pause_page(request, queue, first_error(form))
    until = form.until(from_ms(Inspector().now_ms()))
    try:
        publishing.pause(queue, **who(request.user), reason=form.cleaned_data["reason"], until=until)
    except StoreUnavailable:
        return _later(request, queue, f"{queue} will be paused")
    hints.hint(queue)
    text = f"{queue} is paused" + (f" until {until:%Y-%m-%d %H:%M:%S} UTC" if until else "")
    undo = Undo(reverse("queue-resume", args=[queue]), "Resume")
    return answered(request, text, undo=undo, refresh=True, close=True, back=_page(queue))


@require_POST
@needs(Right.PAUSE_QUEUE)
def queue_resume(request: HttpRequest, queue: str) -> HttpResponse:
    """Let a paused queue be claimed from again. 409 when it is not paused: somebody was first."""
    must_exist(queue)
    form = ReasonForm(request.POST)
    reason = form.cleaned_data["reason"] if form.is_valid() else ""
    row = models.Queue.objects.filter(pk=queue).first()
    if row is not None and not row.paused:
        acts.record(request.user, "resume", queue, count=0, reason=reason, after={"paused": False})
        return answered(request, f"{queue} is not paused", good=False, refresh=True, back=_page(queue))
    try:
        publishing.resume(queue, **who(request.user), reason=reason)
    except StoreUnavailable:
        return _later(request, queue, f"{queue} will be resumed")
    hints.hint(queue)
    return answered(request, f"{queue} goes on", refresh=True, close=True, back=_page(queue))


@require_safe
@needs(Right.EDIT_POLICY)
def queue_limits_form(request: HttpRequest, queue: str) -> HttpResponse:
    """Show a queue's limits and what others would do."""
    must_exist(queue)
    row = models.Queue.objects.filter(pk=queue).first() or models.Queue(name=queue)
    given = {name: getattr(row, name) for name in LIMITS}
    given["default_policy"] = row.default_policy.name if row.default_policy else ""
    typed = {name: request.GET[name] for name in LIMITS if name in request.GET}
    return _limits_page(request, row, {**given, **typed})


@require_POST
@needs(Right.EDIT_POLICY)
def queue_limits(request: HttpRequest, queue: str) -> HttpResponse:
    """Change a queue's limits; running workers follow within a claim."""
    must_exist(queue)
    row = models.Queue.objects.filter(pk=queue).first() or models.Queue(name=queue)
    form = LimitsForm(request.POST)
    if not form.is_valid():
        return _limits_page(request, row, request.POST, first_error(form))
    changes = {name: form.cleaned_data[name] for name in LIMITS}
    try:
        publishing.change_queue(
            queue, changes, **who(request.user), reason=form.cleaned_data["reason"], verb="edit_limits"
        )
    except StoreUnavailable:
        return _later(request, queue, f"the limits of {queue} will change")
    except ValidationError as error:
        return _limits_page(request, row, request.POST, " ".join(error.messages))
    hints.hint(queue)
    return answered(request, f"{queue}: {limits_words(changes)}", refresh=True, close=True, back=_page(queue))


def _pause_page(request: HttpRequest, queue: str, error: str = "") -> HttpResponse:
    values = {"queue": queue, "error": error, "given": request.POST, "next": next_url(request, _page(queue))}
    response = render_page(request, "dashboard/queue_pause.html", "pause-form", values)
    if error:
        response.status_code = HTTPStatus.UNPROCESSABLE_ENTITY
    return response


def _limits_page(request: HttpRequest, row: models.Queue, given: Any, error: str = "") -> HttpResponse:
    values = {
        "queue": row.name,
        "row": row,
        "given": {name: "" if given.get(name) is None else given.get(name) for name in LIMITS},
        "reason": given.get("reason", ""),
        "error": error,
        "effect": effect(row, given),
        "policies": models.RetryPolicy.objects.all(),
        "next": next_url(request, _page(row.name)),
    }
    response = render_page(request, "dashboard/queue_limits.html", "limits-form", values)
    if error:
        response.status_code = HTTPStatus.UNPROCESSABLE_ENTITY
    return response


def effect(row: models.Queue, given: Any) -> str:
    """Return what the next hour brings under these limits, as a sentence; '' when they can't be read."""
    form = LimitsForm(given)
    if not form.is_valid():
        return ""
    try:
        hour = estimates.next_hour(row.name)
    except QueueOpsError:
        return "Redis does not answer, so the effect can't be estimated."
    now = hour.tries(concurrency=row.concurrency, rate_per_s=row.rate_per_s)
    then = hour.tries(
        concurrency=form.cleaned_data["concurrency"], rate_per_s=form.cleaned_data["rate_per_s"]
    )
    said = f"Next hour: {count(then)} tries"
    said += f" instead of {count(now)}" if then != now else ", as now"
    left = hour.wanted - then
    if left > 0:
        said += f"; {count(left)} wait longer"
    parts = f"{count(hour.due)} fall due, {count(hour.ready)} are ready, about {count(hour.coming)} come in"
    ran = f"; one runs {duration(hour.mean_run_s)} on average" if hour.mean_run_s else ""
    return f"{said}. ({parts}{ran}.){_retries(row, form.cleaned_data['default_policy'])}"


def _retries(row: models.Queue, chosen: models.RetryPolicy | None) -> str:
    """Return what another retry policy changes, as a sentence; '' for the one that the queue has."""
    try:
        old = row.default_policy.policy() if row.default_policy else DEFAULT_POLICY
        new = chosen.policy() if chosen else DEFAULT_POLICY
    except PolicyError as error:  # written past every check
        return f" A retry policy can't be used: {error}."
    if (old.name, old.version) == (new.name, new.version):
        return ""
    before, after = (estimates.retries_within_an_hour(policy) for policy in (old, new))
    tries = f"{count(after)} time{'' if after == 1 else 's'} in its first hour instead of {count(before)}"
    return f" A failing job is tried again {tries}: {describe(new)}."


def limits_words(limits: dict[str, Any]) -> str:
    """Return limits as a person reads them."""
    said = []
    if limits.get("concurrency"):
        said.append(f"at most {limits['concurrency']:,} at once")
    if limits.get("rate_per_s"):
        said.append(f"{limits['rate_per_s']:g} a second")
    if limits.get("default_policy"):
        said.append(f"retries by {limits['default_policy'].name}")
    return " and ".join(said) or "no limit"


def _later(request: HttpRequest, queue: str, text: str) -> HttpResponse:
    told = f"{text} as soon as Redis answers; it is written down"
    return answered(request, told, good=False, status=HTTPStatus.ACCEPTED, close=True, back=_page(queue))


def must_exist(queue: str) -> None:
    """Raise Http404 for a queue that neither Redis nor the record knows."""
    from dashboard import queries

    snapshot = queries.snapshot()
    if not any(each.queue == queue for each in snapshot.queues):
        try:
            get_object_or_404(models.Queue, pk=queue)
        except Http404:
            if queue not in Inspector().queues():
                raise


def _page(queue: str) -> str:
    return reverse("queue", args=[queue])
