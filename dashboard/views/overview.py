"""The first page: what is wrong now, then every queue."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard import queries
from dashboard.access import may, needs
from dashboard.htmx import render_page
from queueops.rights import Right


@require_safe
@needs(Right.VIEW_JOB)
def overview(request: HttpRequest) -> HttpResponse:
    """Show the page, or to htmx only what the socket would push."""
    context = queries.overview_context(queries.snapshot())
    context["may_pause"] = may(request.user, Right.PAUSE_QUEUE)
    return render_page(request, "dashboard/overview.html", "overview", context)
