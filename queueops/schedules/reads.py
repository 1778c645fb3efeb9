"""What pages show of schedules: slots ahead, slots behind, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from inspect import signature

from django.db.models import Count, Max

from queueops.conf import config
from queueops.cron import check_zone
from queueops.errors import QueueOpsError, ScheduleError
from queueops.handlers import get_handler, handler_names
from queueops.job import from_ms, to_ms
from queueops.models import RetryPolicy, Schedule, ScheduleSlot
from queueops.schedules import code
from queueops.schedules.changes import effect_words
from queueops.schedules.definition import Definition, is_key, moment
from queueops.schedules.ledger import lateness_s

#: Slots in the strip of a schedule.
STRIP = 60
#: A slot that nobody has settled so long after its time; how far back alarms look.
OVERDUE = timedelta(seconds=60)
MISSED_FOR, LATE_FOR = timedelta(hours=24), timedelta(hours=1)
State = ScheduleSlot.State


@dataclass(frozen=True)
class Alarm:
    """Something wrong with one schedule. `kind`: error, clash, overdue, missed or late."""

    kind: str
    severity: str  # bad or warn
    key: str
    text: str
    why: str
    slot_at: datetime | None = None
    #: False: no row, as the settings name it and none could be made; or one whose key has no address.
    has_row: bool = True


@dataclass(frozen=True)
class Ahead:
    """A coming slot: when, as a clock in its zone and in UTC shows it, and whether a person skipped it."""

    at: datetime
    words: str
    is_skipped: bool = False


def ahead(schedule: Schedule, now_ms: int, n: int = 5) -> list[Ahead]:
    """Return the next `n` slots that would run, as schedulers will find them; none when it can't fire."""
    definition = schedule.definition()
    try:
        slots = definition.next_slots(now_ms, n)
    except ScheduleError:
        return []
    skipped = skipped_ahead_of(schedule, now_ms)
    return [Ahead(from_ms(slot), moment(slot, definition.zone), slot in skipped) for slot in slots]


def skipped_ahead_of(schedule: Schedule, now_ms: int) -> set[int]:
    """Return coming slots that a person skipped, Unix ms."""
    rows = ScheduleSlot.objects.filter(
        schedule=schedule, suffix="", state=State.SKIPPED, slot_at__gt=from_ms(now_ms)
    )
    return {to_ms(slot_at) for slot_at in rows.values_list("slot_at", flat=True)}


def behind(schedule: Schedule, now_ms: int, n: int = STRIP) -> list[ScheduleSlot]:
    """Return the last `n` slots of the ledger, newest first, those run by hand among them."""
    rows = ScheduleSlot.objects.filter(schedule=schedule, slot_at__lte=from_ms(now_ms + 1000))
    found = list(rows.order_by("-slot_at", "-pk")[:n])
    for row in found:
        row.schedule = schedule  # for lateness_s, without a query a slot
    return found


def outcome_of(slot: ScheduleSlot) -> str:
    """Return what became of a slot, in one word: its state, or failed when its job ended dead."""
    if slot.outcome in {"dead", "discarded"} and slot.state in {State.RAN, State.LATE}:
        return "failed"
    return str(slot.state)


def effect_of(schedule: Schedule | None, new: Definition, now_ms: int) -> list[str]:
    """Return what saving `new` does, in sentences; `schedule` is the row as it is, None for a new one."""
    if schedule is None or schedule.taken is None:
        return effect_words(None, new, last_ms=None, now_ms=now_ms)
    old = Definition.from_json(schedule.key, schedule.taken)
    last_ms = None if schedule.last_slot_at is None else to_ms(schedule.last_slot_at)
    in_pause = 0
    if old.paused and old.paused_ms is not None:
        rows = schedule.slots.filter(state=State.SKIPPED, suffix="", slot_at__gte=from_ms(old.paused_ms))
        in_pause = sum(rows.filter(slot_at__lte=from_ms(now_ms)).values_list("stands_for", flat=True))
    return effect_words(old, new, last_ms=last_ms, now_ms=now_ms, skipped_in_pause=in_pause)


# -- is it right? ------------------------------------------------------------------------------------


def problems_of(definition: Definition) -> dict[str, str]:
    """Return field -> what is wrong, also what only a site with its handlers and policies can know."""
    found = definition.problems()
    for name, reason in (
        ("handler", _handler_problem(definition)),
        ("args", _arguments_problem(definition)),
        ("policy", _policy_problem(definition)),
    ):
        if reason:
            found.setdefault(name, reason)
    return found


def _handler_problem(definition: Definition) -> str:
    from difflib import get_close_matches

    try:
        if not definition.handler or get_handler(definition.handler) is not None:
            return ""
        known = handler_names()
    except (QueueOpsError, ImportError):
        return ""  # what this process knows can't be loaded: it is no judge
    close = get_close_matches(definition.handler, known, 3, 0.6)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"no handler is registered here under this name{hint}"


