"""Schedules as the database has them, read so that one bad row can't keep the others from being read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db.models import TextField
from django.db.models.functions import Cast

from queueops.job import from_ms, to_ms
from queueops.models import Schedule, ScheduleSlot
from queueops.schedules.definition import Definition, parse_arguments

#: What a person says, and what schedulers keep. JSON columns come as text: what is no JSON must not
#: end the read of all.
_SAID = (
    "key", "source", "queue", "handler", "policy", "kind", "rule", "zone", "catch_up", "catch_up_cap",
    "catch_up_max_age_s", "catch_up_rate_per_s", "overlap", "jitter_s", "start_at", "end_at", "paused",
    "paused_reason", "resume_at", "paused_at", "args_text", "kwargs_text",
)  # fmt: skip
_KEPT = (
    "version", "placed_queue", "last_slot_at", "recorded", "error", "changed_at", "taken_text"
)  # fmt: skip
#: By hand and backfilled slots. A person's run counts as overlapping, a backfill's do not.
HAND, BACKFILL = "hand-", "fill-"


@dataclass(frozen=True, slots=True)
class Row:
    """One schedule: what it says, what schedulers follow, and how far its ledger goes. Unix ms."""

    pk: int
    definition: Definition
    taken: Definition | None
    is_from_code: bool
    version: int
    placed_queue: str
    last_ms: int | None
    recorded: int
    error: str
    changed_ms: int | None


class RowReader:
    """Reads all schedules at once; what did not change since the last time is not parsed again."""

    def __init__(self) -> None:
        self._definitions: dict[tuple[Any, ...], Definition] = {}
        self._taken: dict[tuple[str, str], Definition | None] = {}

    def read(self) -> dict[int, Row]:
        """Return the rows by their number. Raises what the database raises."""
        texts = {f"{name}_text": Cast(name, TextField()) for name in ("args", "kwargs", "taken")}
        definitions: dict[tuple[Any, ...], Definition] = {}
        taken: dict[tuple[str, str], Definition | None] = {}
        found = {}
        for pk, *values in Schedule.objects.annotate(**texts).values_list("pk", *_SAID, *_KEPT):
            said = tuple(values[: len(_SAID)])
            kept = dict(zip(_KEPT, values[len(_SAID) :], strict=True))
            definitions[said] = definition = self._definitions.get(said) or _definition(said)
            follows = (definition.key, kept["taken_text"] or "null")
            if follows in self._taken:
                taken[follows] = self._taken[follows]
            else:
                as_taken = parse_arguments(follows[1])
                is_one = isinstance(as_taken, dict)
                taken[follows] = Definition.from_json(definition.key, as_taken) if is_one else None
            found[pk] = Row(
                pk=pk,
                definition=definition,
                taken=taken[follows],
                is_from_code=said[1] == Schedule.Source.CODE,
                version=kept["version"],
                placed_queue=kept["placed_queue"],
                last_ms=_ms(kept["last_slot_at"]),
                recorded=kept["recorded"],
                error=kept["error"],
                changed_ms=_ms(kept["changed_at"]),
            )
        self._definitions, self._taken = definitions, taken
        return found


def _definition(said: tuple[Any, ...]) -> Definition:
    given = dict(zip(_SAID, said, strict=True))
    del given["source"]
    return Definition(
        args=parse_arguments(given.pop("args_text") or "null"),
        kwargs=parse_arguments(given.pop("kwargs_text") or "null"),
        start_ms=_ms(given.pop("start_at")),
        end_ms=_ms(given.pop("end_at")),
        resume_ms=_ms(given.pop("resume_at")),
        paused_ms=_ms(given.pop("paused_at")),
        **given,
    )


def open_by_hand() -> dict[int, tuple[str, ...]]:
    """Return the jobs that persons ran and that may be unfinished, by schedule."""
    found: dict[int, list[str]] = {}
    rows = ScheduleSlot.objects.filter(
        state__in=[ScheduleSlot.State.FIRED, ScheduleSlot.State.RUNNING], suffix__startswith=HAND
    )
    for schedule_id, job_id in rows.order_by("slot_at").values_list("schedule_id", "job_id")[:1000]:
        found.setdefault(schedule_id, []).append(job_id)
    return {pk: tuple(ids) for pk, ids in found.items()}


def skipped_ahead(now_ms: int) -> dict[int, dict[int, str]]:
    """Return what persons said beforehand about slots not settled yet: schedule -> slot -> reason."""
    found: dict[int, dict[int, str]] = {}
    rows = ScheduleSlot.objects.filter(
        state=ScheduleSlot.State.SKIPPED, slot_at__gt=from_ms(now_ms - 3_600_000), suffix=""
    ).exclude(actor="")
    for schedule_id, slot_at, reason in rows.values_list("schedule_id", "slot_at", "reason"):
        found.setdefault(schedule_id, {})[to_ms(_aware(slot_at))] = reason
    return found


def _ms(at: datetime | None) -> int | None:
    return None if at is None else to_ms(_aware(at))


def _aware(at: datetime) -> datetime:
    """What the database holds is UTC, also where USE_TZ was switched off since."""
    return at if at.tzinfo else at.replace(tzinfo=UTC)
