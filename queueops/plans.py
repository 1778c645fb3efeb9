"""How a bulk action goes about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Verbs that can spread their jobs over time by themselves; the others are slowed down.
SPREADING = frozenset({"requeue", "reschedule"})
#: Verbs whose jobs run again, and may fail again.
RUNNING = frozenset({"requeue", "run_now"})


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How an operation goes about it. Seconds; `rate` in jobs a second; `stop_share` in 0..1.

    `delay_s`: requeued jobs wait so long; rescheduled ones run so long from now. `run_at_ms` (Unix
    ms): when rescheduled jobs run. `spread_s` spreads them evenly at random over that time after.
    `policy` (its name, of jobs that wait for a retry): each runs as long after its failure as that
    policy says, jitter and all; those whose time has passed are spread over `spread_s`, a minute.
    `canary`: after so many jobs it pauses for a person to look. `stop_share`: it stops by itself
    when more than this share of its jobs fail again. `stop_after_s`: a cancelled job that still runs
    after so long is stopped hard, with its process. Raises ValueError.
    """

    delay_s: float | None = None
    run_at_ms: int | None = None
    spread_s: float | None = None
    policy: str | None = None
    rate: float | None = None
    canary: int | None = None
    stop_share: float | None = None
    stop_after_s: float | None = None

    def check(self, verb: str) -> None:
        """Raise ValueError for what `verb` can't do."""
        for name in ("delay_s", "spread_s", "stop_after_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 366 * 86_400:
                raise ValueError(f"{name} must be seconds from 0 to a year, got {value:g}")
        if self.rate is not None and not 0 < self.rate <= 1e6:
            raise ValueError(f"rate must be jobs a second over 0, got {self.rate:g}")
        if self.canary is not None and self.canary < 1:
            raise ValueError(f"canary must be at least 1, got {self.canary}")
        if self.stop_share is not None and not 0 < self.stop_share <= 1:
            raise ValueError(f"stop_share must be over 0 and at most 1, got {self.stop_share:g}")
        if verb == "reschedule" and self.delay_s is None and self.run_at_ms is None and self.policy is None:
            raise ValueError("reschedule needs a time: at, or in")
        if self.policy is not None and (
            verb != "reschedule" or self.delay_s is not None or self.run_at_ms is not None
        ):
            raise ValueError("policy is for reschedule, and instead of a time")
        if self.run_at_ms is not None and (verb != "reschedule" or self.delay_s is not None):
            raise ValueError("run_at is for reschedule, and instead of a delay")
        if self.delay_s is not None and verb not in SPREADING:
            raise ValueError(f"{verb} takes no delay")
        if self.stop_after_s is not None and verb != "cancel":
            raise ValueError("only what runs is stopped hard: stop_after is for cancel")
        if self.stop_share is not None and verb not in RUNNING:
            raise ValueError(f"jobs of {verb} don't run again: there is nothing to stop for")

    def to_json(self) -> dict[str, Any]:
        """What is given."""
        return {name: value for name, value in vars(self).items() if value is not None}
