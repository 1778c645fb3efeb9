"""The QUEUEOPS setting, typed: each default stands here, once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, get_type_hints

from queueops.errors import ConfigError
from queueops.keys import check_queue


@dataclass(frozen=True)
class Config:
    """The settings. Fields ending in `_s` are seconds."""

    redis_url: str = "redis://127.0.0.1:6379/0"
    default_queue: str = "default"
    #: Modules whose Celery and Django tasks are handlers, besides every installed app's `tasks`.
    handlers: tuple[str, ...] = ()
    #: How long a delivery owns its job unless renewed.
    lease_s: float = 30.0
    #: How often a job whose process died while it ran is given another start.
    max_rescues: int = 3
    #: How long the tombstone of a done job answers for its id; never under 300.
    done_keep_s: float = 600.0
    #: How long a discarded job can be restored.
    discarded_keep_s: float = 86_400.0
    #: How long the record keeps a job that ended well, one that was set aside, one that was ever dead.
    record_done_s: float = 7 * 86_400.0
    record_discarded_s: float = 30 * 86_400.0
    record_dead_s: float = 90 * 86_400.0
    #: The largest args plus kwargs, as JSON.
    max_payload_bytes: int = 262_144
    #: The largest result that is kept with a done job, as JSON; a larger one is left out.
    max_result_bytes: int = 4_096
    #: Over this many unmirrored events a queue drops its oldest, counted as `events_lost`.
    events_max: int = 1_000_000
    #: `full`: each move is an event; `outcome`: one event a job, at its end.
    audit: str = "full"
    #: After this a child is drained and killed, and the job over its limit gets an attempt.
    hard_limit_s: float = 3_600.0
    #: How long SIGTERM lets jobs finish.
    grace_s: float = 25.0
    concurrency: int = 16
    processes: int = 2
    #: A worker that has not fetched successfully for so long is shown red.
    fetch_limit_s: float = 60.0
    #: Policy names by handler name and by queue, and policies by name (as RetryPolicy.from_json takes them).
    policies: Mapping[str, Any] = field(default_factory=dict)
    policy_by_handler: Mapping[str, str] = field(default_factory=dict)
    policy_by_queue: Mapping[str, str] = field(default_factory=dict)
    #: Recurring schedules from code: key -> definition.
    schedules: Mapping[str, Any] = field(default_factory=dict)
    #: webhook.deliver may call loopback, private and link-local addresses.
    webhook_allow_private: bool = False
    #: Names whose values pages mask, besides the built-in patterns.
    secret_names: tuple[str, ...] = ()
    #: Tests only: a signed number of ms added to the clock of every script, or a fixed Unix ms.
    test_now_ms: str = ""

    def __post_init__(self) -> None:
        positive = ("lease_s", "done_keep_s", "discarded_keep_s", "hard_limit_s", "fetch_limit_s")
        for name in (*positive, "record_done_s", "record_discarded_s", "record_dead_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(
                    f"QUEUEOPS {name.upper()} must be a number of seconds over 0, got {value!r}"
                )
        if self.done_keep_s < 300:
            raise ConfigError(f"QUEUEOPS DONE_KEEP_S must be at least 300 s, got {self.done_keep_s:g}")
        for name in ("max_rescues", "grace_s"):
            if not 0 <= getattr(self, name) < 1e9:
                raise ConfigError(
                    f"QUEUEOPS {name.upper()} must not be negative, got {getattr(self, name)!r}"
                )
        for name in ("concurrency", "processes", "max_payload_bytes", "events_max"):
            if getattr(self, name) < 1:
                raise ConfigError(f"QUEUEOPS {name.upper()} must be at least 1, got {getattr(self, name)!r}")
        if self.audit not in {"full", "outcome"}:
            raise ConfigError(f"QUEUEOPS AUDIT must be 'full' or 'outcome', got {self.audit!r}")
        try:
            check_queue(self.default_queue)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"QUEUEOPS DEFAULT_QUEUE: {error}") from error


_TYPES = get_type_hints(Config)
_IN_WORDS = {bool: "1 or 0", int: "a whole number", float: "a number"}
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}


def _parse(name: str, value: object) -> Any:
    """Turn an environment string into the field's type. Raises ConfigError."""
    kind = _TYPES[name]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        return tuple(value) if isinstance(value, list) else value
    try:
        if kind is bool:
            if value.lower() not in _TRUE | _FALSE:
                raise ValueError(value)
            return value.lower() in _TRUE
        if kind is int or kind is float:
            return kind(value)
    except ValueError:
        raise ConfigError(f"QUEUEOPS {name.upper()} must be {_IN_WORDS[kind]}, got {value!r}") from None
    if kind == tuple[str, ...]:
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if kind is not str:
        raise ConfigError(
            f"QUEUEOPS {name.upper()} is a table: set it in the settings, not in the environment"
        )
    return value


@cache
def config() -> Config:
    """Return the settings, defaults filled in.

    Reads `settings.QUEUEOPS`, whose keys are the field names in upper case; strings, as an
    environment gives them, are parsed. Raises ConfigError on an unknown name or a bad value.
    """
    from django.conf import settings
    from django.core.signals import setting_changed

    setting_changed.connect(_forget, dispatch_uid="queueops.conf")
    given: dict[str, Any] = getattr(settings, "QUEUEOPS", {})
    names = {f.name.upper(): f.name for f in fields(Config)}
    if unknown := given.keys() - names.keys():
        raise ConfigError(f"unknown QUEUEOPS settings: {', '.join(sorted(unknown))}")
    return Config(**{names[key]: _parse(names[key], value) for key, value in given.items()})


def _forget(*, setting: str, **_: object) -> None:
    if setting == "QUEUEOPS":
        config.cache_clear()
