"""Every page while Redis is away, and while the database is."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from redis import Redis

from dashboard import queries
from queueops.local_redis import LocalServer
from queueops.store import Store
from tests import settings as run
from tests.dashboard.conftest import Site
from tests.dashboard.pages import Q, kill, person, record

PAGES = [
    "/",
    f"/queues/{Q}/?state=dead",
    f"/queues/{Q}/?state=dead&handler=mail.send",
    f"/queues/{Q}/jobs/dead-one/",
    "/causes/",
    "/causes/boom/",
    "/forecast/",
    "/workers/",
    "/schedules/",
    "/operations/",
    "/activity/",
    "/search/?q=dead-one",
    "/metrics",
]

#: These show what the record holds; Redis is not asked.
RECORD_ONLY = ("/schedules/", "/operations/", "/activity/")


@contextmanager
def away(server: LocalServer) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start()


@pytest.mark.django_db
def test_every_page_says_that_redis_is_away_and_shows_what_is_known(
    redis: Redis, store: Store, redis_server: LocalServer
) -> None:
    store.now_ms = ""
    kill(store, "dead-one")
    record(store)
    admin = person("Admin")
    for path in PAGES:
        assert admin.get(path).status_code == 200, path

    with away(redis_server):
        queries._last = replace(queries._last, taken=queries._last.taken - 12)  # no second is waited for
        for path in PAGES:
            answer = admin.get(path)
            assert answer.status_code == 200, path
            page = answer.content.decode()
            if path == "/metrics":
                assert "queueops_redis_up 0.0" in page
                assert 'check="redis_away"' in page
            elif path not in RECORD_ONLY:
                assert "Redis does not answer" in page, path
        known = admin.get(f"/queues/{Q}/jobs/dead-one/").content.decode()
        assert "it failed" in known or "Boom" in known  # from the record
        refused = admin.post(f"/queues/{Q}/jobs/dead-one/requeue/", headers={"HX-Request": "true"})
        assert refused.status_code == 503
        assert "Nothing was changed" in refused.content.decode()
        assert admin.post(f"/queues/{Q}/jobs/dead-one/requeue/").status_code == 503

    assert admin.get("/").status_code == 200


@pytest.mark.skipif(
    "postgres" in str(settings.DATABASES["default"]["ENGINE"]), reason="takes the file of SQLite away"
)
def test_pages_stay_readable_while_the_database_is_away(
    site: Site, store: Store, redis: Redis, member: Callable[..., User]
) -> None:
    store.now_ms = ""
    kill(store, "dead-one")
    record(store)
    cookies = {}
    for name in ("reader", "stranger"):
        client = Client()
        client.force_login(member("Admin", name))
        cookies[name] = {"sessionid": client.cookies["sessionid"].value}
    for path in PAGES:
        assert httpx.get(site.url + path[1:], cookies=cookies["reader"], timeout=20).status_code == 200, path

    with without_database():
        for path in PAGES:
            answer = httpx.get(site.url + path[1:], cookies=cookies["reader"], timeout=20)
            assert answer.status_code == 200, (path, answer.text[:2000])
        lists = httpx.get(f"{site.url}queues/{Q}/?state=dead", cookies=cookies["reader"], timeout=20).text
        assert 'data-job="dead-one"' in lists
        filtered = httpx.get(
            f"{site.url}queues/{Q}/?state=dead&tag=a%3D1", cookies=cookies["reader"], timeout=20
        )
        assert "The record does not answer" in filtered.text
        assert (
            "The record does not answer"
            in httpx.get(f"{site.url}queues/{Q}/jobs/dead-one/", cookies=cookies["reader"], timeout=20).text
        )
        for path in RECORD_ONLY:
            page = httpx.get(site.url + path[1:], cookies=cookies["reader"], timeout=20).text
            assert "The database does not answer" in page, path
        # Who this process has not seen gets nothing, and nobody can act.
        stranger = httpx.get(site.url, cookies=cookies["stranger"], timeout=20)
        assert stranger.status_code == 503
        assert "dead-one" not in stranger.text
        assert httpx.post(
            f"{site.url}queues/{Q}/jobs/dead-one/requeue/", cookies=cookies["reader"]
        ).status_code in {403, 503}

    assert httpx.get(site.url, cookies=cookies["stranger"], timeout=20).status_code == 200


@contextmanager
def without_database() -> Iterator[None]:
    """Take the database's file away, so that every query fails."""
    here = Path(run.RUN_DIR / "db.sqlite3")
    from django.db import connection

    connection.close()
    aside = {path: path.with_name(f"aside-{path.name}") for path in here.parent.glob("db.sqlite3*")}
    for path, other in aside.items():
        shutil.move(path, other)
    here.mkdir()  # a folder can't be opened as a file
    try:
        yield
    finally:
        here.rmdir()
        for path, other in aside.items():
            shutil.move(other, path)
