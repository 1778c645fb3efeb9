"""What `manage.py check` says of schedules. E03x are theirs.

A worker starts in spite of a definition that is wrong, or that its host can't read: the scheduler flags
that one and runs the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DatabaseError

from queueops.errors import ConfigError
from queueops.schedules import code


@register("queueops")
def check_use_tz(app_configs: Sequence[Any] | None, **_: object) -> list[CheckMessage]:
    """E030: USE_TZ is off."""
    if settings.USE_TZ:
        return []
    return [
        Error(
            "USE_TZ is off: the database would keep slots of schedules in the site's own clock time",
            hint="Set USE_TZ = True. Each schedule has a zone of its own; TIME_ZONE changes none.",
            id="queueops.E030",
        )
    ]


@register()
def check_definitions(app_configs: Sequence[Any] | None, **_: object) -> list[CheckMessage]:
    """E031: a definition in the settings is wrong."""
    found: list[CheckMessage] = []
    try:
        defined = code.from_code()
    except ConfigError:
        return found  # said elsewhere
    for each in defined:
        for name, reason in each.problems.items():
            text = f"QUEUEOPS SCHEDULES {each.key}: {name}: {reason}"
            found.append(Error(text, hint="docs/schedules.md has the format.", id="queueops.E031"))
    return found


@register(Tags.database)
def check_keys(
    app_configs: Sequence[Any] | None, databases: Sequence[str] | None = None, **_: object
) -> list[CheckMessage]:
    """E032: the settings and the page define a schedule under one key."""
    if not databases:
        return []
    try:
        clashes = code.clashes()
    except (DatabaseError, ConfigError):
        return []  # not migrated yet, or away: not what this check is about
    return [Error(f"QUEUEOPS SCHEDULES {key}: the key {code.CLASH}", id="queueops.E032") for key in clashes]
