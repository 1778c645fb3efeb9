"""The sample's API over real sockets: slow, down at times, rate-limited, and exact about what took effect."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
import pytest

from dashboard.demo import flaky_api
from queueops.local_redis import free_port, tied_to_parent
from tests.dashboard.conftest import wait_for

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture(scope="module")
def api_url() -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "dashboard.demo.flaky_api:app", "--port", str(port)]
    with open(os.devnull, "wb") as nowhere:
        process = subprocess.Popen(
            tied_to_parent([*command, "--lifespan", "off"]), cwd=ROOT, stdout=nowhere, stderr=nowhere
        )
    url = f"http://127.0.0.1:{port}"
    wait_for(lambda: is_up(url))
    yield url
    process.terminate()
    process.wait(10)


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ledger").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def api(api_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=api_url, timeout=10) as client:
        yield client


def test_charge_takes_effect_once_however_often_it_is_asked(api: httpx.Client) -> None:
    headers = {"Idempotency-Key": "charge-once"}

    for _ in range(3):
        api.post("/billing/charges", json={"order": 1, "card": "4242"}, headers=headers)

    ledger = api.get("/ledger").json()
    assert ledger["charge"] == 1
    assert ledger["charge repeats"] == 2


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/billing/charges", {"card": "stolen"}, 402),
        ("POST", "/hooks", {"customer": "gone"}, 410),
        ("PUT", "/crm/contacts", {"name": "a\u202eb"}, 400),
        ("POST", "/hooks", [], 400),
        ("GET", "/nothing", {}, 404),
    ],
)
def test_poison_is_refused_for_good(
    api: httpx.Client, method: str, path: str, body: object, status: int
) -> None:
    assert api.request(method, path, json=body).status_code == status


async def test_mail_asked_for_too_fast_gets_429_with_both_kinds_of_retry_after(api_url: str) -> None:
    async with httpx.AsyncClient(base_url=api_url, timeout=20) as client:
        answers = await asyncio.gather(
            *(client.post("/mail/messages", json={"to": f"a{i}@example.com"}) for i in range(80))
        )

    told = [answer.headers["retry-after"] for answer in answers if answer.status_code == 429]
    assert told
    assert {answer.status_code for answer in answers} == {200, 429}
    assert all(text.isdigit() or parsedate_to_datetime(text).tzinfo for text in told)


@pytest.mark.parametrize(
    ("after_s", "down"), [(0, False), (89, False), (91, True), (119, True), (121, False)]
)
def test_partner_is_down_in_the_last_quarter_of_every_two_minutes(
    monkeypatch: pytest.MonkeyPatch, after_s: float, down: bool
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: flaky_api._started + after_s)

    assert flaky_api.partner_is_down() is down
