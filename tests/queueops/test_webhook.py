"""webhook.deliver against a real server on loopback, and the rules it judges by."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pytest_django import Settings

from queueops import webhook
from queueops.bridges.webhook import close
from queueops.causes import failure_of
from queueops.current import running
from queueops.errors import Dead, RetryLater, WebhookFailed
from queueops.handlers import Handler, get_handler, handler_name
from queueops.job import Delivery
from queueops.webhook import Verdict, is_public, retry_after_s, verdict

DELIVERY = Delivery(
    queue="webhooks",
    id="job-1",
    delivery=2,
    attempts=1,
    rescues=0,
    edition=1,
    is_started=True,
    due_ms=0,
    spec=b"",
)


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    client: tuple[str, int]


@dataclass
class Api:
    """A server that answers as it is told, and remembers what it was asked."""

    url: str
    answer: Callable[[BaseHTTPRequestHandler], None]
    seen: list[Seen] = field(default_factory=list)

    def will(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        def answer(request: BaseHTTPRequestHandler) -> None:
            request.send_response(status)
            for name, value in (headers or {}).items():
                request.send_header(name, value)
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)

        self.answer = answer


@pytest.fixture
def api() -> Iterator[Api]:
    class Request(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except (ConnectionError, ValueError):
                self.close_connection = True  # the caller gave up, as it should

        def serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            told.seen.append(Seen(self.command, self.path, dict(self.headers), body, self.client_address))
            told.answer(self)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = serve  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            return

    server = Server(("0.0.0.0", 0), Request)
    told = Api(f"http://127.0.0.1:{server.server_port}", lambda request: None)
    told.will(200)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield told
    close()
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture(autouse=True)
def _allow_private(settings: Settings) -> None:
    settings.QUEUEOPS = {**settings.QUEUEOPS, "WEBHOOK_ALLOW_PRIVATE": True}


@pytest.fixture
def refuse_private(settings: Settings) -> None:
    settings.QUEUEOPS = {**settings.QUEUEOPS, "WEBHOOK_ALLOW_PRIVATE": False}


def handler() -> Handler:
    found = get_handler("webhook.deliver")
    assert found is not None
    return found


def deliver(*args: Any, **kwargs: Any) -> Any:
    """Run the handler as a worker does: by its name, inside of a job."""
    with running(DELIVERY):
        return handler().call(args, kwargs)


def test_the_handler_is_found_by_its_name_and_its_function() -> None:
    assert handler_name(webhook.deliver) == "webhook.deliver"
    assert not handler().is_async


def test_json_is_posted_with_the_idempotency_key_of_the_job(api: Api) -> None:
    payload = {"id": 1, "when": date(2026, 5, 1), "price": Decimal("1.50"), "é": None}

    assert deliver(f"{api.url}/hook?x=1", json=payload, headers={"X-Sign": "abc"}) == {"status": 200}

    [seen] = api.seen
    assert (seen.method, seen.path) == ("POST", "/hook?x=1")
    assert json.loads(seen.body) == {"id": 1, "when": "2026-05-01", "price": "1.50", "é": None}
    assert seen.headers["Content-Type"] == "application/json"
    assert seen.headers["Idempotency-Key"] == "job-1:e1"
    assert seen.headers["X-Sign"] == "abc"
    assert seen.headers["User-Agent"] == "QueueOps"


def test_a_body_is_sent_as_it_is(api: Api) -> None:
    deliver(api.url, "PUT", body="é")
    deliver(api.url, "put", body=b"\xff\x00")
    deliver(api.url, "GET")

    assert [(seen.method, seen.body, seen.headers.get("Content-Type")) for seen in api.seen] == [
        ("PUT", "é".encode(), "text/plain; charset=utf-8"),
        ("PUT", b"\xff\x00", "application/octet-stream"),
        ("GET", b"", None),
    ]


def test_a_caller_may_set_its_own_key_and_content_type(api: Api) -> None:
    deliver(api.url, body="<a/>", headers={"idempotency-key": "mine", "content-type": "text/xml"})

    headers = {name.lower(): value for name, value in api.seen[0].headers.items()}
    assert (headers["idempotency-key"], headers["content-type"]) == ("mine", "text/xml")


def test_outside_of_a_job_no_key_is_sent(api: Api) -> None:
    handler().call([api.url])
    assert "Idempotency-Key" not in api.seen[0].headers


def test_a_password_in_the_url_is_sent_and_never_told(api: Api) -> None:
    api.will(403)
    with pytest.raises(Dead) as caught:
        deliver(api.url.replace("://", "://user:s3cret@") + "/x?token=t0ken")

    assert api.seen[0].headers["Authorization"].startswith("Basic ")
    assert "s3cret" not in str(caught.value)
    assert "t0ken" not in str(caught.value)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_is_done(api: Api, status: int) -> None:
    api.will(status)
    assert deliver(api.url) == {"status": status}


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_not_now_is_retried(api: Api, status: int) -> None:
    api.will(status, body=b"come back")
    with pytest.raises(WebhookFailed) as caught:
        deliver(f"{api.url}/hook/17")

    assert isinstance(caught.value, RetryLater)
    assert caught.value.status == status
    assert caught.value.delay_s == 0
    assert str(caught.value).startswith(f"127.0.0.1 answered {status}")
    assert str(caught.value).endswith("to POST /hook/17")
    assert caught.value.__notes__ == ["The answer: come back"]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422, 451, 499])
def test_other_4xx_are_fatal(api: Api, status: int) -> None:
    api.will(status, body=b"no")
    with pytest.raises(Dead, match=f"answered {status}"):
        deliver(api.url)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(api: Api, status: int) -> None:
    api.will(status, {"Location": f"{api.url}/elsewhere"})
    with pytest.raises(Dead, match="redirects are not followed"):
        deliver(api.url)
    assert len(api.seen) == 1


def test_two_endpoints_of_one_host_that_are_down_are_one_cause(api: Api) -> None:
    causes = set()
    for path, body in (("/hooks/1", b"a"), ("/hooks/2", b"b")):
        api.will(503, body=body)
        with pytest.raises(WebhookFailed) as caught:
            deliver(api.url + path)
        causes.add(failure_of(caught.value).cause)
    api.will(500)
    with pytest.raises(WebhookFailed) as caught:
        deliver(api.url)

    assert len(causes) == 1
    assert failure_of(caught.value).cause not in causes


def test_retry_after_in_seconds_and_as_a_date_is_asked_for(api: Api) -> None:
    api.will(429, {"Retry-After": "120"})
    with pytest.raises(RetryLater) as caught:
        deliver(api.url)
    assert caught.value.delay_s == 120

    api.will(503, {"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"})
    with pytest.raises(RetryLater) as caught:
        deliver(api.url)
    assert caught.value.delay_s > 86_400 * 365


@pytest.mark.parametrize(
    "answer", [b"", b"not http\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"]
)
def test_a_connection_that_breaks_is_retried(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def break_off() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        thread = threading.Thread(target=break_off)
        thread.start()
        with pytest.raises(WebhookFailed, match=r"127\.0\.0\.1 could not be reached: ") as caught:
            deliver(f"http://127.0.0.1:{server.getsockname()[1]}/")
        thread.join(5)
    assert caught.value.status is None


def test_a_refused_connection_and_an_unknown_host_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(WebhookFailed, match="could not be reached: ConnectError"):
        deliver(f"http://127.0.0.1:{port}/")

    def unknown(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # a test asks no name server
    with pytest.raises(WebhookFailed, match="no address is known for no-such-host"):
        deliver("http://no-such-host/")


@pytest.mark.parametrize("drips", ["nothing", "headers", "body"])
def test_the_timeout_bounds_the_whole_exchange_even_a_slow_drip(api: Api, drips: str) -> None:
    stop = threading.Event()

    def drip(request: BaseHTTPRequestHandler) -> None:
        if drips == "body":
            request.send_response(200)
            request.send_header("Content-Length", "100000")
            request.end_headers()
        while not stop.wait(0.02):
            if drips == "headers":
                request.wfile.write(b"H")
            elif drips == "body":
                request.wfile.write(b"x")

    api.answer = drip
    start = time.monotonic()
    try:
        with pytest.raises(WebhookFailed, match="did not answer in time"):
            deliver(api.url, timeout_s=0.3)
        assert time.monotonic() - start < 2
    finally:
        stop.set()


def test_an_endless_answer_is_not_read_to_its_end(api: Api) -> None:
    def flood(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(10**12))
        request.end_headers()
        while True:
            request.wfile.write(b"x" * 65_536)

    api.answer = flood
    assert deliver(api.url, timeout_s=5) == {"status": 200}


def test_connections_are_kept_and_cookies_are_not(api: Api) -> None:
    api.will(200, {"Set-Cookie": "session=abc; Path=/"}, b"ok")
    for _ in range(3):
        deliver(api.url)

    assert len({seen.client for seen in api.seen}) == 1
    assert not [seen for seen in api.seen if "Cookie" in seen.headers]


def test_a_proxy_of_the_environment_is_not_used(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert deliver(api.url) == {"status": 200}


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (["ftp://example.com/"], {}, "url must be http:// or https://"),
        (["file:///etc/passwd"], {}, "url must be http:// or https://"),
        (["/hook"], {}, "url must be http:// or https://"),
        (["http://"], {}, "url must be http:// or https://"),
        (["http://a:99999/"], {}, "url has the port 99999"),
        ([5], {}, "the request can't be sent"),
        (["http://\ud800/"], {}, "the request can't be sent"),
        (["http://a/", "BREW"], {}, "method must be one of DELETE, GET"),
        (["http://a/", 5], {}, "method must be one of"),
        (["http://a/"], {"timeout_s": 0}, "timeout_s must be over 0"),
        (["http://a/"], {"timeout_s": float("nan")}, "timeout_s must be over 0"),
        (["http://a/"], {"timeout_s": "5"}, "timeout_s must be over 0"),
        (["http://a/"], {"json": 1, "body": "x"}, "give json or body, not both"),
        (["http://a/"], {"json": {"x": float("nan")}}, "the request can't be sent"),
        (["http://a/"], {"json": [b"x"]}, "json has a bytes"),
        (["http://a/"], {"body": 5.5}, "the request can't be sent"),
        (["http://a/"], {"headers": {"A": "b\r\nC: d"}}, "has a line break"),
        (["http://a/"], {"headers": {"A\r\nB": "c"}}, "the bad name"),
        (["http://a/"], {"headers": {"A": 5}}, "headers must be text by name"),
    ],
)
def test_arguments_that_can_not_be_sent_are_fatal_and_send_nothing(
    args: list[Any], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(Dead, match=message):
        deliver(*args, **kwargs)


# --- which addresses -------------------------------------------------------------------------------

PRIVATE = [
    *["127.0.0.1", "127.8.9.10", "0.0.0.0", "10.0.0.1", "172.16.5.4", "172.31.255.255", "192.168.1.1"],
    *["169.254.169.254", "100.64.0.1", "192.0.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1"],
    *[
        "255.255.255.255",
        "192.88.99.1",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd12::1",
        "ff02::1",
    ],
    *["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1", "64:ff9b::7f00:1"],
    *[
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "2001::1",
        "2001:db8::1",
        "fec0::1",
    ],
]
PUBLIC = [
    *["8.8.8.8", "1.1.1.1", "172.32.0.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"],
    *["2002:808:808::1", "193.0.14.129"],
]


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_inside_are_not_public_however_they_are_written(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_outside_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.usefixtures("refuse_private")
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "2130706433",
        "0x7f.1",
        "127.1",
        "0",
        "0.0.0.0",
    ],
)
def test_a_private_address_is_refused_however_the_url_writes_it(api: Api, host: str) -> None:
    with pytest.raises(Dead, match="no public address"):
        deliver(api.url.replace("127.0.0.1", host))
    assert api.seen == []


def test_the_address_that_was_checked_is_the_one_that_is_called(
    api: Api, monkeypatch: pytest.MonkeyPatch, refuse_private: None
) -> None:
    """A name that answers well when it is checked and points inside when it is called gains nothing."""
    asked = []
    real = socket.getaddrinfo

    def answers(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "rebinding.example":
            return real(host, port, *args, **kwargs)
        asked.append(host)
        good = ["127.0.0.1", "127.0.0.2"] if len(asked) == 1 else ["127.0.0.1"]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in good]

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    monkeypatch.setattr(webhook, "is_public", lambda address: address == "127.0.0.2")
    called_at: list[str] = []

    def note_address(request: BaseHTTPRequestHandler) -> None:
        called_at.append(request.connection.getsockname()[0])
        answer(request)

    answer, api.answer = api.answer, note_address

    assert deliver(api.url.replace("127.0.0.1", "rebinding.example")) == {"status": 200}

    assert called_at == ["127.0.0.2"]
    assert asked == ["rebinding.example"]
    assert api.seen[0].headers["Host"].startswith("rebinding.example")


def test_the_next_address_is_tried_when_one_does_not_answer(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def answers(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "two.example":
            return real(host, port, *args, **kwargs)
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    assert deliver(api.url.replace("127.0.0.1", "two.example")) == {"status": 200}


# --- rules -----------------------------------------------------------------------------------------


def test_a_verdict_for_every_status() -> None:
    retried = [status for status in range(100, 1_000) if verdict(status) is Verdict.RETRY]
    done = [status for status in range(100, 1_000) if verdict(status) is Verdict.DONE]

    assert retried == [408, 425, 429, *range(500, 600)]
    assert done == list(range(200, 300))


NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "date_header", "seconds"),
    [
        ("0", None, 0),
        ("120", None, 120),
        (" 120 ", None, 120),
        ("99999999", None, 99_999_999),
        ("Fri, 01 May 2026 12:01:00 GMT", None, 60),
        ("Friday, 01-May-26 12:01:00 GMT", None, 60),
        ("Fri May  1 12:01:00 2026", None, 60),
        ("Fri, 01 May 2026 11:59:00 GMT", None, 0),
        ("Fri, 01 May 2026 12:01:00 GMT", "Fri, 01 May 2026 12:00:30 GMT", 30),
        ("Fri, 01 May 2026 12:01:00 GMT", "nonsense", 60),
        (None, None, None),
        ("", None, None),
        ("soon", None, None),
        ("-5", None, None),
        ("1.5", None, None),
        ("1e3", None, None),
        ("٣", None, None),
        ("9" * 400, None, None),
        ("Fri, 99 May 2026 12:01:00 GMT", None, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_a_date(
    value: str | None, date_header: str | None, seconds: float | None
) -> None:
    assert retry_after_s(value, date=date_header, now=NOW) == seconds
