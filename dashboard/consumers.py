"""The WebSocket of the live pages. It forwards what the sampler sends, and does nothing else."""

import asyncio
import logging
from typing import Any, cast
from urllib.parse import parse_qs

from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.utils.module_loading import import_string
from redis.exceptions import RedisError

from dashboard import access_changes, live
from dashboard.access import Right, may

log = logging.getLogger(__name__)

RECHECK_S = 10.0  # how often an open socket asks again whether its user may still look
SEND_LIMIT_S = 5.0  # a client that takes longer to accept one message is let go

# Close codes. htmx reconnects after 1011 to 1014, not after our own ones.
TRY_LATER, NO_LONGER_ALLOWED = 1013, 4403


class LiveConsumer(AsyncWebsocketConsumer):
    """One viewer: `/ws/live/?topic=<name>` (repeatable) forwards the messages of those topics."""

    topics: frozenset[str] = frozenset()
    _checked_at = 0.0  # loop time, seconds
    _watching = False

    async def connect(self) -> None:
        wanted = parse_qs(self.scope["query_string"].decode("latin-1")).get("topic", [])
        self.topics = frozenset(wanted) & live.TOPICS.keys()
        if not self.topics or not await self._is_allowed():
            await self.close()  # before accept: the handshake gets 403
            return
        await self.accept()
        try:
            for group in self._groups():
                await self.channel_layer.group_add(group, self.channel_name)
        except (RedisError, OSError) as error:
            log.warning("a viewer can't subscribe: %s", error)
            await self.close(code=TRY_LATER)
            return
        self._watching = True
        live.sampler().join()

    async def disconnect(self, code: int) -> None:
        if not self._watching:
            return
        self._watching = False
        live.sampler().leave()
        for group in self._groups():
            try:
                await self.channel_layer.group_discard(group, self.channel_name)
            except (RedisError, OSError):
                pass  # the layer has already dropped it here, and Redis forgets a lost connection's subscriptions

    async def live_fragment(self, message: dict[str, Any]) -> None:
        """Forward one message of a topic."""
        now = asyncio.get_running_loop().time()
        if now - self._checked_at > RECHECK_S and not await self._is_allowed():
            await self._refuse()
            return
        try:
            await asyncio.wait_for(self.send(text_data=message["text"]), SEND_LIMIT_S)
        except TimeoutError:
            # A close frame would wait behind the same full buffer: leave, and the server drops the connection.
            await self.disconnect(TRY_LATER)
            raise StopConsumer from None

    async def access_changed(self, message: dict[str, Any]) -> None:
        """Ask again after a logout or a change of rights; `session` and `user` say whose, None means anybody's."""
        session_key, user = self.scope["session"].session_key, self.scope["user"]
        if message.get("session"):
            if session_key and access_changes.session_digest(session_key) == message["session"]:
                await self._refuse()
        elif message.get("user") in (None, user.pk) and not await self._is_allowed():
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
        user = await get_user({"session": store(session_key)})
        return cast(bool, await database_sync_to_async(may)(user, Right.VIEW_JOB))
