"""Hints: which queues have changed. A list that shows one fetches its page, with its reader's own rights."""

import json
from collections.abc import Iterable, Mapping
from zlib import crc32

from dashboard import channel, queries
from queueops.inspector import QueueSummary

TOPIC = "hints"
GROUP = f"topic.{TOPIC}"

_Shape = tuple[object, ...]


def hint(*queues: str) -> None:
    """Tell every viewer at once that these queues have changed: somebody has acted."""
    queries.expire()  # whoever acted sees the effect on the page they are sent to
    channel.tell(GROUP, {"type": "live.fragment", "text": text(queues)})


def text(queues: Iterable[str], digests: Mapping[str, str] | None = None) -> str:
    """Return the message: data only, so that hx-ws swaps nothing.

    `digests` tell a page that has just opened its socket whether it missed something.
    """
    told: dict[str, object] = {"hints": list(queues)}
    return json.dumps(told | {"digests": dict(digests)} if digests else told)


def digest(summary: QueueSummary | None) -> str:
    """Return what a page keeps of how its queue looked when it was made."""
    return _digest(_shape(summary)) if summary is not None else ""


def _digest(shape: _Shape) -> str:
    return format(crc32(repr(shape).encode()), "x")


class Changes:
    """Which queues look different from the snapshot before."""

    def __init__(self) -> None:
        self._shapes: dict[str, _Shape] = {}

    def since_last(self, queues: Iterable[QueueSummary]) -> list[str]:
        """Return the names of queues that are new, gone or changed, and remember how they are now."""
        shapes = {each.queue: _shape(each) for each in queues}
        changed = [name for name, shape in shapes.items() if self._shapes.get(name) != shape]
        changed += [name for name in self._shapes if name not in shapes]
        self._shapes = shapes
        return changed

    def digests(self) -> dict[str, str]:
        """Return how each queue looks now, as `digest` writes it."""
        return {name: _digest(shape) for name, shape in self._shapes.items()}


def _shape(each: QueueSummary) -> _Shape:
    counts = (each.delayed, each.ready, each.pending, each.dead, each.discarded)
    # The last two minutes' counters tell of jobs that came and went between two snapshots.
    return (*counts, each.paused, each.holds, each.history[-2:], each.concurrency, each.rate, each.workers)
