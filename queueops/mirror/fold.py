"""From events to rows: what one event changes of its job's row, and which attempt it ends. Pure.

Times are Unix ms here; `rows` turns them into what the database takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from queueops.causes import CORRUPT
from queueops.errors import CorruptSpec
from queueops.events import BadEvent, Event
from queueops.payload import decode_spec
from queueops.states import JobState, Lane

ACCEPTED, GONE = "accepted", "gone"
DELAYED, READY, PENDING = JobState.DELAYED.value, JobState.READY.value, JobState.PENDING.value
DONE, DEAD, DISCARDED = JobState.DONE.value, JobState.DEAD.value, JobState.DISCARDED.value
UNFINISHED = frozenset({ACCEPTED, DELAYED, READY, PENDING})
_STATES = frozenset({*UNFINISHED, DONE, DEAD, DISCARDED, GONE}) - {ACCEPTED}


#: Written where a spec was of an earlier life and the new one is not known.
NO_SPEC = b""


@dataclass(frozen=True, slots=True)
class Keep:
    """How long the record keeps a job by its outcome, and Redis a discarded one. Ms."""

    done_ms: int
    discarded_ms: int
    dead_ms: int
    restorable_ms: int


@dataclass(slots=True)
class JobRow:
    """A row of Job; the fields are its columns but the last, in the order in which `rows` writes them.

    A `spec` that the record has is not read and written again: None leaves it as it is.
    """

    queue: str
    job_id: str
    state: str = ""
    since: int = 0
    handler: str = ""
    lane: str = ""
    enqueued_at: int | None = None
    run_at: int | None = None
    attempts: int = 0
    rescues: int = 0
    delivery: int = 0
    edition: int = 0
    requeues: int = 0
    cause: str = ""
    error: str = ""
    reason: str = ""
    result: str = ""
    child: str = ""
    actor: str = ""
    ran_ms: int | None = None
    spec: bytes | None = None
    unique_digest: str = ""
    unique_for_ms: int | None = None
    expires_at: int | None = None
    died_at: int | None = None
    finished_at: int | None = None
    keep_until: int | None = None
    accepted_at: int | None = None
    last_event: str = ""
    has_spec: bool = False  # the record has it


@dataclass(slots=True)
class AttemptRow:
    """A row of Attempt."""

    queue: str
    job_id: str
    delivery: int
    number: int
    child: str
    started_at: int | None
    ended_at: int
    ran_ms: int | None
    cause: str
    error: str
    is_last: bool
    policy: str
    policy_version: int | None
    delay_ms: int | None


@dataclass(slots=True)
class Folded:
    """What a batch of events makes of one job."""

    row: JobRow
    is_known: bool = False  # the record had it before
    is_changed: bool = False
    attempts: list[AttemptRow] = field(default_factory=list)
    #: Its tags are to be written, those of an earlier life replaced.
    tags: dict[str, str] | None = None
    #: Its id was used before: what belongs to that life, which ended at this time, goes.
    earlier_life_ended: int | None = None


def fold(job: Folded, event: Event, keep: Keep) -> None:
    """Let `event` change the job's row, unless the row has seen it or a newer one. Raises BadEvent."""
    if event.order <= job.row.last_event:
        return
    apply = _VERBS.get(event.verb)
    if apply is None or event.to_state not in _STATES:
        if event.verb == "late":  # a refused settlement: nothing moved
            return
        if event.to_state not in _STATES:
            raise BadEvent(f"it goes to the unknown state {event.to_state[:40]!r}")
        apply = _other
    row = job.row
    job.is_changed = True
    row.last_event = event.order
    if event.verb not in _STANDING:
        row.since = event.at_ms
        row.state = event.to_state
    row.delivery = event.numbers.get("delivery", row.delivery)
    row.edition = event.numbers.get("edition", row.edition)
    apply(job, event)
    row = job.row  # a new life is another row
    # An ended job's spec comes with its last event; one that is known is not read and written again.
    if event.spec is not None and not (row.has_spec and event.verb in _ENDING):
        take_spec(job, event.spec)
    _settle_times(row, event, keep)


def take_spec(job: Folded, spec: bytes) -> None:
    """Keep what the job carries, and what it says of handler and tags."""
    job.row.spec = spec
    job.row.has_spec = job.is_changed = True
    try:
        said = decode_spec(spec)
    except CorruptSpec:
        return
    job.row.handler = said.handler[:255]
    job.tags = said.tags


def _settle_times(row: JobRow, event: Event, keep: Keep) -> None:
    if row.state in UNFINISHED:
        row.finished_at = row.keep_until = None
        if row.run_at is None and row.state == DELAYED:
            row.run_at = event.at_ms  # events were lost: the least that is true
        return
    if row.finished_at is None:
        row.finished_at = event.at_ms
    if row.state == DEAD:
        row.keep_until = None
        return
    kept_ms = keep.dead_ms if row.died_at is not None else keep.discarded_ms
    if row.state == DONE:
        kept_ms = keep.dead_ms if row.died_at is not None else keep.done_ms
    if row.state == DISCARDED:
        kept_ms += keep.restorable_ms
    row.keep_until = row.since + kept_ms


# -- one verb each -------------------------------------------------------------------------------

#: These move nothing: the job is where it was, since when it was.
_STANDING = frozenset({"cancel", "edit", "late"})
_ENDING = frozenset({"ack", "purge", "prune"})


