"""Who works: workers, their children and leases, and what runs now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from queueops import keys
from queueops.inspector.causes import Causes
from queueops.inspector.decode import decode_job
from queueops.inspector.overview import MOST_CHILDREN
from queueops.inspector.reads import listed, optional
from queueops.job import Job, from_ms
from queueops.states import JobState

MOST_WORKERS = 500
#: Most running jobs of one queue that are shown with their worker.
MOST_RUNNING = 200


@dataclass(frozen=True)
class Running:
    """A job that a child holds. `running_s` is None for one that has not started."""

    job: Job
    running_s: float | None
    lease_left_s: float | None


@dataclass(frozen=True)
class ChildSummary:
    """One process of a worker, its lease in each queue (seconds left; below 0: it ran out), and its jobs."""

    child: str
    lease_left_s: dict[str, float]
    running: list[Running] = field(default_factory=list)


@dataclass(frozen=True)
class WorkerSummary:
    """One `runworkers` tree. `info` is what it says of itself; `seen_s`: seconds since its last heartbeat."""

    worker: str
    seen_s: float | None
    info: dict[str, Any]
    children: list[ChildSummary]

    @property
    def queues(self) -> list[str]:
        """The queues that its children are registered in."""
        return sorted({queue for child in self.children for queue in child.lease_left_s})

    @property
    def running(self) -> list[Running]:
        """The jobs of all its children."""
        return [each for child in self.children for each in child.running]


class Workers(Causes):
    """Workers and what they run: O(workers + running jobs shown)."""

    def workers(self, *, with_jobs: bool = True) -> list[WorkerSummary]:
        """Every worker that has a heartbeat or a registered child, by name."""
        names = self.queues()
        now_ms = self.now_ms()
        pipe = self.pipe()
        pipe.zrevrange(keys.WORKERS, 0, MOST_WORKERS - 1, withscores=True)
        for queue in names:
            pipe.zrevrange(keys.queue_key(queue, "children"), 0, MOST_CHILDREN - 1, withscores=True)
        beats, *children = self.answers(pipe)
        seen = {worker.decode(errors="replace"): at for worker, at in listed(beats)}
        leases: dict[str, dict[str, float]] = {}
        for queue, pairs in zip(names, children, strict=True):
            for child, end in listed(pairs):
                leases.setdefault(child.decode(errors="replace"), {})[queue] = (end - now_ms) / 1000
        running = self.running(names) if with_jobs else []
        by_child: dict[str, list[Running]] = {}
        for each in running:
            by_child.setdefault(each.job.child or "", []).append(each)
        trees: dict[str, list[ChildSummary]] = {worker: [] for worker in seen}
        for child in sorted(leases):
            summary = ChildSummary(child, leases[child], by_child.get(child, []))
            trees.setdefault(child.rpartition("/")[0], []).append(summary)
        infos = self._infos(list(trees))
        return [
            WorkerSummary(
                worker,
                (now_ms - seen[worker]) / 1000 if worker in seen else None,
                infos[worker],
                trees[worker],
            )
            for worker in sorted(trees)
        ]

    def _infos(self, workers: list[str]) -> dict[str, dict[str, Any]]:
        if not workers:
            return {}
        pipe = self.pipe()
        pipe.hmget(keys.WORKER_INFO, workers)
        [answer] = self.answers(pipe)
        found = listed(answer) or [None] * len(workers)
        return {worker: _info(told) for worker, told in zip(workers, found, strict=True)}

    def running(self, queues: Sequence[str] | None = None) -> list[Running]:
        """The pending jobs of these queues (default: all), 200 a queue at most, the longest running first."""
        names = self.queues() if queues is None else list(queues)
        if not names:
            return []
        now_ms = self.now_ms()
        pipe = self.pipe()
        for queue in names:
            pipe.zrange(keys.jobs_in(queue, JobState.PENDING), 0, MOST_RUNNING - 1)
        held = [
            (queue, job_id.decode(errors="replace"))
            for queue, ids in zip(names, self.answers(pipe), strict=True)
            for job_id in listed(ids)
        ]
        pipe = self.pipe()
        for queue, job_id in held:
            pipe.hgetall(keys.job(queue, job_id))
        jobs = [
            job
            for (queue, job_id), fields in zip(held, self.answers(pipe) if held else [], strict=True)
            if (job := decode_job(queue, job_id, fields)) is not None and job.state == JobState.PENDING
        ]
        leases = self._leases(jobs)
        found = [
            Running(
                job,
                (from_ms(now_ms) - job.started_at).total_seconds() if job.started_at else None,
                (end - now_ms) / 1000 if (end := leases.get((job.queue, job.child))) is not None else None,
            )
            for job in jobs
        ]
        return sorted(found, key=lambda each: -(each.running_s if each.running_s is not None else -1.0))

    def _leases(self, jobs: list[Job]) -> dict[tuple[str, str | None], float]:
        held = sorted({(job.queue, job.child) for job in jobs if job.child})
        pipe = self.pipe()
        for queue, child in held:
            pipe.zscore(keys.queue_key(queue, "children"), child)
        ends = self.answers(pipe) if held else []
        return {
            place: end
            for place, answer in zip(held, ends, strict=True)
            if (end := optional(answer, float)) is not None
        }


def _info(told: Any) -> dict[str, Any]:
    try:
        info = json.loads(told)
    except (TypeError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}
