"""The tasks of `cases` in Celery alone: what QueueOps is compared with."""

from __future__ import annotations

import os

from tests.queueops.bridges import cases

_SOCKET = os.environ.get("CASES_SOCKET", "")
app = cases.make(
    "plain",
    broker=f"redis+socket://{_SOCKET}?virtual_host=1",
    backend=f"redis+socket://{_SOCKET}?virtual_host=2",
)
app.conf.update(
    task_default_queue="cases",
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)
