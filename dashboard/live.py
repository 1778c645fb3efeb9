"""Live updates: one sampler takes one snapshot a second while anybody watches, and sends it to everybody.

    sampler --Channels group, one message a topic--> LiveConsumer of each viewer --> htmx swaps the fragments

Each web process with a viewer runs a `Sampler`; a lease in Redis lets one of them take the snapshot. So the
work that Redis does depends on the number of web processes, never on the number of viewers.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import Callable
from typing import Any

from channels.layers import get_channel_layer
from django.template.loader import render_to_string
from redis.exceptions import RedisError

from dashboard import hints, queries
from queueops import keys
from queueops.connection import connection
from queueops.errors import QueueOpsError

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
LEASE_MS = 3_000  # a sampler that died is replaced within three snapshots


def group(topic: str) -> str:
    """Name the Channels group of a topic."""
    return f"topic.{topic}"


def _overview(snapshot: queries.Snapshot) -> str:
    return render_to_string("dashboard/overview.html#overview", queries.overview_context(snapshot))


def _overview_with_buttons(snapshot: queries.Snapshot) -> str:
    context = queries.overview_context(snapshot) | {"may_pause": True}
    return render_to_string("dashboard/overview.html#overview", context)


def _navigation(snapshot: queries.Snapshot) -> str:
    return render_to_string("dashboard/_base.html#nav-queues", {"snapshot": snapshot})


def _surroundings(snapshot: queries.Snapshot) -> str:
    """The parts of every page beside its queues: counts in the main menu, the banner of what is paused."""
    return render_to_string("dashboard/_surroundings.html", {"snapshot": snapshot})


#: What a socket may ask for: topic -> the element that its fragment morphs, and the fragment, made once a
#: second for all viewers. Who may pause queues asks for the overview with buttons; each press is checked.
TOPICS: dict[str, tuple[str, Callable[[queries.Snapshot], str]]] = {
    "overview": ("live-overview", _overview),
    "overview-buttons": ("live-overview", _overview_with_buttons),
    "navigation": ("live-navigation", _navigation),
}
#: Topics without a fragment: who asks for them gets data.
DATA_TOPICS = frozenset({hints.TOPIC})


def message(element: str, fragment: str, more: str = "") -> str:
    """Wrap a fragment as hx-ws reads it: it morphs the element of that id, keeping focus and open rows."""
    partial = f'<hx-partial hx-target="#{element}" hx-swap="outerMorph">{fragment}</hx-partial>'
    return json.dumps({"content": partial + more})


class Sampler:
    """The sampling task of one event loop: runs while at least one viewer of this process is connected."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(8)
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None
        self._was_away = False
        self._changes = hints.Changes()

    def join(self) -> None:
        """Count a viewer in. Call from the event loop."""
        self._viewers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def leave(self) -> None:
        """Count a viewer out. The task ends by itself after its round."""
        self._viewers -= 1

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._viewers > 0:
            started = loop.time()
            try:
                await self.run_once()
                self._note_away(None)
            except (QueueOpsError, RedisError, OSError) as error:
                self._note_away(error)
            except Exception:
                log.exception(
                    "a live update failed"
                )  # the next one may not; viewers see the age grow meanwhile
            await asyncio.sleep(max(0.05, INTERVAL_S - (loop.time() - started)))

    async def run_once(self) -> int:
        """Take, render and send a snapshot if this sampler holds the lease; return the number of messages."""
        messages = await asyncio.to_thread(self._messages)
        layer: Any = get_channel_layer()
        for topic, text in messages.items():
            await layer.group_send(group(topic), {"type": "live.fragment", "text": text})
        return len(messages)

    def _messages(self) -> dict[str, str]:
        if not self._hold_lease():
            return {}
        snapshot = queries.take_snapshot()
        messages = {
            topic: message(
                element, render(snapshot), _surroundings(snapshot) if topic == "navigation" else ""
            )
            for topic, (element, render) in TOPICS.items()
        }
        if changed := self._changes.since_last(snapshot.queues):
            messages[hints.TOPIC] = hints.text(changed)
        return messages

    def _hold_lease(self) -> bool:
        """Take or renew the lease. Two holders for an instant do no harm: viewers get the figures twice."""
        client, key = connection().client, keys.lease("sampler")
        if client.set(key, self._name, nx=True, px=LEASE_MS):
            return True
        return client.get(key) == self._name.encode() and bool(client.pexpire(key, LEASE_MS))

    def _note_away(self, error: Exception | None) -> None:
        """Write one line when Redis goes and one when it is back."""
        if error is not None and not self._was_away:
            log.warning("live updates stopped: %s", error)
        elif error is None and self._was_away:
            log.warning("live updates go on")
        self._was_away = error is not None


_samplers: dict[asyncio.AbstractEventLoop, Sampler] = {}


def sampler() -> Sampler:
    """Return the sampler of the running event loop."""
    loop = asyncio.get_running_loop()
    for other in [other for other in _samplers if other.is_closed()]:
        del _samplers[other]
    return _samplers.setdefault(loop, Sampler())
