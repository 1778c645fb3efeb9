"""A walk through the engine with its model beside it: what may happen next, and what must hold then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from queueops import keys
from queueops.connection import Connection
from queueops.holds import Hold, HoldKind, to_setting
from queueops.job import Delivery, NewJob
from queueops.payload import encode_spec
from queueops.states import LIVE, MOVES, JobState, Lane
from queueops.store import Outcome, Store, publish_defaults
from tests.factories import PERSON, QUEUE, Clock, Redis, burying, counter, retrying
from tests.invariants.model import LEASE_MS, PENDING, READY, HandlerHold, Job, Model
from tests.one_place import assert_each_job_in_one_place
from tests.proxy import Proxy

CHILDREN = ("host:1:aa/1", "host:1:aa/2", "host:1:aa/probation", "host:2:bb/1")
IDS = [f"job{n}" for n in range(16)]
HANDLERS = ("tests.even", "tests.odd")
JUMPS_MS = (1, 40, 999, 5_000, LEASE_MS // 3, LEASE_MS - 1, LEASE_MS, 3 * LEASE_MS, 90_000_000, -7_000)
PERSONS_VERBS = tuple(verb for verb, move in MOVES.items() if move.by_person)
SETTLE_VERBS = ("ack", "ack", "retry", "retry", "snooze", "release", "bury", "discard", "start")

#: What may happen next, by the name of a method of Walk, and how often.
ACTIONS = {
    "settle": 16, "claim": 12, "enqueue": 8, "die": 7, "time_passes": 5, "act": 4, "done_jobs_leave": 2,
    "a_host_is_lost": 2, "renew": 1, "claim_s_late_copy": 2, "settlement_s_late_copy": 2,
    "settle_what_another_holds": 1, "hand_back_what_may_be_alive": 1, "act_on_anything": 1, "prune": 1,
    "sweep": 1, "change_settings": 1, "change_holds": 3, "scripts_are_forgotten": 1, "a_group_is_lost": 1,
    "a_stream_of_running_jobs_is_deleted": 1,
}  # fmt: skip

#: What of a job the walk compares, besides its state and its child.
NUMBERS = ("since", "delivery", "attempts", "rescues", "edition")

T = TypeVar("T")
E = TypeVar("E")


class Draw(Protocol):
    """Where choices come from: Hypothesis, or a random number generator."""

    def one_of(self, choices: Sequence[T]) -> T:
        """One of the choices, each as likely as the others."""

    def some_of(self, choices: Sequence[T], least: int, most: int) -> list[T]:
        """So many of the choices; one may come twice."""


class Walk:
    """One queue, a model of it, four children and a person."""

    def __init__(self, redis: Redis, proxy: Proxy) -> None:
        self.redis, self.proxy = redis, proxy
        self.redis.flushall()
        seconds, us = self.redis.time()
        self.clock = Clock(seconds * 1000 + us // 1000)
        self.store = self.clock.drive(Store(publish=publish_defaults))
        self.lossy = self.clock.drive(Store(Connection(self.proxy.url), publish=publish_defaults))
        self.store.register(QUEUE)
        self.model = Model(self.clock.now_ms)
        self.requests = dict.fromkeys(CHILDREN, 0)
        self.held: dict[str, list[Delivery]] = {child: [] for child in CHILDREN}
        self.sent: list[tuple[str, list[Outcome], int]] = []  # settlements, for late copies
        self.operations = 0
        self.version = self.hold_number = 0
        self.steps = 0
        self.is_damaged = False
        self.fault = "once"
        for child in CHILDREN:
            self._renew(child)

    def step(self, draw: Draw) -> str:
        """Let one thing happen, and compare; `fault` is how its command meets the network."""
        possible = [name for name, weight in ACTIONS.items() for _ in range(weight) if self._can(name)]
        name = draw.one_of(possible)
        self.fault = draw.one_of(["once", "once", "twice", "lost"])
        getattr(self, name)(draw)
        self.compare()
        self.steps += 1
        if self.steps % 4 == 0 and not self.is_damaged:  # not each time, since it reads the whole store
            assert_each_job_in_one_place(self.redis)
        return f"{name}, {self.fault}"

    def _can(self, name: str) -> bool:
        match name:
            case "claim" | "claim_s_late_copy":
                return bool(self._alive())
            case "settle" | "die":
                return bool(self._running())
            case "settle_what_another_holds":
                return any(self.held.values())
            case "settlement_s_late_copy":
                return bool(self.sent)
        return True

    def _do(self, call: Callable[[Store], T], model: Callable[[], E]) -> list[tuple[T, E]]:
        """Make the call, ask the model as often; each answer that was seen, and the model's."""
        if self.fault != "lost":
            return [(call(self.store), model()) for _ in range(1 if self.fault == "once" else 2)]
        lost = self.proxy.lost
        self.proxy.lose_replies(1)
        answer = call(self.lossy)
        assert self.proxy.lost == lost + 1
        if not self.proxy.last_lost.startswith(b"-NOSCRIPT"):
            model()  # it ran, and then it ran again
        return [(answer, model())]

    def _alive(self) -> list[str]:
        """Children with a lease."""
        return sorted(child for child, until in self.model.leases.items() if until > self.model.now)

    def _running(self) -> dict[str, list[Delivery]]:
        """What children hold, for those that hold anything."""
        mine = {child: [j for j in jobs if self._is_his(child, j)] for child, jobs in self.held.items()}
        return {child: jobs for child, jobs in mine.items() if jobs}

    def _is_his(self, child: str, delivery: Delivery) -> bool:
        job = self.model.jobs.get(delivery.id)
        return job is not None and (job.state, job.child, job.delivery) == (PENDING, child, delivery.delivery)

    # -- enqueue ----------------------------------------------------------------------------------

    def enqueue(self, draw: Draw) -> None:
        ids = draw.some_of(IDS, 2, 8)
        lane = draw.one_of([Lane.HIGH, Lane.NORMAL, Lane.LOW])
        delay_ms = draw.one_of([None, None, None, 0, 1, 1000, 60_000])
        unique = draw.one_of(["", "", "", "u", "v"])
        expires_ms = draw.one_of([None, None, None, None, 500, 100_000])
        run_at = None if delay_ms is None else self.clock.now_ms + delay_ms
        expires = None if expires_ms is None else self.clock.now_ms + expires_ms
        how: Any = {"run_at_ms": run_at, "lane": lane, "unique": unique, "expires_ms": expires}
        new = [NewJob(i, encode_spec(_handler(i)), **how) for i in ids]

        def model() -> list[tuple[str, str | None]]:
            jobs = [Job(i, lane, unique, expires, handler=_handler(i)) for i in ids]
            return [self.model.enqueue(job, run_at) for job in jobs]

        for answer, expected in self._do(lambda store: store.enqueue(QUEUE, new, actor="web"), model):
            assert [(a.state, a.there) for a in answer] == expected

    # -- a child's life ---------------------------------------------------------------------------

    def renew(self, draw: Draw) -> None:
        self._renew(draw.one_of(CHILDREN))

    def _renew(self, child: str) -> None:
        self._do(lambda store: store.renew(QUEUE, [child]), lambda: self.model.renew(child))

    def claim(self, draw: Draw) -> None:
        child = draw.one_of([*(self._alive() * 3), *CHILDREN])
        limit = draw.one_of([2, 5, 100, 1, 0])
        starts = draw.one_of([100, 1, 100, 0])
        rescuing = draw.one_of([True, True, True, False])
        self.requests[child] += bool(limit)
        self._claim(child, self.requests[child], limit, starts=starts, rescuing=rescuing)

    def claim_s_late_copy(self, draw: Draw) -> None:
        child = draw.one_of(self._alive())
        if (request := self.requests[child] - draw.one_of([1, 1, 2, 3, 0])) > 0:
            self._claim(child, request, 5)

    def _claim(
        self, child: str, request: int, limit: int, *, starts: int = 100, rescuing: bool = True
    ) -> None:
        suspects = child.endswith("/probation")
        limit = min(limit, 1) if suspects else limit
        how: Any = {"starts": starts, "suspects": suspects, "rescuing": rescuing}

        def call(store: Store) -> Any:
            return store.claim(QUEUE, child, request=request, limit=limit, **how)

        def model() -> list[tuple[str, int]] | None:
            return self.model.claim(child, request, limit, **how)

        for answer, expected in self._do(call, model):
            assert (answer.word == "unregistered") == (expected is None)
            assert [(job.id, job.delivery) for job in answer.jobs] == (expected or [])
            known = {(job.id, job.delivery) for job in self.held[child]}
            self.held[child] += [job for job in answer.jobs if (job.id, job.delivery) not in known]

    def settle(self, draw: Draw) -> None:
        running = self._running()
        child = draw.one_of(sorted(running))
        jobs = draw.some_of(running[child], 1, 4)
        delay_ms = draw.one_of([0, 0, 500, 60_000])
        outcomes = [_outcome(draw.one_of(SETTLE_VERBS), job, delay_ms) for job in jobs]
        self._settle(child, outcomes, delay_ms)
        self.sent.append((child, outcomes, delay_ms))

    def settlement_s_late_copy(self, draw: Draw) -> None:
        self._settle(*draw.one_of(self.sent))

    def settle_what_another_holds(self, draw: Draw) -> None:
        owner = draw.one_of([c for c in CHILDREN if self.held[c]])
        job = draw.one_of(self.held[owner])
        self._settle(draw.one_of(CHILDREN), [_outcome(draw.one_of(SETTLE_VERBS), job)])

    def _settle(self, child: str, outcomes: Sequence[Outcome], delay_ms: int = 0) -> None:
        records = [(outcome.verb, outcome.job_id, outcome.delivery) for outcome in outcomes]
        seen = self._do(
            lambda store: store.settle(QUEUE, child, outcomes),
            lambda: self.model.settle(child, records, delay_ms),
        )
        assert all(answer == expected for answer, expected in seen)
        assert seen[0] == seen[-1]

    def die(self, draw: Draw) -> None:
        """A child is lost, and perhaps replaced; under one name, as only a probation child is."""
        child = draw.one_of(sorted(self._running()))
        self._hand_back(
            child, [j.id for j in self.model.in_state(PENDING) if j.child == child and j.is_started]
        )
        if draw.one_of([True, False]):
            self._renew(child)

    def hand_back_what_may_be_alive(self, draw: Draw) -> None:
        self._hand_back(draw.one_of(CHILDREN), [])

    def _hand_back(self, child: str, ran: list[str]) -> None:
        seen = self._do(
            lambda store: store.hand_back(QUEUE, child, why="SIGKILL", running=ran),
            lambda: self.model.hand_back(child, ran),
        )
        assert all(answer == expected for answer, expected in seen)

    def done_jobs_leave(self, draw: Draw) -> None:
        """As the TTL of their tombstones does."""
        for job in self.model.in_state(JobState.DONE):
            self.redis.delete(keys.job(QUEUE, job.id))
            del self.model.jobs[job.id]

    # -- persons and housekeeping -------------------------------------------------------------------

    def act(self, draw: Draw) -> None:
        possible = [verb for verb in PERSONS_VERBS if self.model.in_state(*MOVES[verb].sources)]
        verb = draw.one_of(possible or PERSONS_VERBS)
        legal = sorted(job.id for job in self.model.in_state(*MOVES[verb].sources))
        self._act(verb, draw.some_of(legal or IDS, 1, 3), draw)

    def act_on_anything(self, draw: Draw) -> None:
        self._act(draw.one_of(PERSONS_VERBS), draw.some_of(IDS, 0, 3), draw)

    def _act(self, verb: str, ids: list[str], draw: Draw) -> None:
        self.operations += 1
        operation = f"op{self.operations}"
        at_ms = self.clock.now_ms + draw.one_of([-5, 0, 20, 100_000])
        argument: object = {"reschedule": at_ms, "edit": b"edited"}.get(verb, "")
        items = [(job_id, argument) for job_id in ids]

        seen = self._do(
            lambda store: store.act(verb, QUEUE, items, actor=PERSON, operation=operation),
            lambda: [self.model.act(verb, job_id, operation, at_ms) for job_id in ids],
        )

        assert all(answer == expected for answer, expected in seen)
        assert seen[0] == seen[-1]

    def prune(self, draw: Draw) -> None:
        seen = self._do(lambda store: store.prune(QUEUE), self.model.prune)
        assert all(answer == expected for answer, expected in seen)

    def sweep(self, draw: Draw) -> None:
        self._do(lambda store: store.sweep(QUEUE), self.model.sweep)

    def change_settings(self, draw: Draw) -> None:
        paused = draw.one_of([False, False, False, True])
        self._change_settings(paused, draw.one_of([None, None, 3, 1]))

    def change_holds(self, draw: Draw) -> None:
        """Each hold stays or is lifted, and perhaps there is a new one."""
        stay = [hold for hold in self.model.holds if draw.one_of([True, False])]
        if draw.one_of([True, True, False]):
            self.hold_number += 1
            for_ms = draw.one_of([None, 1, 5_000, LEASE_MS])
            until = None if for_ms is None else self.clock.now_ms + for_ms
            stay.append(HandlerHold(self.hold_number, draw.one_of(HANDLERS), until))
        self._set_holds(stay)

    def _set_holds(self, holds: list[HandlerHold]) -> None:
        self.version += 1
        told = to_setting(Hold(h.id, HoldKind.HANDLER, h.handler, h.until) for h in holds)
        self._do(lambda store: store.publish(QUEUE, self.version, {"holds": told}), lambda: None)
        self.model.holds = holds

    def _change_settings(self, paused: bool, concurrency: int | None) -> None:
        self.version += 1
        fields = {"paused": "1" if paused else "", "concurrency": "" if concurrency is None else concurrency}
        self._do(lambda store: store.publish(QUEUE, self.version, fields), lambda: None)
        self.model.paused, self.model.concurrency = paused, concurrency

    # -- what happens to servers ----------------------------------------------------------------------

    def time_passes(self, draw: Draw) -> None:
        """Supervisors renew all the while, but for the silent ones."""
        self._jump(draw.one_of(JUMPS_MS), silent=draw.some_of(CHILDREN, 0, 2))

    def a_host_is_lost(self, draw: Draw) -> None:
        """With all its children; another's claim finds what they ran."""
        self._jump(LEASE_MS, silent=CHILDREN[:3])
        self._claim(CHILDREN[3], self.requests[CHILDREN[3]], 0)
        for child in CHILDREN[:3]:  # it comes back
            self._renew(child)

    def _jump(self, ms: int, *, silent: Sequence[str]) -> None:
        living = [child for child in self._alive() if child not in silent]
        self.model.now = self.clock.advance(ms)
        self.fault = "once"
        for child in living:
            self._renew(child)

    def scripts_are_forgotten(self, draw: Draw) -> None:
        self.redis.script_flush()

    def a_group_is_lost(self, draw: Draw) -> None:
        lane = draw.one_of(list(Lane))
        stream = keys.ready(QUEUE, lane)
        if self.redis.exists(stream) and self.redis.xgroup_destroy(stream, keys.GROUP):
            self.model.lose_group(lane)
            self.is_damaged = True

    def a_stream_of_running_jobs_is_deleted(self, draw: Draw) -> None:
        """With ready jobs in it, it would take them along: that is loss of data, which `rebuild` mends."""
        lane = draw.one_of(list(Lane))
        if not any(job.lane is lane for job in self.model.in_state(READY)):
            self.redis.delete(keys.ready(QUEUE, lane))
            self.model.lose_stream(lane)
            self.is_damaged = True

    # -- what must hold ---------------------------------------------------------------------------------

    def compare(self) -> None:
        """Each job and each lane is where the model says."""
        pipe = self.redis.pipeline(transaction=False)
        for job_id in IDS:
            pipe.hgetall(keys.job(QUEUE, job_id))
        for lane in Lane:
            pipe.xrange(keys.ready(QUEUE, lane))
        answers = pipe.execute()
        for job_id, fields in zip(IDS, answers, strict=False):
            found = {name.decode(): value.decode() for name, value in fields.items()}
            assert _shown(found) == _expected(self.model.jobs.get(job_id)), job_id
        for lane, entries in zip(Lane, answers[len(IDS) :], strict=True):
            ids = [fields[b"id"].decode() for _, fields in entries]
            assert ids == [entry.job_id for entry in self.model.lanes[lane]], lane

    def end(self) -> None:
        """Let everything run to its end: nothing is lost, and what was damaged has healed."""
        self.fault = "once"
        self._change_settings(False, None)
        self._set_holds([])
        waiting = [job for job in self.model.in_state(JobState.DELAYED) if job.held is None]
        last = max([job.run_at for job in waiting], default=0)
        self.model.now = self.clock.advance(max(4 * LEASE_MS, last - self.clock.now_ms + 1))
        for child in CHILDREN:
            self._renew(child)
        for _ in range(60):
            for child in CHILDREN:
                self.requests[child] += 1
                self._claim(child, self.requests[child], 100)
                self._settle(child, [_outcome("ack", job) for job in self._running().get(child, [])])
            if not self.model.in_state(*LIVE):
                break
        self._do(lambda store: store.sweep(QUEUE), self.model.sweep)
        self.compare()
        assert not self.model.in_state(*LIVE)
        assert counter(self.redis, "late") == self.model.late
        assert_each_job_in_one_place(self.redis)


