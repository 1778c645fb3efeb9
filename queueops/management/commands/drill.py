"""Practise the worst: kill a worker or Redis in the middle of the work, and prove that nothing is amiss."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from queueops.drill import Drill, Report
from queueops.local_redis import NoServer
from queueops.management.engine_command import EngineCommand, Refused


class Command(EngineCommand):
    help = (
        "Run jobs on a Redis and workers of the drill's own, kill one mid-job, and prove by an "
        "independent ledger that each job took effect exactly once; exit 1 otherwise."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--workers", type=int, metavar="N", help="default 3; 2 Celery workers")
        parser.add_argument("--jobs", type=int, default=300, metavar="N", help="default 300")
        parser.add_argument("--kill", choices=["worker", "redis"], default="worker", help="default: worker")
        parser.add_argument(
            "--executor", choices=["threads", "celery"], default="threads",
            help="celery: Celery workers of 4 processes, and a runworkers that hands jobs to them; a Celery "
            "worker is killed. Default: threads",
        )  # fmt: skip
        parser.add_argument("--keep", action="store_true", help="keep its folder: logs, ledger, Redis data")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def answer(self, **given: Any) -> None:
        least = 2 if given["kill"] == "worker" else 1
        usual = 2 if given["executor"] == "celery" else 3
        workers = usual if given["workers"] is None else given["workers"]
        if not least <= workers <= 32:
            raise Refused(f"--workers must be {least} to 32, got {workers}")
        if not 10 <= given["jobs"] <= 100_000:
            raise Refused(f"--jobs must be 10 to 100,000, got {given['jobs']}")
        folder = Path(tempfile.mkdtemp(prefix="queueops-drill-"))
        keep = True  # for whoever looks why it went wrong
        try:
            drill = Drill(
                folder,
                workers=workers,
                jobs=given["jobs"],
                kill=given["kill"],
                executor=given["executor"],
                say=lambda text: None if given["json"] else self.say(text),
            )
            report = drill.run()
            keep = given["keep"] or not report.is_well
        except NoServer as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            keep = given["keep"]
            raise
        finally:
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)
        self._tell(report, as_json=given["json"], kept=keep)
        if not report.is_well:
            raise SystemExit(1)

    def _tell(self, report: Report, *, as_json: bool, kept: bool) -> None:
        if as_json:
            fields = asdict(report)
            fields["folder"] = report.folder if kept else None
            return self.say_json({"ok": report.is_well, **fields})
        rows = [["ok" if check.is_well else "WRONG", check.name, check.found] for check in report.checks]
        self.say()
        self.say_table(["", "what must hold", "found"], rows, left=3)
        self.say()
        kind = "Celery workers" if report.executor == "celery" else "workers"
        self.say(
            f"{report.jobs:,} jobs, {report.workers} {kind}, {report.seconds:g} s; killed {report.killed} "
            f"with {report.held:,} jobs running; {report.started:,} starts, {report.rescued:,} rescued, "
            f"{report.retried:,} failed attempts"
        )
        if kept:
            self.say(f"its folder: {report.folder}")
        return self.say("the drill went well" if report.is_well else "the drill went WRONG")
