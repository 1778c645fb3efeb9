"""The pages at a million jobs: server time of each, the commands it sends Redis, and what 200 viewers cost.

Jobs are laid into Redis as the engine keeps them, by a script of this file: to let a million of them die one
by one would take longer than all that is measured. Pages are asked for as a person of the group Admin, in
this process.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from bench.ground import ROOT, Run, quantile, wait_until

ASKED = 30
QUEUES = 50
CAUSE = "3f2a91bc77d0"
VIEWERS = 200

#: Lays `count` jobs from number `first` on into a state of a queue, as lua/lib writes them.
_LAY = """
local q, state, first, count = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local spec, now, cause, lane = ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7]
for i = first, first + count - 1 do
  local id = string.format('%s-%08d', state, i)
  local key = q .. ':job:' .. id
  if state == 'ready' then
    local entry = redis.call('XADD', q .. ':ready:normal', '*', 'id', id)
    redis.call('HSET', key, 'state', state, 'since', now, 'spec', spec,
      'lane', 'normal', 'entry', 'normal/' .. entry)
  elseif state == 'delayed' then
    redis.call('HSET', key, 'state', state, 'since', now, 'spec', spec, 'lane', 'normal')
    redis.call('ZADD', q .. ':delayed', now + 1000 * (60 + i % 86400), id)
  else
    redis.call('HSET', key, 'state', state, 'since', now - i, 'spec', spec, 'lane', 'normal', 'cause', cause,
      'attempts', 5, 'delivery', 5, 'error',
      '{"error":"ConnectTimeout","message":"timed out","traceback":"","cause":"' .. cause .. '"}')
    redis.call('ZADD', q .. ':dead', now - i, id)
    redis.call('ZADD', q .. ':dead:' .. cause, now - i, id)
  end
end
if state == 'dead' then
  redis.call('ZADD', q .. ':causes', now, cause)
  redis.call('HSET', q .. ':cause:' .. cause, 'text', 'ConnectTimeout: timed out', 'first', now,
    'failures', first + count)
