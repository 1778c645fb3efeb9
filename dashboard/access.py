"""Who may do what: the rights, and the one decorator by which a view asks for them.

The rights are permissions of the app `queueops`; the groups Viewer, Operator and Admin are sets of them.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from typing import Concatenate, ParamSpec

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase

P = ParamSpec("P")


class Right(StrEnum):
    """A permission's codename in the app `queueops`."""

    VIEW_JOB = "view_job"
    VIEW_PAYLOAD = "view_payload"
    REQUEUE_JOB = "requeue_job"
    DISCARD_JOB = "discard_job"
    PURGE_JOB = "purge_job"
    PAUSE_QUEUE = "pause_queue"
    EDIT_POLICY = "edit_policy"
    EDIT_SCHEDULE = "edit_schedule"
    RUN_OPERATION = "run_operation"


_VIEWER = frozenset({Right.VIEW_JOB})
_OPERATOR = _VIEWER | {Right.VIEW_PAYLOAD, Right.REQUEUE_JOB, Right.DISCARD_JOB, Right.PAUSE_QUEUE, Right.RUN_OPERATION}

#: What each group may do; the migration that makes the groups reads this.
GROUPS: dict[str, frozenset[Right]] = {"Viewer": _VIEWER, "Operator": _OPERATOR, "Admin": frozenset(Right)}


def may(user: AbstractBaseUser | AnonymousUser, right: Right) -> bool:
    """Tell whether an active `user` holds `right`. Asks the database once a user object (Django caches)."""
    return bool(user.is_active and user.has_perm(f"queueops.{right}"))  # type: ignore[union-attr]


def needs(
    right: Right,
) -> Callable[
    [Callable[Concatenate[HttpRequest, P], HttpResponseBase]], Callable[Concatenate[HttpRequest, P], HttpResponseBase]
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
