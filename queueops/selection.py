"""Which jobs a bulk action means: a filter on one state, frozen at an instant, walked by cursor.

No ids are copied: a job belongs to the set when it has been in the state since that instant or
before, and matches. What comes later is not met, or is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from queueops import keys
from queueops.errors import CorruptSpec
from queueops.handlers import get_handler
from queueops.inspector import Inspector
from queueops.inspector.decode import whole_spec
from queueops.job import to_ms
from queueops.payload import decode_spec
from queueops.states import LISTED, MOVES, JobState
from queueops.worker.rules import Rules

#: Ids looked at in one round trip.
PAGE = 500
#: A person names so many ids at most; more is a filter.
MOST_IDS = 10_000

#: What a bulk action may do -> the states that it takes jobs from.
VERBS: dict[str, frozenset[JobState]] = {
    "requeue": MOVES["requeue"].sources,
    "run_now": MOVES["run_now"].sources,
    "reschedule": MOVES["reschedule"].sources,
    "cancel": MOVES["cancel"].sources,
    # Only its own handler discards a pending job.
    "discard": MOVES["discard"].sources - {JobState.PENDING},
    "restore": MOVES["restore"].sources,
    "purge": MOVES["purge"].sources,
}


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A filter. `queue` '' means every queue; `tag` is a name, or name=value; `operation` names the
    bulk action that last touched a job (to undo one); `older_than_s` seconds in its state; `policy`
    names the retry policy that jobs which failed before follow now.

    Raises ValueError for a filter that can't be meant.
    """

    queue: str = ""
    state: str = ""
    handler: str = ""
    cause: str = ""
    tag: str = ""
    id_prefix: str = ""
    operation: str = ""
    policy: str = ""
    older_than_s: float | None = None
    ids: Sequence[str] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        if self.queue:
            keys.check_queue(self.queue)
        if self.state and self.state not in LISTED:
            raise ValueError(f"no jobs are listed in state {self.state!r:.40}: use {', '.join(LISTED)}")
        if self.ids:
            if not self.queue:
                raise ValueError("ids need their queue")
            if len(self.ids) > MOST_IDS:
                raise ValueError(f"at most {MOST_IDS:,} ids, got {len(self.ids):,}: use a filter")
            for job_id in self.ids:
                keys.check_job_id(job_id)
        elif not self.state:
            raise ValueError("name the state of the jobs, or their ids")
        if self.older_than_s is not None and not 0 <= self.older_than_s < 1e11:
            raise ValueError(f"older_than must be seconds from 0 on, got {self.older_than_s:g}")

    @classmethod
    def for_verb(cls, verb: str, **given: Any) -> Selection:
        """A filter for `verb`, whose state is filled in where the verb takes only one.

        Raises ValueError for an unknown verb, and for a state that it can't start from.
        """
        if verb not in VERBS:
            raise ValueError(f"no bulk action is called {verb!r:.40}: use {', '.join(VERBS)}")
        sources = VERBS[verb]
        if not given.get("state") and not given.get("ids"):
            is_of_cause = given.get("cause") and JobState.DEAD in sources
            if len(sources) > 1 and not is_of_cause:
                raise ValueError(f"{verb} takes {' or '.join(sorted(sources))} jobs: say which, or give ids")
            given["state"] = (JobState.DEAD if is_of_cause else next(iter(sources))).value
        selection = cls(**given)
        if selection.state and selection.state not in sources:
            takes = " or ".join(sorted(sources))
            raise ValueError(f"{verb} takes {takes} jobs, not {selection.state} ones")
        return selection

    @classmethod
    def from_json(cls, queue: str, state: str, given: dict[str, Any]) -> Selection:
        """Read what `to_json` wrote."""
        known = {each.name for each in fields(cls)}
        return cls(queue=queue, state=state, **{k: v for k, v in given.items() if k in known})

    def to_json(self) -> dict[str, Any]:
        """What is not empty, but queue and state, which stand in columns of their own."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        given["ids"] = list(self.ids)
        return {k: v for k, v in given.items() if k not in {"queue", "state"} and v not in ("", None, [])}

    def __str__(self) -> str:
        """What a person reads before they say yes."""
        parts = [f"in queue {self.queue}" if self.queue else "in every queue"]
        if self.ids:
            parts.append(f"{len(self.ids):,} by id" if len(self.ids) > 3 else ", ".join(self.ids))
        if self.state:
            parts.insert(0, self.state)
        parts += [
            f"{name} {value}"
            for name, value in (
                ("handler", self.handler),
                ("cause", self.cause),
                ("tag", self.tag),
                ("id from", self.id_prefix),
                ("operation", self.operation),
                ("retried by", self.policy),
            )
            if value
        ]
        if self.older_than_s is not None:
            parts.append(f"for {self.older_than_s:g} s or longer")
        return ", ".join(parts)

    @property
    def is_plain(self) -> bool:
        """Whether the size of a set in Redis is the number of its jobs, so that none need be looked at."""
        by_content = (self.handler, self.tag, self.id_prefix, self.operation, self.policy)
        looked_at = (*by_content, self.ids, self.older_than_s)
        return not any(looked_at) and (not self.cause or self.state == JobState.DEAD)


@dataclass(frozen=True)
class Found:
    """One page of a walk: matching ids, each with the cursor to go on after it.

    `at` is where the walk goes on after the whole page (None: this queue is through), `until` where
    it ends. `missing` are ids that a person named and nobody knows.
    """

    ids: list[tuple[str, str]]
    at: str | None
    until: str | None
    missing: list[tuple[str, str]] = field(default_factory=list)


class Walker:
    """Walks over a selection as it was at `frozen_ms` (Unix ms by the scripts' clock)."""

    def __init__(
        self, inspector: Inspector, selection: Selection, *, frozen_ms: int, operation: str = ""
    ) -> None:
        self.inspector = inspector
        self.selection = selection
        self.frozen_ms = frozen_ms
        #: Jobs that this operation has touched are behind the walk, even when they stand before it again.
        self.operation = operation
        self._rules: dict[str, Rules] = {}

    def queues(self) -> list[str]:
        """The queues to walk over."""
        return [self.selection.queue] if self.selection.queue else self.inspector.queues()

    def page(self, queue: str, at: str | None, until: str | None) -> Found:
        """What matches among the next ids; `at` and `until` None begin with this queue."""
        if self.selection.ids:
            return self._named(queue, int(at or 0))
        state = JobState(self.selection.state)
        cause = self.selection.cause if state is JobState.DEAD and self.selection.cause else None
        if until is None:
            until = self._end(queue, state, cause)
            if until is None:
                return Found([], None, None)
        walk = self.inspector.walk(queue, state, limit=PAGE, after=at, cause=cause, until=until)
        jobs = self._jobs(queue, [step.id for step in walk.steps])
        ids = [
            (step.id, step.cursor)
            for step, found in zip(walk.steps, jobs, strict=True)
            if self._matches(queue, step.id, found)
        ]
        return Found(ids, walk.next, until)

    def _named(self, queue: str, start: int) -> Found:
        """The next of the ids that a person named: the script says why one of them is not taken."""
        given = list(enumerate(dict.fromkeys(self.selection.ids), 1))
        part = given[start : start + PAGE]
        jobs = self._jobs(queue, [job_id for _, job_id in part])
        ids: list[tuple[str, str]] = []
        missing: list[tuple[str, str]] = []
        for (place, job_id), found in zip(part, jobs, strict=True):
            if not isinstance(found, dict) or found:
                if not self._is_behind(found):
                    ids.append((job_id, str(place)))
            else:
                missing.append((job_id, str(place)))
        at = str(start + PAGE) if start + PAGE < len(given) else None
        return Found(ids, at, None, missing)

    def _end(self, queue: str, state: JobState, cause: str | None) -> str | None:
        """Where the walk ends, so that it does not run after what comes meanwhile; None: nothing is there."""
        if state is JobState.READY:
            return str(self.inspector.now()[1])
        last = self.inspector.walk(queue, state, limit=1, newest=True, cause=cause).steps
        return last[0].cursor if last else None

    def _jobs(self, queue: str, ids: Sequence[str]) -> list[Any]:
        """The hashes, or what of them the filter asks for; an error for what is no hash."""
        if not ids:
            return []
        pipe = self.inspector.pipe()
        wants_spec = bool(self.selection.handler or self.selection.tag or self.selection.policy)
        for job_id in ids:
            if wants_spec:
                pipe.hgetall(keys.job(queue, job_id))
            else:
                pipe.hmget(keys.job(queue, job_id), _FIELDS)
        answers = self.inspector.answers(pipe)
        return answers if wants_spec else [_by_name(answer) for answer in answers]

    def _is_behind(self, found: Any) -> bool:
        """Whether this operation has touched the job: it stands before the walk again."""
        return (
            bool(self.operation) and isinstance(found, dict) and found.get(b"op") == self.operation.encode()
        )

    def _matches(self, queue: str, job_id: str, found: Any) -> bool:
        wanted = self.selection
        if not isinstance(found, dict) or found.get(b"state") != wanted.state.encode():
            return False
        if self._is_behind(found) or _ms(found.get(b"since")) > self.frozen_ms:
            return False
        if wanted.cause and found.get(b"cause") != wanted.cause.encode():
            return False
        if wanted.operation and found.get(b"op") != wanted.operation.encode():
            return False
        if wanted.id_prefix and not job_id.startswith(wanted.id_prefix):
            return False
        if wanted.handler or wanted.tag or wanted.policy:
            raw, why = whole_spec(found)
            if raw is None or why is not None or not _is_of(wanted, raw):
                return False
            return not wanted.policy or self._follows(queue, found, raw)
        return True

    def _follows(self, queue: str, found: Any, raw: bytes) -> bool:
        """Whether the job waits after a failure, and follows the policy as workers would say now."""
        if not _ms(found.get(b"attempts")):
            return False
        rules = self._rules.get(queue)
        if rules is None:
            rules = self._rules[queue] = Rules(self.inspector.connection)
            rules.load(queue)
        spec = decode_spec(raw)
        handler = get_handler(spec.handler)
        declared = handler.policy if handler else None
        return rules.policy(queue, spec.handler, spec.policy, declared).name == self.selection.policy


def _is_of(wanted: Selection, raw: bytes) -> bool:
    """Whether a spec has the handler and the tag; one that can't be read has neither."""
    try:
        spec = decode_spec(raw)
    except CorruptSpec:
        return False
    if wanted.handler and spec.handler != wanted.handler:
        return False
    if wanted.tag:
        name, has_value, value = wanted.tag.partition("=")
        return name in spec.tags and (not has_value or spec.tags[name] == value)
    return True


_FIELDS = ("state", "since", "op", "cause")


def _by_name(answer: Any) -> Any:
    if not isinstance(answer, list):
        return answer
    return {name.encode(): value for name, value in zip(_FIELDS, answer, strict=True) if value is not None}


def _ms(value: bytes | None) -> int:
    try:
        return int(value or b"0")
    except ValueError:
        return 0


def freeze(inspector: Inspector, selection: Selection) -> int:
    """The instant up to which a job must have come into its state, Unix ms."""
    return inspector.now_ms() - round((selection.older_than_s or 0) * 1000)


def walk(
    inspector: Inspector, selection: Selection, *, frozen_ms: int | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Yield (queue, matching ids) page by page, changing nothing."""
    walker = Walker(
        inspector, selection, frozen_ms=freeze(inspector, selection) if frozen_ms is None else frozen_ms
    )
    for queue in walker.queues():
        at: str | None = None
        until: str | None = None
        while True:
            found = walker.page(queue, at, until)
            if found.ids:
                yield queue, [job_id for job_id, _ in found.ids]
            at, until = found.at, found.until
            if at is None:
                break


def count_quickly(inspector: Inspector, selection: Selection) -> int | None:
    """How many jobs match, where a set's size says so; None where each has to be looked at."""
    if not selection.is_plain:
        return None
    queues = [selection.queue] if selection.queue else inspector.queues()
    state = JobState(selection.state)
    if not selection.cause:
        return sum(inspector.counts(queue)[state] for queue in queues)
    pipe = inspector.pipe()
    for queue in queues:
        pipe.zcard(keys.dead_of_cause(queue, selection.cause))
    return sum(int(answer) for answer in inspector.answers(pipe)) if queues else 0


def count(inspector: Inspector, selection: Selection, verb: str = "") -> int:
    """How many jobs match: each is looked at. With a verb, ids that it can't take don't count."""
    if not selection.ids:
        return sum(len(ids) for _, ids in walk(inspector, selection))
    sources = {selection.state} if selection.state else VERBS.get(verb, frozenset(LISTED))
    frozen_ms = freeze(inspector, selection)
    jobs = inspector.jobs(selection.queue, list(dict.fromkeys(selection.ids)))
    return sum(
        job is not None and job.state in sources and (job.since is None or to_ms(job.since) <= frozen_ms)
        for job in jobs
    )
