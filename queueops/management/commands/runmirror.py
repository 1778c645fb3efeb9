"""Run the mirror by itself, beside or instead of the one in housekeeping."""

from __future__ import annotations

import logging
import signal
import threading
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.db import DatabaseError, InterfaceError, close_old_connections, connections

from queueops.errors import QueueOpsError
from queueops.mirror import run_once

log = logging.getLogger("queueops.mirror")

#: A batch is written at latest so long after its first event, seconds.
_EVERY_S = 0.2
_LONGEST_PAUSE_S = 10.0


class Command(BaseCommand):
    help = "Copy engine events into the record until told to stop. Any number may run; one is enough."
    #: Not what the site says of schedules: one that is wrong stops no other work.
    requires_system_checks = ("queueops",)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--burst", action="store_true", help="end when every queue is copied")

    def handle(self, *, burst: bool, **options: Any) -> None:
        stop = threading.Event()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: stop.set())
        pause_s = _EVERY_S
        while not stop.is_set():
            try:
                copied = run_once()
            except (QueueOpsError, DatabaseError, InterfaceError) as error:
                if burst:
                    raise
                if pause_s == _EVERY_S:
                    log.warning("the mirror waits: %s", error)
                pause_s = min(max(pause_s * 2, 1.0), _LONGEST_PAUSE_S)
                connections.close_all()
            else:
                if pause_s != _EVERY_S:
                    log.warning("the mirror goes on")
                pause_s = _EVERY_S
                if burst and not copied:
                    return
                close_old_connections()
                if copied:
                    continue
            stop.wait(pause_s)
