"""Jobs: one, some, and a page of a state, in the order that the state keeps them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from queueops import keys
from queueops.inspector.decode import decode_job, instant
from queueops.inspector.reads import Reads, listed, number
from queueops.job import Job
from queueops.scripts import script
from queueops.states import LISTED, JobState, Lane

#: Jobs in one round trip.
TRIP = 500
_SORTED = (JobState.DELAYED, JobState.PENDING, JobState.DEAD, JobState.DISCARDED)
#: States of which the last to come is shown first.
_NEWEST_FIRST = frozenset({JobState.DEAD, JobState.DISCARDED})
_SET_CURSOR = re.compile(r"(-?\d+(?:\.\d+)?)~(.{1,256})\Z", re.DOTALL)
_LANE_CURSOR = re.compile(rf"({'|'.join(Lane)})~(\d+-\d+)\Z")
_FIRST_ID = b"0-0"


@dataclass(frozen=True)
class Row:
    """A job and the time by which its state sorts it.

    `at`: when a delayed job is due, a ready one became so, a pending one's lease is looked at, a
    dead one died, a discarded one's keep time ends.
    """

    job: Job
    at: datetime


@dataclass(frozen=True)
class Page:
    """Rows of one state, how many jobs are in it, and the cursor of the next page (None: the last one)."""

    queue: str
    state: JobState
    rows: list[Row]
    total: int
    next: str | None
    newest: bool  # from high to low
    now_ms: int

    @property
    def jobs(self) -> list[Job]:
        """The jobs of the rows."""
        return [row.job for row in self.rows]


@dataclass(frozen=True)
class Step:
    """An id on a walk, the time by which its state sorts it (Unix ms), and the cursor to go on after it."""

    id: str
    at_ms: float
    cursor: str


@dataclass(frozen=True)
class Walk:
    """Some ids of a state, the cursor of the next ones (None: these are the last), and how many there are."""

    steps: list[Step]
    next: str | None
    size: int


class Pages(Reads):
    """One job, some jobs, a page of jobs: O(what is asked for)."""

    def job(self, queue: str, job_id: str) -> Job | None:
        """The job, or None. One whose data can't be read says so in `corrupt`."""
        return self.jobs(queue, [job_id])[0]

    def jobs(self, queue: str, job_ids: Sequence[str]) -> list[Job | None]:
        """The jobs of these ids, in their order, None for an unknown one; a round trip per 500."""
        found: list[Job | None] = []
        for start in range(0, len(job_ids), TRIP):
            part = job_ids[start : start + TRIP]
            pipe = self.pipe()
            pipe.zmscore(keys.jobs_in(queue, JobState.DELAYED), part)
            for job_id in part:
                pipe.hgetall(keys.job(queue, job_id))
            scores, *hashes = self.answers(pipe)
            due = scores if isinstance(scores, list) else [None] * len(part)
            found += [
                decode_job(queue, job_id, fields, score=score)
                for job_id, fields, score in zip(part, hashes, due, strict=True)
            ]
        return found

    def find(self, job_id: str) -> Job | None:
        """The job of this id in whatever queue, one look into each; the last moved if several have it."""
        queues = self.queues()
        pipe = self.pipe()
        for queue in queues:
            pipe.hget(keys.job(queue, job_id), "since")
        since = self.answers(pipe) if queues else []
        known = [(number(at), queue) for queue, at in zip(queues, since, strict=True) if at is not None]
        return self.job(max(known)[1], job_id) if known else None

    def counts(self, queue: str) -> dict[JobState, int]:
        """How many jobs of the queue are in each listed state."""
        pipe = self.pipe()
        ask_counts(pipe, queue)
        return read_counts(self.answers(pipe))

    def page(
        self,
        queue: str,
        state: JobState | str,
        *,
        limit: int = 50,
        after: str | None = None,
        newest: bool | None = None,
        cause: str | None = None,
    ) -> Page:
        """A page of a state, `limit` (1..1000) rows at most, from where the page of `after` ended.

        The cursor is a place, not an offset: rows that come or go do not shift what follows.
        `newest` turns the order round; by default the dead and the discarded start with the newest.
        `cause` narrows the dead. Raises ValueError for a state without a list or a bad cursor.
        """
        state = JobState(state)
        if state not in LISTED:
            raise ValueError(f"{state} jobs are on no list")
        if not 1 <= limit <= 1000:
            raise ValueError(f"limit must be 1 to 1000, got {limit}")
        if cause is not None and state is not JobState.DEAD:
            raise ValueError("only the dead are listed by cause")
        newest = state in _NEWEST_FIRST if newest is None else newest
        walk = self.walk(queue, state, limit=limit, after=after, newest=newest, cause=cause)
        rows = self._rows(queue, state, walk.steps)
        return Page(queue, state, rows, walk.size, walk.next, newest, self.now_ms())

    def walk(
        self,
        queue: str,
        state: JobState,
        *,
        limit: int,
        after: str | None = None,
        newest: bool = False,
        cause: str | None = None,
        until: str | None = None,
    ) -> Walk:
        """The ids of a state from where the walk of `after` ended, without their jobs.

        `until` is a cursor too (for ready jobs, Unix ms of the server): the walk ends at it, so that
        it does not run after what comes meanwhile. Raises ValueError for a bad cursor.
        """
        if state is JobState.READY:
            return self._walk_lanes(queue, limit, after, newest, until)
        score, member = _set_cursor(after)
        key = keys.jobs_in(queue, state) if cause is None else keys.dead_of_cause(queue, cause)
        size, *flat = self.connection.run(
            script("seek"), key, score=score, member=member, reverse="1" if newest else "", count=limit + 1
        )
        steps = []
        for raw, at in zip(flat[::2], flat[1::2], strict=True):
            job_id = raw.decode(errors="replace")
            steps.append(Step(job_id, float(at), f"{_plain(at)}~{job_id}"))
        more, steps = len(steps) > limit, steps[:limit]
        if until is not None:
            last_score, last_member = _set_cursor(until)
            last = (float(last_score), last_member.encode())
            kept = [step for step in steps if (step.at_ms, step.id.encode()) <= last]
            more, steps = more and len(kept) == len(steps), kept
        return Walk(steps, steps[-1].cursor if more else None, int(size))

    def _walk_lanes(self, queue: str, limit: int, after: str | None, newest: bool, until: str | None) -> Walk:
        lanes = list(reversed(Lane)) if newest else list(Lane)
        start: bytes | None = None
        if after:
            match = _LANE_CURSOR.match(after)
            if match is None:
                raise ValueError(f"no such page: {after!r:.80}")
            lanes = lanes[lanes.index(Lane(match[1])) :]
            start = match[2].encode()
        pipe = self.pipe()
        ask_counts(pipe, queue)
        for lane in lanes:
            pipe.xinfo_groups(keys.ready(queue, lane))
        answers = self.answers(pipe)
        total = read_counts(answers[:COUNTS])[JobState.READY]
        pipe = self.pipe()
        for lane, groups in zip(lanes, answers[COUNTS:], strict=True):
            key, low = keys.ready(queue, lane), last_delivered(groups)
            high: str | bytes = until or "+"
            if newest:
                high = b"(" + start if start else high
                pipe.xrevrange(key, max=high, min=b"(" + low, count=limit + 1)
            else:
                low = max(low, start, key=_stream_order) if start else low
                pipe.xrange(key, min=b"(" + low, max=high, count=limit + 1)
            start = None  # it is a place in the first lane only
        steps = [
            Step(
                ((fields or {}).get(b"id") or b"").decode(errors="replace"),
                float(entry_id.split(b"-")[0]),
                f"{lane.value}~{entry_id.decode()}",
            )
            for lane, found in zip(lanes, self.answers(pipe), strict=True)
            for entry_id, fields in listed(found)
        ]
        more, steps = len(steps) > limit, steps[:limit]
        return Walk(steps, steps[-1].cursor if more else None, total)

    def _rows(self, queue: str, state: JobState, steps: Sequence[Step]) -> list[Row]:
        rows = []
        jobs = self.jobs(queue, [step.id for step in steps])
        for step, job in zip(steps, jobs, strict=True):
            if job is None:
                job = Job(id=step.id, queue=queue, state=None, corrupt="its data are missing")
            elif job.state != state and job.corrupt is None:
                continue  # it moved between the two reads
            since = job.since if state is JobState.READY else None
            rows.append(Row(job, since or instant(step.at_ms)))
        return rows


