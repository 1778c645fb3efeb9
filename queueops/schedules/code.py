"""Schedules from the settings: QUEUEOPS["SCHEDULES"], key -> definition, synced at start.

    "SCHEDULES": {"nightly": {"handler": "reports.nightly", "cron": "0 3 * * *", "zone": "Europe/Berlin"}}

One of `cron`, `every` (seconds, or "5m") and `at` says when; besides, the names of OPTIONS. Such a
schedule is edited in the code only, but it can be paused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

from django.db import DataError, IntegrityError, transaction

from queueops.conf import config
from queueops.cron import check_zone
from queueops.errors import ConfigError, ScheduleError
from queueops.handlers import handler_name, handler_queue
from queueops.job import from_ms, to_ms
from queueops.models import Schedule
from queueops.schedules.definition import Definition, is_key
from queueops.schedules.rows import Row

log = logging.getLogger(__name__)

OPTIONS = (
    "handler", "args", "kwargs", "queue", "policy", "description", "zone", "catch_up", "catch_up_cap",
    "catch_up_max_age_s", "catch_up_rate_per_s", "overlap", "jitter_s", "start", "end",
)  # fmt: skip
#: What is left out goes back to this, also when it stood there before.
_DEFAULTS = {
    "description": "",
    **{
        name: getattr(Definition("", ""), name)
        for name in OPTIONS
        if name.startswith(("catch_up", "overlap", "jitter", "policy"))
    },
}
_KINDS = {"cron": "cron", "every": "interval", "at": "once"}
GONE = "it is no longer in QUEUEOPS['SCHEDULES']"
CLASH = "is also the key of a schedule that was made on the page: rename one of the two"


@dataclass(frozen=True)
class FromCode:
    """One definition of the settings: columns of Schedule, and what is wrong with it by field."""

    key: str
    columns: dict[str, Any] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def from_code() -> list[FromCode]:
    """Return what the settings say, right or wrong."""
    return [_read(str(key), given) for key, given in config().schedules.items()]


def error_of(row: Row) -> str:
    """Why a schedule of the code can't be followed: it left the code, or the code says it wrong."""
    if not row.is_from_code:
        return ""
    given = config().schedules.get(row.definition.key)
    return GONE if given is None else "; ".join(_said(_read(row.definition.key, given).problems))


def clashes() -> list[str]:
    """Return keys that both the settings and the page define."""
    here = Schedule.objects.filter(key__in=list(config().schedules), source=Schedule.Source.ADMIN)
    return sorted(here.values_list("key", flat=True))


def sync() -> int:
    """Bring the settings' schedules into the database; how many rows were made or changed.

    A bad definition is left to the scheduler, which flags it; one whose key is taken, or could be no
    schedule's, changes nothing.
    """
    changed = 0
    for each in from_code():
        try:
            if not is_key(each.key):  # it could have no page, and a link to it would break every other one
                raise ValueError("the key has characters that none may have, or too many")
            with transaction.atomic():
                changed += _bring(each)
        except (DataError, IntegrityError, ValueError, TypeError) as error:
            log.error("QUEUEOPS SCHEDULES %s: %s", each.key, "; ".join(_said(each.problems)) or error)
    return changed


def _bring(each: FromCode) -> int:
    row = Schedule.objects.filter(key=each.key).values("pk", "source", *each.columns).first()
    if row is None:
        # Not save(): a bad one has a row too, which says what is wrong.
        Schedule.objects.bulk_create([Schedule(key=each.key, source=Schedule.Source.CODE, **each.columns)])
        return 1
    if row["source"] != Schedule.Source.CODE:
        log.error("QUEUEOPS SCHEDULES %s: the key %s", each.key, CLASH)
        return 0
    changes = {name: value for name, value in each.columns.items() if row[name] != value}
    if not changes:
        return 0
    return Schedule.objects.filter(pk=row["pk"], source=Schedule.Source.CODE).update(**changes)


def _said(problems: Mapping[str, str]) -> list[str]:
    return [f"{name}: {reason}" for name, reason in problems.items()]


def _read(key: str, given: object) -> FromCode:
    if not isinstance(given, Mapping):
        return FromCode(key, problems={"definition": f"must be a mapping, got {type(given).__name__}"})
    problems: dict[str, str] = {}
    if unknown := sorted(str(name) for name in given.keys() - {*OPTIONS, *_KINDS}):
        problems["definition"] = f"unknown: {', '.join(unknown)}"
    rules = [name for name in _KINDS if name in given]
    if len(rules) != 1:
        problems["rule"] = f"give one of cron, every and at, got {', '.join(rules) or 'none'}"
    zone = str(given.get("zone", "UTC"))
    said: dict[str, Any] = {name: given[name] for name in OPTIONS if name in given}
    start, end = said.pop("start", None), said.pop("end", None)
    columns: dict[str, Any] = {**_DEFAULTS, **said, "zone": zone}
    columns["kind"] = _KINDS[rules[0]] if rules else "cron"
    columns["rule"] = _text(given[rules[0]]) if rules else ""
    columns["args"] = list(said.get("args", ()))
    columns["kwargs"] = dict(said.get("kwargs", {}))
    columns["handler"], queue = _handler(said.get("handler"), problems)
    columns["queue"] = said.get("queue") or queue or config().default_queue
    for name, value in (("start_at", start), ("end_at", end)):
        try:
            columns[name] = _instant(value, zone)
        except (ValueError, TypeError, ScheduleError) as error:
            columns[name] = None
            problems[name] = str(error)
    if not problems:
        problems = _definition(key, columns).problems()
    return FromCode(key, columns, problems)


def _definition(key: str, columns: Mapping[str, Any]) -> Definition:
    said = {
        name: value for name, value in columns.items() if name not in {"start_at", "end_at", "description"}
    }
    start, end = columns["start_at"], columns["end_at"]
    return Definition(
        key=key, start_ms=start and to_ms(start), end_ms=end and to_ms(end), **said
    )  # fmt: skip


def _handler(given: object, problems: dict[str, str]) -> tuple[str, str | None]:
    """The handler's name and the queue that was declared with it."""
    try:
        name = handler_name(given)
        return name, handler_queue(given)
    except (TypeError, ValueError) as error:
        problems["handler"] = str(error)
    except ConfigError:
        return name, None  # its modules can't be imported here; a worker says so
    return str(given or ""), None


def _text(rule: object) -> str:
    return rule.isoformat() if isinstance(rule, datetime) else str(rule)


def _instant(value: object, zone: str) -> datetime | None:
    if value is None:
        return None
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)  # noqa: DTZ001  # its zone comes next
    if not isinstance(value, datetime):
        raise TypeError(f"must be a date and time, got {type(value).__name__}")
    if value.tzinfo is None:
        value = value.replace(tzinfo=check_zone(zone))
    return from_ms(to_ms(value))
