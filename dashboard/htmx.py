"""What differs when htmx asks: how much of a page it gets, and how it learns of a lost login."""

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render, resolve_url
from django.utils.cache import patch_vary_headers
from django.utils.http import urlencode
from django_htmx.middleware import HtmxDetails


def render_page(request: HttpRequest, page: str, partial: str, context: dict[str, Any]) -> HttpResponse:
    """Render the template `page`, or only its `partial` when htmx asks for a swap.

    A history restore needs the whole page; Vary keeps a cache from mixing the two.
    """
    htmx: HtmxDetails = request.htmx  # type: ignore[attr-defined]
    swap = bool(htmx) and not htmx.history_restore_request
    response = render(request, f"{page}#{partial}" if swap else page, context)
    patch_vary_headers(response, ["HX-Request"])
    return response


class LoginRedirectMiddleware:
    """Answer htmx with HX-Redirect where a browser would be sent to the login page.

    Otherwise the request of a page whose session ended would follow the redirect and put the login form
    where a table was.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        target = response.get("Location", "")
        htmx: HtmxDetails = request.htmx  # type: ignore[attr-defined]
        if (
            htmx
            and response.status_code == 302
            and target.partition("?")[0] == resolve_url(settings.LOGIN_URL)
        ):
            shown = htmx.current_url_abs_path or "/"  # come back to the page, not to its fragment
            redirect = HttpResponse(status=204)
            redirect["HX-Redirect"] = f"{resolve_url(settings.LOGIN_URL)}?{urlencode({'next': shown})}"
            return redirect
        return response
