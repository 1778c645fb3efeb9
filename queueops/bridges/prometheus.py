"""The engine's statistics for Prometheus: counters since ever, gauges of now, and durations as histograms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from queueops.inspector import Minute, QueueSummary
from queueops.stats import buckets

#: Counter of `stats` -> what it counts.
COUNTERS = {
    "enqueued": "Jobs that came in",
    "claimed": "Deliveries to workers",
    "done": "Jobs that ended well",
    "failed": "Attempts that failed",
    "dead": "Jobs that gave up",
    "discarded": "Jobs that were set aside",
    "requeued": "Dead jobs that were sent again",
    "rescued": "Deliveries whose process was lost",
    "expired": "Jobs that were not started before they expired",
    "snoozed": "Deliveries put off without burning an attempt",
    "late": "Results that came after their lease had ended",
}
_HISTOGRAMS = {"lateness": "From when a job was due to its start", "ran": "How long handlers ran"}
_STATES = ("delayed", "ready", "pending", "dead", "discarded")


class Statistics:
    """A collector over one reading; make a new one for each scrape."""

    def __init__(
        self,
        queues: Sequence[QueueSummary],
        totals: Mapping[str, Minute],
        conditions: Iterable[tuple[str, str, str]] = (),
        *,
        workers: int | None = None,
        is_redis_up: bool = True,
    ) -> None:
        self._queues = queues
        self._totals = totals
        self._conditions = list(conditions)
        self._workers = workers
        self._is_redis_up = is_redis_up

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield GaugeMetricFamily("queueops_redis_up", "1 when Redis answered", value=float(self._is_redis_up))
        conditions = GaugeMetricFamily(
            "queueops_condition",
            "What is wrong now, as on the overview",
            labels=["check", "queue", "severity"],
        )
        for labels in dict.fromkeys(self._conditions):
            conditions.add_metric(list(labels), float(self._conditions.count(labels)))
        yield conditions
        if self._workers is not None:
            yield GaugeMetricFamily(
                "queueops_workers", "Workers with a heartbeat", value=float(self._workers)
            )
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()

    def _gauges(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("queueops_jobs", "Jobs by state", labels=["queue", "state"])
        oldest = GaugeMetricFamily(
            "queueops_oldest_ready_seconds", "Age of the oldest ready job", labels=["queue"]
        )
        paused = GaugeMetricFamily("queueops_paused", "1 when the queue is paused", labels=["queue"])
        workers = GaugeMetricFamily("queueops_queue_workers", "Workers with a live lease", labels=["queue"])
        events = GaugeMetricFamily("queueops_events", "Events that no mirror has taken", labels=["queue"])
        lag = GaugeMetricFamily("queueops_mirror_lag_seconds", "Age of the oldest of them", labels=["queue"])
        lost = GaugeMetricFamily("queueops_events_lost", "Events dropped unmirrored", labels=["queue"])
        for each in self._queues:
            for state in _STATES:
                jobs.add_metric([each.queue, state], float(getattr(each, state)))
            oldest.add_metric([each.queue], each.oldest_ready_s or 0.0)
            paused.add_metric([each.queue], float(each.paused))
            workers.add_metric([each.queue], float(each.workers))
            events.add_metric([each.queue], float(each.events))
            lag.add_metric([each.queue], each.events_age_s or 0.0)
            lost.add_metric([each.queue], float(each.events_lost))
        yield from (jobs, oldest, paused, workers, events, lag, lost)

    def _counters(self) -> Iterator[Metric]:
        for name, help_text in COUNTERS.items():
            family = CounterMetricFamily(f"queueops_{name}", help_text, labels=["queue"])
            for queue, minute in self._totals.items():
                family.add_metric([queue], float(minute.count(name)))
            yield family

    def _histograms(self) -> Iterator[Metric]:
        for name, help_text in _HISTOGRAMS.items():
            family = HistogramMetricFamily(f"queueops_{name}_seconds", help_text, labels=["queue"])
            for queue, minute in self._totals.items():
                total, rows = 0, []
                for bound_ms, number in buckets(minute.counters, name):
                    total += number
                    label = "+Inf" if bound_ms == float("inf") else f"{bound_ms / 1000:g}"
                    rows.append((label, float(total)))
                family.add_metric([queue], rows, sum_value=None)
            yield family


def exposition(statistics: Statistics, accept: str) -> tuple[bytes, str]:
    """Return a scrape's body in the format that its Accept header asks for, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(statistics)
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
