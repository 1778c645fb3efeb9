"""Where a forked process begins: as a child that runs jobs, or as the housekeeper."""

from __future__ import annotations

import faulthandler
import logging
import signal
from typing import NoReturn

from django.db import close_old_connections

from queueops.connection import Connection
from queueops.publishing import publish
from queueops.store import Store
from queueops.worker.board import Memory
from queueops.worker.control import Control, Order
from queueops.worker.leaving import leave

logger = logging.getLogger("queueops.worker")

#: How long one answer of Redis may take before it counts as away. Seconds.
TIMEOUT_S = 4.0


def patient() -> Connection:
    """A connection for who tries again itself: no time-out of its own may keep it from hearing a stop."""
    return Connection(timeout_s=TIMEOUT_S, retries=0)


def make_store(connection: Connection) -> Store:
    """A store that publishes a queue's settings as the database has them."""
    return Store(connection, publish=_publish)


def _publish(store: Store, queue: str) -> None:
    close_old_connections()
    try:
        publish(store, queue)
    finally:
        close_old_connections()


def start_process(order: Order, control: Control, memory: Memory) -> NoReturn:
    """Be what the order says; never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        faulthandler.register(signal.SIGUSR1)  # where is it stuck: on stderr
        if order.role == "housekeeper":
            from queueops.worker.housekeeper import Housekeeper

            Housekeeper(order.child, control, make_store(Connection())).run()
        else:
            from queueops.worker.child import Child

            Child(order, control, memory.board(order.board), make_store(patient())).run()
        code = 0
    except BaseException:
        logger.exception("%s ends: an error that was not foreseen", order.child)
    leave(code)
