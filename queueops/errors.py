"""Every exception that QueueOps raises on purpose."""

from __future__ import annotations

import math
from datetime import timedelta

#: A longer delay ends past the year 9999.
_LONGEST_S = 250e9


class QueueOpsError(Exception):
    """Base of the errors below; its text is one line for a person."""


class ConfigError(QueueOpsError):
    """A setting is unknown, missing or out of range."""


class PolicyError(QueueOpsError, ValueError):
    """A field of a retry policy is wrong: `field` names it, `reason` says why."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class ScheduleError(QueueOpsError, ValueError):
    """A field of a schedule's rule is wrong: `field` names it, `reason` says why."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class StoreUnavailable(QueueOpsError):
    """Redis can't be reached or can't be used; nothing was changed."""


class StoreFull(StoreUnavailable):
    """Redis is at `maxmemory` and took nothing in."""


class WrongKeyType(QueueOpsError):
    """A key of ours holds another type (old version or foreign data); nothing was changed."""


class LostLease(QueueOpsError):
    """The delivery no longer owns its job: the outcome must be dropped."""


class WrongDatabase(QueueOpsError):
    """once() would record an effect in another database than the one that its work is done in."""


class CorruptSpec(QueueOpsError):
    """The stored spec of a job can't be read. `raw` holds its first bytes in base64."""

    def __init__(self, message: str, raw: str = "") -> None:
        super().__init__(message)
        self.raw = raw


class SoftTimeLimit(QueueOpsError):
    """Raised inside a handler that ran past its soft time limit."""


class Outcome(Exception):
    """Base of what a handler raises to say how its job goes on."""


class Discard(Outcome):
    """Set the job aside, restorable, for this reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Dead(Outcome):
    """Give up on the job now, whatever its policy says."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


def _seconds(delay: float | timedelta) -> float:
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if not math.isfinite(seconds):
        raise ValueError(f"delay must be finite, got {seconds}")
    if seconds > _LONGEST_S:
        raise ValueError("delay ends past the year 9999")
    return seconds


class RetryLater(Outcome):
    """Fail this attempt and try again after at least `delay` (seconds or a timedelta).

    Raises ValueError when that is no finite number or ends past the year 9999.
    """

    def __init__(self, delay: float | timedelta, reason: str = "") -> None:
        self.delay_s = _seconds(delay)
        self.reason = reason
        super().__init__(reason or f"retry after {self.delay_s:g} s")


class WebhookFailed(RetryLater):
    """A webhook was not taken and may be later. `status` is the HTTP one, None for a network error."""

    def __init__(self, reason: str, *, delay: float = 0.0, status: int | None = None) -> None:
        super().__init__(delay, reason)
        self.status = status


class Snooze(Outcome):
    """Run the job again after `delay` (seconds or a timedelta) without burning an attempt.

    Raises ValueError when that is no finite number or ends past the year 9999.
    """

    def __init__(self, delay: float | timedelta, reason: str = "") -> None:
        self.delay_s = _seconds(delay)
        self.reason = reason
        super().__init__(reason or f"snooze for {self.delay_s:g} s")
