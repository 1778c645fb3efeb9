"""The WebSocket: who may open it, what it forwards, when it closes, and what it costs Redis."""

import asyncio
import json
from collections.abc import Callable
from socket import SO_RCVBUF, SOL_SOCKET
from socket import socket as tcp_socket

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group, User
from django.test import Client
from redis import Redis
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from dashboard.consumers import NO_LONGER_ALLOWED
from dashboard.routing import is_allowed_origin
from queueops import keys
from queueops.local_redis import LocalServer
from queueops.store import Store
from tests.dashboard.conftest import Site, wait_for
from tests.factories import seed_ready

Member = Callable[..., User]


@sync_to_async
def cookie_of(user: User) -> str:
    """The Cookie header of somebody who logged in as `user`."""
    client = Client()
    client.force_login(user)
    return f"sessionid={client.cookies['sessionid'].value}"


def opened(
    site: Site, cookie: str = "", origin: str | None = None, topics: str = "topic=overview"
) -> connect:
    """Open the socket as a page of the site would."""
    headers = {"Cookie": cookie} if cookie else {}
    url = f"ws://127.0.0.1:{site.port}/ws/live/?{topics}"
    return connect(url, origin=origin or site.url.rstrip("/"), additional_headers=headers)  # type: ignore[arg-type]


def never_reading(site: Site, cookie: str) -> tcp_socket:
    """A viewer that asks for the overview and reads nothing, with a small buffer."""
    slow = tcp_socket()
    slow.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", site.port))
    request = (
        "GET /ws/live/?topic=overview HTTP/1.1\r\nHost: 127.0.0.1:{0}\r\nOrigin: http://127.0.0.1:{0}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nCookie: {1}\r\n\r\n"
    )
    slow.sendall(request.format(site.port, cookie).encode())
    return slow


async def next_message(socket: ClientConnection, limit_s: float = 5.0) -> str:
    text = await asyncio.wait_for(socket.recv(), limit_s)
    content = json.loads(text)["content"]
    assert isinstance(content, str)
    return content


async def message_with(socket: ClientConnection, text: str, limit_s: float = 10.0) -> str:
    """The first message that holds `text`."""
    async with asyncio.timeout(limit_s):
        while text not in (content := await next_message(socket, limit_s)):
            pass
    return content


async def closing_code(socket: ClientConnection, limit_s: float = 5.0) -> int | None:
    with pytest.raises(ConnectionClosed):
        await asyncio.wait_for(_drain(socket), limit_s)
    return socket.close_code


async def _drain(socket: ClientConnection) -> None:
    while True:
        await socket.recv()


async def test_viewer_gets_the_counts_every_second(site: Site, member: Member, store: Store) -> None:
    await sync_to_async(seed_ready)(store, "a", "b")

    async with opened(site, await cookie_of(await sync_to_async(member)("Viewer"))) as socket:
        first = await message_with(socket, 'id="queue-mail"')
        loop = asyncio.get_running_loop()
        started = loop.time()
        await sync_to_async(seed_ready)(store, "c")
        await message_with(socket, '<td class="num c-ready">3</td>')

    assert '<hx-partial hx-target="[id=&quot;live-overview&quot;]" hx-swap="outerMorph">' in first
    assert '<td class="num c-ready">2</td>' in first
    assert loop.time() - started < 2.5


async def test_topics_are_only_the_ones_asked_for(site: Site, member: Member, store: Store) -> None:
    cookie = await cookie_of(await sync_to_async(member)("Viewer"))

    async with opened(site, cookie, topics="topic=navigation&topic=nothing") as socket:
        assert "live-navigation" in await next_message(socket)
        assert "live-overview" not in await next_message(socket)

    with pytest.raises(InvalidStatus):
        async with opened(site, cookie, topics="topic=nothing"):
            pass


