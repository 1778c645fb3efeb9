"""Who works: workers with their children, leases and jobs, and the button that lets one finish and stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard import acts, conditions
from dashboard.access import may, needs
from dashboard.answers import answered
from dashboard.htmx import render_page
from queueops.conf import config
from queueops.errors import QueueOpsError
from queueops.inspector import Inspector, Running, WorkerSummary
from queueops.rights import Right
from queueops.store import Store

#: A job that has run so many times its queue's 99th percentile, and at least so long, is marked.
FAR_OVER, FAR_OVER_S = 3.0, 10.0
MOST_JOBS = 20  # of one worker


@dataclass(frozen=True)
class Shown:
    """A worker as the page shows it."""

    worker: WorkerSummary
    silent_s: float | None
    is_red: bool
    jobs: Sequence[tuple[Running, bool]]  # with whether it runs far over its queue's usual time
    more_jobs: int

    @property
    def info(self) -> dict[str, Any]:
        return self.worker.info

    @property
    def lease_left_s(self) -> float | None:
        """The shortest lease of its children."""
        return min(
            (left for child in self.worker.children for left in child.lease_left_s.values()), default=None
        )

    @property
    def queues(self) -> list[str]:
        return self.worker.queues


@require_safe
@needs(Right.VIEW_JOB)
def workers(request: HttpRequest) -> HttpResponse:
    """Show every worker, those that do not fetch first."""
    context: dict[str, Any] = {"workers": [], "trouble": "", "limit_s": config().fetch_limit_s}
    try:
        context["workers"] = read()
        context["redis"] = Inspector().server()
    except QueueOpsError as error:
        context["trouble"] = str(error)
    context["may_drain"] = may(request.user, Right.PAUSE_QUEUE)
    context["may_cancel"] = may(request.user, acts.RIGHT_OF["cancel"])
    return render_page(request, "dashboard/workers.html", "worker-list", context)


def read() -> list[Shown]:
    """Return the workers. Raises StoreUnavailable."""
    inspector = Inspector()
    found = inspector.workers()
    usual = _usual_s(inspector, {run.job.queue for each in found for run in each.running})
    limit = config().fetch_limit_s
    shown = []
    for each in found:
        silent = conditions.silent_s(each)
        jobs = [(run, _is_far_over(run, usual)) for run in each.running]
        red = each.seen_s is None or (silent is not None and silent > limit)
        shown.append(Shown(each, silent, red, jobs[:MOST_JOBS], max(0, len(jobs) - MOST_JOBS)))
    return sorted(shown, key=lambda each: (not each.is_red, each.worker.worker))


def _usual_s(inspector: Inspector, queues: set[str]) -> dict[str, float]:
    """Return the 99th percentile of how long jobs of these queues ran, seconds, since ever."""
    totals = inspector.totals(sorted(queues)) if queues else {}
    found = {queue: minute.quantile_ms("ran", 0.99) for queue, minute in totals.items()}
    return {queue: ms / 1000 for queue, ms in found.items() if ms is not None}


def _is_far_over(run: Running, usual: dict[str, float]) -> bool:
    usually = usual.get(run.job.queue)
    return usually is not None and (run.running_s or 0) > max(FAR_OVER_S, FAR_OVER * usually)


@require_POST
@needs(Right.PAUSE_QUEUE)
def worker_drain(request: HttpRequest, worker: str) -> HttpResponse:
    """Ask a worker to claim nothing more, finish what runs and stop."""
    known = {each.worker for each in Inspector().workers(with_jobs=False)}
    if worker not in known:
        raise Http404(f"no worker {worker}")
    Store().drain(worker)
    acts.record(
        request.user, "drain", count=1, reason=request.POST.get("reason", "")[:500], filter={"worker": worker}
    )
    text = f"{worker} will finish what runs and stop"
    return answered(request, text, refresh=True, back=reverse("workers"))
