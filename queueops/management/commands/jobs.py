"""List the jobs of a queue in one state."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from queueops.inspector import Row
from queueops.management.engine_command import EngineCommand, Refused, ago
from queueops.management.job_fields import plain_job
from queueops.states import LISTED, JobState

#: What the time of a row means in each state.
_AT = {
    JobState.DELAYED: "due",
    JobState.READY: "ready",
    JobState.PENDING: "claimed",
    JobState.DEAD: "died",
    JobState.DISCARDED: "kept until",
}


class Command(EngineCommand):
    help = "List the jobs of a queue in one state, in the order in which it keeps them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queue", metavar="QUEUE")
        parser.add_argument("state", metavar="STATE", help=", ".join(LISTED))
        parser.add_argument("--limit", type=int, default=50, help="rows at most, 1 to 1,000; default 50")
        parser.add_argument("--after", metavar="CURSOR", help="go on where another list ended")
        parser.add_argument("--cause", metavar="C", help="only the dead of this cause")
        parser.add_argument("--json", action="store_true", help="print a list with an object a job")

    def answer(self, **given: Any) -> None:
        queue, state = self.known_queue(given["queue"]), self.known_state(given["state"])
        try:
            page = self.inspector().page(
                queue, state, limit=given["limit"], after=given["after"], cause=given["cause"]
            )
        except ValueError as error:
            raise Refused(str(error)) from error
        if given["json"]:
            self.say_json([plain_job(row.job) for row in page.rows])
        elif page.rows:
            rows = [_cells(row, state, page.now_ms) for row in page.rows]
            self.say_table(["id", "handler", _AT[state], "attempts", "rescues", ""], rows, left=3)
        else:
            self.say(f"no job of {queue} is {state}")
        if page.next:
            more = f"{page.total:,} in all: go on with --after '{page.next}', or a higher --limit"
            self.stderr.write(more)


def _cells(row: Row, state: JobState, now_ms: int) -> list[object]:
    job = row.job
    at = job.since if state is JobState.PENDING else row.at
    note = job.corrupt or ""
    if not note and job.error and state is not JobState.READY:
        note = f"{job.error.get('error', '')}: {job.error.get('message', '')}"[:80]
    if not note and state is JobState.DISCARDED:
        note = job.reason or ""
    return [job.id, job.handler or "?", ago(at, now_ms), job.attempts, job.rescues, note]
