"""What Prometheus scrapes: the engine's statistics and the conditions of the fleet."""

from __future__ import annotations

import hmac

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from dashboard import conditions, queries
from queueops.bridges.prometheus import Statistics, exposition
from queueops.errors import QueueOpsError
from queueops.inspector import Inspector, Minute


@require_safe
@never_cache
@login_not_required
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer a scrape; where METRICS_TOKEN is set only with it, as `Authorization: Bearer <token>`.

    It names queues and counts, and nothing that a job carries.
    """
    token = getattr(settings, "METRICS_TOKEN", "")
    given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
    if token and not hmac.compare_digest(given.encode(), token.encode()):
        return HttpResponse("this needs its token\n", status=401, content_type="text/plain")
    snapshot = queries.snapshot()
    totals: dict[str, Minute] = {}
    try:
        totals = Inspector().totals([each.queue for each in snapshot.queues])
    except QueueOpsError:
        pass  # queueops_redis_up says so
    found = [(each.check, each.queue, each.severity) for each in conditions.problems(queries.state(snapshot))]
    statistics = Statistics(
        snapshot.queues,
        totals,
        found,
        workers=len(snapshot.fleet.workers),
        is_redis_up=not snapshot.away,
    )
    body, content_type = exposition(statistics, request.headers.get("Accept", ""))
    return HttpResponse(body, content_type=content_type)