def _enqueue(job: Folded, event: Event) -> None:
    old = job.row
    row = JobRow(old.queue, old.job_id, event.to_state, event.at_ms, last_event=old.last_event)
    if job.is_known and old.state == ACCEPTED:
        row.accepted_at, row.has_spec, row.handler, row.lane = old.accepted_at, True, old.handler, old.lane
        row.unique_digest, row.unique_for_ms = old.unique_digest, old.unique_for_ms
        row.expires_at = old.expires_at
    elif job.is_known:
        job.earlier_life_ended = old.finished_at or event.at_ms
        job.tags = {}
        row.spec = NO_SPEC
    row.lane = row.lane or Lane.NORMAL.value
    row.enqueued_at = event.at_ms
    row.run_at = event.numbers.get("run_at") or event.at_ms
    row.actor = event.actor
    job.row = row


def _claim(job: Folded, event: Event) -> None:
    job.row.child = event.actor[:255]
    job.row.reason = ""


def _ack(job: Folded, event: Event) -> None:
    row = job.row
    row.attempts = event.numbers.get("attempts", row.attempts)
    row.child = event.actor[:255]
    row.ran_ms = event.numbers.get("ran_ms")
    row.result = event.texts.get("result", "")
    row.cause = row.error = row.reason = ""
    row.finished_at = event.at_ms


def _retry(job: Folded, event: Event) -> None:
    _failed(job, event)
    job.attempts.append(_attempt(job.row, event, is_last=False))


def _bury(job: Folded, event: Event) -> None:
    _failed(job, event)
    row = job.row
    row.rescues = event.numbers.get("rescues", row.rescues)
    row.died_at = row.finished_at = event.at_ms
    if row.cause == CORRUPT:
        row.reason = event.texts.get("error", "")
    if "ran_ms" in event.numbers:  # by a child, and not because its process or its data were lost
        job.attempts.append(_attempt(row, event, is_last=True))


def _failed(job: Folded, event: Event) -> None:
    row = job.row
    row.attempts = event.numbers.get("attempts", row.attempts)
    row.cause = event.texts.get("cause", "")[:64]
    row.error = event.texts.get("error", "")
    row.ran_ms = event.numbers.get("ran_ms", row.ran_ms)
    row.run_at = event.numbers.get("run_at", row.run_at)
    row.child = event.texts.get("child", event.actor)[:255]


def _attempt(row: JobRow, event: Event, *, is_last: bool) -> AttemptRow:
    policy, _, version = event.texts.get("policy", "").partition("@")
    ran_ms = event.numbers.get("ran_ms")
    return AttemptRow(
        row.queue,
        row.job_id,
        row.delivery,
        row.attempts,
        event.actor[:255],
        None if ran_ms is None else max(0, event.at_ms - ran_ms),
        event.at_ms,
        ran_ms,
        row.cause,
        row.error,
        is_last,
        policy[:100],
        int(version) if version.isascii() and version.isdigit() and len(version) < 19 else None,
        None if is_last else event.numbers.get("delay_ms", 0),
    )


def _back(job: Folded, event: Event) -> None:
    """Snooze, release, rescue, reschedule, run_now, promote, hold, lift, restore: back into line."""
    row = job.row
    row.run_at = event.numbers.get("run_at", row.run_at)
    row.rescues = event.numbers.get("rescues", row.rescues)
    row.reason = event.texts.get("reason", "")
    if event.verb == "restore":
        row.finished_at = None
        if row.state == DEAD:
            row.finished_at = row.died_at or event.at_ms


def _requeue(job: Folded, event: Event) -> None:
    row = job.row
    row.attempts = row.rescues = 0
    row.requeues += 1
    row.cause = row.child = ""
    row.reason = event.texts.get("reason", "")
    row.run_at = event.numbers.get("run_at") or event.at_ms


def _set_aside(job: Folded, event: Event) -> None:
    """Discard, expire."""
    job.row.reason = event.texts.get("reason", "")
    job.row.finished_at = event.at_ms


def _gone(job: Folded, event: Event) -> None:
    """Purge, prune."""
    job.row.reason = event.texts.get("reason", "") or job.row.reason


def _edit(job: Folded, event: Event) -> None:
    if not job.row.state:
        _first_seen(job.row, event)


def _cancel(job: Folded, event: Event) -> None:
    if not job.row.state:
        _first_seen(job.row, event)


def _rebuild(job: Folded, event: Event) -> None:
    """Redis lost it and has it again from this row."""
    row = job.row
    row.rescues = event.numbers.get("rescues", row.rescues)
    row.child = ""
    if row.state in UNFINISHED:
        row.run_at = event.numbers.get("run_at", row.run_at)
    elif row.finished_at is None:
        row.finished_at = event.numbers.get("run_at", event.at_ms)


def _other(job: Folded, event: Event) -> None:
    """A verb of a newer engine: the state is what it says."""
    job.row.reason = event.texts.get("reason", job.row.reason)


def _first_seen(row: JobRow, event: Event) -> None:
    row.state, row.since = event.to_state, event.at_ms


_VERBS: dict[str, Callable[[Folded, Event], None]] = {
    "enqueue": _enqueue,
    "fire": _enqueue,
    "claim": _claim,
    "ack": _ack,
    "retry": _retry,
    "bury": _bury,
    "requeue": _requeue,
    "discard": _set_aside,
    "expire": _set_aside,
    "purge": _gone,
    "prune": _gone,
    "edit": _edit,
    "cancel": _cancel,
    "rebuild": _rebuild,
    **dict.fromkeys(
        ("promote", "hold", "lift", "snooze", "release", "rescue", "reschedule", "run_now", "restore"), _back
    ),
}
