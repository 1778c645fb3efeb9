"""Static files at the ASGI door, before Django."""

import re
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from servestatic import ServeStaticASGI

_HASHED_NAME = re.compile(r"\.[0-9a-f]{12}\.").search


def with_static_files(application: Any) -> Any:
    """Wrap an ASGI application so that it also serves the static files.

    With STATIC_MANIFEST they come from STATIC_ROOT: compressed, and cached for ever under names that hold
    their content's hash. Without, from the folders where they are written.
    """
    if not settings.STATIC_MANIFEST:
        return ASGIStaticFilesHandler(application)
    return ServeStaticASGI(
        application,
        root=settings.STATIC_ROOT,
        prefix=settings.STATIC_URL,
        max_age=60,  # seconds, for names without a hash
        immutable_file_test=lambda path, url: bool(_HASHED_NAME(url)),
        allow_all_origins=False,
        add_headers_function=_add_headers,
    )


def _add_headers(headers: Any, path: str, url: str) -> None:
    headers["X-Content-Type-Options"] = "nosniff"