def _handler(job_id: str) -> str:
    return HANDLERS[int(job_id.removeprefix("job")) % 2]


def _outcome(verb: str, job: Delivery, delay_ms: int = 0) -> Outcome:
    match verb:
        case "ack":
            return Outcome.ack(job, handler="tests.work")
        case "retry":
            return retrying(job, delay_s=delay_ms / 1000, cause=f"cause{len(job.id) % 2}")
        case "snooze":
            return Outcome.snooze(job, delay_s=delay_ms / 1000)
        case "release":
            return Outcome.release(job)
        case "bury":
            return burying(job)
        case "discard":
            return Outcome.discard(job, reason="not wanted")
    return Outcome.start(job)


def _shown(found: dict[str, str]) -> dict[str, object]:
    if not found:
        return {}
    numbers = {name: int(found.get(name, 0)) for name in NUMBERS}
    started = found.get("started", "0") != "0"
    held = found.get("held")
    return {
        "state": found["state"], "child": found.get("child"), "is_started": started, "held": held, **numbers
    }  # fmt: skip


def _expected(job: Job | None) -> dict[str, object]:
    if job is None:
        return {}
    numbers = {name: getattr(job, name) for name in NUMBERS}
    held = None if job.held is None else str(job.held)
    return {"state": job.state, "child": job.child, "is_started": job.is_started, "held": held, **numbers}
