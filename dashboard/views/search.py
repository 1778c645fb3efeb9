"""The search box: over all queues and states at once."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard import searches
from dashboard.access import needs
from dashboard.htmx import render_page
from queueops.rights import Right


@require_safe
@needs(Right.VIEW_JOB)
def search(request: HttpRequest) -> HttpResponse:
    """Show what matches `q`."""
    text = request.GET.get("q", "").strip().replace("\0", "")[:300]
    found = searches.search(text) if text else None
    context = {"text": text, "search_text": text, "found": found, "now": found.now if found else None}
    return render_page(request, "dashboard/search.html", "search-results", context)
