"""Retry policies: whether a failed job runs again, and when. Pure arithmetic; callers pass numbers in."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from random import random
from typing import Any

from queueops.errors import PolicyError

#: No retry is nearer or further away than these; an empty cap means the latter. Seconds.
MIN_DELAY_S = 0.001
MAX_DELAY_S = 365 * 86_400.0
#: More retries than this are refused: they are for ever, and for ever is a person's decision.
MAX_RETRIES = 100_000
#: What a downstream's Retry-After may ask for at most, seconds.
MAX_RETRY_AFTER_S = 86_400.0
#: The Retry-After is stretched by up to this factor, so that all who were told 60 s don't come at 60 s.
RETRY_AFTER_STRETCH = 1.2
#: A done job's tombstone answers for its id at least this long, seconds.
MIN_DONE_KEEP_S = 300.0

Rand = Callable[[], float]


class Jitter(StrEnum):
    """How a delay d is spread, so that jobs that failed together do not come back together."""

    NONE = "none"  # exactly d
    RATIO = "ratio"  # uniform in [d(1-r), min(d(1+r), cap)]
    FULL = "full"  # uniform in [0, d]
    EQUAL = "equal"  # uniform in [d/2, d]


@dataclass(frozen=True, slots=True)
class Retry:
    """Run the job again, this many seconds from now."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Bury:
    """Give the job up: `why` is "fatal" or "exhausted"."""

    why: str