@pytest.mark.parametrize("group", [None, "anonymous"])
async def test_socket_refuses_who_may_not_look(site: Site, member: Member, group: str | None) -> None:
    cookie = "" if group == "anonymous" else await cookie_of(await sync_to_async(member)(group))

    with pytest.raises(InvalidStatus) as refused:
        async with opened(site, cookie):
            pass
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "null"])
async def test_socket_refuses_pages_of_other_sites(site: Site, member: Member, origin: str) -> None:
    cookie = await cookie_of(await sync_to_async(member)("Viewer"))

    with pytest.raises(InvalidStatus) as refused:
        async with opened(site, cookie, origin=origin):
            pass
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("https://ops.example", "ops.example", True),
        ("https://ops.example:8443", "ops.example:8443", True),
        ("https://OPS.example", "ops.example", True),
        ("https://ops.example", "ops.example:8443", False),
        ("https://ops.example.evil.example", "ops.example", False),
        ("https://evil.example", "evil.example", False),  # a rebound name: our own Host check refuses it too
        ("https://app.partner.example", "ops.example", True),
        ("http://app.partner.example", "ops.example", False),
        ("https://[::1", "ops.example", False),
        ("file://ops.example", "ops.example", False),
        ("null", "ops.example", False),
        ("", "ops.example", False),
    ],
)
def test_origin_is_our_own_or_trusted(settings: object, origin: str, host: str, allowed: bool) -> None:
    settings.ALLOWED_HOSTS = ["ops.example"]  # type: ignore[attr-defined]
    settings.CSRF_TRUSTED_ORIGINS = ["https://*.partner.example"]  # type: ignore[attr-defined]

    assert is_allowed_origin(origin, host) is allowed


async def test_logout_closes_the_sockets_of_that_session_only(site: Site, member: Member) -> None:
    user = await sync_to_async(member)("Viewer")
    here, elsewhere = await cookie_of(user), await cookie_of(user)
    client = Client()

    async with opened(site, here) as leaving, opened(site, elsewhere) as staying:
        await next_message(leaving)
        client.cookies["sessionid"] = here.partition("=")[2]
        await sync_to_async(client.post)("/logout/")

        assert await closing_code(leaving) == NO_LONGER_ALLOWED
        for _ in range(2):
            await next_message(staying)


@pytest.mark.parametrize("how", ["right taken away", "disabled", "new password", "deleted"])
async def test_socket_closes_when_its_user_may_no_longer_look(site: Site, member: Member, how: str) -> None:
    user = await sync_to_async(member)("Viewer")

    def change() -> None:
        match how:
            case "right taken away":
                user.groups.remove(Group.objects.get(name="Viewer"))
            case "disabled":
                user.is_active = False
                user.save()
            case "new password":
                user.set_password("other")
                user.save()
            case "deleted":
                user.delete()

    async with opened(site, await cookie_of(user)) as socket:
        await next_message(socket)
        await sync_to_async(change)()

        assert await closing_code(socket) == NO_LONGER_ALLOWED


async def test_quiet_socket_lives_for_30_s(site: Site, member: Member, redis: Redis) -> None:
    """channels_redis' default layer dies after 5 s idle with redis-py 8."""
    redis.set(keys.lease("sampler"), "somebody else", px=60_000)  # so nothing is sent here

    async with opened(site, await cookie_of(await sync_to_async(member)("Viewer"))) as socket:
        with pytest.raises(TimeoutError):
            await next_message(socket, 30)
        redis.delete(keys.lease("sampler"))

        assert "live-overview" in await next_message(socket)


async def test_socket_goes_on_after_a_restart_of_redis(
    site: Site, member: Member, redis: Redis, redis_server: LocalServer
) -> None:
    async with opened(site, await cookie_of(await sync_to_async(member)("Viewer"))) as socket:
        await next_message(socket)
        said = len(site.log_path.read_text())
        await sync_to_async(redis_server.kill)()
        try:
            await sync_to_async(wait_for)(lambda: "live updates stopped" in site.log_path.read_text()[said:])
        finally:
            await sync_to_async(redis_server.start)()

        await message_with(socket, "No queue yet", 20)


async def test_socket_without_redis_is_told_to_come_back(
    site: Site, member: Member, redis: Redis, redis_server: LocalServer
) -> None:
    cookie = await cookie_of(await sync_to_async(member)("Viewer"))
    await sync_to_async(redis_server.kill)()
    try:
        with pytest.raises(InvalidStatus) as refused:
            async with opened(site, cookie):
                pass
        assert refused.value.response.status_code == 503
    finally:
        await sync_to_async(redis_server.start)()


