"""The Celery app: it makes this site's `@shared_task` functions real, and is what a Celery fleet loads."""

import os

from celery import Celery

import queueops.bridges.celery  # noqa: F401 - its workers join the fleet

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")

app = Celery("queueops-site")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.set_default()
app.autodiscover_tasks()
