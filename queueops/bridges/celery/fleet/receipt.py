"""How a Celery worker takes a job's message: acknowledged when it arrives, not when a process is free."""

from __future__ import annotations

from typing import Any

from celery.worker.request import Request


class Receipt(Request):
    """The request of one handed-over job.

    Nothing is lost by it: a job that does not start is taken back. And kombu has none of ours to restore
    when the broker is lost: with Redis that fails and ends the worker (kombu 5.7).
    """

    def __init__(self, message: Any, **given: Any) -> None:
        super().__init__(message, **given)
        self.acknowledge()
