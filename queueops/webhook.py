"""What `webhook.deliver` decides by: which answers are worth a retry, when, and which hosts it may call."""

from __future__ import annotations

import ipaddress
import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any

#: Statuses under 500 that say "not now": time-out, too early, too many.
_NOT_NOW = frozenset({408, 425, 429})
#: IPv6 ranges that carry an IPv4 address, and where in the 128 bits it is.
_CARRIERS = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),  # IPv4-mapped
    (ipaddress.IPv6Network("::/96"), 0),  # IPv4-compatible, obsolete
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (ipaddress.IPv6Network("2002::/16"), 80),  # 6to4
)
_NEVER_PUBLIC = (
    ipaddress.IPv6Network("64:ff9b:1::/48"),  # NAT64 of a site's own
    ipaddress.IPv6Network("2001::/32"),  # Teredo: what it carries is scrambled
    ipaddress.IPv6Network("fec0::/10"),  # site-local, obsolete
    ipaddress.IPv4Network("192.88.99.0/24"),  # 6to4 relays, obsolete
)


class Verdict(Enum):
    """What an answer means for the job."""

    DONE = "done"
    RETRY = "retry"
    FATAL = "fatal"


def verdict(status: int) -> Verdict:
    """Judge an HTTP status: 2xx is done; 408, 425, 429 and 5xx are retried; all others are fatal.

    A redirect is fatal too: a webhook must not be led elsewhere, nor turned into a GET.
    """
    if 200 <= status < 300:
        return Verdict.DONE
    return Verdict.RETRY if status in _NOT_NOW or 500 <= status < 600 else Verdict.FATAL


def retry_after_s(value: str | None, *, date: str | None = None, now: datetime | None = None) -> float | None:
    """Return what a Retry-After header asks for, in seconds; None when it asks for nothing readable.

    It is whole seconds or an HTTP date. The date is taken against the answer's own Date header: the
    other side's clock may be wrong, but it is the one that both were written by. Else against `now`.
    """
    text = (value or "").strip()
    if re.fullmatch(r"[0-9]{1,12}", text):
        return float(text)
    until = _http_date(text)
    if until is None:
        return None
    since = _http_date(date) or now or datetime.now(UTC)
    return max(0.0, (until - since) / timedelta(seconds=1))


def is_public(address: str) -> bool:
    """Tell whether an IP address is one of the public Internet, however it is written.

    Loopback, private, link-local (a cloud's metadata), shared, multicast and reserved ones are not, nor
    are IPv6 addresses that carry one. Raises ValueError when it is no address.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        for network, shift in _CARRIERS:
            # :: and ::1 are in the compatible range, and are themselves no public addresses.
            if ip in network:
                return is_public(str(ipaddress.IPv4Address(int(ip) >> shift & 0xFFFFFFFF)))
    if any(ip.version == network.version and ip in network for network in _NEVER_PUBLIC):
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified or ip.is_loopback)


def _http_date(text: str | None) -> datetime | None:
    try:
        at = parsedate_to_datetime(text or "")
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def __getattr__(name: str) -> Any:
    if name == "deliver":  # so that webhook.deliver is a function, and only its caller needs httpx
        from queueops.bridges.webhook import deliver

        return deliver
    raise AttributeError(f"module 'queueops.webhook' has no attribute {name!r}")
