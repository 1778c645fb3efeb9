"""Who is asking while the database is away: pages stay readable for whoever this process has just seen.

Sessions, users and rights are in the database. When it does not answer, a reader whom this process knew
within the last minutes keeps their rights of then, for reading only: an incident is when a person needs the
pages most.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

from django.conf import settings
from django.contrib.sessions.backends.base import SessionBase
from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, HttpResponseBase

from dashboard import trouble

KEPT_S = 900.0
_MOST = 2_000
_AWAY = (DatabaseError, InterfaceError)


@dataclass(frozen=True)
class StandIn:
    """A user as this process remembers them."""

    pk: Any
    username: str
    permissions: frozenset[str]
    seen: float
    is_active: bool = True
    is_authenticated: bool = True
    is_anonymous: bool = False
    is_staff: bool = False

    def get_username(self) -> str:
        return self.username

    def has_perm(self, permission: str, obj: object = None) -> bool:
        return permission in self.permissions

    def has_module_perms(self, app_label: str) -> bool:
        return any(permission.startswith(f"{app_label}.") for permission in self.permissions)


class _KeptSession(SessionBase):
    """A session that is neither read nor written, so that the browser keeps its cookie."""

    def __init__(self, session_key: str) -> None:
        super().__init__(session_key)
        self._session_cache: dict[str, Any] = {}


class StandInMiddleware:
    """Serve reads while the database is away; see the module. Stands after AuthenticationMiddleware."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response
        self._known: OrderedDict[str, StandIn] = OrderedDict()
        self._lock = Lock()

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        key = _digest(request)
        if not key:
            return self.get_response(request)
        try:
            bool(request.user.is_authenticated)
        except _AWAY as error:
            return self._away(request, key, error)
        response = self.get_response(request)
        self._remember(request, key)
        return response

    def _away(self, request: HttpRequest, key: str, error: Exception) -> HttpResponseBase:
        known = self._known.get(key)
        if known is None or time.monotonic() - known.seen > KEPT_S or request.method not in {"GET", "HEAD"}:
            request.user = _nobody()  # type: ignore[assignment]
            return trouble.away(request, "the database", type(error).__name__)
        request.user = known  # type: ignore[assignment]
        request.session = _KeptSession(request.COOKIES[settings.SESSION_COOKIE_NAME])
        return self.get_response(request)

    def _remember(self, request: HttpRequest, key: str) -> None:
        """Keep a user whose rights this request has asked for: that costs no query more."""
        user: Any = request.user
        if isinstance(user, StandIn):
            return
        permissions = getattr(user, "_perm_cache", None)
        if permissions is None and not (user.is_authenticated and user.is_superuser):
            with self._lock:
                if not user.is_authenticated:
                    self._known.pop(key, None)
            return
        if user.is_superuser:
            permissions = user.get_all_permissions() if permissions is None else permissions
        known = StandIn(
            user.pk, user.get_username(), frozenset(permissions or ()), time.monotonic(), user.is_active
        )
        with self._lock:
            self._known[key] = known
            self._known.move_to_end(key)
            while len(self._known) > _MOST:
                self._known.popitem(last=False)


def _digest(request: HttpRequest) -> str:
    cookie = request.COOKIES.get(settings.SESSION_COOKIE_NAME, "")
    return hashlib.sha256(cookie.encode()).hexdigest() if cookie else ""


def _nobody() -> StandIn:
    return StandIn(None, "", frozenset(), 0.0, is_active=False, is_authenticated=False, is_anonymous=True)
