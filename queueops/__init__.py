"""QueueOps: delayed jobs on Redis that are never lost and never take effect twice.

The names below are the whole public interface. They load on first use, so that importing the
package does not import Django.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queueops.client import JobSpec, aenqueue, aget_job, enqueue, enqueue_many, get_job
    from queueops.current import CurrentJob, current_job
    from queueops.effects import once
    from queueops.errors import Dead, Discard, RetryLater, Snooze
    from queueops.job import Job
    from queueops.policies import RetryPolicy
    from queueops.states import JobState

__all__ = [
    "CurrentJob",
    "Dead",
    "Discard",
    "Job",
    "JobSpec",
    "JobState",
    "RetryLater",
    "RetryPolicy",
    "Snooze",
    "aenqueue",
    "aget_job",
    "current_job",
    "enqueue",
    "enqueue_many",
    "get_job",
    "once",
]

_HOME = {
    "client": ("JobSpec", "aenqueue", "aget_job", "enqueue", "enqueue_many", "get_job"),
    "current": ("CurrentJob", "current_job"),
    "effects": ("once",),
    "errors": ("Dead", "Discard", "RetryLater", "Snooze"),
    "job": ("Job",),
    "policies": ("RetryPolicy",),
    "states": ("JobState",),
}
_MODULE_BY_NAME = {name: module for module, names in _HOME.items() for name in names}

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    module = _MODULE_BY_NAME.get(name)
    if module is None:
        raise AttributeError(f"module 'queueops' has no attribute {name!r}")
    return getattr(import_module(f"queueops.{module}"), name)
