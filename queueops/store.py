"""Writes: one method a verb. Names keys, converts units, and turns answers into errors.

Every method is one script, or several in one round trip, and safe to repeat.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from queueops import keys
from queueops.conf import config
from queueops.connection import Call, Connection, connection
from queueops.errors import StoreUnavailable
from queueops.job import Claimed, Delivery, NewJob, new_job_id, spec_parts
from queueops.scripts import script
from queueops.slots import FireCall, Fired
from queueops.stops import Renewed

#: Jobs in one enqueue script; more go as several scripts of one round trip.
ENQUEUE_BATCH = 100
ENQUEUE_ROUND_TRIP = 500
_DRAIN_KEPT_S = 86_400  # a worker that never reads it is gone
_FIELDS = 8  # of a job in a claim's answer


@dataclass(frozen=True)
class Enqueued:
    """What became of one enqueued job: the state of what is there now.

    `there` is None for a job that was added; else the id of the job that was there before: the
    same id, or the holder of its unique key. `run_at_ms` is of one that was added and is delayed, Unix ms.
    """

    id: str
    state: str
    there: str | None = None
    run_at_ms: int | None = None


@dataclass(frozen=True)
class Outcome:
    """One record of a settlement: a verb of lua/settle.lua with its arguments in their order."""

    verb: str
    job_id: str
    delivery: int
    arguments: tuple[str | bytes | int, ...] = ()

    @classmethod
    def start(cls, job: Delivery) -> Outcome:
        """Its handler starts now."""
        return cls("start", job.id, job.delivery)

    @classmethod
    def ack(cls, job: Delivery, *, handler: str, result: bytes | str = "", ran_ms: int = 0) -> Outcome:
        """The handler returned; `result` is JSON or ''."""
        return cls("ack", job.id, job.delivery, (handler, result, ran_ms))

    @classmethod
    def retry(
        cls, job: Delivery, *, delay_s: float, cause: str, cause_text: str, error: str | bytes,
        policy: str = "", ran_ms: int = 0,
    ) -> Outcome:  # fmt: skip
        """An attempt failed and another is left; `error` is JSON, `policy` is `<name>@<version>`."""
        delay_ms = max(0, round(delay_s * 1000))
        return cls("retry", job.id, job.delivery, (delay_ms, cause, cause_text, error, policy, ran_ms))

    def with_spec(self, spec: bytes) -> Outcome:
        """The same retry with another spec, as when a handler asks for other arguments: a new edition."""
        return replace(self, arguments=(*self.arguments, spec))

    @classmethod
    def snooze(cls, job: Delivery, *, delay_s: float, reason: str = "", unknown: bool = False) -> Outcome:
        """Run again later, no attempt burned; `unknown`: nobody here knows the handler."""
        arguments = (max(0, round(delay_s * 1000)), reason, "1" if unknown else "")
        return cls("snooze", job.id, job.delivery, arguments)

    @classmethod
    def release(cls, job: Delivery, *, reason: str = "stopped") -> Outcome:
        """Give it back unfinished, uncounted."""
        return cls("release", job.id, job.delivery, (reason,))

    @classmethod
    def bury(
        cls, job: Delivery, *, cause: str, cause_text: str, error: str | bytes, is_attempt: bool = True,
        policy: str = "", ran_ms: int = 0,
    ) -> Outcome:  # fmt: skip
        """Give it up; `is_attempt` counts this delivery as an attempt."""
        counted = "1" if is_attempt else "0"
        return cls("bury", job.id, job.delivery, (cause, cause_text, error, counted, policy, ran_ms))

    @classmethod
    def discard(cls, job: Delivery, *, reason: str) -> Outcome:
        """The handler set its own job aside."""
        return cls("discard", job.id, job.delivery, (reason,))


Publish = Callable[["Store", str], None]


class Store:
    """Writes to one Redis. `publish` is asked for a queue's settings when Redis has none.

    `now_ms` moves the clock of every script: '' for Redis TIME; '+N', '-N' or 'N' in tests only.
    """

    def __init__(
        self, conn: Connection | None = None, *, publish: Publish | None = None, now_ms: str = ""
    ) -> None:
        self.connection = conn or connection()
        self.now_ms = now_ms or config().test_now_ms
        self._publish = publish or _publish_hook

    # -- the ground ---------------------------------------------------------------

    def _run(self, name: str, queue: str, rest: Sequence[object] = (), **named: object) -> Any:
        """Run a script; a queue unknown here is registered and published first, once."""
        for attempt in range(3):
            answer = self.connection.run(script(name), queue, rest, now_ms=self.now_ms, **named)
            if answer != b"fresh" and answer != [b"fresh"]:
                return answer
            self.register(queue, again=attempt > 0)
        raise StoreUnavailable(
            f"the settings of queue {queue} vanish from Redis as soon as they are published"
        )

    def _call(self, name: str, queue: str, rest: Sequence[object] = (), **named: object) -> Call:
        found = script(name)
        return found, queue, found.arguments(queue, rest, now_ms=self.now_ms, **named)

    def register(self, queue: str, *, again: bool = False) -> None:
        """Put the queue on the index and publish its settings. Safe to repeat.

        Raises StoreFull or StoreUnavailable.
        """
        keys.check_queue(queue)
        self._put_on_index(queue)
        self._publish(self, queue)

    def _put_on_index(self, queue: str) -> None:
        client = self.connection.client
        with self.connection.translating():
            if not client.sismember(keys.QUEUES, queue):  # a look costs nothing at maxmemory
                client.sadd(keys.QUEUES, queue)

    def publish(self, queue: str, version: int, settings: Mapping[str, object]) -> bool:
        """Write settings of a queue; '' removes one. False when a newer version is there.

        Puts the queue on the index too: a queue with settings is never asked to be registered.
        """
        self._put_on_index(queue)
        pairs = list(itertools.chain.from_iterable(settings.items()))
        answer = self.connection.run(script("publish"), queue, pairs, now_ms=self.now_ms, version=version)
        return bool(answer == b"ok")

    def epoch(self) -> str:
        """The name of this life of the data set, made when there is none."""
        import secrets

        fresh = secrets.token_hex(8)
        client = self.connection.client
        with self.connection.translating():
            client.set(keys.EPOCH, fresh, nx=True)
            found = client.get(keys.EPOCH)
        return (found or b"").decode() if isinstance(found, bytes) else str(found)

    # -- enqueue ------------------------------------------------------------------

    def enqueue(self, queue: str, jobs: Sequence[NewJob], *, actor: str = "") -> list[Enqueued]:
        """Add jobs. A known id is the same job; a held unique key answers its holder.

        Raises StoreFull or StoreUnavailable; then any of them may have been added, and the same
        call may be made again.
        """
        answers: list[Any] = []
        for start in range(0, len(jobs), ENQUEUE_ROUND_TRIP):
            answers += self._enqueue_trip(queue, jobs[start : start + ENQUEUE_ROUND_TRIP], actor)
        words = zip(answers[::3], answers[1::3], answers[2::3], strict=True)
        return [
            Enqueued(job.id, state.decode(), there.decode() or None, run_at_ms or None)
            for job, (state, there, run_at_ms) in zip(jobs, words, strict=True)
        ]

    def _enqueue_trip(self, queue: str, jobs: Sequence[NewJob], actor: str) -> list[Any]:
        if len(jobs) <= ENQUEUE_BATCH:
            found: list[Any] = self._run("enqueue", queue, _new_jobs(jobs), actor=actor)
            return found
        batches = [jobs[i : i + ENQUEUE_BATCH] for i in range(0, len(jobs), ENQUEUE_BATCH)]
        calls = [self._call("enqueue", queue, _new_jobs(batch), actor=actor) for batch in batches]
        answers: list[Any] = []
        failure: Exception | None = None
        for batch, answer in zip(batches, self.connection.run_many(calls), strict=True):
            if answer == b"fresh":
                answer = self._run("enqueue", queue, _new_jobs(batch), actor=actor)
            if isinstance(answer, Exception):
                failure = answer
            else:
                answers += answer
        if failure is not None:
            raise failure
        return answers

    # -- a child's life -------------------------------------------------------------

    def renew(self, queue: str, children: Sequence[str]) -> Renewed:
        """Register children or renew their leases."""
        return Renewed.parse(queue, self._run("renew", queue, children))

    def claim(
        self, queue: str, child: str, *, request: int, limit: int, starts: int | None = None,
        suspects: bool = False, rescuing: bool = True,
    ) -> Claimed:  # fmt: skip
        """Claim up to `limit` (0..100) jobs, `starts` of which start at once.

        The same `request` again gets the same batch; use a higher one for each new claim.
        """
        named = _claim_arguments(child, request, limit, starts, suspects, rescuing)
        return _claimed(queue, self._run("claim", queue, **named))

    def settle(self, queue: str, child: str, outcomes: Sequence[Outcome]) -> list[str]:
        """Report outcomes of a child's deliveries; 'ok' or 'lost' for each."""
        if not outcomes:
            return []
        return [word.decode() for word in self._run("settle", queue, _records(outcomes), child=child)]

    def exchange(
        self, queue: str, child: str, outcomes: Sequence[Outcome], *, request: int, limit: int,
        starts: int | None = None, suspects: bool = False, rescuing: bool = True,
    ) -> tuple[list[str], Claimed]:  # fmt: skip
        """Settle, then claim, in one round trip. Safe to repeat with the same arguments."""
        named = _claim_arguments(child, request, limit, starts, suspects, rescuing)
        if not outcomes:
            return [], _claimed(queue, self._run("claim", queue, **named))
        settle_call = self._call("settle", queue, _records(outcomes), child=child)
        settled, claimed = self.connection.run_many([settle_call, self._call("claim", queue, **named)])
        if settled == b"fresh":
            settled = self._run("settle", queue, _records(outcomes), child=child)
        if claimed == [b"fresh"]:
            claimed = self._run("claim", queue, **named)
        for answer in (settled, claimed):
            if isinstance(answer, Exception):
                raise answer
        return [word.decode() for word in settled], _claimed(queue, claimed)

    def hand_back(
        self, queue: str, child: str, *, why: str, running: Iterable[str] = (), limit: int = 100
    ) -> int:
        """Give back what a dead child held; the number. Less than `limit`: the child is forgotten."""
        return int(self._run("hand_back", queue, list(running), child=child, limit=limit, why=why))

    def take_over(
        self, queue: str, child: str, taker: str, *, token: str, job_id: str, delivery: int
    ) -> tuple[str, Delivery | None]:
        """Start a job, as `taker`, that `child` claimed and handed over: a word, and the job where it is 'ok'
        or 'cancelled'. 'lost': it is not the child's any more; 'unregistered': renew the taker's lease first.
        """
        named: dict[str, Any] = {"id": job_id, "delivery": delivery, "child": child, "taker": taker}
        word, *rest = self._run("take_over", queue, token=token, **named)
        if not rest:
            return word.decode(), None
        attempts, rescues, edition, due, spec = rest
        job = Delivery(
            queue, job_id, delivery, int(attempts), int(rescues), int(edition), True, int(due), spec
        )
        return word.decode(), job

    def nudge(self, queue: str, child: str) -> bool:
        """Take the clock from a stuck keeper and wake others."""
        return bool(self.connection.run(script("nudge"), queue, now_ms=self.now_ms, child=child))

    def look(self, queue: str, child: str, job_id: str, delivery: int, progress: str = "") -> str:
        """'ok', 'cancelled' or 'lost' for a running delivery; keeps its progress ('n/of')."""
        named: dict[str, Any] = {"id": job_id, "child": child, "delivery": delivery, "progress": progress}
        found = script("look")
        answer: bytes = self.connection.run(found, queue, **named)
        return answer.decode()

    # -- what persons do --------------------------------------------------------------

    def act(
        self, verb: str, queue: str, items: Sequence[tuple[str, object]], *, actor: str, reason: str = "",
        operation: str = "", frozen_ms: int | None = None, from_state: str = "",
    ) -> list[str]:  # fmt: skip
        """One verb on many jobs, each (id, argument); a word each (lua/act.lua).

        Without an `operation` the call is one of its own: sent again after a lost answer, it answers
        as it did.
        """
        flat = list(itertools.chain.from_iterable(items))
        if not operation and verb != "purge":  # what is purged carries nothing: again, it is 'missing'
            operation = new_job_id()
        answers = self._run(
            "act", queue, flat, verb=verb, actor=actor, operation=operation, reason=reason,
            frozen_ms="" if frozen_ms is None else frozen_ms, **{"from": from_state},
        )  # fmt: skip
        return [word.decode() for word in answers]

    def requeue(
        self,
        queue: str,
        job_ids: Sequence[str],
        *,
        actor: str,
        delay_s: float = 0,
        reason: str = "",
        operation: str = "",
    ) -> list[str]:
        """Send dead jobs again: a new cycle each, ready, or delayed by `delay_s`."""
        items = [(job_id, round(delay_s * 1000)) for job_id in job_ids]
        return self.act("requeue", queue, items, actor=actor, reason=reason, operation=operation)

    def run_now(
        self, queue: str, job_ids: Sequence[str], *, actor: str, reason: str = "", operation: str = ""
    ) -> list[str]:
        """Let delayed or ready jobs run before all others."""
        return self._plain("run_now", queue, job_ids, actor, reason, operation)

    def reschedule(
        self,
        queue: str,
        job_ids: Sequence[str],
        *,
        run_at_ms: int,
        actor: str,
        reason: str = "",
        operation: str = "",
    ) -> list[str]:
        """Give delayed jobs another run-at, Unix ms. One that is ready already answers 'wrong:ready'."""
        items = [(job_id, run_at_ms) for job_id in job_ids]
        return self.act("reschedule", queue, items, actor=actor, reason=reason, operation=operation)

    def cancel(
        self, queue: str, job_ids: Sequence[str], *, actor: str, reason: str = "", operation: str = ""
    ) -> list[str]:
        """Ask running jobs to stop."""
        return self._plain("cancel", queue, job_ids, actor, reason, operation)

    def edit(
        self, queue: str, job_id: str, spec: bytes, *, actor: str, reason: str = "", operation: str = ""
    ) -> str:
        """Replace a job's spec: a new edition."""
        return self.act("edit", queue, [(job_id, spec)], actor=actor, reason=reason, operation=operation)[0]

    def discard(
        self, queue: str, job_ids: Sequence[str], *, actor: str, reason: str = "", operation: str = ""
    ) -> list[str]:
        """Set delayed, ready or dead jobs aside, restorable."""
        return self._plain("discard", queue, job_ids, actor, reason, operation)

    def restore(
        self, queue: str, job_ids: Sequence[str], *, actor: str, reason: str = "", operation: str = ""
    ) -> list[str]:
        """Put discarded jobs back into the state they had."""
        return self._plain("restore", queue, job_ids, actor, reason, operation)

    def purge(
        self, queue: str, job_ids: Sequence[str], *, actor: str, reason: str = "", operation: str = ""
    ) -> list[str]:
        """Delete discarded jobs now."""
        return self._plain("purge", queue, job_ids, actor, reason, operation)

    def _plain(
        self, verb: str, queue: str, job_ids: Sequence[str], actor: str, reason: str, operation: str
    ) -> list[str]:
        items = [(job_id, "") for job_id in job_ids]
        return self.act(verb, queue, items, actor=actor, reason=reason, operation=operation)

    # -- schedules --------------------------------------------------------------------

    def fire(self, calls: Sequence[FireCall], *, actor: str) -> list[Fired | Exception]:
        """Settle due slots of schedules in one round trip; an answer, or the error, a schedule."""
        packed = [self._call("fire", call.queue, call.rest(), actor=actor, **call.named()) for call in calls]
        answers: list[Fired | Exception] = []
        for call, answer in zip(calls, self.connection.run_many(packed), strict=True):
            try:
                if answer == [b"fresh"]:
                    answer = self._run("fire", call.queue, call.rest(), actor=actor, **call.named())
                answers.append(answer if isinstance(answer, Exception) else Fired.parse(answer))
            except Exception as error:  # one schedule's, which must not keep the others from their slots
                answers.append(error)
        return answers

    def rebuild(self, queue: str, jobs: Sequence[Sequence[object]], *, actor: str) -> list[str]:
        """Let jobs that Redis lost come back, each as lua/lib/rebuild.lua reads it; a word each.

        'ok', 'known', or 'held:<id>' where another job holds its unique key.
        """
        answers = self._run("rebuild", queue, list(itertools.chain.from_iterable(jobs)), actor=actor)
        return [word.decode() for word in answers]

    # -- housekeeping -----------------------------------------------------------------

    def prune(self, queue: str, *, limit: int = 200) -> int:
        """Delete discarded jobs whose keep time is over; how many."""
        return int(self._run("prune", queue, limit=limit))

    def sweep(self, queue: str, *, limit: int = 200) -> tuple[int, int, int, bool]:
        """Adopt what no lease covers: adopted, dropped, children forgotten, whether it is through."""
        adopted, dropped, forgotten, through = self._run("sweep", queue, limit=limit)
        return int(adopted), int(dropped), int(forgotten), through == b"1"

    def drain(self, worker: str) -> None:
        """Ask a worker to finish what runs and stop; it reads so with its next heartbeat."""
        self.connection.client.set(keys.drain(worker), "1", ex=_DRAIN_KEPT_S)

    def pace(self, task: str, job_id: str, interval_s: float) -> float:
        """The turn of a job of a task that may start once an interval: seconds until it, 0 for now."""
        named: dict[str, Any] = {"id": job_id, "interval_us": max(1, round(interval_s * 1e6))}
        return int(self.connection.run(script("pace"), keys.pace(task), now_ms=self.now_ms, **named)) / 1e6

    def take_lease(self, role: str, holder: str, ttl_s: float) -> int:
        """Take or keep the single-runner lease of `role`; its term, or 0 when another holds it."""
        named: dict[str, Any] = {"holder": holder, "ttl_ms": round(ttl_s * 1000)}
        return int(self.connection.run(script("lease"), keys.lease(role), **named))

    def give_lease(self, role: str, holder: str) -> None:
        """Give a lease up, if it is this holder's."""
        self.connection.run(script("lease"), keys.lease(role), holder=holder, ttl_ms=0)


