"""Who is there: Celery workers that run jobs, and children of runworkers that hand jobs to them.

Each says so in a key that expires, so that no clock decides who lives. What a worker is free to run is
shared among the children: each gets its part of every worker's slots.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import RedisError

from queueops import keys
from queueops.connection import Connection

#: How long the word of one that went silent counts, and how often each says it again. Seconds.
ALIVE_S, SAY_EVERY_S = 5.0, 1.0
#: What a child that hands jobs over has not read after this is forgotten, ms.
REPORTS_KEPT_MS = 60_000
#: Instead of a job that ended: look who is there.
LOOK = "look"


@dataclass(frozen=True)
class Member:
    """One Celery worker: its own Celery queue, its processes, and what keeps them busy.

    `busy` counts what it has taken, by the child that handed it over; '' for tasks of Celery itself.
    """

    name: str
    queue: str
    slots: int
    busy: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """As it stands in Redis."""
        return json.dumps({"queue": self.queue, "slots": self.slots, "busy": dict(self.busy)})

    @classmethod
    def from_json(cls, name: str, text: bytes) -> Member | None:
        """Read what to_json wrote; None for anything else."""
        try:
            given: dict[str, Any] = json.loads(text)
            return cls(name, str(given["queue"]), int(given["slots"]), dict(given["busy"]))
        except (ValueError, TypeError, KeyError):
            return None

    def room_for(self, hand: str, hands: list[str]) -> int:
        """How many jobs at once `hand` may have there, of the hands that live.

        Slots that do not divide go to one hand here and to another there. What hands that are gone left
        running, and Celery's own tasks, count as taken.
        """
        others = sum(count for name, count in self.busy.items() if name not in hands)
        free = max(0, self.slots - others)
        if hand not in hands:
            return 0
        share, rest = divmod(free, len(hands))
        turn = (hands.index(hand) + sum(self.name.encode())) % len(hands)
        return share + (turn < rest)


class Presence:
    """The two lists in Redis. Raises StoreUnavailable from every method."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def say(self, index: str, name: str, what: str) -> None:
        """Be there, on keys.FLEET or keys.HANDS, for the next seconds."""
        pipe = self._connection.client.pipeline(transaction=False)
        pipe.sadd(index, name)
        pipe.set(keys.present(index, name), what, px=round(ALIVE_S * 1000))
        self._execute(pipe)

    def leave(self, index: str, name: str) -> None:
        """Be there no longer."""
        pipe = self._connection.client.pipeline(transaction=False)
        pipe.delete(keys.present(index, name))
        pipe.srem(index, name)
        self._execute(pipe)

    def members(self) -> dict[str, Member]:
        """The Celery workers that live, by name."""
        found = {name: Member.from_json(name, text) for name, text in self._living(keys.FLEET).items()}
        return {name: member for name, member in found.items() if member is not None}

    def hands(self) -> list[str]:
        """The children that live, in an order that all of them see."""
        return sorted(self._living(keys.HANDS))

    def call_hands(self) -> None:
        """Let every child that hands jobs over look at the members now."""
        hands = self.hands()
        if not hands:
            return
        pipe = self._connection.client.pipeline(transaction=False)
        for hand in hands:
            pipe.rpush(keys.ended(hand), LOOK)
            pipe.pexpire(keys.ended(hand), REPORTS_KEPT_MS)
        self._execute(pipe)

    def tell(self, hand: str, what: str) -> None:
        """Tell one child that a job ended: `<queue> <id> <delivery>`."""
        pipe = self._connection.client.pipeline(transaction=False)
        pipe.rpush(keys.ended(hand), what)
        pipe.pexpire(keys.ended(hand), REPORTS_KEPT_MS)
        self._execute(pipe)

    def _living(self, index: str) -> dict[str, bytes]:
        client: Any = self._connection.client
        with self._connection.translating():
            names = sorted(raw.decode(errors="replace") for raw in client.smembers(index))
        pipe = client.pipeline(transaction=False)
        for name in names:
            pipe.get(keys.present(index, name))
        said = dict(zip(names, self._execute(pipe), strict=True)) if names else {}
        gone = [name for name, text in said.items() if text is None]
        if gone:  # one that only paused comes back with its next word
            with self._connection.translating():
                client.srem(index, *gone)
        return {name: text for name, text in said.items() if text is not None}

    def _execute(self, pipe: Any) -> list[Any]:
        try:
            answers: list[Any] = pipe.execute()
        except RedisError as error:
            raise self._connection.translated(error) from error
        return answers
