"""What the engine's commands share: errors as one line with the right exit code, and what they print.

Exit 1: it could not be done, or what was looked at is not well. Exit 2: what was asked for can't be
meant: no such queue, state or job.
"""

from __future__ import annotations

import getpass
import json
import re
import socket
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.core.serializers.json import DjangoJSONEncoder
from django.db import DatabaseError, InterfaceError
from redis.exceptions import RedisError

from queueops import keys
from queueops.causes import safe_text
from queueops.connection import connection
from queueops.errors import QueueOpsError
from queueops.inspector import Inspector
from queueops.job import from_ms
from queueops.states import LISTED, JobState

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)\Z")
_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Refused(CommandError):
    """What was asked for can't be meant; exit code 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message, returncode=2)


class EngineCommand(BaseCommand):
    """A command of the engine: subclasses write `answer`, and raise what the engine raises."""

    requires_system_checks = ()

    def answer(self, **given: Any) -> None:
        """Do it and print."""
        raise NotImplementedError

    def handle(self, *_: Any, **given: Any) -> None:
        """Run `answer`; each error is one line."""
        try:
            self.answer(**given)
        except QueueOpsError as error:
            raise CommandError(_line(error)) from error
        except RedisError as error:
            raise CommandError(_line(connection().translated(error))) from error
        except ValidationError as error:
            raise Refused("; ".join(error.messages)) from error
        except (DatabaseError, InterfaceError) as error:
            raise CommandError(f"the database does not answer: {_line(error)}; is it migrated?") from error
        except BrokenPipeError:
            raise SystemExit(1) from None  # `… | head` has seen enough

    def inspector(self) -> Inspector:
        """Reads of the configured server."""
        return Inspector()

    # -- what a person may name ------------------------------------------------------

    def known_queue(self, name: str) -> str:
        """The name of a queue that exists. Raises Refused."""
        try:
            keys.check_queue(name)
        except ValueError as error:
            raise Refused(str(error)) from error
        names = self.inspector().queues()
        if name not in names and not _has_row(name):
            known = f"there is {_some(names)}" if names else "there is none yet"
            raise Refused(f"no queue is named {name}: {known}")
        return name

    def known_state(self, name: str) -> JobState:
        """A state that jobs are listed in. Raises Refused."""
        if name not in LISTED:
            raise Refused(f"no jobs are listed in state {safe_text(name)!r:.60}: use {', '.join(LISTED)}")
        return JobState(name)

    # -- what is printed -------------------------------------------------------------

    def say(self, text: str = "") -> None:
        """Print a line; nothing in it can command a terminal."""
        self.stdout.write(safe_text(text))

    def say_json(self, value: object) -> None:
        """Print one JSON document."""
        self.stdout.write(json.dumps(value, cls=DjangoJSONEncoder, indent=2))

    def say_table(self, heads: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1) -> None:
        """Print columns, the first `left` of them flush left."""
        texts = [[safe_text(_shown(cell)).replace("\n", " ") for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(heads, *texts, strict=True)]
        for line in [list(heads), *texts]:
            cells = [
                cell.ljust(width) if i < left else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            self.stdout.write("  ".join(cells).rstrip())


def shell_actor() -> str:
    """Who runs this command, for the record."""
    try:
        login = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        login = "unknown"
    return f"shell:{login}@{socket.gethostname()}"


def seconds(text: str, name: str) -> float:
    """Seconds of a duration: 90, 90s, 1.5m, 2h, 1d. Raises Refused, naming the option."""
    match = _DURATION.match(text.strip().lower())
    if match is None:
        raise Refused(f"{name} must be a duration such as 90, 90s, 15m, 2h or 1d, got {text!r:.60}")
    return float(match[1]) * _SECONDS[match[2]]


def instant(text: str, name: str) -> datetime:
    """An aware datetime. Raises Refused, naming the option."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(f"{name} must be a time such as 2026-01-31T09:30:00+01:00, got {text!r:.60}") from None
    if at.tzinfo is None:
        raise Refused(f"{name} must say its zone, as 2026-01-31T09:30:00+01:00, got {text!r:.60}")
    return at


def age(seconds_: float | None) -> str:
    """A duration for a person: 41 s, 3 min, 2.5 h, 9 d; '-' for none."""
    if seconds_ is None:
        return "-"
    if abs(seconds_) < 100:
        return f"{seconds_:.3g} s" if abs(seconds_) < 10 else f"{seconds_:.0f} s"
    for size, unit in ((60, "min"), (3600, "h"), (86_400, "d")):
        if abs(seconds_) < 100 * size or unit == "d":
            return f"{seconds_ / size:.1f} {unit}"
    return ""


def ago(at: datetime | None, now_ms: int) -> str:
    """How far an instant is from now by Redis TIME: '3 min ago', 'in 5 s'."""
    if at is None:
        return "-"
    passed = (from_ms(now_ms) - at).total_seconds()
    return f"{age(passed)} ago" if passed >= 0 else f"in {age(-passed)}"


def _shown(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


def _line(error: BaseException) -> str:
    return " ".join(safe_text(str(error)).split()) or type(error).__name__


def _has_row(name: str) -> bool:
    from queueops.models import Queue

    try:
        return Queue.objects.filter(name=name).exists()
    except (DatabaseError, InterfaceError):
        return False  # the engine goes on without its record
