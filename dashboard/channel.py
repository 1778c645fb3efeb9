"""Send to the viewers' sockets from code that is not async: views, signal handlers, commands."""

import asyncio
import logging
import threading
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from redis.exceptions import RedisError

log = logging.getLogger(__name__)


def tell(group: str, message: dict[str, Any]) -> None:
    """Send `message` to a Channels group. Without Redis this writes one log line and raises nothing.

    What is sent so may be lost: it must only bring forward what a viewer would find out anyway.
    """
    if not _loop_runs_here():
        _send(group, message)
        return
    thread = threading.Thread(target=_send, args=(group, message))  # sync code called by async code
    thread.start()
    thread.join()


def _send(group: str, message: dict[str, Any]) -> None:
    layer: Any = get_channel_layer()
    try:
        async_to_sync(layer.group_send)(group, message)
    except (RedisError, OSError) as error:
        log.warning("can't tell the viewers: %s", error)


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