def use_publisher(publish: Publish) -> None:
    """Ask `publish` for a queue's settings from now on. Called once, when Django is ready."""
    global _publish_hook
    _publish_hook = publish


def publish_defaults(store: Store, queue: str) -> None:
    """Publish the settings of a queue that no database row describes."""
    store.publish(queue, 0, default_settings(store))


_publish_hook: Publish = publish_defaults


def default_settings(store: Store) -> dict[str, object]:
    """The fields of Q:settings by `conf`; times in ms."""
    conf = config()
    return {
        "lease_ms": round(conf.lease_s * 1000),
        "done_keep_ms": round(conf.done_keep_s * 1000),
        "discarded_keep_ms": round(conf.discarded_keep_s * 1000),
        "max_rescues": conf.max_rescues,
        "audit": conf.audit,
        "events_max": conf.events_max,
        "epoch": store.epoch(),
    }


def _new_jobs(jobs: Iterable[NewJob]) -> list[object]:
    flat: list[object] = []
    for job in jobs:
        parts = spec_parts(job.spec, delayed=job.run_at_ms is not None)
        flat += (
            job.id,
            "" if job.run_at_ms is None else job.run_at_ms,
            job.lane.value,
            job.unique,
            "" if job.unique_for_ms is None else job.unique_for_ms,
            "" if job.expires_ms is None else job.expires_ms,
            len(parts),
            *parts,
        )
    return flat


def _records(outcomes: Iterable[Outcome]) -> list[object]:
    flat: list[object] = []
    for outcome in outcomes:
        flat += (outcome.verb, outcome.job_id, outcome.delivery, len(outcome.arguments), *outcome.arguments)
    return flat


def _claim_arguments(
    child: str, request: int, limit: int, starts: int | None, suspects: bool, rescuing: bool
) -> dict[str, Any]:
    return {
        "child": child,
        "request": request,
        "limit": limit,
        "starts": limit if starts is None else starts,
        "suspects": "1" if suspects else "0",
        "rescuing": "1" if rescuing else "0",
    }


def _claimed(queue: str, answer: list[Any]) -> Claimed:
    word, version, wait_us, keeper, server_us = answer[:5]
    flat = answer[5:]
    jobs = [
        Delivery(queue, i.decode(errors="replace"), int(d), int(a), int(r), int(e), s == 1, int(due), spec)
        for i, d, a, r, e, s, due, spec in zip(*[iter(flat)] * _FIELDS, strict=True)
    ]
    wait = int(wait_us)
    return Claimed(
        word.decode(), int(version), None if wait < 0 else wait, keeper == b"1", int(server_us), jobs
    )
