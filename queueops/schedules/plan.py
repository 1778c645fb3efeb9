"""What is to become of due slots: fired, caught up, skipped, missed. Pure.

A slot is on time for ON_TIME_MS; so a restarted scheduler's slots are no downtime. What is older was
missed, and the schedule's catch-up rule decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby

from queueops.schedules.definition import Definition, moment
from queueops.slots import Action, Slot

#: So late a slot is still on time. Ms.
ON_TIME_MS = 5_000
#: So many slots of a downtime have a line each in the ledger; older ones share one.
MAX_LISTED = 1_000
#: So many are counted; there may be more.
MAX_COUNTED = 10_000

NOBODY = "no scheduler ran at its time"


def due_slots(definition: Definition, last_ms: int, now_ms: int) -> list[int]:
    """Return the slots with last < slot <= now, oldest first: the newest MAX_COUNTED.

    Raises ScheduleError.
    """
    found: list[int] = []
    for slot in definition.slots_before(now_ms + 1):
        if slot <= last_ms or len(found) == MAX_COUNTED:
            break
        found.append(slot)
    return found[::-1]


def plan(definition: Definition, last_ms: int, now_ms: int) -> list[Slot]:
    """Return what is to be done with each due slot, oldest first; specs are left out.

    `last_ms` is the last slot settled. Raises ScheduleError for a rule that can't be read.
    """
    slots = due_slots(definition, last_ms, now_ms)
    decided: list[Slot] = []
    runnable: list[int] = []
    for slot in slots:
        if definition.is_paused_at(slot):
            decided.append(Slot(slot, Action.SKIP, reason=paused_words(definition)))
        else:
            runnable.append(slot)
    decided += _CATCH_UP[definition.catch_up](definition, runnable, now_ms)
    return shortened(sorted(decided, key=lambda slot: slot.at_ms), is_whole=len(slots) < MAX_COUNTED)


def on_time(definition: Definition, slot_ms: int) -> Slot:
    """Return what is done with a slot right at its time: fire it, put off by its jitter."""
    jitter_ms = definition.jitter_ms(slot_ms)
    run_at = str(slot_ms + jitter_ms) if jitter_ms else ""
    return Slot(
        slot_ms, Action.FIRE, definition.job_id(slot_ms), run_at=run_at, spec=definition.spec(slot_ms)
    )


def settled_as(slots: Iterable[int], action: Action, reason: str) -> list[Slot]:
    """Return these slots, oldest first, all skipped or missed for one reason."""
    listed = [Slot(slot, action, reason=reason) for slot in slots]
    return shortened(listed, is_whole=len(listed) < MAX_COUNTED)


def paused_words(definition: Definition) -> str:
    """Why a slot in the pause is skipped."""
    return f"paused: {definition.paused_reason}" if definition.paused_reason else "paused"


def is_on_time(slot_ms: int, now_ms: int) -> bool:
    """Whether nothing has to be caught up: it is due just now."""
    return now_ms - slot_ms <= ON_TIME_MS


def _skip(definition: Definition, slots: list[int], now_ms: int) -> list[Slot]:
    return [
        _fire(definition, slot, now_ms)
        if is_on_time(slot, now_ms)
        else Slot(slot, Action.MISS, reason=f"{NOBODY}; the catch-up rule is to skip")
        for slot in slots
    ]


def _latest(definition: Definition, slots: list[int], now_ms: int) -> list[Slot]:
    decided = []
    for slot in slots:
        if is_on_time(slot, now_ms) or slot == slots[-1]:
            decided.append(_fire(definition, slot, now_ms))
        else:
            run = moment(slots[-1], definition.zone)
            reason = f"{NOBODY}; the latest is run instead: {run}"
            decided.append(Slot(slot, Action.SKIP, reason=reason))
    return decided


def _all(definition: Definition, slots: list[int], now_ms: int) -> list[Slot]:
    if not slots or is_on_time(slots[0], now_ms):
        return [_fire(definition, slot, now_ms) for slot in slots]
    oldest_ms = now_ms - round(definition.catch_up_max_age_s * 1000)
    first = max(0, len(slots) - definition.catch_up_cap)
    decided = []
    runs = 0
    for place, slot in enumerate(slots):
        if slot < oldest_ms:
            reason = f"{NOBODY}; older than {definition.catch_up_max_age_s:g} s, the most that is caught up"
            decided.append(Slot(slot, Action.MISS, reason=reason))
        elif place < first:
            reason = f"{NOBODY}; over {definition.catch_up_cap}, the most that are caught up"
            decided.append(Slot(slot, Action.SKIP, reason=reason))
        else:
            wait_ms = round(runs * 1000 / definition.catch_up_rate_per_s)
            spread = f"+{wait_ms}" if wait_ms and definition.overlap == "allow" else ""
            decided.append(Slot(slot, Action.CATCH_UP, definition.job_id(slot), _late(slot, now_ms), spread))
            runs += 1
    return decided


_CATCH_UP: dict[str, Callable[[Definition, list[int], int], list[Slot]]] = {
    "skip": _skip,
    "latest": _latest,
    "all": _all,
}


def _fire(definition: Definition, slot: int, now_ms: int) -> Slot:
    jitter = definition.jitter_ms(slot)
    run_at = str(slot + jitter) if jitter and slot + jitter > now_ms else ""
    return Slot(slot, Action.FIRE, definition.job_id(slot), _late(slot, now_ms), run_at)


def _late(slot: int, now_ms: int) -> str:
    return "" if is_on_time(slot, now_ms) else f"caught up: {NOBODY}"


def shortened(decided: list[Slot], *, is_whole: bool) -> list[Slot]:
    """Let the oldest over MAX_LISTED share a line a reason. What runs is never among them."""
    old, listed = decided[: -MAX_LISTED or None], decided[-MAX_LISTED:]
    if len(decided) <= MAX_LISTED:
        return decided
    short = []
    for (action, reason), group in groupby(old, key=lambda slot: (slot.action, slot.reason)):
        slots = list(group)
        if action in {Action.FIRE, Action.CATCH_UP}:
            short += slots
            continue
        many = "" if is_whole or short else "at least "
        words = f"{many}{len(slots):,} slots to this one, {reason}"
        short.append(replace(slots[-1], stands_for=len(slots), reason=words))
    return short + listed
