"""Show every queue."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from queueops.inspector import QueueSummary
from queueops.management.engine_command import EngineCommand, age


class Command(EngineCommand):
    help = "Show every queue: its jobs by state, the age of its oldest ready job, whether it is paused."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print a list with an object a queue")

    def answer(self, **given: Any) -> None:
        queues = self.inspector().overview()
        if given["json"]:
            return self.say_json([_plain(queue) for queue in queues])
        if not queues:
            return self.say("no queue yet: one appears with its first job")
        heads = ["queue", "delayed", "ready", "pending", "dead", "discarded", "oldest ready", "workers", ""]
        return self.say_table(heads, [_row(queue) for queue in queues])


def _plain(queue: QueueSummary) -> dict[str, Any]:
    """The fields of a summary, less the history of an hour."""
    fields = asdict(queue)
    del fields["history"]
    return fields


def _row(queue: QueueSummary) -> list[object]:
    notes = ["paused"] if queue.paused else []
    if queue.paused and queue.paused_reason:
        notes.append(queue.paused_reason)
    if queue.holds:
        notes.append("; ".join(f"held: {hold} ({hold.jobs:,})" for hold in queue.holds))
    if queue.broken:
        notes.append(queue.broken)
    counts = [queue.delayed, queue.ready, queue.pending, queue.dead, queue.discarded]
    return [queue.queue, *counts, age(queue.oldest_ready_s), queue.workers, ": ".join(notes)]
