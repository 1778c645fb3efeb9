"""What became of an operation's jobs: who of those it sent fails again, who of those it asked to stop did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from queueops import keys
from queueops.causes import CANCELLED
from queueops.connection import Connection
from queueops.inspector import Inspector
from queueops.models import Operation
from queueops.states import JobState

#: Ids kept of each kind of answer but ok.
SAMPLES = 10
_TRIP = 500


def outcomes(operation: Operation, conn: Connection | None = None) -> tuple[int, int]:
    """Of the last jobs that it sent: how many have failed again, and how many have ended well."""
    return outcomes_of(Inspector(conn), operation.cursor)[:2]


def outcomes_of(inspector: Inspector, cursor: dict[str, Any]) -> tuple[int, int, int]:
    """The same, and how many of them run or may run now."""
    failed = well = out = 0
    by_queue: dict[str, list[str]] = {}
    for queue, job_id in cursor.get("watched", []):
        by_queue.setdefault(queue, []).append(job_id)
    for queue, ids in by_queue.items():
        for job in inspector.jobs(queue, ids):
            if job is None or job.state == JobState.DONE:
                well += 1
            elif job.state == JobState.DEAD or job.attempts > 0:
                failed += 1
            elif job.state in {JobState.READY, JobState.PENDING}:
                out += 1
    return failed, well, out


def tally(results: dict[str, Any], ids: Sequence[str], words: Sequence[str]) -> int:
    """Count the answers by word, keep a few ids of those that were not taken; how many were."""
    samples = {word: list(kept) for word, kept in results.get("samples", {}).items()}
    for job_id, word in zip(ids, words, strict=True):
        # 'held:<id>' names the holder, 'wrong:<state>' the state: the first is one kind, the second several.
        kind, _, detail = word.partition(":")
        name = word if kind == "wrong" else kind
        results[name] = results.get(name, 0) + 1
        if word != "ok" and len(samples.setdefault(name, [])) < SAMPLES:
            samples[name].append([job_id, detail] if kind == "held" else [job_id])
    if samples:
        results["samples"] = samples
    return sum(word == "ok" for word in words)


def asked(inspector: Inspector, operation_id: str, queues: Iterable[str]) -> dict[str, Any]:
    """Of the running jobs that it asked to stop: how many, and what each did.

    `obeyed`: its handler saw the request, and ended; `stopped`: its process was ended for it; `ended`: it was
    over, well or not, before it saw anything; `running`: it runs still. A few ids of all but the first.
    """
    counts: Counter[str] = Counter(dict.fromkeys(("asked", "obeyed", "stopped", "ended", "running"), 0))
    samples: dict[str, list[str]] = {}
    for queue in queues:
        client: Any = inspector.connection.client
        told = [
            (raw.decode(errors="replace"), *value.decode(errors="replace").partition(" ")[::2])
            for raw, value in client.hgetall(keys.asked(queue, operation_id)).items()
        ]
        for start in range(0, len(told), _TRIP):
            part = told[start : start + _TRIP]
            jobs = inspector.jobs(queue, [job_id for job_id, _, _ in part])
            for (job_id, delivery, seen), job in zip(part, jobs, strict=True):
                is_that = job is not None and str(job.delivery) == delivery
                if job is not None and is_that and job.state == JobState.PENDING:
                    word = "running"
                elif job is not None and is_that and job.state == JobState.DEAD and job.cause == CANCELLED:
                    word = "stopped"
                else:
                    word = "obeyed" if seen else "ended"
                counts["asked"] += 1
                counts[word] += 1
                if word != "obeyed" and len(samples.setdefault(word, [])) < SAMPLES:
                    samples[word].append(job_id)
    return {**counts, "samples": samples}
