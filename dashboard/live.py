"""Live updates: one sampler takes one snapshot a second while anybody watches, and sends it to everybody.

    sampler --Channels group, one message a topic--> LiveConsumer of each viewer --> htmx swaps the fragments

Each web process with a viewer runs a `Sampler`; a lease in Redis lets one of them take the snapshot. So the
work that Redis does depends on the number of web processes, never on the number of viewers.
"""

import asyncio
import json
import logging
import secrets
from typing import Any

from channels.layers import get_channel_layer
from django.template.loader import get_template, render_to_string
from redis.exceptions import RedisError

from dashboard import hints, queries
from queueops import keys
from queueops.connection import connection
from queueops.errors import QueueOpsError

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
ALL_EVERY = 10  # messages; those between hold only what has changed
LEASE_MS = 3_000  # a sampler that died is replaced within three snapshots


def group(topic: str) -> str:
    """Name the Channels group of a topic."""
    return f"topic.{topic}"


class Menu:
    """What every page has around it: the queues, the counts in the menu and the banner of what is paused."""

    def __init__(self) -> None:
        self._sent = ""
        self._since_all = 0

    def forget(self) -> None:
        """Send it next time, changed or not."""
        self._sent = ""

    def render(self, snapshot: queries.Snapshot) -> str:
        """Return the partials to send; '' when nothing has changed."""
        shown = {"snapshot": snapshot}
        queues = partial("live-navigation", render_to_string("dashboard/_base.html#nav-queues", shown))
        all_of_it = queues + render_to_string("dashboard/_surroundings.html", shown)
        self._since_all += 1
        if all_of_it == self._sent and self._since_all < ALL_EVERY:
            return ""
        self._sent, self._since_all = all_of_it, 0
        return all_of_it


class Overview:
    """The overview as it was sent last, so that only what has changed since is sent.

    All of it goes now and then, and when a viewer comes: who misses a message is not wrong for long.
    """

    def __init__(self, *, may_pause: bool) -> None:
        self._more = {"may_pause": may_pause}
        self._sent: dict[str, str] = {}
        self._since_all = 0

    def forget(self) -> None:
        """Send all of it next time."""
        self._sent = {}

    def render(self, snapshot: queries.Snapshot) -> str:
        """Return the partials to send; '' when nothing has changed."""
        context = queries.overview_context(snapshot) | self._more
        parts: dict[str, str] = {
            "wrong": render_to_string("dashboard/_wrong.html", context),
            "figures": render_to_string("dashboard/_figures.html", context),
        }
        row = get_template("dashboard/_queue_row.html")
        for each in snapshot.queues:
            parts[f"queue-{each.queue}"] = row.render({"each": each, **self._more})
        changed = {element: html for element, html in parts.items() if self._sent.get(element) != html}
        self._since_all += 1
        is_same_page = list(parts) == list(self._sent)
        self._sent = parts
        if is_same_page and self._since_all < ALL_EVERY:
            return "".join(partial(element, html) for element, html in changed.items())
        self._since_all = 0
        return partial("live-overview", render_to_string("dashboard/overview.html#overview", context))


#: What a socket may ask for beside hints; made once a second for all viewers. Who may pause queues asks for
#: the overview with buttons; each press is checked.
TOPICS = ("overview", "overview-buttons", "navigation")
#: Topics without a fragment: who asks for them gets data.
DATA_TOPICS = (hints.TOPIC,)


def partial(element: str, html: str) -> str:
    """Wrap HTML so that htmx morphs the element of that id, keeping focus and open rows."""
    return f'<hx-partial hx-target="[id=&quot;{element}&quot;]" hx-swap="outerMorph">{html}</hx-partial>'


def message(fragments: str) -> str:
    """Return a message as hx-ws reads it. An empty one says that nothing has changed until now."""
    return json.dumps({"content": fragments})


class Sampler:
    """The sampling task of one event loop: runs while at least one viewer of this process is connected."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(8)
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None
        self._was_away = False
        self._changes = hints.Changes()
        self._greets = False  # somebody has come who must know what they have missed
        self._menu = Menu()
        self._overviews = {
            "overview": Overview(may_pause=False),
            "overview-buttons": Overview(may_pause=True),
        }

    def join(self) -> None:
        """Count a viewer in, who gets all of the page. Call from the event loop."""
        self._viewers += 1
        self._greets = True
        self._menu.forget()
        for overview in self._overviews.values():
            overview.forget()
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
                # The next one may not; viewers see the age grow meanwhile.
                log.exception("a live update failed")
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
        messages = self._rendered(snapshot)
        greets, self._greets = self._greets, False
        changed = self._changes.since_last(snapshot.queues)
        if changed or greets:
            messages[hints.TOPIC] = hints.text(changed, self._changes.digests() if greets else None)
        return messages

    def _rendered(self, snapshot: queries.Snapshot) -> dict[str, str]:
        """Return the message of each topic. The overview's has the navigation in it: one message a viewer."""
        navigation = self._menu.render(snapshot)
        overviews = {topic: each.render(snapshot) for topic, each in self._overviews.items()}
        return {
            "navigation": message(navigation),
            **{topic: message(navigation + fragments) for topic, fragments in overviews.items()},
        }

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
