"""Run a worker: a supervisor and the processes that run jobs."""

from __future__ import annotations

import argparse
import logging
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from queueops.conf import config
from queueops.errors import QueueOpsError
from queueops.keys import check_queue
from queueops.worker.supervisor import Options, Supervisor


def _queue(text: str) -> str:
    try:
        return check_queue(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _at_least_1(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 10,000, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0, got {text!r}")
    return value


def _say_what_it_does() -> None:
    """Let a worker be heard on stderr where the project's LOGGING says nothing about it."""
    logger = logging.getLogger("queueops")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


class Command(BaseCommand):
    help = "Run jobs until SIGTERM or SIGINT; a second one stops at once."
    #: Not what the site says of schedules: one that is wrong stops no other work.
    requires_system_checks = ("queueops",)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--queue", action="append", dest="queues", type=_queue, metavar="NAME",
            help="serve this queue; may be given again. Default: all queues, new ones found within 5 s",
        )  # fmt: skip
        parser.add_argument("--processes", type=_at_least_1, metavar="N", help="processes that run jobs")
        parser.add_argument(
            "--concurrency", type=_at_least_1, metavar="N", help="jobs at once in each process"
        )
        parser.add_argument("--burst", action="store_true", help="end when nothing is ready, pending or due")
        parser.add_argument(
            "--grace", type=_seconds, metavar="SECONDS", help="how long a stop lets jobs finish"
        )
        parser.add_argument(
            "--executor", choices=["threads", "celery"], default="threads",
            help="where handlers run: threads of these processes, or the Celery workers of the site, which "
            "then say how many jobs run at once. Default: threads",
        )  # fmt: skip
        parser.add_argument(
            "--no-housekeeping", action="store_false", dest="housekeeping",
            help="leave mirror, outbox, schedules, operations and upkeep to other workers",
        )  # fmt: skip

    def handle(self, **given: Any) -> None:
        _say_what_it_does()
        try:
            conf = config()
            options = Options(
                queues=tuple(dict.fromkeys(given["queues"] or ())),
                # One process hands over what a whole fleet runs.
                processes=given["processes"] or (1 if given["executor"] == "celery" else conf.processes),
                concurrency=given["concurrency"] or conf.concurrency,
                burst=given["burst"],
                grace_s=conf.grace_s if given["grace"] is None else given["grace"],
                housekeeping=given["housekeeping"],
                executor=given["executor"],
            )
            Supervisor(options).run()
        except QueueOpsError as error:
            raise CommandError(str(error)) from error
