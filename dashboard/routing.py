"""WebSocket paths, and who may open one from where."""

from typing import Any
from urllib.parse import urlsplit

from channels.security.websocket import WebsocketDenier
from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django.urls import path
from django.utils.http import is_same_domain

from dashboard.consumers import LiveConsumer

_live: Any = LiveConsumer.as_asgi()  # Django's path() is typed for views of HTTP

websocket_urlpatterns: list[Any] = [path("ws/live/", _live)]


class SameOriginOnly:
    """Refuse a handshake whose Origin is neither this site's own nor one of CSRF_TRUSTED_ORIGINS.

    A browser sends the visitor's cookies with a WebSocket that any page opens, and no CSRF token goes
    along: the Origin is the only thing that tells our pages from others.
    """

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        allowed = is_allowed_origin(headers.get(b"origin", ""), headers.get(b"host", ""))
        application: Any = self.application if allowed else WebsocketDenier.as_asgi()
        await application(scope, receive, send)


def is_allowed_origin(origin: str, host: str) -> bool:
    """Tell whether a page of `origin` may open a WebSocket on `host` (the request's Host header)."""
    try:
        parts = urlsplit(origin.lower())
        hostname = parts.hostname
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not hostname:
        return False
    domain, _ = split_domain_port(host.lower())
    if parts.netloc == host.lower():
        return bool(domain) and validate_host(domain, settings.ALLOWED_HOSTS)
    for trusted in map(urlsplit, settings.CSRF_TRUSTED_ORIGINS):
        pattern = trusted.netloc.removeprefix("*")  # "https://*.example.com": the subdomains
        if trusted.scheme == parts.scheme and is_same_domain(parts.netloc, pattern):
            return True
    return False
