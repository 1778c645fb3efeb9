"""Hold a part of a queue back: one handler, one cause or one tag; and lift that again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus
from typing import Any

from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard import acts, bulk, hints, known
from dashboard.access import needs
from dashboard.answers import Undo, answered, next_url
from dashboard.forms import HoldForm, ReasonForm, first_error
from dashboard.htmx import render_page
from dashboard.views.queue_settings import must_exist
from queueops import holding, models
from queueops.actors import who
from queueops.errors import StoreUnavailable
from queueops.holds import HoldKind
from queueops.inspector import Inspector
from queueops.job import from_ms
from queueops.rights import Right

#: Shows the form again, with what is wrong.
Refuse = Callable[[str], HttpResponse]


@require_safe
@needs(Right.PAUSE_QUEUE)
def queue_hold_form(request: HttpRequest, queue: str) -> HttpResponse:
    """Ask what is to be held, why, and until when."""
    must_exist(queue)
    return _queue_page(request, queue)


@require_POST
@needs(Right.PAUSE_QUEUE)
def queue_hold(request: HttpRequest, queue: str) -> HttpResponse:
    """Hold a part of a queue; what is held already gets another reason and end."""
    must_exist(queue)
    form = HoldForm(request.POST)
    if not form.is_valid():
        return _queue_page(request, queue, first_error(form))
    return _hold(request, [queue], form, lambda error: _queue_page(request, queue, error))


@require_safe
@needs(Right.PAUSE_QUEUE)
def cause_hold_form(request: HttpRequest, cause: str) -> HttpResponse:
    """Ask why what fails of a cause is to be held, in every queue, and until when."""
    return _cause_page(request, cause)


@require_POST
@needs(Right.PAUSE_QUEUE)
def cause_hold(request: HttpRequest, cause: str) -> HttpResponse:
    """Hold what fails of a cause in every queue that has such jobs."""
    form = HoldForm({**request.POST.dict(), "cause": cause})
    if not form.is_valid():
        return _cause_page(request, cause, first_error(form))
    queues = _queues_of(cause)
    return _hold(request, queues, form, lambda error: _cause_page(request, cause, error))


@require_POST
@needs(Right.PAUSE_QUEUE)
def hold_lift(request: HttpRequest, queue: str, hold_id: int) -> HttpResponse:
    """Let what a hold keeps back go on. 409 when it is over: somebody was first."""
    return lift(request, queue, hold_id)


def lift(request: HttpRequest, queue: str, hold_id: int) -> HttpResponse:
    """Do that, for who has been asked for the right."""
    form = ReasonForm(request.POST)
    reason = form.cleaned_data["reason"] if form.is_valid() else ""
    row = models.QueueHold.objects.filter(pk=hold_id, queue=queue).first()
    back = reverse("queue", args=[queue])
    if row is None:
        acts.record(request.user, "lift", queue, count=0, reason=reason, filter={"hold": hold_id})
        return answered(request, "This hold is over", good=False, refresh=True, back=back)
    words = f"{row.kind} {_words(row.kind, row.value)}"
    try:
        holding.lift(queue, row.kind, row.value, **who(request.user), reason=reason)
    except StoreUnavailable:
        return _later(request, f"{words} of {queue} will go on", back)
    hints.hint(queue)
    return answered(request, f"{words} of {queue} goes on", refresh=True, close=True, back=back)


def _hold(request: HttpRequest, queues: list[str], form: HoldForm, refuse: Refuse) -> HttpResponse:
    kind, value = form.cleaned_data["kind"], form.cleaned_data["value"]
    now = from_ms(Inspector().now_ms())
    until = form.until(now)
    if until is not None and until <= now:
        return refuse("that time has passed")
    where = queues[0] if len(queues) == 1 else f"{len(queues)} queues"
    words = f"{kind} {_words(kind, value)} of {where}"
    held: list[models.QueueHold] = []
    is_late = False
    for queue in queues:
        try:
            row = holding.hold(
                queue, kind, value, **who(request.user), reason=form.cleaned_data["reason"], until=until
            )
            held.append(row)
        except StoreUnavailable:
            is_late = True
        except ValidationError as error:
            return refuse(" ".join(error.messages))
        hints.hint(queue)
    back = reverse("queue", args=queues) if len(queues) == 1 else reverse("overview")
    if is_late:
        return _later(request, f"{words} will be held", back)
    undo = Undo(reverse("hold-lift", args=[queues[0], held[0].pk]), "Lift") if len(held) == 1 else None
    text = f"{words} is held{_end(until)}"
    return answered(request, text, undo=undo, refresh=True, close=True, back=back)


def _queue_page(request: HttpRequest, queue: str, error: str = "") -> HttpResponse:
    values = {
        "title": queue,
        "action": reverse("queue-hold", args=[queue]),
        "handlers": known.names(),
        "causes": [each for each in Inspector().causes(queue, limit=200) if each.failing or each.dead],
        "chooses": True,
        "next": next_url(request, reverse("queue", args=[queue])),
    }
    return _page(request, values, error)


def _cause_page(request: HttpRequest, cause: str, error: str = "") -> HttpResponse:
    values = {
        "title": bulk.cause_text(cause),
        "action": reverse("cause-hold", args=[cause]),
        "queues": _queues_of(cause),
        "next": next_url(request, reverse("cause", args=[cause])),
    }
    return _page(request, values, error)


def _page(request: HttpRequest, values: dict[str, Any], error: str) -> HttpResponse:
    given = request.POST if request.method == "POST" else request.GET
    values |= {"error": error, "given": given}
    response = render_page(request, "dashboard/hold.html", "hold-form", values)
    if error:
        response.status_code = HTTPStatus.UNPROCESSABLE_ENTITY
    return response


def _queues_of(cause: str) -> list[str]:
    """Return the queues that have failing or dead jobs of a cause. Raises Http404 for none."""
    found = next((each for each in Inspector().causes(with_gone=True) if each.cause == cause), None)
    if found is None:
        raise Http404(f"no cause {cause}")
    return sorted(at.queue for at in found.queues)


def _words(kind: str, value: str) -> str:
    return bulk.cause_text(value) if kind == HoldKind.CAUSE else value


def _end(until: datetime | None) -> str:
    return f" until {until:%Y-%m-%d %H:%M:%S} UTC" if until else ""


def _later(request: HttpRequest, text: str, back: str) -> HttpResponse:
    told = f"{text} as soon as Redis answers; it is written down"
    return answered(request, told, good=False, status=HTTPStatus.ACCEPTED, close=True, back=back)