async def test_redis_works_no_more_for_forty_viewers_than_for_one(
    site: Site, member: Member, redis: Redis, store: Store
) -> None:
    await sync_to_async(seed_ready)(store, "a")
    cookie = await cookie_of(await sync_to_async(member)("Viewer"))

    async def commands_in_4_s() -> int:
        before = int(redis.info("stats")["total_commands_processed"])
        await asyncio.sleep(4)
        return int(redis.info("stats")["total_commands_processed"]) - before

    async with opened(site, cookie) as socket:
        await next_message(socket)
        alone = await commands_in_4_s()
        crowd = [await opened(site, cookie) for _ in range(39)]
        await next_message(crowd[-1])
        together = await commands_in_4_s()
        for each in crowd:
            await each.close()

    assert together <= alone * 1.3  # a snapshot more or less fits into four seconds


async def test_nobody_watching_costs_nothing(site: Site, member: Member, redis: Redis) -> None:
    async with opened(site, await cookie_of(await sync_to_async(member)("Viewer"))) as socket:
        await next_message(socket)
    await sync_to_async(wait_for)(lambda: not redis.exists(keys.lease("sampler")))  # nobody renews it

    before = int(redis.info("stats")["total_commands_processed"])
    await asyncio.sleep(3)

    assert int(redis.info("stats")["total_commands_processed"]) - before <= 2


async def test_only_what_has_changed_is_sent(site: Site, member: Member, store: Store) -> None:
    await sync_to_async(seed_ready)(store, "a")
    await sync_to_async(store.register)("billing")  # without jobs: nothing of it changes

    async with opened(site, await cookie_of(await sync_to_async(member)("Viewer"))) as socket:
        whole = await message_with(socket, 'id="queue-billing"')  # who comes gets all of it
        await sync_to_async(seed_ready)(store, "b")
        part = await message_with(socket, '<td class="num c-ready">2</td>')
        for _ in range(15):  # and all of it again now and then, for who has missed a message
            if 'id="queue-billing"' in await next_message(socket):
                break
        else:
            pytest.fail("the whole never came again")

    assert "live-overview" in whole
    assert 'hx-target="[id=&quot;queue-mail&quot;]"' in part
    assert 'id="queue-billing"' not in part


async def test_viewers_who_leave_in_any_way_leave_nothing_behind(
    site: Site, member: Member, redis: Redis
) -> None:
    cookie = await cookie_of(await sync_to_async(member)("Viewer"))
    said_before = len(site.log_path.read_text())

    async def come_and_go(after_s: float, *, is_polite: bool) -> None:
        socket = await opened(site, cookie, topics="topic=overview&topic=hints")
        await asyncio.sleep(after_s)
        if is_polite:
            await socket.close()
        else:
            socket.transport.abort()

    def listened_to() -> bool:
        return bool(redis.pubsub_channels("queueops-live*"))

    async with opened(site, cookie) as staying:
        await next_message(staying)
        for _ in range(3):  # some at the very moment at which something is sent to them
            await asyncio.gather(*[come_and_go(i / 20, is_polite=i % 3 == 0) for i in range(30)])
        await next_message(staying)

    await asyncio.to_thread(wait_for, lambda: not listened_to())
    assert "can't be served" not in site.log_path.read_text()[said_before:]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_client_that_does_not_read_is_let_go(site: Site, member: Member, store: Store) -> None:
    """What waits for it is bounded: after SEND_LIMIT_S the server forgets it."""
    for i in range(100):  # large messages, so that the kernel's buffers fill in seconds
        await sync_to_async(seed_ready)(store, "a", queue=f"{'long-' * 11}{i:03}")
    cookie = await cookie_of(await sync_to_async(member)("Viewer"))
    slow = never_reading(site, cookie)

    async with opened(site, cookie) as reader:  # others are served meanwhile
        for _ in range(30):
            await next_message(reader, 20)

    slow.settimeout(5)  # a server that still held it would send a message a second
    received = 0
    with slow:
        while chunk := await asyncio.to_thread(slow.recv, 1 << 20):
            received += len(chunk)
    assert received > 100_000  # it was a viewer, until the end of file