def _arguments_problem(definition: Definition) -> str:
    """Whether the handler would take these arguments, where its signature says so."""
    if not isinstance(definition.args, list) or not isinstance(definition.kwargs, dict):
        return ""
    try:
        handler = get_handler(definition.handler) if definition.handler else None
        if handler is None:
            return ""
        function = handler.function
        if isinstance(function, partial) and function.args:  # a Celery task behind its caller
            function = getattr(function.args[0], "run", function)
        takes = signature(function)
    except (QueueOpsError, ImportError, TypeError, ValueError):
        return ""
    try:
        takes.bind(*definition.args, **definition.kwargs)
    except TypeError as error:
        return f"{definition.handler}{takes} does not take them: {error}"
    return ""


def _policy_problem(definition: Definition) -> str:
    name = definition.policy
    if not name or name == "default" or name in config().policies:
        return ""
    return "" if RetryPolicy.objects.filter(name=name).exists() else "no retry policy has this name"


# -- alarms --------------------------------------------------------------------------------------------


def alarms(now: datetime, *, limit: int = 20) -> list[Alarm]:
    """Return what an operator should look at, the worst first; `limit` of each kind."""
    found = [*_from_code(), *_errors(limit), *_overdue(now, limit), *_missed(now, limit), *_late(now, limit)]
    return sorted(found, key=lambda alarm: alarm.severity != "bad")


def _from_code() -> list[Alarm]:
    if not config().schedules:
        return []
    clashes = [Alarm("clash", "bad", key, f"{key}: two schedules", code.CLASH) for key in code.clashes()]
    here = set(Schedule.objects.filter(source=Schedule.Source.CODE).values_list("key", flat=True))
    return clashes + [
        Alarm("error", "bad", each.key, f"{each.key}: can't be taken from the settings", words, has_row=False)
        for each in code.from_code()
        if each.problems and each.key not in here
        for words in ["; ".join(f"{name}: {reason}" for name, reason in each.problems.items())]
    ]


def _errors(limit: int) -> list[Alarm]:
    rows = Schedule.objects.exclude(error="").values_list("key", "error")[:limit]
    return [
        Alarm("error", "bad", key, f"{key}: can't fire", error, has_row=is_key(key)) for key, error in rows
    ]


def _overdue(now: datetime, limit: int) -> list[Alarm]:
    rows = Schedule.objects.filter(paused=False, error="", next_slot_at__lt=now - OVERDUE)
    why = "no scheduler has settled it: is a worker with housekeeping running?"
    return [
        Alarm("overdue", "bad", key, f"{key}: its slot of {at:%d %b %H:%M} UTC is overdue", why, at)
        for key, at in rows.values_list("key", "next_slot_at")[:limit]
    ]


def _missed(now: datetime, limit: int) -> list[Alarm]:
    rows = ScheduleSlot.objects.filter(state=State.MISSED, slot_at__gt=now - MISSED_FOR, slot_at__lte=now)
    newest = rows.values("schedule_id", "schedule__key").annotate(n=Count("pk"), last=Max("slot_at"))
    found = []
    for row in newest.order_by("-last")[:limit]:
        slot = ScheduleSlot.objects.filter(
            schedule_id=row["schedule_id"], state=State.MISSED, slot_at=row["last"]
        ).first()
        since = ScheduleSlot.objects.filter(schedule_id=row["schedule_id"], slot_at__gt=row["last"])
        ran = since.filter(state__in=[State.RAN, State.LATE, State.RUNNING])
        many = "the slot" if row["n"] == 1 else f"{row['n']:,} slots, the last one"
        was = "was" if row["n"] == 1 else "were"
        text = f"{row['schedule__key']}: {many} of {row['last']:%d %b %H:%M} UTC {was} missed"
        severity = "warn" if ran.exists() else "bad"
        why = slot.reason if slot else ""
        found.append(Alarm("missed", severity, row["schedule__key"], text, why, row["last"]))
    return found


def _late(now: datetime, limit: int) -> list[Alarm]:
    rows = ScheduleSlot.objects.filter(state=State.LATE, slot_at__gt=now - LATE_FOR).select_related(
        "schedule"
    )
    found: dict[str, Alarm] = {}
    for slot in rows.order_by("-slot_at")[: 10 * limit]:
        key = slot.schedule.key
        if key in found or len(found) == limit:
            continue
        text = f"{key}: the slot of {slot.slot_at:%H:%M} UTC ran {late_words(lateness_s(slot))} late"
        why = slot.reason or "its queue was busy, paused or without a worker"
        found[key] = Alarm("late", "warn", key, text, why, slot.slot_at)
    return list(found.values())


def late_words(seconds: float) -> str:
    """Write how late something is: 7 s, 12 min, 3 h."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def zone_of(definition: Definition) -> str:
    """Return the zone's name when there is such a zone, else UTC."""
    try:
        return check_zone(definition.zone).key
    except ScheduleError:
        return "UTC"


def marks(slots: Sequence[ScheduleSlot]) -> list[tuple[str, str]]:
    """Return (word, title) of each slot for the strip, oldest first."""
    found = []
    for slot in reversed(slots):
        word = outcome_of(slot)
        title = f"{slot.slot_at:%a %d %b %H:%M:%S} UTC: {word}"
        if slot.stands_for > 1:
            title += f" ({slot.stands_for:,} slots)"
        if slot.suffix:
            title += ", by hand" if slot.actor and not slot.suffix.startswith("fill") else ", backfilled"
        found.append((word, title + (f"; {slot.reason}" if slot.reason else "")))
    return found
