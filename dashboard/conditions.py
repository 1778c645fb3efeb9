"""What is wrong now: the checks, each with a link to the page and filter that shows it.

The same conditions stand on the overview, in the page's title and icon, and in /metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import DatabaseError
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode

from dashboard.templatetags.dashboard import count, duration
from dashboard.visible import one_line
from queueops import models
from queueops.conf import config
from queueops.inspector import CauseSummary, Inspector, QueueSummary, WorkerSummary
from queueops.mirror import MirrorHealth, health
from queueops.schedules.reads import Alarm, alarms
from queueops.store import Store

LONG_WAIT_S = 30.0  # for a job that could start
LAG_S = 30.0  # of the mirror
FAILING_SHARE, FAILING_LEAST = 0.5, 20  # of the last ten minutes' attempts
RECENT_MINUTES = 10
GAP_SHOWN = timedelta(hours=24)


@dataclass(frozen=True)
class Problem:
    """One line of "what is wrong now"."""

    check: str  # which check found it: a name for /metrics
    severity: str  # "bad" or "warn": also names the icon
    text: str
    why: str
    url: str
    go: str = "See the queue"
    queue: str = ""


@dataclass(frozen=True)
class Fleet:
    """What the checks ask for besides the queues' figures; read every few seconds."""

    workers: tuple[WorkerSummary, ...] = ()
    causes: tuple[CauseSummary, ...] = ()
    died: dict[str, int] = field(default_factory=dict)  # queue -> deaths in the last RECENT_MINUTES
    mirrors: tuple[MirrorHealth, ...] = ()
    schedules: tuple[Alarm, ...] = ()  # that can't fire, are overdue, missed a slot or ran late
    operations: tuple[models.Operation, ...] = ()  # that wait for a person or ended badly
    database_away: str = ""
    taken: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class State:
    """All that the checks look at."""

    queues: Sequence[QueueSummary]
    fleet: Fleet
    server_warnings: Sequence[str] = ()
    away: str = ""


def read_fleet(queues: Sequence[QueueSummary]) -> Fleet:
    """Ask Redis and the record. Raises StoreUnavailable; a record that is away is part of the answer."""
    inspector = Inspector()
    workers = tuple(inspector.workers(with_jobs=False))
    with_dead = [each.queue for each in queues if each.dead]
    causes = tuple(inspector.causes(limit=200)) if with_dead else ()
    died = {
        queue: sum(minute.count("dead") for minute in inspector.stats(queue, RECENT_MINUTES))
        for queue in with_dead[:50]
    }
    try:
        return Fleet(workers, causes, died, tuple(health(Store())), *_from_record())
    except DatabaseError as error:
        return Fleet(workers, causes, died, database_away=type(error).__name__)


def _from_record() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    now = timezone.now()
    waiting = models.Operation.objects.filter(status=models.Operation.Status.PAUSED)
    ended = models.Operation.objects.filter(
        status__in=[models.Operation.Status.STOPPED, models.Operation.Status.FAILED],
        created_at__gt=now - timedelta(days=1),
    )
    return tuple(alarms(now)), (*waiting[:10], *ended.order_by("-created_at")[:5])


#: A worker that lives says so three times a lease. Seconds.
GONE_S = 120.0

Check = Callable[[State], Iterable[Problem]]
#: Every check by its name, in the order in which they are shown.
CHECKS: dict[str, Check] = {}


