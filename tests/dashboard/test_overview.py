"""The first page."""

import re
from dataclasses import replace

import pytest
from django.test import Client
from redis import Redis

from dashboard import queries
from queueops.local_redis import LocalServer
from queueops.states import LISTED
from queueops.store import Store
from tests.dashboard.pages import person
from tests.factories import Child, seed_dead, seed_delayed, seed_ready

pytestmark = pytest.mark.django_db


def row(page: str, queue: str) -> list[str]:
    """The cells of a queue's row, as text."""
    found = re.search(rf'<tr id="queue-{queue}">(.*?)</tr>', page, re.DOTALL)
    assert found, f"no row for {queue}"
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", found[1], re.DOTALL)
    return [re.sub(r"<[^>]*>", "", cell).strip() for cell in cells]


def test_overview_without_queues_says_how_to_begin(viewer_client: Client, redis: Redis) -> None:
    page = viewer_client.get("/").content.decode()

    assert "No queue yet" in page
    assert "manage.py enqueue" in page


def test_overview_shows_each_queue_with_its_counts(
    viewer_client: Client, redis: Redis, store: Store, child: Child
) -> None:
    seed_dead(child, "d1")
    seed_ready(store, "r1", "r2")
    seed_delayed(store, "l1", "l2", "l3", run_at_ms=4_000_000_000_000)
    seed_ready(store, "x", queue="billing")

    page = viewer_client.get("/").content.decode()

    assert row(page, "mail")[:5] == ["mail", "3", "2", "0", "1"]
    assert row(page, "billing")[:5] == ["billing", "0", "1", "0", "0"]


def test_what_is_wrong_comes_first_and_links_to_the_row(
    viewer_client: Client, redis: Redis, store: Store, child: Child
) -> None:
    seed_dead(child, "d1")
    seed_ready(store, "x", queue="billing")

    page = viewer_client.get("/").content.decode()

    assert "mail: 1 dead" in page
    assert "billing: no worker" in page
    assert page.index("What is wrong now") < page.index('<tr id="queue-')
    assert 'href="/queues/billing/?state=ready"' in page


def test_htmx_gets_the_fragment_and_a_history_restore_the_page(viewer_client: Client, redis: Redis) -> None:
    fragment = viewer_client.get("/", headers={"HX-Request": "true"})
    restored = viewer_client.get("/", headers={"HX-Request": "true", "HX-History-Restore-Request": "true"})

    assert fragment.content.decode().lstrip().startswith(('<div class="stack" id="live-overview"', "\n"))
    assert "<html" not in fragment.content.decode()
    assert "<html" in restored.content.decode()
    assert "HX-Request" in fragment["Vary"]


def test_page_without_redis_shows_the_last_known_figures_and_their_age(
    viewer_client: Client, redis: Redis, redis_server: LocalServer, store: Store
) -> None:
    seed_ready(store, "a", "b")
    assert row(viewer_client.get("/").content.decode(), "mail")[2] == "2"

    redis_server.kill()
    try:
        queries._last = replace(queries._last, taken=queries._last.taken - 12)
        page = viewer_client.get("/").content.decode()
    finally:
        redis_server.start()

    assert "Redis does not answer" in page
    assert re.search(r"last known figures, 1[2-9] s old", page)
    assert row(page, "mail")[2] == "2"


def test_page_without_redis_from_the_start_says_that_nothing_is_known(
    viewer_client: Client, redis: Redis, redis_server: LocalServer
) -> None:
    redis_server.kill()
    try:
        page = viewer_client.get("/").content.decode()
    finally:
        redis_server.start()

    assert "has not answered since this web process started" in page
    assert "No queue yet" not in page


def test_post_to_the_overview_is_refused(viewer_client: Client) -> None:
    assert viewer_client.post("/").status_code == 405


@pytest.mark.parametrize(
    ("path", "what_to_do"),
    [
        ("/", "manage.py"),
        ("/causes/", "Nothing fails"),
        ("/forecast/", "Nothing falls due"),
        ("/workers/", "manage.py runworkers"),
        ("/schedules/", "New schedule"),
        ("/operations/", "Select all that match"),
        ("/activity/", "with their reasons"),
        ("/search/", "customer=8841"),
        ("/search/?q=nothing", "Try a job"),
        *[(f"/queues/mail/?state={state}", "stands? here") for state in LISTED],
        ("/queues/mail/?state=dead&handler=none", "Clear the filter"),
    ],
)
def test_an_empty_page_says_what_to_do(redis: Redis, store: Store, path: str, what_to_do: str) -> None:
    if "mail" in path:
        store.register("mail")

    page = person("Admin").get(path).content.decode()

    empty = re.search(r'<section class="card empty"[^>]*>(.*?)</section>', page, re.DOTALL)
    assert empty
    assert re.search(what_to_do, empty[1])
