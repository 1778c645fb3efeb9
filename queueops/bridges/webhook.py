"""The handler `webhook.deliver`: one HTTP request, at most once in effect, over httpx.

Which address a name has is asked once, here, and the connection goes to an address that was
checked: a name that changes its answer between the check and the call gains nothing.
"""

from __future__ import annotations

import atexit
import json as json_module
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from http.cookiejar import DefaultCookiePolicy
from threading import Lock
from typing import Any, TypeVar

import httpcore
import httpx

from queueops import webhook
from queueops.conf import config
from queueops.current import current_job
from queueops.errors import Dead, WebhookFailed
from queueops.handlers import Handler, register_handler
from queueops.webhook import Verdict, retry_after_s, verdict

T = TypeVar("T")

DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S = 30.0, 3_600.0
#: So much of an answer is read: to keep the connection, and to quote from.
_READ_BYTES, _QUOTED_CHARS = 65_536, 1_000
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def deliver(
    url: str,
    method: str = "POST",
    json: Any = None,
    body: str | bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> dict[str, int]:
    """Send one request and return {"status": …} when it was taken (2xx).

    Sends `Idempotency-Key`, the same through every retry. Redirects are not followed, cookies are not
    kept, proxies of the environment are not used. `timeout_s` bounds the whole exchange.

    Raises WebhookFailed (to be retried, not before what Retry-After asks) on 408, 425, 429, 5xx and network
    errors, and Dead on every other answer, on arguments that can't be sent, and on an address that is
    private, link-local or loopback, unless QUEUEOPS["WEBHOOK_ALLOW_PRIVATE"].
    """
    client = _client(config().webhook_allow_private)
    request = _request(client, url, method, json, body, headers, timeout_s)
    host, token = request.url.host, _deadline.set(time.monotonic() + timeout_s)
    try:
        response = client.send(request, stream=True, follow_redirects=False)
        try:
            text = _read(response)
        finally:
            response.close()
    except AddressRefused as error:
        raise Dead(str(error)) from None
    except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
        raise Dead(f"the request can't be sent: {error}") from error
    except httpx.TimeoutException as error:
        raise WebhookFailed(f"{host} did not answer in time ({type(error).__name__})") from error
    except httpx.TransportError as error:
        raise WebhookFailed(f"{host} could not be reached: {type(error).__name__}: {error}") from error
    finally:
        _deadline.reset(token)
    return _judge(request, response, text)


def _judge(request: httpx.Request, response: httpx.Response, text: str) -> dict[str, int]:
    status = response.status_code
    said = f"{request.url.host} answered {status} {response.reason_phrase}".rstrip()
    what = f"{said} to {request.method} {request.url.path}"
    error: Dead | WebhookFailed
    match verdict(status):
        case Verdict.DONE:
            return {"status": status}
        case Verdict.RETRY:
            asked = retry_after_s(response.headers.get("retry-after"), date=response.headers.get("date"))
            error = WebhookFailed(what, delay=asked or 0.0, status=status)
        case Verdict.FATAL:
            moved = ": redirects are not followed" if response.has_redirect_location else ""
            error = Dead(what + moved)
    if text.strip():
        error.add_note(f"The answer: {text[:_QUOTED_CHARS]}")  # a note: it must not make a cause of its own
    raise error


def _request(
    client: httpx.Client,
    url: str,
    method: str,
    json: Any,
    body: str | bytes | None,
    headers: Mapping[str, str] | None,
    timeout_s: float,
) -> httpx.Request:
    """Build the request. Raises Dead: no retry mends an argument."""
    if not isinstance(method, str) or method.upper() not in _METHODS:
        raise Dead(f"method must be one of {', '.join(sorted(_METHODS))}, got {method!r:.40}")
    if (
        isinstance(timeout_s, bool)
        or not isinstance(timeout_s, (int, float))
        or not 0 < timeout_s <= MAX_TIMEOUT_S
    ):
        raise Dead(f"timeout_s must be over 0 and at most {MAX_TIMEOUT_S:g}, got {timeout_s!r:.40}")
    if json is not None and body is not None:
        raise Dead("give json or body, not both")
    sent = httpx.Headers()
    content: bytes | None = None
    try:
        if json is not None:
            content = json_module.dumps(json, default=_plain, allow_nan=False).encode()
            sent["Content-Type"] = "application/json"
        elif body is not None:
            content = body.encode() if isinstance(body, str) else bytes(body)
            kind = "text/plain; charset=utf-8" if isinstance(body, str) else "application/octet-stream"
            sent["Content-Type"] = kind
        if (key := _idempotency_key()) is not None:
            sent["Idempotency-Key"] = key
        sent.update(_checked_headers(headers or {}))
        target = httpx.URL(url)
        if target.scheme not in {"http", "https"} or not target.host:
            raise Dead(f"url must be http:// or https:// and a host, got {_without_secrets(target)!r:.200}")
        if target.port is not None and not 0 < target.port < 65_536:
            raise Dead(f"url has the port {target.port}, which is none")
        return client.build_request(
            method.upper(), target, content=content, headers=sent, timeout=httpx.Timeout(timeout_s)
        )
    except (TypeError, ValueError, httpx.InvalidURL) as error:
        raise Dead(f"the request can't be sent: {error}") from error


def _idempotency_key() -> str | None:
    try:
        return current_job().idempotency_key
    except RuntimeError:
        return None  # called by hand, outside of a job


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"headers must be text by name, got {name!r:.60}: {type(value).__name__}")
        if not name.isascii() or any(char in name for char in ": \r\n\0") or not name.strip():
            raise ValueError(f"headers has the bad name {name!r:.60}")
        if any(char in value for char in "\r\n\0"):
            raise ValueError(f"headers[{name!r:.60}] has a line break")
    return dict(headers)


