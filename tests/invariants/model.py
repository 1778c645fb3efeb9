"""A small model of the engine: what each call should answer and leave, in plain Python.

It holds what a reader of docs/state-machine.md would write down, and no Redis. `test_machine` walks it
and the engine side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from queueops.states import LIVE, JobState, Lane

LEASE_MS = 30_000
KEEP_MS = 86_400_000
MAX_RESCUES = 3
HELD_A_CLAIM = 100
NO_END = 32_503_680_000_000
ORDER = (Lane.FIRST, Lane.HIGH, Lane.NORMAL, Lane.LOW)
ORDER_16TH = (Lane.FIRST, Lane.LOW, Lane.HIGH, Lane.NORMAL)

DELAYED, READY, PENDING = JobState.DELAYED, JobState.READY, JobState.PENDING
DONE, DEAD, DISCARDED = JobState.DONE, JobState.DEAD, JobState.DISCARDED


@dataclass(eq=False)
class Entry:
    """An entry of a lane's stream: which consumer holds it, and whether the group has delivered it."""

    job_id: str
    owner: str | None = None
    is_delivered: bool = False


@dataclass
class Job:
    id: str
    priority: Lane
    unique: str = ""
    expires: int | None = None
    state: JobState = READY
    since: int = 0
    run_at: int = 0  # while delayed
    due: int | None = None  # as its hash keeps it
    handler: str = ""
    held: int | None = None  # by this hold, while delayed
    held_lane: Lane | None = None
    past_hold: int = 0  # a person let it past the holds up to this one
    lane: Lane | None = None  # where its entry is, while ready or pending
    entry: Entry | None = None
    look_at: int = 0  # while pending
    dead_at: int = 0
    keep_until: int = 0  # while discarded
    was: JobState = READY
    was_at: int = 0
    child: str | None = None
    delivery: int = 0
    is_started: bool = False
    attempts: int = 0
    rescues: int = 0
    edition: int = 0
    requeues: int = 0
    settled: tuple[str, int] | None = None  # the settlement before this delivery
    late: tuple[str, int] | None = None
    operation: str = ""


@dataclass
class Member:
    """A child: its last request, and what it got then."""

    request: int = 0
    batch: list[str] = field(default_factory=list)


@dataclass
class HandlerHold:
    """A hold; ids only grow."""

    id: int
    handler: str
    until: int | None


