"""Names of users by their key, for actors that events name as user:<pk>."""

from __future__ import annotations

import time

from django.contrib.auth import get_user_model
from django.db import DatabaseError

_KEPT_S = 60.0
_MOST = 10_000
_names: dict[int, tuple[float, str]] = {}


def name_of(pk: int) -> str:
    """Return a user's name, at most a minute old; "user 7" for one that is gone or can't be asked for."""
    known = _names.get(pk)
    if known is not None and time.monotonic() - known[0] < _KEPT_S:
        return known[1]
    user = get_user_model()
    try:
        name = user.objects.filter(pk=pk).values_list(user.USERNAME_FIELD, flat=True).first()
    except DatabaseError:
        return known[1] if known else f"user {pk}"
    if len(_names) >= _MOST:
        _names.clear()
    _names[pk] = (time.monotonic(), str(name) if name is not None else f"user {pk}")
    return _names[pk][1]
