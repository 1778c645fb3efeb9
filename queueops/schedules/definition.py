"""What a schedule says, checked field by field, and its slots. No database here."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import dropwhile, islice, pairwise, takewhile
from typing import Any

from queueops import cron
from queueops.conf import config
from queueops.cron import CronRule, IntervalRule, OnceRule, Rule
from queueops.errors import ScheduleError
from queueops.job import from_ms, to_ms
from queueops.keys import check_queue
from queueops.payload import encode_spec

#: Its job's id, schedule:<key>:<slot>:<suffix>, has at most 128 characters.
MAX_KEY, MAX_SUFFIX = 80, 20
MAX_CAP = 1_000
MAX_JITTER_S = 86_400.0
#: An interval without a start date counts from here: every 3600 is at the full hour, UTC.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}

KINDS = ("cron", "interval", "once")
CATCH_UPS = ("skip", "latest", "all")
OVERLAPS = ("allow", "skip", "queue_one", "cancel")


def is_key(text: str) -> bool:
    """Whether a schedule can have this key."""
    return len(text) <= MAX_KEY and _KEY.match(text) is not None


@dataclass(frozen=True)
class Definition:
    """One schedule as schedulers follow it. Times are Unix ms, durations seconds.

    Making one checks nothing: a row may hold anything. `problems` and `check` do.
    """

    key: str
    handler: str
    queue: str = ""
    args: Any = field(default_factory=list)
    kwargs: Any = field(default_factory=dict)
    policy: str = ""
    kind: str = "cron"
    rule: str = ""
    zone: str = "UTC"
    catch_up: str = "latest"
    catch_up_cap: int = 100
    catch_up_max_age_s: float = 86_400.0
    catch_up_rate_per_s: float = 1.0
    overlap: str = "skip"
    jitter_s: float = 0.0
    start_ms: int | None = None
    end_ms: int | None = None
    paused: bool = False
    paused_reason: str = ""
    resume_ms: int | None = None
    paused_ms: int | None = None  # when its last pause began, also once it is over

    def __post_init__(self) -> None:
        for name in ("catch_up_max_age_s", "catch_up_rate_per_s", "jitter_s"):
            value = getattr(self, name)
            if isinstance(value, int):  # equal to what the database gives back
                object.__setattr__(self, name, float(value))

    # -- kept with the row, so that a change is noticed -------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the definition without its key, for `from_json`."""
        values = asdict(self)
        del values["key"]
        return values

    @classmethod
    def from_json(cls, key: str, values: Mapping[str, Any]) -> Definition:
        """Read what to_json gave; fields that a later version added have their defaults."""
        known = {each.name for each in fields(cls)} - {"key"}
        return cls(key=key, **{name: value for name, value in values.items() if name in known})

    def has_other_timing(self, other: Definition) -> bool:
        """Whether the two have other slots, or run them at other times."""
        return any(getattr(self, name) != getattr(other, name) for name in _TIMING)

    # -- what is wrong with it ------------------------------------------------------------------

    def problems(self) -> dict[str, str]:
        """Return field -> what is wrong with it; empty for a schedule that can fire."""
        return {name: reason for name, reason in self._checked() if reason}

    def check(self) -> None:
        """Raise ScheduleError for the first field that is wrong."""
        for name, reason in self._checked():
            if reason:
                raise ScheduleError(name, reason)

    def _checked(self) -> Iterator[tuple[str, str]]:
        if not is_key(self.key):
            yield "key", f"1 to {MAX_KEY} letters, digits, . _ and -, a letter or digit first"
        for name, allowed in (("kind", KINDS), ("catch_up", CATCH_UPS), ("overlap", OVERLAPS)):
            if getattr(self, name) not in allowed:
                yield name, f"must be one of {', '.join(allowed)}"
        for check in (self._check_queue, self._check_zone, self._check_rule):
            try:
                check()
            except ScheduleError as error:
                yield (
                    {"expression": "rule", "every_s": "rule", "at": "rule"}.get(error.field, error.field),
                    error.reason,
                )
        yield from self._checked_payload()
        yield from self._checked_numbers()

    def _check_queue(self) -> None:
        try:
            check_queue(self.queue)
        except (TypeError, ValueError) as error:
            raise ScheduleError("queue", str(error)) from None

    def _check_zone(self) -> None:
        cron.check_zone(self.zone)

    def _check_rule(self) -> None:
        """The rule has slots, and its jitter does not reach over the next one."""
        try:
            first = islice(self.slots_after(0), 12)
        except ScheduleError as error:
            if error.field == "zone":
                return  # said at its own field
            raise
        slots = list(first)
        if self.jitter_s > 0 and len(slots) > 1:
            gap_s = min(b - a for a, b in pairwise(slots)) / 1000
            if self.jitter_s >= gap_s:
                raise ScheduleError(
                    "jitter_s", f"must be shorter than the {gap_s:g} s from one slot to the next"
                )

    def _checked_payload(self) -> Iterator[tuple[str, str]]:
        if not isinstance(self.handler, str) or not self.handler:
            yield "handler", "must not be empty"
        if not isinstance(self.args, list):
            yield "args", "must be a JSON list"
        if not isinstance(self.kwargs, dict):
            yield "kwargs", "must be a JSON object"
        if isinstance(self.args, list) and isinstance(self.kwargs, dict):
            try:
                encode_spec("x", self.args, self.kwargs, max_bytes=config().max_payload_bytes)
            except (TypeError, ValueError) as error:
                yield "kwargs" if str(error).startswith("kwargs") else "args", str(error)

    def _checked_numbers(self) -> Iterator[tuple[str, str]]:
        for name, low, high in (
            ("catch_up_cap", 1, MAX_CAP),
            ("catch_up_max_age_s", 1, 366 * 86_400),
            ("catch_up_rate_per_s", 0.001, 1_000),
            ("jitter_s", 0, MAX_JITTER_S),
        ):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not math.isfinite(value) or not low <= value <= high:
                yield name, f"must be from {low:g} to {high:g}"
        if self.start_ms is not None and self.end_ms is not None and self.end_ms <= self.start_ms:
            yield "end_at", "must be after the start"

    # -- its slots, Unix ms ---------------------------------------------------------------------

    @cached_property
    def parsed_rule(self) -> Rule:
        """The rule, read. Raises ScheduleError."""
        zone = cron.check_zone(self.zone)
        if self.kind == "cron":
            return CronRule(self.rule)
        if self.kind == "interval":
            anchor = EPOCH if self.start_ms is None else from_ms(self.start_ms)
            return IntervalRule(_seconds(self.rule), anchor)
        try:
            at = datetime.fromisoformat(self.rule.strip())
        except ValueError:
            raise ScheduleError(
                "at", f"{self.rule!r:.40} is no date and time like 2026-05-01 14:00"
            ) from None
        return OnceRule(at if at.tzinfo else at.replace(tzinfo=zone))

    def slots_after(self, after_ms: int) -> Iterator[int]:
        """Yield the slots strictly after `after_ms`, earliest first. Raises ScheduleError."""
        if self.start_ms is not None:
            after_ms = max(after_ms, self.start_ms - 1)
        slots = map(to_ms, cron.slots_after(self.parsed_rule, self.zone, from_ms(after_ms)))
        end = self.end_ms
        return slots if end is None else takewhile(lambda slot: slot <= end, slots)

    def slots_before(self, before_ms: int) -> Iterator[int]:
        """Yield the slots strictly before `before_ms`, latest first. Raises ScheduleError."""
        if self.end_ms is not None:
            before_ms = min(before_ms, self.end_ms + 1)
        slots = map(to_ms, cron.slots_before(self.parsed_rule, self.zone, from_ms(before_ms)))
        start = self.start_ms
        return slots if start is None else takewhile(lambda slot: slot >= start, slots)

    def slots_between(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        """Return the slots with after < slot <= until, earliest first, at most `limit`."""
        return list(islice(takewhile(lambda slot: slot <= until_ms, self.slots_after(after_ms)), limit))

    def next_slots(self, after_ms: int, n: int = 1) -> list[int]:
        """Return the first `n` slots after `after_ms` that run: none while it is paused for good."""
        slots = self.slots_after(after_ms)
        if self.paused:
            if self.resume_ms is None:
                return []
            resume = self.resume_ms
            slots = dropwhile(lambda slot: slot < resume, self.slots_after(max(after_ms, resume - 1)))
        return list(islice(slots, n))

    def is_paused_at(self, slot_ms: int) -> bool:
        """Whether the pause covers this slot."""
        return self.paused and (self.resume_ms is None or slot_ms < self.resume_ms)

    def jitter_ms(self, slot_ms: int) -> int:
        """How long this slot's job is put off: always the same."""
        if not self.jitter_s:
            return 0
        return int(cron.slot_jitter_s(self.key, from_ms(slot_ms), self.jitter_s) * 1000)

    def job_id(self, slot_ms: int, suffix: str = "") -> str:
        """The id of a slot's job; by hand and backfilled ones have a suffix."""
        name = f"schedule:{self.key}:{cron.slot_name(from_ms(slot_ms))}"
        return f"{name}:{suffix}" if suffix else name

    def spec(self, slot_ms: int) -> bytes:
        """The job's spec; its handler finds the slot in the tag `slot`."""
        slot = cron.slot_name(from_ms(slot_ms))
        return encode_spec(
            self.handler,
            self.args,
            self.kwargs,
            policy=self.policy or None,
            tags={"schedule": self.key, "slot": slot},
            max_bytes=config().max_payload_bytes,
        )

    def describe(self) -> str:
        """Return the rule in plain words; what is wrong with it when it can't be read."""
        try:
            words = cron.describe(self.parsed_rule, self.zone)
        except ScheduleError as error:
            return str(error)
        for name, ms in (("from", self.start_ms), ("until", self.end_ms)):
            if ms is not None and not (name == "from" and self.kind == "interval"):
                at = from_ms(ms).astimezone(cron.check_zone(self.zone))
                words += f", {name} {at:%Y-%m-%d %H:%M}"
        return words


_TIMING = ("kind", "rule", "zone", "start_ms", "end_ms", "paused", "resume_ms", "paused_ms")


def _seconds(text: str) -> int:
    match = re.fullmatch(r"\s*([0-9]{1,12})\s*([smhd]?)\s*", str(text), re.ASCII)
    if match is None:
        raise ScheduleError("every_s", f"{text!r:.40} is no number of seconds, nor one like 5m, 2h or 1d")
    return int(match[1]) * _UNITS[match[2]]


def parse_arguments(text: str) -> Any:
    """Read args or kwargs as the database holds them; what is no JSON comes back as the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def without_pause(definition: Definition) -> Definition:
    """Return the definition as it goes on when its pause ends."""
    return replace(definition, paused=False, paused_reason="", resume_ms=None)


def moment(ms: int, zone: str) -> str:
    """Write an instant in a zone and in UTC: Fri 2026-05-01 14:05 CEST (12:05 UTC)."""
    at = from_ms(ms)
    try:
        there = at.astimezone(cron.check_zone(zone))
    except ScheduleError:
        there = at
    form = "%H:%M:%S" if there.second else "%H:%M"
    local = f"{there:%a %Y-%m-%d {form}}"
    if there.utcoffset() == timedelta(0) and there.tzname() == "UTC":
        return f"{local} UTC"
    utc = at.strftime(form if there.date() == at.date() else f"%a {form}")
    return f"{local} {there.tzname()} ({utc} UTC)"