def _without_secrets(url: httpx.URL) -> str:
    return str(url.copy_with(username=None, password=None, query=None))


def _plain(value: Any) -> str:
    """Write what a payload carries beyond JSON (dates, UUIDs, decimals) as text."""
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    if isinstance(value, (bytes, set, frozenset)):
        raise TypeError(f"json has a {type(value).__name__}, which JSON has no form for")
    return str(value)


def _read(response: httpx.Response) -> str:
    """Return the beginning of the answer, and read it to its end when it is short."""
    data = b""
    for chunk in response.iter_raw():
        data += chunk
        if len(data) > _READ_BYTES:
            break  # closing before the end drops the connection
    return data[:_READ_BYTES].decode(errors="replace")


# --- connections -----------------------------------------------------------------------------------


class AddressRefused(Exception):
    """A host has no address that may be called."""


#: When the exchange that this thread has under way must be over, by time.monotonic().
_deadline: ContextVar[float] = ContextVar("queueops_webhook_deadline")


def _left_s(timeout: float | None, timed_out: type[httpcore.TimeoutException]) -> float:
    """Return the time that one step may take. httpx alone bounds each, and a slow drip of bytes none."""
    left = _deadline.get() - time.monotonic()
    if left <= 0:
        raise timed_out("the time for the whole exchange is over")
    return left if timeout is None else min(left, timeout)


class _Stream(httpcore.NetworkStream):
    """A connection whose every step ends with the exchange it is used for."""

    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left_s(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, _left_s(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left_s = _left_s(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, left_s))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _CheckedBackend(httpcore.NetworkBackend):
    """Opens connections to addresses that may be called, and to no others."""

    def __init__(self, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        failure: Exception | None = None
        for address in self._addresses(host, port):
            left_s = _left_s(timeout, httpcore.ConnectTimeout)
            try:
                return _Stream(self._inner.connect_tcp(address, port, left_s, local_address, socket_options))
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure or httpcore.ConnectError(f"{host} has no address")

    def _addresses(self, host: str, port: int) -> list[str]:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"no address is known for {host}: {error}") from error
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        if self._allow_private:
            return addresses
        public = [address for address in addresses if webhook.is_public(address)]
        if addresses and not public:
            raise AddressRefused(
                f"{host} is {addresses[0]}, which is no public address; "
                'QUEUEOPS["WEBHOOK_ALLOW_PRIVATE"] would allow it'
            )
        return public


class _Transport(httpx.BaseTransport):
    """httpx over a pool with our backend; httpx's own transport has no place to give it one."""

    def __init__(self, allow_private: bool) -> None:
        self._pool = httpcore.ConnectionPool(
            ssl_context=httpx.create_ssl_context(trust_env=False),
            max_connections=1_000,
            max_keepalive_connections=50,
            keepalive_expiry=15.0,
            network_backend=_CheckedBackend(allow_private),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = httpcore.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        )
        given = httpcore.Request(
            request.method,
            url,
            headers=request.headers.raw,
            content=request.read(),
            extensions=request.extensions,
        )
        answer = _as_httpx(lambda: self._pool.handle_request(given))
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_Body(answer), extensions=answer.extensions
        )

    def close(self) -> None:
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        chunks = self._answer.iter_stream()
        while (chunk := _as_httpx(lambda: next(chunks, None))) is not None:
            yield chunk

    def close(self) -> None:
        self._answer.close()


_HTTPX_ERRORS: tuple[tuple[type[Exception], type[httpx.TransportError]], ...] = (
    (httpcore.ConnectTimeout, httpx.ConnectTimeout),
    (httpcore.ReadTimeout, httpx.ReadTimeout),
    (httpcore.WriteTimeout, httpx.WriteTimeout),
    (httpcore.PoolTimeout, httpx.PoolTimeout),
    (httpcore.ConnectError, httpx.ConnectError),
    (httpcore.NetworkError, httpx.NetworkError),
    (httpcore.UnsupportedProtocol, httpx.UnsupportedProtocol),
    (httpcore.LocalProtocolError, httpx.LocalProtocolError),
    (httpcore.ProtocolError, httpx.RemoteProtocolError),
)


def _as_httpx(step: Callable[[], T]) -> T:
    """Run one step of httpcore with its errors as httpx's."""
    try:
        return step()
    except Exception as error:
        for kind, httpx_kind in _HTTPX_ERRORS:
            if isinstance(error, kind):
                raise httpx_kind(str(error)) from error
        raise


#: By process, since a fork must not share its parent's connections, and by what may be called.
_clients: dict[tuple[int, bool], httpx.Client] = {}
_lock = Lock()


def _client(allow_private: bool) -> httpx.Client:
    key = (os.getpid(), allow_private)
    with _lock:
        if (client := _clients.get(key)) is None:
            client = _clients[key] = httpx.Client(
                transport=_Transport(allow_private),
                trust_env=False,
                headers={"User-Agent": "QueueOps", "Accept": "*/*", "Accept-Encoding": "identity"},
            )
            # No cookies: the next delivery may be another customer's.
            client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        return client


@atexit.register
def close() -> None:
    """Close the connections that this process has kept; the next delivery opens its own."""
    with _lock:
        mine = [key for key in _clients if key[0] == os.getpid()]
        closed = [_clients.pop(key) for key in mine]
    for client in closed:
        client.close()


register_handler(Handler("webhook.deliver", deliver))
