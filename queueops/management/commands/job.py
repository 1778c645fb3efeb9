"""Show one job with its timeline."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from queueops import client, keys
from queueops.job import Job
from queueops.management.engine_command import EngineCommand, Refused, ago
from queueops.management.job_fields import plain_job
from queueops.management.timeline import Moment, timeline


class Command(EngineCommand):
    help = "Show one job: its fields, and what has happened to it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("job_id", metavar="ID")
        parser.add_argument("--queue", metavar="Q", help="default: the queue that has it")
        parser.add_argument("--reveal", action="store_true", help="show secret-looking values too")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def answer(self, **given: Any) -> None:
        try:
            keys.check_job_id(given["job_id"])
        except ValueError as error:
            raise Refused(str(error)) from error
        if given["queue"]:
            self.known_queue(given["queue"])
        job = client.get_job(given["job_id"], given["queue"])
        if job is None:
            where = f" in queue {given['queue']}" if given["queue"] else ""
            raise Refused(f"no job has the id {given['job_id']}{where}")
        moments = timeline(job.queue, job.id)
        if given["json"]:
            fields = plain_job(job, reveal=given["reveal"])
            self.say_json({**fields, "timeline": [moment.plain() for moment in moments]})
        else:
            self._show(job, moments, reveal=given["reveal"])

    def _show(self, job: Job, moments: list[Moment], *, reveal: bool) -> None:
        now_ms = self.inspector().now_ms()
        fields = plain_job(job, reveal=reveal)
        told = {
            "state": f"{job.state}, since {ago(job.since, now_ms)}" if job.since else job.state,
            "due": ago(job.run_at, now_ms) if job.run_at else None,
            "attempts": f"{job.attempts}, rescues {job.rescues}, delivery {job.delivery}",
        }
        self.say(f"{job.id} in queue {job.queue}: {job.handler or 'unknown handler'}")
        for name, value in told.items():
            if value:
                self.say(f"  {name:<9} {value}")
        for name in ("args", "kwargs", "tags", "result", "reason", "cause", "child", "corrupt"):
            if fields[name] not in (None, [], {}, ""):
                self.say(f"  {name:<9} {fields[name]}")
        if job.error:
            self.say(f"  error     {fields['error'].get('error')}: {fields['error'].get('message')}")
            for line in str(fields["error"].get("traceback") or "").splitlines()[-20:]:
                self.say(f"            {line}")
        if moments:
            self.say("  timeline")
        for moment in moments:
            self.say(f"    {moment.at:%Y-%m-%d %H:%M:%S.%f} UTC  {moment}")
