"""Database connections of handler threads: none too old, none broken, and nothing paid without one."""

from __future__ import annotations

import logging
import threading
from typing import Any

from django.db import close_old_connections
from django.db.backends.signals import connection_created

logger = logging.getLogger("queueops.worker")

_here = threading.local()


def _note(connection: Any, **_: object) -> None:
    """A connection was opened in this thread: look after it around each job from now on.

    Django then checks its health at a job's first query, whatever CONN_HEALTH_CHECKS says: between
    two jobs lie hours in which a server may have closed it.
    """
    _here.used = True
    connection.health_check_enabled = True


def watch_connections() -> None:
    """Begin, once a process."""
    connection_created.connect(_note, dispatch_uid="queueops.worker.databases")


def tidy_connections() -> None:
    """Close this thread's connections that are broken or past their age."""
    if getattr(_here, "used", False):
        try:
            close_old_connections()
        except Exception:  # a driver may fail even at closing; the job's outcome stands
            logger.exception("a database connection could not be closed")
