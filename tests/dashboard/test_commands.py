"""What pages ask of Redis and of the database: the same at forty times as many jobs."""

from __future__ import annotations

from collections import Counter

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from redis import Redis

from dashboard import queries
from queueops import publishing
from queueops.store import Store
from tests.dashboard.pages import Q, enqueue, kill, person, record

pytestmark = pytest.mark.django_db

CAUSE = "abc123abc123"
PAGES = [
    "/", f"/queues/{Q}/?state=delayed", f"/queues/{Q}/?state=ready", f"/queues/{Q}/?state=dead",
    f"/queues/{Q}/?state=dead&cause={CAUSE}", f"/queues/{Q}/?state=dead&handler=mail.send",
    f"/queues/{Q}/jobs/d-0001/", "/causes/", f"/causes/{CAUSE}/", "/forecast/?span=24h", "/workers/",
    "/operations/", "/activity/", "/search/?q=d-0001", "/search/?q=mail.send", "/metrics",
    f"/operations/new/?queue={Q}&state=dead",
]  # fmt: skip
#: Each grows with the keyspace or with a collection.
FORBIDDEN = {"KEYS", "SMEMBERS", "SCAN", "HSCAN", "ZSCAN", "SORT", "HKEYS", "HVALS", "XREAD"}


def asked(redis: Redis, client: Client, path: str) -> Counter[str]:
    """The commands that one visit of a page sends."""
    queries.expire()
    seen: Counter[str] = Counter()
    with redis.monitor() as listening:
        assert client.get(path).status_code == 200, path
        redis.echo("the end")
        for told in listening.listen():
            words = str(told["command"]).split()
            if words[0].upper() == "ECHO":
                return seen
            if told["client_type"] != "lua":
                seen[words[0].upper()] += 1
            name, bounds = words[0].upper(), words[-2:]
            assert not (name in {"ZRANGE", "ZREVRANGE", "LRANGE"} and bounds == ["0", "-1"]), told["command"]
            assert name not in FORBIDDEN, told["command"]
    return seen


def test_g09_no_page_asks_more_of_redis_when_there_are_more_jobs(redis: Redis, store: Store) -> None:
    store.now_ms = ""
    kill(store, *[f"d-{i:04}" for i in range(60)], cause=CAUSE)
    enqueue(store, *[f"l-{i:04}" for i in range(60)], delay_ms=9_000_000)
    enqueue(store, *[f"r-{i:04}" for i in range(60)])
    record(store)
    publishing.run_once()
    admin = person("Admin")
    for path in PAGES:
        admin.get(path)
    few = {path: asked(redis, admin, path) for path in PAGES}

    store.discard(Q, [f"r-{i:04}" for i in range(60)], actor="user:1")
    for start in range(0, 2_400, 100):
        kill(store, *[f"m-{start + i:04}" for i in range(100)], cause=CAUSE)
    enqueue(store, *[f"k-{i:04}" for i in range(2_400)], delay_ms=9_000_000)
    enqueue(store, *[f"s-{i:04}" for i in range(2_400)])
    for path in PAGES:
        admin.get(path)  # minutes have passed, whose figures are read once
    many = {path: asked(redis, admin, path) for path in PAGES}

    for path in PAGES:
        grown = {name: (few[path][name], n) for name, n in many[path].items() if n > few[path][name] + 8}
        assert grown == {}, path


def test_g09_no_page_asks_the_database_more_than_twenty_times(redis: Redis, store: Store) -> None:
    store.now_ms = ""
    kill(store, *[f"d-{i:04}" for i in range(60)], cause=CAUSE)
    record(store)
    publishing.run_once()
    admin = person("Admin")
    counts = {}
    for path in PAGES:
        with CaptureQueriesContext(connection) as captured:
            admin.get(path)
        counts[path] = len(captured)

    assert {path: n for path, n in counts.items() if n > 20} == {}
