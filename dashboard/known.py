"""Handlers that this web process knows. A module that can't be loaded must not take a page with it."""

from __future__ import annotations

import logging

from queueops.handlers import Handler, get_handler, handler_names

log = logging.getLogger(__name__)

_complained = False


def names() -> list[str]:
    """Return the registered handlers' names; none while their modules can't be loaded."""
    try:
        return handler_names()
    except Exception as error:
        _complain(error)
        return []


def handler(name: str) -> Handler | None:
    """Return the handler of this name, or None."""
    try:
        return get_handler(name)
    except Exception as error:
        _complain(error)
        return None


def _complain(error: Exception) -> None:
    global _complained
    if not _complained:
        _complained = True
        log.warning(
            "the handlers can't be loaded, so pages offer no names: %s: %s", type(error).__name__, error
        )
