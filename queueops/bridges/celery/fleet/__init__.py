"""A Celery fleet as executor: `runworkers --executor celery` claims jobs, Celery workers run them.

A Celery worker joins by itself when its app has loaded `queueops.bridges.celery`, which any QueueTask does;
a project without one imports it in its `celery.py`.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from dataclasses import dataclass
from typing import Any

from celery import Task, shared_task
from celery.signals import celeryd_init, worker_ready
from kombu import Exchange, Queue

from queueops.bridges.celery.fleet.board import FleetBoard

logger = logging.getLogger("queueops.fleet")

#: The task that Celery workers run; its name is no handler's.
WRAPPER = "queueops.fleet.run"


@dataclass
class Here:
    """What the processes of this Celery worker share: made in the parent, before the pool is forked."""

    worker: str
    board: FleetBoard
    process: Any = None  # this process's PoolProcess
    pid: int = 0


_here: Here | None = None


def here() -> Here:
    """This Celery worker. Raises RuntimeError outside of one."""
    if _here is None:
        raise RuntimeError("queueops.fleet.run runs in a Celery worker only")
    return _here


def own_queue(nodename: str) -> Queue:
    """The Celery queue of one worker: what is sent there waits for nobody else.

    Named by the node, so that one that comes again under its name clears what its predecessor left.
    """
    name = f"queueops.{nodename}"
    return Queue(name, exchange=Exchange("", type="direct"), routing_key=name, durable=True)


@celeryd_init.connect(weak=False, dispatch_uid="queueops.fleet")
def _join(sender: str, instance: Any, **_: Any) -> None:
    """A Celery worker starts: make what its pool will share, and add the steps of its start."""
    global _here
    try:
        from queueops.bridges.celery.fleet.steps import LeaseStep, OwnQueueStep  # what only a worker needs
    except Exception as error:  # without Django's settings: its own Celery tasks must run all the same
        said = f"this Celery worker runs no jobs of QueueOps: {error}"
        worker_ready.connect(lambda **_: logger.error(said), weak=False)  # there is no log before
        return
    worker = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    _here = Here(worker, FleetBoard())
    instance.app.steps["worker"].add(LeaseStep)
    instance.app.steps["consumer"].add(OwnQueueStep)


@shared_task(
    name=WRAPPER,
    base=Task,
    ignore_result=True,
    Request="queueops.bridges.celery.fleet.receipt:Receipt",
    acks_late=False,
    time_limit=0,
    soft_time_limit=0,
)
def run(queue: str, hand: str, job_id: str, delivery: int) -> str:
    """Run one job that a child of runworkers handed over; the engine settles and limits it, not Celery."""
    from queueops.bridges.celery.fleet.pool import PoolProcess

    fleet = here()
    if fleet.process is None or fleet.pid != os.getpid():
        fleet.process, fleet.pid = PoolProcess(fleet.worker, fleet.board), os.getpid()
    process: PoolProcess = fleet.process
    return process.run(queue, hand, job_id, delivery)
