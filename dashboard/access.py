"""Who may do what: the one question, and the one decorator by which a view asks it."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase

from queueops.rights import Right

P = ParamSpec("P")


def may(user: User | AnonymousUser, right: Right) -> bool:
    """Tell whether an active `user` holds `right`. Asks the database once a user object (Django caches)."""
    return bool(user.is_active and user.has_perm(f"queueops.{right}"))


def needs(
    right: Right,
) -> Callable[
    [Callable[Concatenate[HttpRequest, P], HttpResponseBase]],
    Callable[Concatenate[HttpRequest, P], HttpResponseBase],
]:
    """Let a view run only for who holds `right`; others get 403.

    A visitor who is not logged in never comes here: LoginRequiredMiddleware sends them to the login page.
    """

    def decorate(
        view: Callable[Concatenate[HttpRequest, P], HttpResponseBase],
    ) -> Callable[Concatenate[HttpRequest, P], HttpResponseBase]:
        @wraps(view)
        def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            if not may(request.user, right):
                raise PermissionDenied(right)
            return view(request, *args, **kwargs)

        return guarded

    return decorate