@dataclass(frozen=True, slots=True)
class PlannedTry:
    """What follows when attempt `attempt` fails: try `attempt + 1`, after between lo_s and hi_s.

    `since_lo_s` and `since_hi_s` add the waits up: the earliest and latest time of that try,
    counted from the first failure, with handlers that take no time.
    """

    attempt: int
    delay_s: float
    lo_s: float
    hi_s: float
    since_lo_s: float
    since_hi_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How many retries, after which delays, with which jitter, and what is fatal.

    Delays are a list (`delays_s`, whose last one repeats) or exponential: base_s * factor^(n-1).
    `cap_s` None means no cap short of a year. A limit or keep time of None means the queue's.
    Raises PolicyError, which names the field.
    """

    name: str = "default"
    version: int = 1
    max_retries: int = 4
    delays_s: tuple[float, ...] = ()
    base_s: float | None = None
    factor: float = 2.0
    cap_s: float | None = None
    jitter: Jitter = Jitter.RATIO
    jitter_ratio: float = 0.2
    #: Exceptions that no retry can cure, as `Name` or `module.Name`; a base class covers its children.
    fatal: tuple[str, ...] = ()
    honour_retry_after: bool = True
    soft_limit_s: float | None = None
    hard_limit_s: float | None = None
    max_rescues: int | None = None
    done_keep_s: float | None = None
    discarded_keep_s: float | None = None

    def __post_init__(self) -> None:
        _check_text("name", self.name)
        _check_whole("version", self.version, 1, 2**53)
        _check_whole("max_retries", self.max_retries, 0, MAX_RETRIES)
        object.__setattr__(self, "jitter", _jitter(self.jitter))
        object.__setattr__(self, "delays_s", _seconds_list("delays_s", self.delays_s))
        object.__setattr__(self, "fatal", _names("fatal", self.fatal))
        for name in ("base_s", "cap_s", "soft_limit_s", "hard_limit_s", "done_keep_s", "discarded_keep_s"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _seconds(name, value))
        object.__setattr__(self, "factor", _number("factor", self.factor))
        object.__setattr__(self, "jitter_ratio", _number("jitter_ratio", self.jitter_ratio))
        if not isinstance(self.honour_retry_after, bool):
            raise PolicyError("honour_retry_after", f"must be true or false, got {self.honour_retry_after!r}")
        if self.max_rescues is not None:
            _check_whole("max_rescues", self.max_rescues, 0, 1_000)
        self._check_together()

    def _check_together(self) -> None:
        if self.factor < 1:
            raise PolicyError("factor", f"must be at least 1, or delays would shrink; got {self.factor:g}")
        if not 0 <= self.jitter_ratio < 1:
            raise PolicyError("jitter_ratio", f"must be from 0 to less than 1, got {self.jitter_ratio:g}")
        if self.delays_s and self.base_s is not None:
            raise PolicyError("base_s", "give a list of delays or a base, not both")
        if self.max_retries and not self.delays_s and self.base_s is None:
            raise PolicyError("delays_s", "give a list of delays, or a base for exponential ones")
        if self.cap_s is not None:
            if self.base_s is not None and self.base_s > self.cap_s:
                raise PolicyError("base_s", f"{self.base_s:g} s is over the cap of {self.cap_s:g} s")
            if self.delays_s and max(self.delays_s) > self.cap_s:
                raise PolicyError("delays_s", f"{max(self.delays_s):g} s is over the cap of {self.cap_s:g} s")
        if self.soft_limit_s is not None and self.soft_limit_s >= (self.hard_limit_s or math.inf):
            raise PolicyError("soft_limit_s", f"must be under the hard limit of {self.hard_limit_s:g} s")
        if self.done_keep_s is not None and self.done_keep_s < MIN_DONE_KEEP_S:
            raise PolicyError("done_keep_s", f"must be at least {MIN_DONE_KEEP_S:g} s")

    @property
    def effective_cap_s(self) -> float:
        """The longest delay that may be drawn, in seconds."""
        return MAX_DELAY_S if self.cap_s is None else self.cap_s

    def warnings(self) -> tuple[str, ...]:
        """Return what is legal and probably not meant, for a form to show."""
        found = []
        if self.max_retries == 0:
            found.append("No retries: the first error makes the job dead.")
            if self.delays_s or self.base_s is not None:
                found.append("The delays are never used.")
        elif len(self.delays_s) > self.max_retries:
            found.append(f"Only the first {self.max_retries} of {len(self.delays_s)} delays are used.")
        if self.max_retries and self.jitter is Jitter.NONE:
            found.append("No jitter: jobs that failed together come back in the same instant.")
        return tuple(found)

    def is_fatal(self, names: Iterable[str]) -> bool:
        """Tell whether one of these exception names (see exception_names) is fatal."""
        return not frozenset(self.fatal).isdisjoint(names)

    def to_json(self) -> str:
        """Return the policy as compact JSON; fields that are None are left out."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps(
            {name: value for name, value in given.items() if value is not None},
            separators=(",", ":"),
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, text: str | bytes | Mapping[str, Any]) -> RetryPolicy:
        """Read a policy from JSON, or from a mapping of the same shape.

        Missing fields get their defaults, and unknown ones are passed over: a newer writer may
        know more. Raises PolicyError on anything else that is wrong.
        """
        if isinstance(text, (str, bytes)):
            try:
                data = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise PolicyError("policy", f"is not JSON: {error}") from None
        else:
            data = text
        if not isinstance(data, Mapping):
            raise PolicyError("policy", f"must be a JSON object, got {type(data).__name__}")
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known and value is not None})


def delay_before_jitter_s(policy: RetryPolicy, attempt: int) -> float:
    """Return the delay after failed attempt `attempt` (from 1), before any jitter, in seconds.

    The list's entry, the last one repeating; or min(cap, base * factor^(attempt-1)), which for
    any attempt is the cap and never an overflow.
    """
    if attempt < 1:
        raise ValueError(f"attempt counts from 1, got {attempt}")
    if policy.delays_s:
        return policy.delays_s[min(attempt, len(policy.delays_s)) - 1]
    if policy.base_s is None:
        raise ValueError(f"policy {policy.name} has no delays: it never retries")
    cap_s = policy.effective_cap_s
    # 2.0 ** 1024 raises OverflowError: compare the exponents first. One more step is left to
    # the exact multiplication below, since logarithms round.
    steps_to_cap = (
        math.log(cap_s / policy.base_s) / math.log(policy.factor) if policy.factor > 1 else math.inf
    )
    if attempt - 1 > steps_to_cap + 1:
        return cap_s
    return float(min(cap_s, policy.base_s * policy.factor ** (attempt - 1)))


