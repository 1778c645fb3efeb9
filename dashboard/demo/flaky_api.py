"""The other people's API of `make demo`: a real HTTP server on loopback that behaves as badly as real ones.

It is slow, fails for half a minute every two minutes, answers 429 with Retry-After when asked too fast,
refuses some payloads for good, and keeps a ledger of what took effect by Idempotency-Key. A plain ASGI app:
it starts in a blink.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = dict[str, str]
Answer = tuple[int, dict[str, Any], Headers]

OUTAGE_EVERY_S, OUTAGE_S = 120.0, 30.0
MAIL_PER_S = 12.0

_started = time.monotonic()
_effects: dict[str, str] = {}  # Idempotency-Key -> what it did
_ledger: Counter[str] = Counter()
_mail_tokens, _mail_at = MAIL_PER_S, _started


def partner_is_down() -> bool:
    """Tell whether the partner's API is in its outage: the last OUTAGE_S of every OUTAGE_EVERY_S."""
    return (time.monotonic() - _started) % OUTAGE_EVERY_S > OUTAGE_EVERY_S - OUTAGE_S


async def hooks(body: dict[str, Any], headers: Headers) -> Answer:
    """Take a webhook. A customer that is gone answers 410, one that hangs does not answer for 20 s."""
    await asyncio.sleep(random.lognormvariate(-2.2, 0.6))  # 110 ms at the median
    if body.get("customer") == "gone":
        return 410, {"error": "this hook was deleted"}, {}
    if partner_is_down():
        if random.random() < 0.2:
            await asyncio.sleep(20)
        return 503, {"error": "down for maintenance"}, {}
    return _once(headers, "hook")


async def messages(body: dict[str, Any], headers: Headers) -> Answer:
    """Take a mail, MAIL_PER_S a second; who comes faster is told when to come back: seconds, or a date."""
    global _mail_tokens, _mail_at
    await asyncio.sleep(random.uniform(0.02, 0.08))
    now = time.monotonic()
    _mail_tokens, _mail_at = min(2 * MAIL_PER_S, _mail_tokens + (now - _mail_at) * MAIL_PER_S), now
    if _mail_tokens < 1:
        wait_s = random.randint(2, 6)
        told = str(wait_s) if random.random() < 0.5 else formatdate(time.time() + wait_s, usegmt=True)
        return 429, {"error": "too many messages"}, {"retry-after": told}
    _mail_tokens -= 1
    if "@" not in str(body.get("to", "")):
        return 422, {"error": f"not an address: {body.get('to')!r}"}, {}
    return _once(headers, "mail")


async def charges(body: dict[str, Any], headers: Headers) -> Answer:
    """Charge a card, once a key whatever happens. One in twenty answers is a 500 after the charge."""
    await asyncio.sleep(random.uniform(0.1, 0.4))
    if body.get("card") == "stolen":
        return 402, {"error": "card_declined", "decline_code": "stolen_card"}, {}
    answer = _once(headers, "charge")
    return (500, {"error": "internal"}, {}) if random.random() < 0.05 else answer


async def contacts(body: dict[str, Any], headers: Headers) -> Answer:
    """Store a contact, slowly; names that the CRM can't store are refused for good."""
    await asyncio.sleep(random.uniform(0.4, 1.6))
    if "\u202e" in str(body.get("name", "")):
        return 400, {"error": "name has characters that can't be stored"}, {}
    return _once(headers, "contact")


async def reports(body: dict[str, Any], headers: Headers) -> Answer:
    """Build a report; takes seconds."""
    await asyncio.sleep(random.uniform(1.5, 5))
    return _once(headers, "report")


async def ledger(body: dict[str, Any], headers: Headers) -> Answer:
    """Say how often each thing took effect, and how many repeats were recognised."""
    return 200, dict(_ledger), {}


ROUTES: dict[tuple[str, str], Callable[[dict[str, Any], Headers], Awaitable[Answer]]] = {
    ("POST", "/hooks"): hooks,
    ("POST", "/mail/messages"): messages,
    ("POST", "/billing/charges"): charges,
    ("PUT", "/crm/contacts"): contacts,
    ("POST", "/reports"): reports,
    ("GET", "/ledger"): ledger,
}


def _once(headers: Headers, kind: str) -> Answer:
    """Do `kind` once a key: a repeat gets the first answer."""
    key = headers.get("idempotency-key") or f"none-{random.getrandbits(64):x}"
    if key in _effects:
        _ledger[f"{kind} repeats"] += 1
    else:
        _effects[key] = f"{kind}-{len(_effects) + 1}"
        _ledger[kind] += 1
        if len(_effects) > 100_000:
            del _effects[next(iter(_effects))]
    return 200, {"id": _effects[key]}, {}


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Serve one request."""
    raw = b""
    more = True
    while more:
        event = await receive()
        raw += event.get("body", b"")
        more = event.get("more_body", False)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    route = ROUTES.get((scope["method"], scope["path"]))
    try:
        body = json.loads(raw or b"{}")
    except ValueError:
        body = None
    if route is None:
        status, answer, extra = 404, {"error": "nothing here"}, Headers()
    elif not isinstance(body, dict):
        status, answer, extra = 400, {"error": "the body is not a JSON object"}, Headers()
    else:
        status, answer, extra = await route(body, headers)
    content = json.dumps(answer).encode()
    sent = {"content-type": "application/json", "content-length": str(len(content)), **extra}
    pairs = [(name.encode(), value.encode()) for name, value in sent.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": content})