end
"""


def run(run: Run) -> None:
    """Measure one queue and fifty, small and full; then the viewers."""
    from django.contrib.auth.models import Group, User

    from dashboard.garbage import spare_requests

    spare_requests()  # as the web process does
    user = User.objects.create_user("bench")
    user.groups.add(Group.objects.get(name="Admin"))
    for queues in (1, QUEUES):
        small = _round(run, queues, 1_000 * queues)  # a full page in each queue
        full = _round(run, queues, run.n(1_000_000))
        for name in full:
            p95 = quantile(full[name], 0.95) * 1000
            ratio = quantile(full[name], 0.5) / quantile(small[name], 0.5)
            run.add(f"{name}, {queues} queue{'s' if queues > 1 else ''}, p95", p95, "ms", bar="<= 100")
            run.add("  the same against 1,000 jobs a queue, median", ratio, "x", bar="0.8 to 1.2")
    asyncio.run(_watch(run))


def _round(run: Run, queues: int, jobs: int) -> dict[str, list[float]]:
    """Fill, ask each page, and check that no command grew; the times by page."""
    _fill(run, queues, jobs)
    client = _client()
    times: dict[str, list[float]] = {}
    for name, path in _pages().items():
        client.get(path)  # what a process reads once
        for _ in range(ASKED):
            _forget()
            started = time.perf_counter()
            answer = client.get(path)
            times.setdefault(name, []).append(time.perf_counter() - started)
            assert answer.status_code == 200, (path, answer.status_code)
    _commands[queues, jobs] = _monitor(run, client)
    known = [commands for (some, _), commands in _commands.items() if some == queues]
    if len(known) == 2 and known[0] != known[1]:
        grown = {
            name: known[1][name] - known[0][name] for name in known[1] if known[1][name] != known[0][name]
        }
        print(f"  commands that differ between the sizes: {grown}")
    return times


_commands: dict[tuple[int, int], Counter[str]] = {}
#: What no page may send: each grows with the keyspace or with a collection.
FORBIDDEN = frozenset({"KEYS", "SMEMBERS", "SCAN", "HSCAN", "ZSCAN", "SORT", "HKEYS", "HVALS"})


def _monitor(run: Run, client: Any) -> Counter[str]:
    """The commands that one visit of every page sends, by name."""
    seen: Counter[str] = Counter()
    with run.client.monitor() as listening:
        for path in _pages().values():
            _forget()
            client.get(path)
        run.client.echo("the end")
        for told in listening.listen():
            words = told["command"].split(None, 1)
            if words[0].upper() == "ECHO":
                break
            seen[words[0].upper()] += 1
    assert not FORBIDDEN & seen.keys(), FORBIDDEN & seen.keys()
    return seen


def _pages() -> dict[str, str]:
    q = "queue-00"
    return {
        "overview": "/",
        "list, delayed": f"/queues/{q}/?state=delayed",
        "list, ready": f"/queues/{q}/?state=ready",
        "list, dead": f"/queues/{q}/?state=dead",
        "list, dead of a cause": f"/queues/{q}/?state=dead&cause={CAUSE}",
        "list, dead of a handler": f"/queues/{q}/?state=dead&handler=webhook.deliver",
        "list, dead with a tag": f"/queues/{q}/?state=dead&tag=customer%3D77",
        "job": f"/queues/{q}/jobs/dead-00000007/",
        "causes": "/causes/",
        "cause": f"/causes/{CAUSE}/",
        "forecast": "/forecast/?span=24h",
        "workers": "/workers/",
        "operations": "/operations/",
        "activity": "/activity/",
        "search by id": "/search/?q=dead-00000007",
        "search by tag": "/search/?q=customer%3D77",
        "search by handler": "/search/?q=webhook.deliver",
        "metrics": "/metrics",
    }


def _client() -> Any:
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client(SERVER_NAME="localhost")
    client.force_login(User.objects.get(username="bench"))
    return client


def _forget() -> None:
    """Have the next page read its figures anew, as one second later it would."""
    from dashboard import queries

    queries.expire()


def _fill(run: Run, queues: int, jobs: int) -> None:
    """So many jobs in each of delayed and dead, a tenth of it ready, over these queues and in the record."""
    from queueops.payload import encode_spec
    from queueops.store import Store

    run.flush()
    client = run.client
    spec = encode_spec(
        "webhook.deliver", ["https://api.partner.example/hooks"], {"order": 77}, tags={"customer": "77"}
    )
    lay = client.register_script(_LAY)
    now = int(client.time()[0]) * 1000
    for i in range(queues):
        queue = f"queue-{i:02}"
        Store().register(queue)
        for state, number in (("delayed", jobs), ("dead", jobs), ("ready", jobs // 10)):
            share = number // queues
            for first in range(0, share, 5_000):
                count = min(5_000, share - first)
                lay([f"queueops:{{{queue}}}"], [state, first, count, spec, now, CAUSE, ""])
    _record(queues, jobs, spec)


def _record(queues: int, jobs: int, spec: bytes) -> None:
    """As many rows as there are dead jobs, in the record; one in ten thousand has the tag."""
    from django.db import connection, transaction
    from django.utils import timezone

    from queueops import models

    with transaction.atomic():
        for model in (models.Job, models.JobTag, models.Queue, models.MirrorState):
            model.objects.all()._raw_delete(model.objects.db)
        models.Queue.objects.bulk_create([models.Queue(name=f"queue-{i:02}") for i in range(queues)])
        now = timezone.now()
        share = jobs // queues
        for i in range(queues):
            queue = f"queue-{i:02}"
            for first in range(0, share, 20_000):
                rows = [
                    models.Job(
                        queue=queue, job_id=f"dead-{n:08}", state="dead", since=now, finished_at=now,
                        died_at=now, handler="webhook.deliver", cause=CAUSE, spec=spec, attempts=5,
                    )
                    for n in range(first, min(share, first + 20_000))
                ]  # fmt: skip
                models.Job.objects.bulk_create(rows, batch_size=500)
            models.JobTag.objects.bulk_create(
                models.JobTag(queue=queue, job_id=f"dead-{n:08}", name="customer", value="77")
                for n in range(0, share, max(1, share // 60))
            )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


# -- viewers ------------------------------------------------------------------------------------------


async def _watch(run: Run) -> None:
    """What one viewer costs Redis and what 200 do, and how much of a core the web process takes for them."""
    with _web(run) as (port, process):
        cookie = await asyncio.to_thread(_cookie)
        sockets = [await _open(port, cookie)]
        alone, _ = await _cost(run, process)
        sockets += [await _open(port, cookie) for _ in range(VIEWERS - 1)]
        together, share = await _cost(run, process)
        run.add(
            f"Redis commands a second, {VIEWERS} viewers against 1", together / alone, "x", bar="0.9 to 1.1"
        )
        run.add(f"web process with {VIEWERS} viewers, {QUEUES} queues", 100 * share, "% core", bar="< 40")
        for reader, socket in sockets:
            reader.cancel()
            await socket.close()


async def _open(port: int, cookie: str) -> tuple[asyncio.Task[None], Any]:
    """A viewer of the overview who reads all that comes."""
    from websockets.asyncio.client import connect

    socket = await connect(
        f"ws://127.0.0.1:{port}/ws/live/?topic=overview",
        origin=f"http://127.0.0.1:{port}",  # type: ignore[arg-type]
        additional_headers={"Cookie": f"sessionid={cookie}"},
        max_size=None,
        open_timeout=60,
    )

    async def read() -> None:
        async for _ in socket:
            pass

    return asyncio.ensure_future(read()), socket


async def _cost(run: Run, process: psutil.Process, seconds: float = 8.0) -> tuple[float, float]:
    """Redis commands a second and the share of a core, over a few seconds."""

    def commands() -> int:
        return int(run.client.info("stats")["total_commands_processed"])

    await asyncio.sleep(2)
    before, busy, started = commands(), sum(process.cpu_times()[:2]), time.monotonic()
    await asyncio.sleep(seconds)
    took = time.monotonic() - started
    return (commands() - before) / took, (sum(process.cpu_times()[:2]) - busy) / took


def _cookie() -> str:
    return str(_client().cookies["sessionid"].value)


@contextmanager
def _web(run: Run) -> Iterator[tuple[int, psutil.Process]]:
    """The web server on a free port."""
    import httpx

    from queueops.local_redis import free_port

    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "dashboard.asgi:application", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--lifespan", "off", "--no-access-log"]
    environment = {**os.environ, "STATIC_MANIFEST": "0", "ALLOWED_HOSTS": "127.0.0.1,localhost"}
    with (run.folder / "web.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)

    def answers() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        wait_until(answers, 60, "the web server did not start")
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)
