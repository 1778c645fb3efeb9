"""A queue's jobs, state by state."""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard import acts, hints, lists, queries
from dashboard.access import may, needs
from dashboard.forms import FilterForm
from dashboard.htmx import render_page
from dashboard.lists import Filter, ListPage
from queueops import keys, models
from queueops.errors import QueueOpsError
from queueops.inspector import Inspector
from queueops.rights import Right
from queueops.states import LISTED, JobState

#: State -> what an empty list of it says and what to do about it.
EMPTY = {
    JobState.DELAYED: (
        "Nothing is delayed",
        "Jobs stand here that wait for their time, and those that failed and will be tried again.",
    ),
    JobState.READY: ("Nothing waits", "A job that may start stands here until a worker takes it."),
    JobState.PENDING: (
        "Nothing runs",
        "Jobs that a worker has stand here. Start one with manage.py runworkers.",
    ),
    JobState.DEAD: (
        "Nothing is dead",
        "A job that gave up stands here until a person requeues or discards it.",
    ),
    JobState.DISCARDED: ("Nothing is discarded", "What is set aside stands here, to be restored or purged."),
}


@require_safe
@needs(Right.VIEW_JOB)
def queue(request: HttpRequest, queue: str) -> HttpResponse:
    """Show one state's list; to htmx its parts, the rows that it shows in their places."""
    wanted = Filter.read(queue, FilterForm(request.GET))
    after = request.GET.get("after", "")
    shown = lists.ids_of(request.GET.getlist("shown"))[: lists.PAGE_SIZE]
    snapshot = queries.snapshot()
    summary = next((each for each in snapshot.queues if each.queue == queue), None)
    if summary is None and not snapshot.away and not is_known(queue):
        raise Http404(f"no queue {queue}")
    context: dict[str, Any] = {
        "queue": queue,
        "filter": wanted,
        "after": after,
        "here": wanted.query(after=after),
        "summary": summary,
        "digest": hints.digest(summary),
        "trouble": None,
        "count_to": lists.COUNT_TO,
        "page": ListPage(wanted, [], 0, None, 0),
        "tabs": tabs(summary),
        "causes": [],
        "handlers": [],
        "empty": EMPTY[wanted.state],
        "row_template": f"dashboard/rows/{wanted.state}.html",
        "head_template": f"dashboard/rows/{wanted.state}_head.html",
        "columns": 3,
        "verbs": [v for v in acts.VERBS_IN[wanted.state] if may(request.user, acts.RIGHT_OF[v])],
        "may_operate": may(request.user, Right.RUN_OPERATION),
    }
    try:
        context |= _read(wanted, after, shown)
    except ValueError:
        raise Http404("no such page") from None
    except QueueOpsError as error:
        context["trouble"] = ("Redis does not answer, so the list can't be read.", str(error))
    except DatabaseError as error:
        context["trouble"] = (
            "The record does not answer, so this can't be filtered. Without a filter it comes from Redis.",
            type(error).__name__,
        )
    return render_page(request, "dashboard/queue.html", "refresh", context)


def _read(wanted: Filter, after: str, shown: list[str]) -> dict[str, Any]:
    inspector = Inspector()
    page = lists.read(wanted, after=after, shown=shown)
    counts = inspector.counts(wanted.queue)
    causes = inspector.causes(wanted.queue, limit=200)
    return {
        "page": page,
        "tabs": [{"state": state.value, "count": counts[state]} for state in LISTED],
        "next_query": wanted.query(after=page.next or ""),
        "causes": causes,
        "cause_is_listed": any(each.cause == wanted.cause for each in causes),
        "handlers": lists.known_handlers(page),
        "as_of": record_as_of(wanted.queue) if page.from_record else None,
    }


def record_as_of(queue: str) -> Any:
    """Return up to when the record knows all that happened in a queue, or None."""
    state = models.MirrorState.objects.filter(queue=queue).first()
    return state.whole_pass_at if state else None


def is_known(queue: str) -> bool:
    """Tell whether a queue exists that the last figures lack: it may be new. True when nobody can say."""
    try:
        if models.Queue.objects.filter(pk=queue).exists():
            return True
        connection = Inspector().connection
        with connection.translating():
            return bool(connection.client.sismember(keys.QUEUES, queue))
    except (DatabaseError, QueueOpsError):
        return True


def tabs(summary: Any) -> list[dict[str, Any]]:
    """Return the tabs with the last known counts."""
    return [{"state": state.value, "count": getattr(summary, state.value, 0)} for state in LISTED]
