"""Children that are ended on purpose: a job in them is over its hard limit, or a person wants it stopped.

A thread can't be stopped from outside, so the whole process is: the jobs beside the guilty one get a moment
to finish, what does not is given back uncounted, and nobody becomes a suspect.
"""

from __future__ import annotations

import logging
import time

from queueops.worker.board import Running
from queueops.worker.leases import Grave
from queueops.worker.nursery import Ended, Process
from queueops.worker.stopping import Due, Stops

logger = logging.getLogger("queueops.worker")

#: How long the others in a child may go on when it is ended.
DRAIN_S = 5.0
#: ... and how long what ended in it may take to be settled when no other runs.
ALONE_S = 0.3
NEVER = float("inf")


class Endings:
    """When each child must end, and what is to be said of its jobs then."""

    def __init__(self, stops: Stops) -> None:
        self._stops = stops

    def look(self, process: Process, now: float, *, is_away: bool) -> float:
        """End what must end now; when to look again. While Redis is away nobody is stopped for a person: what
        ended beside the job could not be settled.
        """
        running = process.board.running()
        if process.is_ending:
            is_alone = bool(running) and all(self._ends_at(process, each) <= now for each in running)
            kill_at = process.kill_at - DRAIN_S + ALONE_S if is_alone else process.kill_at
            if now < kill_at:
                return kill_at
            process.kill()
            return NEVER
        first = min((self._ends_at(process, each, is_away=is_away) for each in running), default=NEVER)
        if now < first:
            return first
        process.is_ending = True
        process.kill_at = now + DRAIN_S
        late = [each for each in running if each.deadline and each.deadline <= now]
        if late:
            ids = ", ".join(each.job_id for each in late)
            logger.error("%s is ended: past their hard limit are %s", process.name, ids)
        for each in running:
            if (due := self._stop_of(process, each)) and due.at <= now:
                logger.warning(
                    "%s is ended: %s wants %s stopped", process.name, due.stop.by or "a person", each.job_id
                )
        process.control.send({"stop": True})
        return now

    def grave(self, ended: Ended, *, is_stopping: bool) -> Grave:
        """What a process that is gone held. `is_stopping`: its worker stops, so that it was no accident."""
        process, running = ended.process, ended.process.board.running()
        grave = Grave(process.name, ended.why, [])
        by_queue: dict[str, list[Running]] = {}
        for each in running:
            if (queue := process.queue_of(each)) is not None:
                by_queue.setdefault(queue, []).append(each)
        grave.queues = [*by_queue, *(queue for queue in process.queues if queue not in by_queue)]
        if process.is_ending:
            now = time.monotonic()
            grave.why = "the job beside it was ended with their process"
            for queue, jobs in by_queue.items():
                for each in jobs:
                    if (due := self._stop_of(process, each)) and due.at <= now:
                        grave.stopped.setdefault(queue, []).append((each, due.stop))
                    elif each.deadline and each.deadline <= now:
                        grave.late.setdefault(queue, []).append(each)
        elif is_stopping:
            grave.why = "stopped"
        else:
            grave.running = {queue: [each.job_id for each in jobs] for queue, jobs in by_queue.items()}
            if not ended.is_clean:
                ids = ", ".join(each.job_id for each in running) or "nothing"
                logger.error("%s ended (%s); it ran: %s", process.name, ended.why, ids)
        self._stops.forget(process.name)
        return grave

    def _ends_at(self, process: Process, each: Running, *, is_away: bool = False) -> float:
        due = None if is_away else self._stop_of(process, each)
        return min(each.deadline or NEVER, due.at if due else NEVER)

    def _stop_of(self, process: Process, each: Running) -> Due | None:
        queue = process.queue_of(each)
        return self._stops.of(queue, each.job_id, each.delivery) if queue is not None else None
