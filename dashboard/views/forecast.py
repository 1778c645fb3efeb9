"""The storm before it lands: what falls due ahead, per queue."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard import acts, forecasts
from dashboard.access import may, needs
from dashboard.htmx import render_page
from queueops.errors import QueueOpsError
from queueops.rights import Right


@require_safe
@needs(Right.VIEW_JOB)
def forecast(request: HttpRequest) -> HttpResponse:
    """Show the work due per step of time, for the next hours."""
    span = request.GET.get("span", "1h")
    span = span if span in forecasts.RANGES else "1h"
    context: dict[str, Any] = {"span": span, "spans": list(forecasts.RANGES), "ahead": None, "trouble": ""}
    try:
        context["ahead"] = forecasts.read(span)
    except QueueOpsError as error:
        context["trouble"] = str(error)
    context["may_spread"] = may(request.user, Right.RUN_OPERATION) and may(
        request.user, acts.RIGHT_OF["reschedule"]
    )
    return render_page(request, "dashboard/forecast.html", "forecast-body", context)