def check(name: str) -> Callable[[Check], Check]:
    """Register a check under `name`."""

    def register(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return register


def problems(state: State) -> list[Problem]:
    """Return what an operator should look at, the worst first."""
    found = [problem for run in CHECKS.values() for problem in run(state)]
    return sorted(found, key=lambda problem: problem.severity != "bad")


def queue_url(queue: str, state: str = "", **filters: str) -> str:
    """Return the address of a queue's list."""
    given = {name: value for name, value in {"state": state, **filters}.items() if value}
    return reverse("queue", args=[queue]) + (f"?{urlencode(given)}" if given else "")


@check("redis_away")
def redis_away(state: State) -> Iterator[Problem]:
    if state.away:
        why = "nothing starts and nothing comes in until it does"
        yield Problem("redis_away", "bad", "Redis does not answer", why, reverse("workers"), "See the fleet")


@check("database_away")
def database_away(state: State) -> Iterator[Problem]:
    if state.fleet.database_away:
        why = "jobs run on; what happens is recorded when it is back"
        yield Problem(
            "database_away", "bad", "The database does not answer", why, reverse("readyz"), "Ask it again"
        )


@check("queue_unreadable")
def queue_unreadable(state: State) -> Iterator[Problem]:
    for each in state.queues:
        if each.broken:
            url = queue_url(each.queue)
            yield Problem(
                "queue_unreadable",
                "bad",
                f"{each.queue}: can't be read in full",
                each.broken,
                url,
                queue=each.queue,
            )


@check("no_worker")
def no_worker(state: State) -> Iterator[Problem]:
    for each in state.queues:
        if each.workers or not (each.ready or each.delayed) or each.paused:
            continue
        waiting = f"{count(each.ready)} ready" if each.ready else f"{count(each.delayed)} delayed"
        why = f"{waiting}; start 'manage.py runworkers'"
        url = queue_url(each.queue, "ready" if each.ready else "delayed")
        severity = "bad" if each.ready else "warn"
        yield Problem(
            "no_worker", severity, f"{each.queue}: no worker", why, url, "See what waits", each.queue
        )


@check("worker_does_not_fetch")
def worker_does_not_fetch(state: State) -> Iterator[Problem]:
    limit = config().fetch_limit_s
    for worker in state.fleet.workers:
        silent = silent_s(worker)
        if silent is not None and silent > limit:
            host = str(worker.info.get("host") or worker.worker)
            text = f"worker on {one_line(host, 60)}: has not fetched for {duration(silent)}"
            why = "it may live and yet take no jobs: look at its log, or drain and restart it"
            if (worker.seen_s or 0) > GONE_S:
                text = f"worker on {one_line(host, 60)}: no sign of it for {duration(worker.seen_s or 0)}"
                why = "its process or its host was lost, or can't reach Redis; others run what it ran"
            url = f"{reverse('workers')}#worker-{worker.worker}"
            yield Problem("worker_does_not_fetch", "bad", text, why, url, "See the worker")


def silent_s(worker: WorkerSummary) -> float | None:
    """Return how long a worker has not fetched, seconds; None for one that has never said anything."""
    if worker.seen_s is None:
        return None
    fetched = worker.info.get("fetched_s_ago")
    return worker.seen_s + (float(fetched) if isinstance(fetched, (int, float)) else 0.0)


@check("dead")
def dead(state: State) -> Iterator[Problem]:
    for each in state.queues:
        if not each.dead:
            continue
        died = state.fleet.died.get(each.queue, 0)
        text = f"{each.queue}: {count(each.dead)} dead"
        if died:
            text += f", {count(died)} in the last {RECENT_MINUTES} min"
        top = _top_cause(state.fleet.causes, each.queue)
        why, url, go = (
            "each waits for a person: requeue or discard it",
            queue_url(each.queue, "dead"),
            "See the dead",
        )
        if top is not None:
            most, summary = top
            why = f"{count(most)} of one cause: {one_line(summary.text, 110)}"
            url, go = reverse("cause", args=[summary.cause]), "See the cause"
        yield Problem("dead", "bad" if died else "warn", text, why, url, go, each.queue)


def _top_cause(causes: Sequence[CauseSummary], queue: str) -> tuple[int, CauseSummary] | None:
    """Return the cause of most of a queue's dead, and how many."""
    found = [(at.dead, cause) for cause in causes for at in cause.queues if at.queue == queue and at.dead]
    return max(found, key=lambda pair: pair[0], default=None)


@check("failing")
def failing(state: State) -> Iterator[Problem]:
    for each in state.queues:
        recent = each.history[-RECENT_MINUTES:]
        done, failed = sum(d for d, _ in recent), sum(f for _, f in recent)
        if failed >= FAILING_LEAST and failed > FAILING_SHARE * (done + failed):
            share = round(100 * failed / (done + failed))
            text = f"{each.queue}: {share} % of attempts fail"
            why = f"{count(failed)} of {count(done + failed)} in the last {RECENT_MINUTES} min"
            yield Problem("failing", "bad", text, why, reverse("causes"), "See the causes", each.queue)


@check("oldest_ready")
def oldest_ready(state: State) -> Iterator[Problem]:
    for each in state.queues:
        if each.paused or not each.workers or (each.oldest_ready_s or 0) <= LONG_WAIT_S:
            continue
        text = f"{each.queue}: oldest ready job waits {duration(each.oldest_ready_s)}"
        busy = f"limit {duration(LONG_WAIT_S)}; {count(each.pending)} running"
        busy += f" of at most {count(each.concurrency)}" if each.concurrency else ""
        url = queue_url(each.queue, "ready", order="oldest")
        yield Problem("oldest_ready", "warn", text, busy, url, "See ready jobs", each.queue)


@check("paused")
def paused(state: State) -> Iterator[Problem]:
    for each in state.queues:
        if each.paused:
            why = one_line(each.paused_reason or "nothing of it starts", 160)
            url = queue_url(each.queue, "ready")
            yield Problem("paused", "warn", f"{each.queue}: paused", why, url, "See the queue", each.queue)


@check("held")
def held(state: State) -> Iterator[Problem]:
    for each in state.queues:
        for hold in each.holds:
            told = next((c.text for c in state.fleet.causes if c.cause == hold.value), hold.value)
            text = one_line(f"{each.queue}: {hold.kind} {told} is held", 120)
            why = f"{count(hold.jobs)} job{'' if hold.jobs == 1 else 's'} kept back so far"
            why += f": {hold.reason}" if hold.reason else ""
            url = queue_url(each.queue, "delayed")
            yield Problem("held", "warn", text, one_line(why, 160), url, "See the queue", each.queue)


@check("schedule")
def schedule(state: State) -> Iterator[Problem]:
    for each in state.fleet.schedules:
        if each.kind != "missed":
            url = reverse("schedule", args=[each.key]) if each.has_row else reverse("schedules")
            why = one_line(each.why, 160)
            yield Problem("schedule", each.severity, one_line(each.text, 120), why, url, "See the schedule")


@check("missed_slot")
def missed_slot(state: State) -> Iterator[Problem]:
    for each in state.fleet.schedules:
        if each.kind == "missed":
            url = reverse("schedule", args=[each.key])
            why = one_line(each.why, 160)
            yield Problem("missed_slot", each.severity, one_line(each.text, 120), why, url, "Run this slot")


@check("events_lost")
def events_lost(state: State) -> Iterator[Problem]:
    for each in state.queues:
        if each.events_lost:
            why = "the event stream was full: the record of what happened has a gap"
            text = f"{each.queue}: {count(each.events_lost)} events lost"
            yield Problem("events_lost", "bad", text, why, reverse("activity"), "See the record", each.queue)


@check("mirror_lag")
def mirror_lag(state: State) -> Iterator[Problem]:
    for each in state.queues:
        if each.events and (each.events_age_s or 0) > LAG_S:
            why = f"{count(each.events)} events wait; searches and histories are that old"
            text = f"{each.queue}: the record is {duration(each.events_age_s)} behind"
            yield Problem("mirror_lag", "warn", text, why, reverse("workers"), "See who mirrors", each.queue)


@check("store_lost")
def store_lost(state: State) -> Iterator[Problem]:
    for each in state.fleet.mirrors:
        if each.is_store_lost:
            why = "its data are not the record's: run 'manage.py rebuild' to bring unfinished jobs back"
            text = f"{each.queue}: Redis has lost its data"
            yield Problem("store_lost", "bad", text, why, queue_url(each.queue), queue=each.queue)


@check("mirror_gap")
def mirror_gap(state: State) -> Iterator[Problem]:
    now = timezone.now()
    for each in state.fleet.mirrors:
        if each.gap_at is not None and now - each.gap_at < GAP_SHOWN:
            why = f"events of before {each.gap_at:%d %b %H:%M} UTC are missing: histories may be incomplete"
            text = f"{each.queue}: the record has a gap"
            yield Problem("mirror_gap", "warn", text, why, queue_url(each.queue), queue=each.queue)


@check("redis_server")
def redis_server(state: State) -> Iterator[Problem]:
    for warning in state.server_warnings:
        yield Problem(
            "redis_server", "warn", "Redis", warning, f"{reverse('workers')}#redis", "See the server"
        )


@check("operation")
def operation(state: State) -> Iterator[Problem]:
    for each in state.fleet.operations:
        severity = "warn" if each.status == models.Operation.Status.PAUSED else "bad"
        jobs = f"{each.verb.replace('_', ' ')} of {count(each.total or each.done)} jobs"
        text = f"operation: {jobs} has {_became(each.status)}"
        why = one_line(each.error or "it waits for a person", 160)
        url = reverse("operation", args=[each.pk])
        yield Problem("operation", severity, text, why, url, "See the operation", each.queue)


def _became(status: str) -> str:
    return {"paused": "paused", "stopped": "stopped by itself", "failed": "failed"}.get(status, status)
