"""Content Security Policy for Django 5.2, which has none of its own.

The same setting (`SECURE_CSP`), header and template variable (`csp_nonce`) as Django 6's middleware, which
the site uses where it exists; only what `dashboard.settings` needs of them.
"""

import secrets
from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.functional import SimpleLazyObject

NONCE = "<CSP_NONCE_SENTINEL>"  # stands in SECURE_CSP where a response's own nonce goes


class ContentSecurityPolicyMiddleware:
    """Send the policy of `SECURE_CSP` with every response; a nonce only where the page asked for it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        made: list[str] = []

        def make_nonce() -> str:
            made.append(secrets.token_urlsafe(16))
            return made[0]

        request._csp_nonce = SimpleLazyObject(make_nonce)  # type: ignore[attr-defined]
        response = self.get_response(request)
        if "Content-Security-Policy" not in response:
            response["Content-Security-Policy"] = policy(made[0] if made else None)
        return response


def policy(nonce: str | None) -> str:
    """Return the header's value; without a nonce the sources that would name it are left out."""
    directives = []
    for name, sources in settings.SECURE_CSP.items():
        written = [
            f"'nonce-{nonce}'" if source == NONCE else source
            for source in sources
            if nonce or source != NONCE
        ]
        directives.append(" ".join([name, *written]))
    return "; ".join(directives)


def csp_nonce(request: HttpRequest) -> dict[str, object]:
    """Offer `{{ csp_nonce }}` to templates, made when first printed."""
    return {"csp_nonce": getattr(request, "_csp_nonce", "")}
