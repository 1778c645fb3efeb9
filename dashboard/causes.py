"""What fails, by cause, as pages show it: with its share, its samples and its last hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db import DatabaseError

from dashboard import payloads
from dashboard.lists import Row, as_job
from queueops import models
from queueops.inspector import CauseSummary, Inspector
from queueops.job import Job, from_ms

#: Causes on a page; of so many the last hour is drawn.
MOST, DRAWN = 100, 30
#: A cause first seen within this time is marked as new.
NEW_S = 3_600
MINUTES = 60


@dataclass
class Shown:
    """One cause over all queues."""

    summary: CauseSummary
    share: float  # of all failing and dead jobs, percent
    text: str  # without secrets of its samples
    is_new: bool
    history: list[int] | None = None
    samples: list[Job] = field(default_factory=list)

    @property
    def cause(self) -> str:
        return self.summary.cause

    @property
    def count(self) -> int:
        return self.summary.dead + self.summary.failing

    @property
    def handlers(self) -> list[str]:
        return sorted({job.handler for job in self.samples if job.handler})

    @property
    def first(self) -> datetime | None:
        return from_ms(self.summary.first_ms) if self.summary.first_ms else None

    @property
    def last(self) -> datetime:
        return from_ms(self.summary.last_ms)

    @property
    def sample(self) -> Row | None:
        return Row(self.samples[0], self.samples[0].since) if self.samples else None

    @property
    def error(self) -> dict[str, str]:
        """The sample's last error."""
        return payloads.error_of(self.samples[0]) if self.samples else {}


def read() -> tuple[list[Shown], int, datetime]:
    """Return the causes with most jobs, how many more there are, and now. Raises StoreUnavailable."""
    inspector = Inspector()
    found = inspector.causes()
    now_ms = inspector.now_ms()
    total = sum(each.dead + each.failing for each in found) or 1
    samples = _samples(inspector, found[:MOST])
    histories = inspector.cause_histories(
        [(at.queue, each.cause) for each in found[:DRAWN] for at in each.queues], MINUTES
    )
    shown = [_shown(each, total, samples.get(each.cause, []), histories, now_ms) for each in found[:MOST]]
    for each in shown[DRAWN:]:
        each.history = None
    return shown, max(0, len(found) - MOST), from_ms(now_ms)


def read_one(cause: str) -> tuple[Shown, datetime] | None:
    """Return one cause, with more samples, or None when nobody knows it. Raises StoreUnavailable."""
    inspector = Inspector()
    everything = inspector.causes(with_gone=True)
    summary = next((each for each in everything if each.cause == cause), None)
    if summary is None:
        return None
    total = sum(each.dead + each.failing for each in everything) or 1
    now_ms = inspector.now_ms()
    samples = _samples(inspector, [summary]).get(cause, [])
    known = {(job.queue, job.id) for job in samples}
    samples += [job for job in _recorded(summary) if (job.queue, job.id) not in known]
    histories = inspector.cause_histories([(at.queue, cause) for at in summary.queues], MINUTES)
    return _shown(summary, total, samples, histories, now_ms), from_ms(now_ms)


def _shown(
    summary: CauseSummary,
    total: int,
    samples: list[Job],
    histories: dict[tuple[str, str], list[int]],
    now_ms: int,
) -> Shown:
    secrets = frozenset[str]().union(*(payloads.secrets_of(job) for job in samples))
    columns = [
        histories[at.queue, summary.cause] for at in summary.queues if (at.queue, summary.cause) in histories
    ]
    return Shown(
        summary,
        100 * (summary.dead + summary.failing) / total,
        payloads.clean_error({"cause_text": summary.text}, secrets)["cause_text"],
        summary.first_ms is not None and now_ms - summary.first_ms < NEW_S * 1000,
        [sum(column) for column in zip(*columns, strict=True)] if columns else [],
        samples,
    )


def _samples(inspector: Inspector, found: Sequence[CauseSummary]) -> dict[str, list[Job]]:
    """Return the last dead job of each cause in each queue, one round trip a queue."""
    wanted: dict[str, list[tuple[str, str]]] = {}
    for each in found:
        for at in each.queues[:5]:
            if at.sample:
                wanted.setdefault(at.queue, []).append((each.cause, at.sample))
    samples: dict[str, list[Job]] = {}
    for queue, pairs in wanted.items():
        for (cause, _), job in zip(
            pairs, inspector.jobs(queue, [job_id for _, job_id in pairs]), strict=True
        ):
            if job is not None:
                samples.setdefault(cause, []).append(job)
    return samples


def _recorded(summary: CauseSummary) -> list[Job]:
    """Return the last jobs of a cause that the record knows: those that fail and are not dead yet."""
    found: list[Job] = []
    try:
        for at in summary.queues[:3]:
            for state in ("delayed", "ready", "pending", "dead"):
                known = models.Job.objects.filter(queue=at.queue, cause=summary.cause, state=state)
                found += [as_job(each) for each in known.order_by("-since", "-pk")[:5]]
    except DatabaseError:
        return found
    return found