class Model:
    """The whole of one queue."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.jobs: dict[str, Job] = {}
        self.lanes: dict[Lane, list[Entry]] = {lane: [] for lane in Lane}
        self.unique: dict[str, str] = {}
        self.leases: dict[str, int] = {}
        self.members: dict[str, Member] = {}
        self.running: dict[str, str] = {}  # tree -> the suspect that its probation child runs
        self.paused = False
        self.holds: list[HandlerHold] = []
        self.holding: dict[int, int] = {}  # hold -> since when it has kept jobs back
        self.concurrency: int | None = None
        self.late = 0

    def in_state(self, *states: JobState) -> list[Job]:
        return [job for job in self.jobs.values() if job.state in states]

    # -- moving ---------------------------------------------------------------------------------

    def _leave(self, job: Job) -> None:
        if job.lane is not None and job.entry in self.lanes[job.lane]:
            self.lanes[job.lane].remove(job.entry)
        job.lane = job.entry = job.held = job.held_lane = None

    def _to(self, job: Job, state: JobState) -> None:
        self._leave(job)
        job.state, job.since = state, self.now
        if state not in LIVE and self.unique.get(job.unique) == job.id:
            del self.unique[job.unique]

    def _to_lane(self, job: Job, lane: Lane) -> None:
        self._to(job, READY)
        job.lane, job.entry = lane, Entry(job.id)
        self.lanes[lane].append(job.entry)

    def _turn_of(self, job: Job) -> Lane:
        return Lane.SUSPECT if job.lane is Lane.SUSPECT else Lane.FIRST

    def _holder(self, digest: str, job_id: str) -> Job | None:
        holder = self.jobs.get(self.unique.get(digest, ""))
        return holder if holder and holder.id != job_id and holder.state in LIVE else None

    # -- enqueue ----------------------------------------------------------------------------------

    def enqueue(self, job: Job, run_at: int | None) -> tuple[str, str | None]:
        """The state of what is there now, and who was there before."""
        if known := self.jobs.get(job.id):
            return known.state, known.id
        if holder := job.unique and self._holder(job.unique, job.id):
            return holder.state, holder.id
        self.jobs[job.id] = job
        if job.unique:
            self.unique[job.unique] = job.id
        if run_at is not None and run_at > self.now:
            self._to(job, DELAYED)
            job.run_at = run_at
        else:
            self._to_lane(job, job.priority)
        return job.state, None

    # -- a child's life ---------------------------------------------------------------------------

    def renew(self, child: str) -> None:
        self.leases[child] = self.now + LEASE_MS
        self.members.setdefault(child, Member())

    def claim(
        self, child: str, request: int, limit: int, *, starts: int, suspects: bool, rescuing: bool
    ) -> list[tuple[str, int]] | None:
        """Ids and deliveries; None for a child without a lease."""
        if self.leases.get(child, 0) <= self.now:
            return None
        member = self.members.setdefault(child, Member())
        if limit and request == member.request and member.batch:
            held = [self.jobs[job_id] for job_id in member.batch if job_id in self.jobs]
            return [(job.id, job.delivery) for job in held if job.state is PENDING and job.child == child]
        if limit and request < member.request:
            return []
        self._lift()
        self._promote()
        self._rescue_lost(rescuing)
        room = limit
        if self.paused:
            room = 0
        elif self.concurrency is not None:
            room = min(room, max(0, self.concurrency - len(self.in_state(PENDING))))
        got: list[Job] = []
        kept_back: list[Job] = []
        looks = HELD_A_CLAIM if self._in_force() else 1 if suspects else 2
        for lane in (Lane.SUSPECT,) if suspects else ORDER if request % 16 else ORDER_16TH:
            for _ in range(looks):
                asked = min(room - len(got), HELD_A_CLAIM - len(kept_back))
                if asked <= 0 or self._read(lane, asked, child, starts, got, kept_back) < asked:
                    break
        if limit:
            member.request, member.batch = request, [job.id for job in got]
        if suspects and got:
            self.running[tree_of(child)] = got[0].id
        return [(job.id, job.delivery) for job in got]

    def _promote(self) -> None:
        due = [job for job in self.in_state(DELAYED) if job.run_at <= self.now]
        for job in sorted(due, key=lambda job: (job.run_at, job.id)):
            if job.held is None:
                job.due = job.run_at
            self._to_lane(job, job.held_lane or job.priority)

    # -- holds ------------------------------------------------------------------------------------

    def _in_force(self) -> list[HandlerHold]:
        return [hold for hold in self.holds if hold.until is None or hold.until > self.now]

    def _hold_on(self, job: Job) -> HandlerHold | None:
        meant = [h for h in self._in_force() if h.id > job.past_hold and h.handler == job.handler]
        return meant[0] if meant else None

    def _hold(self, job: Job, by: HandlerHold) -> None:
        due = job.since if job.due is None else job.due
        lane = job.lane if job.lane is Lane.SUSPECT else None
        self._to(job, DELAYED)
        job.held, job.held_lane, job.due = by.id, lane, due
        job.run_at = NO_END if by.until is None else by.until
        self.holding.setdefault(by.id, self.now)

    def _lift(self) -> None:
        in_force = {hold.id for hold in self._in_force()}
        for hold, _ in sorted(self.holding.items(), key=lambda item: (item[1], str(item[0]))):
            mine = [job for job in self.in_state(DELAYED) if job.held == hold]
            if hold not in in_force:
                for job in sorted(mine, key=lambda job: (job.due or 0, job.id)):
                    self._to_lane(job, job.held_lane or job.priority)
                mine = []
            if not mine:
                del self.holding[hold]

    def _rescue_lost(self, rescuing: bool) -> None:
        over = [job for job in self.in_state(PENDING) if job.look_at <= self.now]
        for job in sorted(over, key=lambda job: (job.look_at, job.id)):
            until = self.leases.get(job.child or "", 0)
            if until > self.now:
                job.look_at = until
            elif rescuing:
                suspect = self.running.get(tree_of(job.child or ""))
                self._rescue(job, job.is_started and suspect in (None, job.id))

    def _rescue(self, job: Job, counted: bool) -> None:
        job.child, job.is_started, job.due = None, False, None
        if not counted:
            return self._to_lane(job, self._turn_of(job))
        job.rescues += 1
        if job.rescues > MAX_RESCUES:
            self._to(job, DEAD)
            job.dead_at = self.now
            return None
        return self._to_lane(job, Lane.SUSPECT)

    def _read(
        self, lane: Lane, count: int, child: str, starts: int, got: list[Job], kept_back: list[Job]
    ) -> int:
        unread = [entry for entry in self.lanes[lane] if not entry.is_delivered][:count]
        for entry in unread:
            entry.is_delivered, entry.owner = True, child
            job = self.jobs[entry.job_id]
            if job.state is PENDING:
                entry.owner = job.child or child
            elif job.expires is not None and job.expires <= self.now:
                self._discard(job)
            elif by := self._hold_on(job):
                self._hold(job, by)
                kept_back.append(job)
            else:
                self._deliver(job, child, is_started=len(got) < starts)
                got.append(job)
        return len(unread)

    def _deliver(self, job: Job, child: str, *, is_started: bool) -> None:
        if job.child is not None:
            job.settled = (job.child, job.delivery)
        job.due = job.since if job.due is None else job.due
        job.state, job.since, job.child = PENDING, self.now, child
        job.delivery += 1
        job.is_started, job.look_at = is_started, self.leases[child]

    def settle(self, child: str, records: Sequence[tuple[str, str, int]], delay_ms: int) -> list[str]:
        """`records`: verb, id, delivery. `bury` counts an attempt."""
        answers = []
        for verb, job_id, delivery in records:
            job, by = self.jobs.get(job_id), (child, delivery)
            if job and (job.child, job.delivery) == by:
                if job.state is PENDING:
                    self._settle_one(verb, job, delay_ms)
                answers.append("ok")
            elif job and job.settled == by:
                answers.append("ok")
            else:
                answers.append("lost")
                if verb not in {"start", "release"} and not (job and job.late == by):
                    self.late += 1
                    if job:
                        job.late = by
        if child.endswith("/probation"):
            self.running.pop(tree_of(child), None)
        return answers

    def _settle_one(self, verb: str, job: Job, delay_ms: int) -> None:
        match verb:
            case "start":
                job.is_started = True
            case "ack":
                self._to(job, DONE)
            case "retry":
                self._to(job, DELAYED)
                job.attempts += 1
                job.run_at = self.now + delay_ms
            case "snooze":
                self._to(job, DELAYED)
                job.run_at = self.now + delay_ms
            case "release":
                self._to_lane(job, self._turn_of(job))
            case "bury":
                self._to(job, DEAD)
                job.attempts += 1
                job.dead_at = self.now
            case "discard":
                self._discard(job, was=READY)
        if verb != "start":
            job.is_started = False
        if verb not in {"start", "discard"}:
            job.due = None

    def _discard(self, job: Job, was: JobState | None = None) -> None:
        job.was = was or job.state
        run_at = job.run_at if job.held is None else job.due
        job.was_at = {DELAYED: run_at, DEAD: job.dead_at}.get(job.was, self.now) or 0
        self._to(job, DISCARDED)
        job.keep_until = self.now + KEEP_MS

    def hand_back(self, child: str, running: Iterable[str]) -> int:
        given = 0
        for lane in Lane:
            for entry in [entry for entry in self.lanes[lane] if entry.owner == child]:
                job = self.jobs[entry.job_id]
                given += 1
                if job.state is PENDING and job.child == child:
                    self._rescue(job, job.id in running)
                else:
                    self._repair(lane, entry, job)
        self._forget(child)
        return given

    def _repair(self, lane: Lane, entry: Entry, job: Job) -> None:
        if job.entry is entry and job.state is PENDING and job.child:
            entry.owner = job.child
        elif job.entry is entry and job.state is READY:
            self.lanes[lane].remove(entry)
            job.entry = Entry(job.id)
            self.lanes[lane].append(job.entry)
        else:
            self.lanes[lane].remove(entry)

    def _forget(self, child: str) -> None:
        self.leases.pop(child, None)
        self.members.pop(child, None)
        if child.endswith("/probation"):
            self.running.pop(tree_of(child), None)

    def sweep(self) -> None:
        for lane in Lane:
            for entry in [entry for entry in self.lanes[lane] if entry.owner is not None]:
                job = self.jobs[entry.job_id]
                if not (job.entry is entry and job.state is PENDING and job.child == entry.owner):
                    self._repair(lane, entry, job)
        for child, until in list(self.leases.items()):
            holds = any(entry.owner == child for lane in self.lanes.values() for entry in lane)
            if until <= self.now - LEASE_MS and not holds:
                self._forget(child)

    # -- what persons do ----------------------------------------------------------------------------

    def act(self, verb: str, job_id: str, operation: str, at_ms: int) -> str:
        job = self.jobs.get(job_id)
        if job is None:
            return "ok" if verb == "purge" and operation else "missing"
        if operation and job.operation == operation:
            return "ok"
        legal = {
            "requeue": {DEAD}, "run_now": {DELAYED, READY}, "reschedule": {DELAYED}, "cancel": {PENDING},
            "edit": {DELAYED, READY, DEAD, DISCARDED}, "discard": {DELAYED, READY, DEAD},
            "restore": {DISCARDED}, "purge": {DISCARDED},
        }  # fmt: skip
        if job.state not in legal[verb]:
            return f"wrong:{job.state}"
        wants_to_run = verb == "requeue" or (verb == "restore" and job.was in LIVE)
        if wants_to_run and job.unique and (holder := self._holder(job.unique, job.id)):
            return f"held:{holder.id}"
        if wants_to_run and job.unique:
            self.unique[job.unique] = job.id
        if verb in {"requeue", "restore"} and job.expires is not None and job.expires <= self.now:
            job.expires = None
        self._act_on(verb, job, at_ms)
        job.operation = operation
        return "ok"

    def _act_on(self, verb: str, job: Job, at_ms: int) -> None:
        match verb:
            case "requeue":
                job.attempts = job.rescues = 0
                job.requeues += 1
                self._to_lane(job, job.priority)
            case "run_now":
                self._to_lane(job, Lane.FIRST)
                job.due = None
                job.past_hold = max([job.past_hold, *[hold.id for hold in self._in_force()]])
            case "reschedule":
                if job.held is not None:
                    job.held = job.held_lane = job.due = None
                job.run_at, job.since = at_ms, self.now
            case "edit":
                job.edition += 1
                job.handler = ""  # of no handler that a hold names
            case "discard":
                self._discard(job)
            case "restore":
                self._restore(job)
            case "purge":
                del self.jobs[job.id]

    def _restore(self, job: Job) -> None:
        if job.was is READY:
            return self._to_lane(job, job.priority)
        self._to(job, job.was)
        job.run_at = job.dead_at = job.was_at
        return None

    def prune(self) -> int:
        over = [job for job in self.in_state(DISCARDED) if job.keep_until <= self.now]
        for job in over:
            del self.jobs[job.id]
        return len(over)

    # -- faults ---------------------------------------------------------------------------------------

    def lose_group(self, lane: Lane) -> None:
        for entry in self.lanes[lane]:
            entry.owner, entry.is_delivered = None, False

    def lose_stream(self, lane: Lane) -> None:
        self.lanes[lane].clear()


def tree_of(child: str) -> str:
    return child.rpartition("/")[0]
