"""Causes: the list and the data of each, and the counters of failing jobs."""

from __future__ import annotations

from queueops import keys
from queueops.doctor.ground import TRIP, Ground, Scanned, chunks
from queueops.inspector.reads import number

#: How often a count is begun again because jobs moved.
_TRIES = 3


class Causes(Ground):
    def _examine_causes(self, queue: str, hashes: set[str]) -> None:
        index = keys.queue_key(queue, "causes")
        known = set(self.members(index))
        for cause in sorted(hashes - known):
            # Between the two scans it may have come or gone.
            key = keys.cause(queue, cause)
            if self.client.zscore(index, cause) is not None or not self.client.exists(key):
                continue
            if self.mend:
                self.client.delete(key)
            self.add("error", queue, None, f"cause {cause} is on no list", mended=self.mend)
        for cause in sorted(known - hashes):
            key = keys.cause(queue, cause)
            if self.client.exists(key) or self.client.zscore(index, cause) is None:
                continue
            if self.mend:
                self.client.hset(key, mapping={"text": cause, "first": self.reads.now_ms()})
            self.add("error", queue, None, f"cause {cause} has no data", mended=self.mend)

    def recount(self) -> Scanned:
        """Walk over the jobs once more, to count only."""
        raise NotImplementedError

    def _examine_failing(self, first: Scanned) -> None:
        """The counters of failing jobs.

        No script can count a million of them, so a count stands only where nothing of the queue has
        moved from before it began until the counters were read. A few tries find such a while.
        """
        suspects = {queue for queue, _ in self._miscounted(first)}
        for _ in range(_TRIES):
            if not suspects:
                return
            before = self._marks(suspects)
            wrong = self._miscounted(self.recount())
            still = {queue for queue, mark in self._marks(suspects).items() if mark == before[queue]}
            for (queue, cause), off in sorted(wrong.items()):
                if queue not in still:
                    continue
                if self.mend:
                    self.client.hincrby(keys.cause(queue, cause), "failing", -off)
                counted = f"{abs(off):,} too {'many' if off > 0 else 'few'}"
                self.add(
                    "error", queue, None, f"cause {cause} counts {counted} failing jobs", mended=self.mend
                )
            suspects -= still

    def _marks(self, queues: set[str]) -> dict[str, tuple[str, ...]]:
        """What changes with each move of a queue."""
        pipe = self.client.pipeline(transaction=False)
        for queue in sorted(queues):
            pipe.hgetall(keys.queue_key(queue, "stats_total"))
            pipe.xinfo_stream(keys.queue_key(queue, "events"))
        answers = pipe.execute(raise_on_error=False)
        marks: dict[str, tuple[str, ...]] = {}
        for queue, totals, stream in zip(sorted(queues), answers[::2], answers[1::2], strict=True):
            # With the audit `outcome` not every move is an event, but then a counter moves.
            last = stream["last-generated-id"] if isinstance(stream, dict) else ""
            marks[queue] = (str(sorted(totals.items()) if isinstance(totals, dict) else ""), str(last))
        return marks

    def _miscounted(self, scanned: Scanned) -> dict[tuple[str, str], int]:
        places = {(q, c) for q, causes in scanned.causes.items() for c in causes} | set(scanned.failing)
        off = {}
        for part in chunks(sorted(places), TRIP):
            pipe = self.client.pipeline(transaction=False)
            for queue, cause in part:
                pipe.hget(keys.cause(queue, cause), "failing")
            for place, told in zip(part, pipe.execute(raise_on_error=False), strict=True):
                difference = number(told) - len(scanned.failing.get(place, ()))
                if difference:
                    off[place] = difference
        return off