def jitter_band(policy: RetryPolicy, attempt: int) -> tuple[float, float]:
    """Return the interval, in seconds, that the delay after failed attempt `attempt` is drawn from.

    The upper end is cut before the draw: clamping after it would let a good part of a storm
    land on the cap itself.
    """
    delay_s = delay_before_jitter_s(policy, attempt)
    match policy.jitter:
        case Jitter.RATIO:
            high_s = min(delay_s * (1 + policy.jitter_ratio), policy.effective_cap_s)
            return delay_s * (1 - policy.jitter_ratio), high_s
        case Jitter.FULL:
            return 0.0, delay_s
        case Jitter.EQUAL:
            return delay_s / 2, delay_s
        case Jitter.NONE:
            return delay_s, delay_s


def retry_delay_s(
    policy: RetryPolicy, attempt: int, *, retry_after_s: float | None = None, rand: Rand = random
) -> float:
    """Return how long to wait after failed attempt `attempt` (from 1), in seconds.

    Uniform over jitter_band. A downstream's Retry-After can only lengthen it: at least
    retry_after_s * U[1, 1.2], of which 24 h count; one that is negative or no number is passed over.
    `rand` gives a float in [0, 1). Raises ValueError when `attempt` < 1.
    """
    low_s, high_s = jitter_band(policy, attempt)
    delay_s = low_s + (high_s - low_s) * rand()
    if retry_after_s is not None and policy.honour_retry_after and retry_after_s > 0:
        asked_s = retry_after_s * (1 + (RETRY_AFTER_STRETCH - 1) * rand())
        delay_s = max(delay_s, min(asked_s, MAX_RETRY_AFTER_S))
    return delay_s


def exception_names(error: BaseException | type[BaseException]) -> frozenset[str]:
    """Return the names that `fatal` may use for this exception: of its class and its bases."""
    kind = error if isinstance(error, type) else type(error)
    return frozenset(
        name
        for base in kind.__mro__
        if issubclass(base, BaseException)
        for name in (base.__name__, base.__qualname__, f"{base.__module__}.{base.__qualname__}")
    )


def decide(
    policy: RetryPolicy,
    attempt: int,
    *,
    error: BaseException | type[BaseException] | None = None,
    fatal: bool = False,
    retry_after_s: float | None = None,
    rand: Rand = random,
) -> Retry | Bury:
    """Say what becomes of a job whose attempt `attempt` (from 1) has just failed.

    Dead when `fatal`, when the policy calls `error` fatal, or when attempt > max_retries.
    """
    if attempt < 1:
        raise ValueError(f"attempt counts from 1, got {attempt}")
    if fatal or (error is not None and policy.fatal and policy.is_fatal(exception_names(error))):
        return Bury("fatal")
    if attempt > policy.max_retries:
        return Bury("exhausted")
    return Retry(retry_delay_s(policy, attempt, retry_after_s=retry_after_s, rand=rand))


def preview(policy: RetryPolicy, limit: int = 20) -> list[PlannedTry]:
    """Return the tries that follow a first failure, at most `limit`; none when nothing is retried."""
    tries: list[PlannedTry] = []
    since_lo_s = since_hi_s = 0.0
    for attempt in range(1, min(policy.max_retries, limit) + 1):
        low_s, high_s = jitter_band(policy, attempt)
        since_lo_s, since_hi_s = since_lo_s + low_s, since_hi_s + high_s
        delay_s = delay_before_jitter_s(policy, attempt)
        tries.append(PlannedTry(attempt, delay_s, low_s, high_s, since_lo_s, since_hi_s))
    return tries


