"""What a load balancer or an orchestrator asks. Neither needs a login, and neither says more than it must."""

import asyncio
from collections.abc import Callable

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from queueops.connection import connection

LIMIT_S = 2.0  # for each answer: probes give up after a few seconds themselves

_asked: dict[str, "asyncio.Task[str]"] = {}


@require_safe
@never_cache
@login_not_required
def healthz(request: HttpRequest) -> HttpResponse:
    """Say that this process lives, and nothing of Redis: its outage must not restart web processes."""
    return HttpResponse("ok\n", content_type="text/plain")


@require_safe
@never_cache
@login_not_required
async def readyz(request: HttpRequest) -> JsonResponse:
    """200 when Redis and the database answer, else 503 and which one does not."""
    redis, database = await asyncio.gather(_within("redis", _ask_redis), _within("database", _ask_database))
    ready = redis == database == "ok"
    return JsonResponse({"redis": redis, "database": database}, status=200 if ready else 503)


async def _within(name: str, ask: Callable[[], str]) -> str:
    """Return the answer, or say that none came in time.

    A question that hangs is left to end by itself, and waited for again by the next probe, so that probes
    of a server that swallows packets never hold more than one thread each.
    """
    task = _asked.get(name)
    if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
        task = _asked[name] = asyncio.ensure_future(sync_to_async(ask, thread_sensitive=False)())
    done, _ = await asyncio.wait({task}, timeout=LIMIT_S)
    return task.result() if done else f"no answer within {LIMIT_S:g} s"


def _ask_redis() -> str:
    try:
        connection().client.ping()
    except Exception as error:
        # Whatever it is, the answer is no; its text may name hosts, its class does not.
        return type(error).__name__
    return "ok"


def _ask_database() -> str:
    try:
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT 1")
    except Exception as error:
        return type(error).__name__
    finally:
        connections["default"].close()  # this thread is a pool's: nobody else would
    return "ok"
