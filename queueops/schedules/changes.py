"""What an edit does to a schedule: the same words on the form before it, and in the ledger after it.

A change of *when* (rule, zone, dates, pause) never fires the past: slots until then are skipped. Any
other change leaves slots that are overdue to the catch-up rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from queueops.schedules.definition import Definition, moment
from queueops.schedules.plan import due_slots, paused_words, plan, settled_as
from queueops.slots import Action, Slot

#: A person's edit is taken over within 2 s; one noticed later was made by other means.
NOTICED_WITHIN_MS = 10_000


@dataclass(frozen=True)
class Change:
    """What a definition that takes over does with slots that are due, and from when on it counts.

    `settled_ms`: slots until then are settled by it, Unix ms. `slots`: with what became of them.
    """

    slots: tuple[Slot, ...]
    settled_ms: int


def change(
    old: Definition | None,
    new: Definition,
    *,
    last_ms: int | None,
    now_ms: int,
    changed_ms: int | None = None,
    error: str = "",
) -> Change:
    """Return what the step from `old` (None: there was none) to `new` does at `now_ms`.

    `last_ms` is the last slot settled, `changed_ms` when a person saved the change, `error` why the
    schedule could not fire until now.
    """
    since_ms = now_ms
    if changed_ms is not None and now_ms - NOTICED_WITHIN_MS <= changed_ms <= now_ms:
        since_ms = changed_ms
    if old is None or last_ms is None:
        return Change((), max(since_ms, last_ms or 0))
    if not error and not old.has_other_timing(new):
        return Change((), last_ms)
    since_ms = max(since_ms, last_ms)
    return Change(tuple(_passed_over(old, new, last_ms, since_ms, error)), since_ms)


def _passed_over(old: Definition, new: Definition, last_ms: int, until_ms: int, error: str) -> list[Slot]:
    if old.problems():
        return []  # it had no slots
    slots = due_slots(old, last_ms, until_ms)
    if error:
        return settled_as(slots, Action.MISS, f"could not be fired: {error}")
    paused = {slot for slot in slots if old.is_paused_at(slot)}
    # A pause that began and ended while nobody ran.
    unseen = {slot for slot in slots if slot not in paused and _began(old, new, slot)}
    passed = [slot for slot in slots if slot not in paused and slot not in unseen]
    found = settled_as(sorted(paused), Action.SKIP, paused_words(old))
    found += settled_as(sorted(unseen), Action.SKIP, "paused")
    found += settled_as(passed, Action.SKIP, "the schedule was changed before it ran")
    return sorted(found, key=lambda slot: slot.at_ms)


def _began(old: Definition, new: Definition, slot: int) -> bool:
    """Whether a pause that `old` does not know had begun at this slot."""
    return new.paused_ms is not None and new.paused_ms != old.paused_ms and new.paused_ms <= slot


def lost(definition: Definition, last_ms: int, now_ms: int) -> list[Slot]:
    """Return due slots of a schedule whose state Redis lost: none may be fired, one may have been."""
    why = "store lost: Redis came back without its data, so whether it was fired is not known"
    decided = plan(replace(definition, catch_up="skip"), last_ms, now_ms)
    return [
        slot if slot.action is Action.SKIP else replace(slot, action=Action.MISS, reason=why, run_at="")
        for slot in decided
    ]


def effect_words(
    old: Definition | None, new: Definition, *, last_ms: int | None, now_ms: int, skipped_in_pause: int = 0
) -> list[str]:
    """Say what saving `new` does, a sentence an item: the next run, and what becomes of due slots.

    `skipped_in_pause`: slots of the pause that ends now and are in the ledger already.
    """
    said = []
    done = change(old, new, last_ms=last_ms, now_ms=now_ms)
    upcoming = new.next_slots(done.settled_ms, 1) if not new.problems() else []
    due = [] if new.problems() else plan(new, done.settled_ms, now_ms)
    fired = [slot for slot in due if slot.action in {Action.FIRE, Action.CATCH_UP}]
    ahead = [slot for slot in upcoming if slot > now_ms] or (new.next_slots(now_ms, 1) if upcoming else [])
    if ahead:
        said.append(f"Next run: {moment(ahead[0], new.zone)}.")
    elif new.paused:
        said.append("It does not run until it is resumed.")
    else:
        said.append("It never runs again: its last slot is over.")
    if new.paused and new.resume_ms is not None:
        said.append(f"It resumes by itself: {moment(new.resume_ms, new.zone)}.")
    if old is not None and old.paused and not new.paused:
        count = skipped_in_pause + sum(slot.stands_for for slot in done.slots)
        said.append(f"{_slots(count)} since the pause {_are(count)} skipped, not run.")
    elif done.slots:
        count = sum(slot.stands_for for slot in done.slots)
        said.append(f"{_slots(count)} not run yet {_are(count)} skipped.")
    if fired:
        said.append(f"{_slots(len(fired))} of a downtime {_are(len(fired))} run now, by the catch-up rule.")
    return said


def _slots(count: int) -> str:
    return f"{count:,} slot" if count == 1 else f"{count:,} slots"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
