"""Who gets which page, and what htmx gets instead of a login form."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client
from redis import Redis

pytestmark = pytest.mark.django_db


def test_anonymous_visitor_is_sent_to_login_and_back(
    client: Client, redis: Redis, member: Callable[..., User]
) -> None:
    member("Viewer")

    asked = client.get("/")
    assert (asked.status_code, asked["Location"]) == (302, "/login/?next=/")

    logged_in = client.post("/login/", {"username": "alice", "password": "sesame", "next": "/"}, follow=True)
    assert logged_in.redirect_chain == [("/", 302)]
    assert "<h1>Overview</h1>" in logged_in.content.decode()


def test_login_with_a_wrong_password_says_so_and_keeps_the_name(
    client: Client, member: Callable[..., User]
) -> None:
    member("Viewer")

    answer = client.post("/login/", {"username": "alice", "password": "wrong"}).content.decode()

    assert 'role="alert"' in answer
    assert 'value="alice"' in answer


def test_login_does_not_lead_to_another_site(
    client: Client, member: Callable[..., User], redis: Redis
) -> None:
    member("Viewer")

    answer = client.post(
        "/login/", {"username": "alice", "password": "sesame", "next": "https://evil.example/"}
    )

    assert answer["Location"] == "/"


@pytest.mark.parametrize(
    ("group", "status"), [(None, 403), ("Viewer", 200), ("Operator", 200), ("Admin", 200)]
)
def test_overview_needs_view_job(
    client: Client, redis: Redis, member: Callable[..., User], group: str | None, status: int
) -> None:
    client.force_login(member(group))

    assert client.get("/").status_code == status


def test_user_who_was_disabled_gets_no_page(
    client: Client, redis: Redis, member: Callable[..., User]
) -> None:
    user = member("Admin")
    client.force_login(user)
    user.is_active = False
    user.save(update_fields=["is_active"])

    assert client.get("/").status_code == 302


def test_htmx_whose_session_ended_is_told_to_open_the_login_page(client: Client) -> None:
    shown = {"HX-Request": "true", "HX-Current-URL": "http://testserver/queues/mail/?state=dead"}

    answer = client.get("/", headers=shown)

    assert answer.status_code == 204
    assert answer["HX-Redirect"] == "/login/?next=%2Fqueues%2Fmail%2F%3Fstate%3Ddead"


def test_logout_is_a_post(viewer_client: Client) -> None:
    assert viewer_client.get("/logout/").status_code == 405
    assert viewer_client.post("/logout/")["Location"] == "/login/"
    assert viewer_client.get("/").status_code == 302


@pytest.mark.parametrize("path", ["/nothing", "/queues/"])
def test_unknown_page_says_what_it_is(viewer_client: Client, path: str) -> None:
    answer = viewer_client.get(path)

    assert answer.status_code == 404
    assert "Nothing here" in answer.content.decode()


def test_form_without_token_is_refused_with_words(member: Callable[..., User]) -> None:
    client = Client(enforce_csrf_checks=True)

    answer = client.post("/login/", {"username": "alice", "password": "sesame"})

    assert answer.status_code == 403
    assert "out of date" in answer.content.decode()
