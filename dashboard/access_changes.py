"""Tell open WebSockets at once when a session ends or somebody's rights change."""

import hashlib
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.contrib.auth.signals import user_logged_out
from django.db import transaction
from django.db.models.signals import m2m_changed, post_delete, post_save

from dashboard.channel import tell

GROUP = "access"  # the Channels group of all open sockets


def session_digest(session_key: str) -> str:
    """Name a session in a message without giving it away."""
    return hashlib.sha256(session_key.encode()).hexdigest()


def connect() -> None:
    """Start listening. Called once, when the apps are ready."""
    user = get_user_model()
    user_logged_out.connect(_logged_out, dispatch_uid="dashboard.logged_out")
    post_save.connect(_user_changed, sender=user, dispatch_uid="dashboard.user_saved")
    post_delete.connect(_user_changed, sender=user, dispatch_uid="dashboard.user_deleted")
    for relation in (user.groups.through, user.user_permissions.through, Group.permissions.through):
        m2m_changed.connect(_rights_changed, sender=relation, dispatch_uid=f"dashboard.{relation.__name__}")


def _logged_out(sender: Any, request: Any, **_: Any) -> None:
    if request is not None and request.session.session_key:
        _tell(session=session_digest(request.session.session_key))


def _user_changed(
    sender: Any, instance: Any, created: bool = False, update_fields: Any = None, **_: Any
) -> None:
    if not created and set(update_fields or ()) != {"last_login"}:
        user_id = instance.pk
        transaction.on_commit(lambda: _tell(user=user_id))


def _rights_changed(sender: Any, action: str, **_: Any) -> None:
    if action.startswith("post_"):
        transaction.on_commit(_tell)


def _tell(**whose: Any) -> None:
    # When it is lost with Redis: no socket gets messages then either, and each asks again at the next one.
    tell(GROUP, {"type": "access.changed", **whose})
