"""The handlers of `make demo`: a shop's background work. Its webhooks use `webhook.deliver` as it is."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any

import httpx
from celery import shared_task
from django.conf import settings

from queueops import Dead, RetryLater, current_job

TIMEOUT_S = 10.0


@cache
def _client() -> httpx.Client:
    """The connections of this process, kept between jobs."""
    return httpx.Client(base_url=settings.DEMO_API_URL, timeout=TIMEOUT_S)


def _call(method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Call the API once; raise what tells QueueOps how to go on.

    The idempotency key is the same through every retry of a job, so that a call whose answer was lost has
    its effect once. 429 waits as long as the API says; other 4xx mean that no retry can help; the rest is
    retried.
    """
    headers = {"Idempotency-Key": current_job().idempotency_key}
    response = _client().request(method, path, json=body, headers=headers)
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        raise RetryLater(_retry_after_s(response))
    if response.is_client_error:
        raise Dead(f"HTTP {response.status_code}: {response.json().get('error', '')}")
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer


def _retry_after_s(response: httpx.Response) -> float:
    """Read Retry-After, seconds or an HTTP date; 5 s when it is neither."""
    told = response.headers.get("retry-after", "")
    if told.isdigit():
        return float(told)
    try:
        return max(0.0, (parsedate_to_datetime(told) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return 5.0


@shared_task(name="mail.send")
def send_mail(to: str, template: str) -> str:
    """Send one mail; return the provider's id."""
    return str(_call("POST", "/mail/messages", {"to": to, "template": template})["id"])


@shared_task(name="billing.charge")
def charge(order: int, amount_cents: int, card: str) -> str:
    """Charge an order's card, once."""
    return str(
        _call("POST", "/billing/charges", {"order": order, "amount_cents": amount_cents, "card": card})["id"]
    )


@shared_task(name="crm.sync_contact")
def sync_contact(customer: int, name: str) -> str:
    """Bring one customer's data to the CRM."""
    return str(_call("PUT", "/crm/contacts", {"customer": customer, "name": name})["id"])


@shared_task(name="reports.build")
def build_report(kind: str, day: str = "") -> str:
    """Have a report built of `day`, an ISO date, or of today; takes seconds."""
    body = {"kind": kind, "day": day or datetime.now(UTC).date().isoformat()}
    return str(_call("POST", "/reports", body)["id"])
