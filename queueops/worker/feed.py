"""One queue as a child is fed from it: what it may ask next, and what it has to report."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass

from queueops import keys
from queueops.job import Claimed
from queueops.store import Outcome

#: A child that is not the keeper asks by itself after this, and up to a fifth more. Its token could
#: only be lost with a process, and then the supervisor's renewal has pushed another long before.
RECHECK_S = 300.0
#: Bounds of how early the keeper wakes, and where it begins. Seconds.
EARLY_S = (0.0, 0.0015)
FIRST_EARLY_S = 0.0003
#: The script shall run this long after the due time: a little late costs less than a claim too early.
AIM_US = 60
#: Who asked so much too early asks again at the time itself, and learns nothing from it. µs.
SHORT_US = 2_000
#: Wait after an error that belongs to this queue alone; doubled each time, seconds.
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 5.0
#: What ended this long ago still says how fast jobs end. Seconds.
WINDOW_S = 0.1
#: ... and so much later than it should the claim thread may run, between handlers. Seconds.
SPARE_S = 0.004


@dataclass(frozen=True)
class Request:
    """What one exchange asks; sent again unchanged until it is answered."""

    outcomes: list[Outcome]
    number: int
    limit: int


class Feed:
    """One queue: its request numbers, its clock, the outcomes to report."""

    def __init__(self, queue: str, index: int, *, is_probation: bool) -> None:
        self.queue = queue
        self.index = index
        self.wake = keys.queue_key(queue, "wake_suspect" if is_probation else "wake")
        self.outcomes: list[Outcome] = []
        self.oldest = 0.0  # when the first of them ended, monotonic
        self.unanswered: Request | None = None
        self.request = 0
        self.version: int | None = None
        #: More work may be there: ask as soon as a slot is free.
        self.is_hungry = True
        self.is_keeper = False
        #: When to ask though nobody woke us, monotonic.
        self.ask_at = 0.0
        #: A token came while no slot was free.
        self.owes_token = False
        self.paused_until = 0.0  # after an error of this queue, monotonic
        self._pause_s = FIRST_PAUSE_S
        self._early_s = FIRST_EARLY_S
        self._due_us = 0  # the server's time for which the keeper waits

    def add(self, outcome: Outcome, now: float) -> None:
        """Note an outcome to report."""
        if not self.outcomes:
            self.oldest = now
        self.outcomes.append(outcome)

    def answered(self, claimed: Claimed, limit: int, sent: float, now: float, *, woke: bool) -> None:
        """Learn from a claim's answer. `woke`: it was sent because the keeper's timer ended."""
        self._pause_s = FIRST_PAUSE_S
        if woke and self._due_us:
            over_us = claimed.server_us - self._due_us - AIM_US
            if abs(over_us) < 20_000:  # else the process was stopped: nothing to learn
                low, high = EARLY_S
                self._early_s = min(high, max(low, self._early_s + over_us / 1e6 / 8))
        self._due_us = 0
        self.is_keeper = claimed.is_keeper
        self.is_hungry = limit == 0 or len(claimed.jobs) >= limit or claimed.wait_us == 0
        self.ask_at = now + RECHECK_S * (1 + random.random() / 5)
        if claimed.is_keeper and claimed.wait_us is not None:
            middle = sent + (now - sent) / 2  # about when the script ran, by our clock
            due_at = middle + claimed.wait_us / 1e6
            if claimed.wait_us > SHORT_US:
                self._due_us = claimed.server_us + claimed.wait_us
                due_at -= self._early_s
            self.ask_at = min(self.ask_at, due_at)

    def failed(self, now: float) -> None:
        """Leave the queue alone for a while after an error of its own."""
        self.paused_until = now + self._pause_s * (0.75 + random.random() / 2)
        self._pause_s = min(LAST_PAUSE_S, self._pause_s * 2)

    def ask_now(self) -> None:
        """Forget what was known: something may have been missed."""
        self.is_hungry = True


class Pace:
    """How fast jobs end: what will have ended before a next exchange returns may be claimed ahead."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, int]] = deque()
        self._sum = 0
        self._trip_s = 0.001  # an exchange with Redis takes about so long

    def add(self, count: int, now: float) -> None:
        """`count` jobs ended just now."""
        self._ended.append((now, count))
        self._sum += count

    def took(self, trip_s: float) -> None:
        """An exchange took so long. Longer ones count at once, shorter ones by and by."""
        self._trip_s = max(trip_s, self._trip_s + (trip_s - self._trip_s) / 8)

    def ahead(self, now: float) -> int:
        """How many jobs will end within two exchanges, by what ended in the last 100 ms."""
        while self._ended and self._ended[0][0] < now - WINDOW_S:
            self._sum -= self._ended.popleft()[1]
        if not self._ended:
            return 0
        over_s = max(now - self._ended[0][0], self._trip_s)
        return min(self._sum, math.ceil(self._sum / over_s * (2 * self._trip_s + SPARE_S)))
