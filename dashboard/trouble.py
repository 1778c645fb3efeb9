"""What a person reads when Redis or the database is away while they ask for something."""

from __future__ import annotations

from http import HTTPStatus

from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.template.loader import render_to_string

from dashboard.answers import wants_fragment
from queueops.errors import QueueOpsError, StoreFull, StoreUnavailable


class TroubleMiddleware:
    """Turn what views raise into a page, or for htmx into a toast, that says what is away and what to do."""

    def __init__(self, get_response: object) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase = self.get_response(request)  # type: ignore[operator]
        return response

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Return the answer, or None for what is a fault of ours."""
        if isinstance(error, PermissionDenied):
            if not wants_fragment(request):
                return None
            return toast(request, "Your account does not have the right to do this.", HTTPStatus.FORBIDDEN)
        if isinstance(error, (StoreUnavailable, StoreFull)):
            return away(request, "Redis", str(error))
        if isinstance(error, (DatabaseError, InterfaceError)):
            return away(request, "the database", type(error).__name__)
        if isinstance(error, QueueOpsError) and request.method == "POST":
            return away(request, "the engine", str(error))
        return None


def away(request: HttpRequest, what: str, why: str) -> HttpResponse:
    """Say that something does not answer; nothing that was asked for is done."""
    asked = "Nothing was changed. " if request.method == "POST" else ""
    text = f"{what[0].upper()}{what[1:]} does not answer. {asked}Try again in a moment."
    if wants_fragment(request):
        return toast(request, text, HTTPStatus.SERVICE_UNAVAILABLE)
    values = {"what": what, "text": text, "why": why}
    return render(request, "dashboard/trouble.html", values, status=HTTPStatus.SERVICE_UNAVAILABLE)


def toast(request: HttpRequest, text: str, status: int) -> HttpResponse:
    """Answer htmx with a toast only: what the page shows stays."""
    html = render_to_string("dashboard/_toast.html", {"text": text, "good": False}, request)
    body = f'<hx-partial hx-target="#toasts" hx-swap="beforeend">{html}</hx-partial>'
    response = HttpResponse(body, status=status)
    response["HX-Reswap"] = "none"
    return response
