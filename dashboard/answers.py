"""How an action answers: a toast and fresh fragments to htmx, a redirect with a message to a plain form."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme


@dataclass(frozen=True)
class Undo:
    """A button in a toast that takes back what was done: a POST to `url`."""

    url: str
    label: str = "Undo"


def wants_fragment(request: HttpRequest) -> bool:
    """Tell whether htmx asks: then a whole page would be swapped into a part of one."""
    return bool(request.htmx)  # type: ignore[attr-defined]


def answered(
    request: HttpRequest,
    text: str,
    *,
    fragment: str = "",
    good: bool = True,
    undo: Undo | None = None,
    back: str = "",
    status: int | None = None,
    refresh: bool = False,
    close: bool = False,
) -> HttpResponse:
    """Say what happened. `good` False: a 409, somebody was first.

    `fragment` is the HTML that htmx swaps in; `refresh` has the lists and parts of the page fetch themselves
    again; `close` closes the dialog from which this was asked. A plain form is sent `back`, or to the page it
    names as `next`.
    """
    if not wants_fragment(request):
        messages.add_message(request, messages.SUCCESS if good else messages.WARNING, text)
        return HttpResponseRedirect(next_url(request, back))
    toast = render_to_string("dashboard/_toast.html", {"text": text, "good": good, "undo": undo}, request)
    body = f'{fragment}<hx-partial hx-target="#toasts" hx-swap="beforeend">{toast}</hx-partial>'
    response = HttpResponse(body, status=status or (HTTPStatus.OK if good else HTTPStatus.CONFLICT))
    events: dict[str, object] = {}
    if refresh:
        events["page-changed"] = {"target": "body"}
    if close and good:
        events["close-dialog"] = {"target": "body"}
    if events:
        response["HX-Trigger"] = json.dumps(events)
    return response


def next_url(request: HttpRequest, default: str = "") -> str:
    """Return the page of this site that the form names, else `default`, else the overview."""
    wanted = request.POST.get("next", "")
    if wanted and url_has_allowed_host_and_scheme(wanted, allowed_hosts=None):
        return wanted
    return default or reverse("overview")