def describe(policy: RetryPolicy) -> str:
    """Return the policy in plain words: "4 retries after 5 s, 30 s, 5 min and 1 h, each ±20 %"."""
    if policy.max_retries == 0:
        return "no retries"
    shown = [duration_text(each.delay_s) for each in preview(policy, 6)]
    if policy.max_retries > len(shown):
        shown.append("…")
        delays = ", ".join(shown)
    else:
        delays = " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
    count = "1 retry" if policy.max_retries == 1 else f"{policy.max_retries:,} retries"
    spread = {
        Jitter.NONE: "without jitter",
        Jitter.RATIO: f"each ±{policy.jitter_ratio * 100:g} %",
        Jitter.FULL: "each drawn from 0 to that",
        Jitter.EQUAL: "each drawn from half of that to all of it",
    }[policy.jitter]
    if policy.base_s is not None and policy.cap_s is not None and policy.max_retries > 1:
        spread = f"at most {duration_text(policy.cap_s)}, {spread}"
    return f"{count} after {delays}, {spread}"


def duration_text(seconds: float) -> str:
    """Return a duration as a person writes it: "5 s", "5 min", "1 h 30 min", "2 d"."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    rest, parts = round(seconds), []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
            rest %= size
    return " ".join(parts[:2])


#: At most so many draws in one storm; over it a sample of the jobs stands for all of them.
STORM_DRAWS = 400_000


def storm(policy: RetryPolicy, jobs: int, horizon_s: float, rand: Rand = random) -> list[float]:
    """Return the tries per second when `jobs` jobs fail in the same second and go on failing.

    The list has one number a second, up to the horizon (a day at most); second 0 is that of
    the first failure, which is not counted. Handlers take no time. Sampled, so that any policy
    answers in well under a second or two: the numbers then are not whole.
    """
    seconds = min(max(1, math.ceil(horizon_s)), 86_400)
    tries = [0.0] * seconds
    draws = done = 0
    while done < jobs and draws < STORM_DRAWS:
        at_s, attempt = rand(), 1  # they failed somewhere within second 0
        while attempt <= policy.max_retries and draws < STORM_DRAWS:
            at_s += retry_delay_s(policy, attempt, rand=rand)
            draws += 1
            if at_s >= seconds:
                break
            tries[int(at_s)] += 1
            attempt += 1
        done += 1
        draws += 1  # also when nothing is retried: the loop ends
    if done and done < jobs:
        return [count * jobs / done for count in tries]
    return tries


def _number(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PolicyError(field, f"must be a number, got {value!r:.40}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise PolicyError(field, f"must be a finite number, got {number}")
    return number


def _seconds(field: str, value: object) -> float:
    number = _number(field, value)
    if not MIN_DELAY_S <= number <= MAX_DELAY_S:
        raise PolicyError(field, f"must be from {MIN_DELAY_S:g} to {MAX_DELAY_S:.0f} seconds, got {number:g}")
    return number


def _seconds_list(field: str, value: object) -> tuple[float, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise PolicyError(field, f"must be a list of seconds, got {value!r:.40}")
    if len(value) > 1_000:
        raise PolicyError(field, f"must be at most 1,000 delays, got {len(value):,}")
    return tuple(_seconds(field, each) for each in value)


def _check_whole(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise PolicyError(field, f"must be a whole number, got {value!r:.40}")
    if not low <= value <= high:
        raise PolicyError(field, f"must be from {low:,} to {high:,}, got {_short(value)}")


def _short(value: int) -> str:
    return f"{value:,}" if abs(value) < 10**18 else "a number of over 18 digits"


def _check_text(field: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip() or len(value) > 100:
        raise PolicyError(field, f"must be a text of 1 to 100 characters, got {value!r:.40}")


def _names(field: str, value: object) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise PolicyError(field, f"must be a list of exception names, got {value!r:.40}")
    for each in value:
        if not isinstance(each, str) or not all(part.isidentifier() for part in each.split(".")):
            raise PolicyError(
                field, f"must be names like ValueError or shop.errors.Declined, got {each!r:.60}"
            )
    return tuple(value)


def _jitter(value: object) -> Jitter:
    try:
        return Jitter(value)  # type: ignore[arg-type]  # anything else is the error below
    except ValueError:
        raise PolicyError("jitter", f"must be {', '.join(Jitter)}, got {value!r:.40}") from None


#: The field's classic: 4 retries after 5 s, 30 s, 5 min and 1 h, each ±20 %.
DEFAULT_POLICY = RetryPolicy(delays_s=(5.0, 30.0, 300.0, 3_600.0))
