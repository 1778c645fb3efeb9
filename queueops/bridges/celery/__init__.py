"""Celery and QueueOps: Celery tasks as handlers, `QueueTask`, their results, and a Celery fleet."""

from __future__ import annotations

from queueops.bridges.celery import aftermath, fleet  # a Celery worker that loads it joins the fleet
from queueops.bridges.celery.handlers import CeleryTasks, handler_from
from queueops.bridges.celery.queue_task import QueueTask
from queueops.bridges.celery.results import QueueResults
from queueops.handlers import register_resolver

__all__ = ["CeleryTasks", "QueueResults", "QueueTask", "aftermath", "fleet", "handler_from"]

register_resolver(CeleryTasks())