def _set_cursor(cursor: str | None) -> tuple[str, str]:
    if not cursor:
        return "", ""
    match = _SET_CURSOR.match(cursor)
    if match is None:
        raise ValueError(f"no such page: {cursor!r:.80}")
    return match[1], match[2]


#: Answers that ask_counts asks for.
COUNTS = len(_SORTED) + len(Lane)


def ask_counts(pipe: Any, queue: str) -> None:
    """Put the commands of read_counts on a pipeline."""
    for state in _SORTED:
        pipe.zcard(keys.jobs_in(queue, state))
    for lane in Lane:
        pipe.xlen(keys.ready(queue, lane))


def read_counts(answers: Sequence[Any]) -> dict[JobState, int]:
    """Counts by state, in the order of a job's life; what was not a number counts as 0."""
    by_state = {state: number(answer) for state, answer in zip(_SORTED, answers, strict=False)}
    entries = sum(number(answer) for answer in answers[len(_SORTED) : COUNTS])
    by_state[JobState.READY] = max(0, entries - by_state[JobState.PENDING])
    return {state: by_state[state] for state in LISTED}


def last_delivered(groups: Any) -> bytes:
    """The entry id up to which our group has read a lane."""
    for group in listed(groups):
        if group.get("name") == keys.GROUP.encode():
            found: bytes = group["last-delivered-id"]
            return found
    return _FIRST_ID


def _stream_order(entry_id: bytes) -> tuple[int, int]:
    ms, _, n = entry_id.partition(b"-")
    return int(ms), int(n)


def _plain(score: bytes) -> str:
    """A score as the cursor writes it: whole milliseconds without an exponent."""
    value = float(score)
    return str(int(value)) if value.is_integer() else repr(value)
