"""Django tasks and QueueOps: their functions as handlers, and the backend that `TASKS` names."""

from __future__ import annotations

from queueops.bridges.django_tasks.backend import QueueOpsBackend
from queueops.bridges.django_tasks.handlers import REGISTRY, DjangoTasks, handler_from
from queueops.handlers import register_resolver

__all__ = ["DjangoTasks", "QueueOpsBackend", "handler_from"]

register_resolver(REGISTRY)
