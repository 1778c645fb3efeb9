"""An app of plain Celery tasks whose workers run jobs of QueueOps too. Its broker is a Redis of its own."""

from __future__ import annotations

import os

import queueops.bridges.celery  # noqa: F401 - its workers join the fleet
from tests.queueops.bridges import cases

app = cases.make("fleet", broker=f"redis+socket://{os.environ.get('FLEET_BROKER', '')}?virtual_host=0")
app.conf.update(
    task_default_queue="plain",
    broker_connection_retry_on_startup=True,
    # Shorter than the delays below: a message with an ETA would be delivered again and again.
    broker_transport_options={"visibility_timeout": 2},
)
