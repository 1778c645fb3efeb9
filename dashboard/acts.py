"""What a person does to jobs: one verb, its answers, and the OperatorAction that says so.

The engine decides, in one script, whether a job is still in a state that the verb may start from. Who comes
second is told the job's true state, and leaves an action with a count of 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

from dashboard import hints
from queueops import models
from queueops.actors import who
from queueops.rights import Right
from queueops.states import MOVES, JobState
from queueops.store import Store

#: The right that each verb of a person asks for.
RIGHT_OF: dict[str, Right] = {
    "requeue": Right.REQUEUE_JOB,
    "run_now": Right.REQUEUE_JOB,
    "reschedule": Right.REQUEUE_JOB,
    "edit": Right.REQUEUE_JOB,
    "discard": Right.DISCARD_JOB,
    "restore": Right.DISCARD_JOB,
    "cancel": Right.DISCARD_JOB,
    "purge": Right.PURGE_JOB,
    "backfill": Right.EDIT_SCHEDULE,
}

#: What each list offers, in this order; the first is the one that a row offers.
VERBS_IN: dict[JobState, tuple[str, ...]] = {
    JobState.DELAYED: ("run_now", "reschedule", "discard"),
    JobState.READY: ("run_now", "discard"),
    JobState.PENDING: ("cancel",),
    JobState.DEAD: ("requeue", "discard"),
    JobState.DISCARDED: ("restore", "purge"),
}

#: Verb -> on a button, done to one, done to some.
WORDS: dict[str, tuple[str, str, str]] = {
    "requeue": ("Requeue", "Requeued", "requeued"),
    "run_now": ("Run now", "Moved to the front", "moved to the front"),
    "reschedule": ("Reschedule", "Rescheduled", "rescheduled"),
    "cancel": ("Cancel", "Asked to stop", "asked to stop"),
    "edit": ("Edit", "Edited", "edited"),
    "discard": ("Discard", "Discarded", "discarded"),
    "restore": ("Restore", "Restored", "restored"),
    "purge": ("Purge", "Purged", "purged"),
}
#: Discarding more than this asks for the number to be typed; purging always does.
TYPED_OVER = 100


@dataclass(frozen=True)
class Outcome:
    """What became of a set of ids."""

    verb: str
    queue: str
    answers: Mapping[str, str]
    action: int | None = None  # the OperatorAction's key
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def done(self) -> list[str]:
        return [job_id for job_id, word in self.answers.items() if word == "ok"]

    @property
    def refused(self) -> dict[str, str]:
        return {job_id: word for job_id, word in self.answers.items() if word != "ok"}

    @property
    def words(self) -> str:
        """What happened, as a sentence without its stop."""
        done, refused = len(self.done), self.refused
        if len(self.answers) == 1:
            [word] = self.answers.values()
            return WORDS[self.verb][1] if word == "ok" else f"Not {WORDS[self.verb][2]}: {why(word)}"
        said = f"{done:,} job{'' if done == 1 else 's'} {WORDS[self.verb][2]}"
        if refused:
            common, number = Counter(why(word) for word in refused.values()).most_common(1)[0]
            said += f"; {len(refused):,} not"
            said += f": {common}" if number == len(refused) else f", most of them because {common}"
        return said


def why(word: str) -> str:
    """Return an answer of the engine other than 'ok' as a person reads it."""
    kind, _, rest = word.partition(":")
    match kind:
        case "wrong":
            return f"somebody was first, it is {rest} now"
        case "held":
            return f"job {rest} holds its unique key"
        case "missing":
            return "it is gone"
        case "corrupt":
            return "its data can't be read"
        case "later":
            return "it changed after the set was frozen"
    return word


def needs_typing(verb: str, count: int) -> bool:
    """Tell whether a person must type the count before this is done."""
    return verb == "purge" or (verb == "discard" and count > TYPED_OVER)


def act(
    user: AbstractBaseUser | AnonymousUser,
    verb: str,
    queue: str,
    job_ids: Sequence[str],
    *,
    reason: str = "",
    argument: object = "",
    details: Mapping[str, Any] | None = None,
) -> Outcome:
    """Do `verb` to these jobs of a queue and record it. `details` go into the record.

    `argument` is the verb's: a delay for requeue, a run-at for reschedule (ms), a spec for edit.
    Raises StoreUnavailable; then nothing is recorded, and the same may be asked again.
    """
    items = [(job_id, argument) for job_id in job_ids]
    words: list[str] = []
    for start in range(0, len(items), 100):  # a longer script is everybody's wait
        part = items[start : start + 100]
        words += Store().act(verb, queue, part, actor=who(user)["actor"], reason=reason)
    outcome = Outcome(verb, queue, dict(zip(job_ids, words, strict=True)), counts=Counter(words))
    action = record(
        user,
        verb,
        queue,
        count=len(outcome.done),
        reason=reason,
        job_id=job_ids[0] if len(job_ids) == 1 else "",
        filter={} if len(job_ids) == 1 else {"ids": list(job_ids)[:1_000]},
        before={"states": sorted(state.value for state in MOVES[verb].sources)},
        after={"answers": dict(outcome.counts), **(details or {})},
    )
    hints.hint(queue)
    return Outcome(verb, queue, outcome.answers, action.pk, outcome.counts)


def record(
    user: AbstractBaseUser | AnonymousUser, verb: str, queue: str = "", **fields: Any
) -> models.OperatorAction:
    """Write who did what."""
    return models.OperatorAction.objects.create(**who(user), verb=verb, queue=queue, **fields)
