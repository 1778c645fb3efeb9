"""The site's settings with a policy that retries nothing, as Celery retries nothing by itself."""

from __future__ import annotations

from dashboard.settings import *  # noqa: F403
from dashboard.settings import QUEUEOPS as SITE

QUEUEOPS = {**SITE, "POLICIES": {"default": {"max_retries": 0}}}
