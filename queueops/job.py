"""A job as Python code sees it, its id, and the cut of its spec into fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import uuid_utils

from queueops.states import JobState, Lane

_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_PAIRS = [high + low for high in _DIGITS for low in _DIGITS]
_SHIFTS = range(120, -1, -10)

#: A listpack hash holds no longer field (hash-max-listpack-value, default 64 bytes).
PART_BYTES = 64
#: A longer spec is one field: so many parts would cost more time than they save memory.
MAX_PARTS = 30


def new_job_id() -> str:
    """A time-ordered id of 26 characters: a UUIDv7 in lower-case base32hex, which sorts as its bytes."""
    bits = uuid_utils.uuid7().int << 2  # 130 bits: 26 digits of five
    return "".join([_PAIRS[bits >> shift & 1023] for shift in _SHIFTS])


def spec_parts(spec: bytes, *, delayed: bool) -> list[bytes]:
    """Cut the spec of a job that will wait into fields of 64 bytes: a third of the memory."""
    if not delayed or not PART_BYTES < len(spec) <= PART_BYTES * MAX_PARTS:
        return [spec]
    return [spec[i : i + PART_BYTES] for i in range(0, len(spec), PART_BYTES)]


def to_ms(at: datetime) -> int:
    """Whole Unix milliseconds of an aware datetime, rounded down."""
    delta = at - datetime(1970, 1, 1, tzinfo=UTC)
    return delta.days * 86_400_000 + delta.seconds * 1000 + delta.microseconds // 1000


def from_ms(ms: float) -> datetime:
    """The aware UTC datetime of Unix milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC)


@dataclass(frozen=True)
class NewJob:
    """A job to enqueue; `spec` is opaque to everything but `payload`.

    A time is Unix ms, or '+N' for N ms after the script runs, by Redis TIME: the caller's clock
    never decides.
    """

    id: str
    spec: bytes
    run_at_ms: int | str | None = None
    lane: Lane = Lane.NORMAL
    unique: str = ""  # digest of the unique key
    unique_for_ms: int | None = None
    expires_ms: int | str | None = None


@dataclass(frozen=True)
class Delivery:
    """One job as claimed by a child. `due_ms` is Unix ms; the delivery is the fencing token."""

    queue: str
    id: str
    delivery: int
    attempts: int
    rescues: int
    edition: int
    is_started: bool  # marked started in Redis: its handler may run
    due_ms: int
    spec: bytes

    @property
    def idempotency_key(self) -> str:
        """The same through every delivery of one edition."""
        return self.id if not self.edition else f"{self.id}:e{self.edition}"


@dataclass(frozen=True)
class Claimed:
    """The answer to a claim. `word`: ok, paused or unregistered. Times in µs."""

    word: str
    version: int  # of the queue's settings
    wait_us: int | None  # until the next thing happens by the server's clock
    is_keeper: bool  # this child waits for it; others wait for a token
    server_us: int
    jobs: list[Delivery]


@dataclass(frozen=True)
class Job:
    """One job, as `get_job` and `enqueue` return it."""

    id: str
    queue: str
    state: JobState | str | None
    handler: str | None = None
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    attempts: int = 0
    rescues: int = 0
    delivery: int = 0
    edition: int = 0
    run_at: datetime | None = None
    since: datetime | None = None
    error: dict[str, Any] | None = None
    cause: str | None = None
    result: Any = None
    reason: str | None = None
    child: str | None = None
    started_at: datetime | None = None
    progress: str | None = None
    cancelled: bool = False
    held: int | None = None  # the hold that keeps it back while it is delayed
    tags: dict[str, str] = field(default_factory=dict)
    priority: str = "normal"
    expires_at: datetime | None = None
    unique: str | None = None  # digest of its unique key
    requeues: int = 0
    operation: str | None = None  # the bulk action that touched it last
    policy: Any = None  # a name or a RetryPolicy, when the job has its own
    extra: dict[str, Any] = field(default_factory=dict)  # a schedule's slot, a Celery link
    spec: bytes | None = None
    #: Why its stored data can't be read, or None; what can be read stands in the other fields.
    corrupt: str | None = None
