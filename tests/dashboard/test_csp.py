"""No page has an inline script or style, and the header that forbids them goes with every answer."""

import re

import pytest
from django.test import Client
from redis import Redis

pytestmark = pytest.mark.django_db

PAGES = ["/", "/login/", "/nothing", "/admin/login/"]


def directives(header: str) -> dict[str, list[str]]:
    return {name: sources for name, *sources in (part.split() for part in header.split(";") if part.strip())}


@pytest.mark.parametrize("path", PAGES)
def test_every_answer_has_a_strict_policy(viewer_client: Client, redis: Redis, path: str) -> None:
    policy = directives(viewer_client.get(path)["Content-Security-Policy"])

    assert policy["default-src"] == ["'none'"]
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["object-src"] == ["'none'"]
    for name in ("script-src", "style-src"):
        assert policy[name][0] == "'self'"
        assert all(source.startswith("'nonce-") for source in policy[name][1:])
    assert "unsafe" not in str(policy)


def test_nonce_of_the_page_is_the_one_in_the_header_and_is_used_once(
    viewer_client: Client, redis: Redis
) -> None:
    answers = [viewer_client.get("/") for _ in range(2)]

    nonces: list[str] = []
    for answer in answers:
        in_page = set(re.findall(r'nonce="([^"]*)"', answer.content.decode()))
        assert len(in_page) == 1
        nonces += in_page
        assert f"'nonce-{nonces[-1]}'" in answer["Content-Security-Policy"]
    assert nonces[0] != nonces[1]


@pytest.mark.parametrize("path", ["/", "/login/", "/nothing"])
def test_no_page_has_inline_script_or_style(
    viewer_client: Client, client: Client, redis: Redis, path: str
) -> None:
    for each in (viewer_client, client):
        page = each.get(path).content.decode()

        assert not re.search(r"<script(?![^>]*\bsrc=)", page)
        assert "<style" not in page
        assert not re.search(r"\sstyle\s*=", page)
        assert not re.search(r"\son[a-z]+\s*=", page)
        assert "javascript:" not in page


def test_other_security_headers(viewer_client: Client, redis: Redis) -> None:
    answer = viewer_client.get("/")

    assert answer["X-Frame-Options"] == "DENY"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Referrer-Policy"] == "same-origin"
