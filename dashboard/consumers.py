"""The WebSocket of the live pages. It forwards what the sampler sends, and does nothing else."""

import asyncio
import contextlib
import logging
from typing import Any
from urllib.parse import parse_qs

from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.utils.module_loading import import_string
from redis.exceptions import RedisError

from dashboard import access_changes, live
from dashboard.access import may
from queueops.rights import Right

log = logging.getLogger(__name__)

RECHECK_S = 10.0  # how often an open socket asks again whether its user may still look
SEND_LIMIT_S = 5.0  # a client that takes longer to accept one message is let go

# Close codes. htmx reconnects after 1011 to 1014, not after our own ones.
TRY_LATER, NO_LONGER_ALLOWED = 1013, 4403


class LiveConsumer(AsyncWebsocketConsumer):
    """One viewer: `/ws/live/?topic=<name>` (repeatable) forwards the messages of those topics."""

    scope: Any
    topics: frozenset[str] = frozenset()
    channel_name = ""  # until the layer gives one
    _checked_at = 0.0  # loop time, seconds
    _accepted = False
    _joined = False
    _watching = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Run the consumer. Without Redis there is no channel to listen on: answer 503, and htmx retries."""
        is_gone = False

        async def sent(message: Any) -> None:
            nonlocal is_gone
            try:
                await send(message)
            except OSError:  # what a server raises when its client has left
                is_gone = True
                raise

        try:
            await super().__call__(scope, receive, sent)
        except (RedisError, OSError) as error:
            if is_gone:
                return
            log.warning("a viewer can't be served: %s", error)
            if not self._accepted and "websocket.http.response" in scope.get("extensions", {}):
                await send({"type": "websocket.http.response.start", "status": 503, "headers": []})
                await send({"type": "websocket.http.response.body", "body": b""})
            else:
                await send({"type": "websocket.close", "code": TRY_LATER})
        finally:
            await self._leave()
            await self._drop_channel()

    async def connect(self) -> None:
        wanted = parse_qs(self.scope["query_string"].decode("latin-1")).get("topic", [])
        self.topics = frozenset(wanted) & {*live.TOPICS, *live.DATA_TOPICS}
        if not self.topics or not await self._is_allowed():
            await self.close()  # before accept: the handshake gets 403
            return
        self._joined = True
        for group in self._groups():
            await self.channel_layer.group_add(group, self.channel_name)
        await self.accept()
        self._accepted = True
        self._watching = True
        live.sampler().join()

    async def disconnect(self, code: int) -> None:
        await self._leave()

    async def _leave(self) -> None:
        """Give up all that was taken for this viewer, however it ended and whatever of it there was."""
        if self._watching:
            self._watching = False
            live.sampler().leave()
        # The layer drops it here first, and Redis forgets the subscriptions of a lost connection.
        with contextlib.suppress(RedisError, OSError):
            if self._joined:
                self._joined = False
                for group in self._groups():
                    await self.channel_layer.group_discard(group, self.channel_name)

    async def _drop_channel(self) -> None:
        """Unsubscribe from this consumer's own channel. The layer does so when its reader is cancelled,
        but Channels cancels none after a handler has raised, and there is no call for it.
        """
        layer: Any = self.channel_layer
        while self.channel_name in layer.channels:  # a message that waits is received, and ends the reader
            reader = asyncio.ensure_future(layer.receive(self.channel_name))
            await asyncio.sleep(0)  # let it start: a task that has not is cancelled without a trace
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError, RedisError, OSError):
                await reader

    async def live_fragment(self, message: dict[str, Any]) -> None:
        """Forward one message of a topic."""
        now = asyncio.get_running_loop().time()
        if now - self._checked_at > RECHECK_S and not await self._is_allowed():
            await self._refuse()
            return
        try:
            await asyncio.wait_for(self.send(text_data=message["text"]), SEND_LIMIT_S)
        except TimeoutError:
            # A close frame would wait behind the same full buffer: leave, and the server drops the
            # connection.
            await self.disconnect(TRY_LATER)
            raise StopConsumer from None

    async def access_changed(self, message: dict[str, Any]) -> None:
        """Ask again after a logout or a change of rights, of one `session`, one `user` or anybody."""
        session_key, user_id = self.scope["session"].session_key, self.scope["user"].pk
        if message.get("session"):
            if session_key and access_changes.session_digest(session_key) == message["session"]:
                await self._refuse()
        elif message.get("user") in (None, user_id) and not await self._is_allowed():
            await self._refuse()

    async def _refuse(self) -> None:
        await self.close(code=NO_LONGER_ALLOWED)

    def _groups(self) -> list[str]:
        return [access_changes.GROUP, *(live.group(topic) for topic in sorted(self.topics))]

    async def _is_allowed(self) -> bool:
        """Read session, user and rights anew: the ones in the scope are as old as the connection."""
        session_key = self.scope["session"].session_key
        if not session_key:
            return False
        self._checked_at = asyncio.get_running_loop().time()
        store = import_string(f"{settings.SESSION_ENGINE}.SessionStore")
        scope: Any = {"session": store(session_key)}
        user: Any = await get_user(scope)
        return await database_sync_to_async(may)(user, Right.VIEW_JOB)
