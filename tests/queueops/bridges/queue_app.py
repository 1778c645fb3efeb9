"""The tasks of `cases`, all of them QueueTasks. Its broker does not exist: nothing may need one."""

from __future__ import annotations

from tests.queueops.bridges import cases

app = cases.make("queued", task_cls="queueops.bridges.celery:QueueTask", broker="redis://127.0.0.1:1/0")
app.conf.task_routes = {"cases.*": {"queue": "cases"}}
