"""Bulk actions: one verb on many jobs, step by step, so that it survives whoever runs it.

A row of Operation holds everything: the filter, the instant at which the set was frozen, how far the
walk has come, and the step that is being done. A step is written down before it is done, and its
result together with the next step's plan; each job carries the operation's id. So a step that was
cut short is done again and answers the same, and two runners at once do no harm.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from random import uniform
from typing import Any

import uuid_utils
from django.db import transaction
from django.utils import timezone
from redis.exceptions import RedisError

from queueops.connection import Connection
from queueops.errors import QueueOpsError, StoreUnavailable
from queueops.inspector import Inspector
from queueops.job import to_ms
from queueops.models import Operation, OperatorAction
from queueops.plans import RUNNING, SPREADING, Plan
from queueops.policies import retry_delay_s
from queueops.selection import VERBS, Selection, Walker, count, count_quickly, freeze
from queueops.store import Store
from queueops.tallies import asked, outcomes, outcomes_of, tally
from queueops.worker.rules import policy_now

log = logging.getLogger(__name__)

#: Jobs in a step, and in one script: a script's length is everybody else's latency (under 5 ms).
STEP, SCRIPT = 500, 50
#: Pages that a step looks at when nothing matches.
_PAGES = 20
#: Of the jobs that it sent, the last so many are watched for failing again; so many may be out
#: before it is known how they do; so many must have ended for a judgement.
_WATCHED, _OUT, _JUDGED = 200, 100, 10
#: A cancel waits to see who obeys: so long when it only asks, and so long after the hard way began. Seconds.
SEEN_S, STOPPED_S = 5.0, 60.0
Status = Operation.Status


def start(
    verb: str,
    selection: Selection,
    plan: Plan | None = None,
    *,
    actor: str,
    actor_name: str = "",
    reason: str = "",
    total: int | None = None,
    conn: Connection | None = None,
) -> Operation:
    """Freeze the set and write the operation down; a runner does it. Return its row.

    `total` is the number that a person was shown, where a set's size does not say it.
    Raises ValueError for what can't be meant, StoreUnavailable when Redis is away.
    """
    plan = plan or Plan()
    plan.check(verb)
    Selection.for_verb(verb, **_given(selection))
    inspector = Inspector(conn)
    frozen_ms = freeze(inspector, selection)
    quick = count_quickly(inspector, selection)
    total = quick if quick is not None else total
    if total is None and selection.ids:
        total = count(inspector, selection, verb)
    with transaction.atomic():
        operation = Operation.objects.create(
            id=uuid_utils.uuid7().hex,
            verb=verb,
            queue=selection.queue,
            from_state=selection.state,
            filter=selection.to_json(),
            arguments=plan.to_json(),
            frozen_ms=frozen_ms,
            total=total,
            cursor={"v": 0},
            actor=actor,
            reason=reason,
        )
        OperatorAction.objects.create(
            actor=actor,
            actor_name=actor_name,
            verb=verb,
            queue=selection.queue,
            job_id=selection.ids[0] if len(selection.ids) == 1 else "",
            filter={"state": selection.state, **selection.to_json()},
            count=total or 0,
            reason=reason,
            operation=operation.id,
        )
    return operation


def _given(selection: Selection) -> dict[str, Any]:
    return {"queue": selection.queue, "state": selection.state, **selection.to_json()}


def pause(operation_id: str) -> bool:
    """Let an operation rest after its step; whether it could."""
    return _set_status(operation_id, (Status.WAITING, Status.RUNNING), Status.PAUSED)


def resume(operation_id: str) -> bool:
    """Let a paused operation go on, past its canary too; whether it could."""
    return _set_status(operation_id, (Status.PAUSED,), Status.RUNNING, error="")


def cancel(operation_id: str) -> bool:
    """End an operation where it is; whether it could. What it did stays done."""
    return _set_status(operation_id, Operation.OPEN, Status.CANCELLED, finished_at=timezone.now())


def _set_status(operation_id: str, sources: Sequence[str], target: str, **more: object) -> bool:
    rows = Operation.objects.filter(pk=operation_id, status__in=sources)
    return rows.update(status=target, updated_at=timezone.now(), **more) == 1


def run_once(*, budget_s: float = 0.5, conn: Connection | None = None) -> int:
    """Do what open operations have to do, for about `budget_s`; return how many jobs were done.

    One that can't go on for a reason of its own has failed and says so; the others go on.
    Raises StoreUnavailable when Redis is away.
    """
    deadline = time.monotonic() + budget_s
    rows = Operation.objects.filter(status__in=[Status.WAITING, Status.RUNNING]).order_by("created_at")
    rows = rows.exclude(verb="backfill")  # of schedules: the scheduler's
    done = 0
    for operation_id in list(rows.values_list("pk", flat=True)[:100]):
        done += Runner(operation_id, conn=conn).run_guarded(deadline)
    return done


class Runner:
    """Does one operation, a step at a time."""

    def __init__(
        self, operation_id: str, *, conn: Connection | None = None, store: Store | None = None
    ) -> None:
        self.store = store or Store(conn)
        self.inspector = Inspector(self.store.connection, now_ms=self.store.now_ms)
        self.row = Operation.objects.get(pk=operation_id)

    @property
    def is_open(self) -> bool:
        """Whether there is anything left to do without a person."""
        return self.row.status in {Status.WAITING, Status.RUNNING}

    def run_guarded(self, deadline: float) -> int:
        """Do steps until `deadline` (monotonic seconds); an error of its own ends the operation."""
        done = 0
        try:
            while self.is_open:
                did = self.step()
                done += did
                if time.monotonic() >= deadline or (not did and self.wait_s() > 0):
                    break
        except StoreUnavailable:
            raise
        except (QueueOpsError, RedisError, ValueError, TypeError, KeyError) as error:
            log.exception("operation %s failed", self.row.pk)
            now = timezone.now()
            _set_status(self.row.pk, Operation.OPEN, Status.FAILED, error=str(error), finished_at=now)
            self.row.refresh_from_db()
        return done

    def run(self, *, say: Callable[[Operation], None] | None = None) -> Operation:
        """Do all of it here, telling of its progress; until it has ended or waits for a person."""
        self.row.refresh_from_db()
        while self.is_open:
            self.step()
            if say is not None:
                say(self.row)
            if self.is_open and (wait_s := self.wait_s()) > 0:
                time.sleep(min(wait_s, 1.0))
        return self.row

    def wait_s(self) -> float:
        """Seconds until the rate lets the next job through, or to look again how the last ones do."""
        cursor = self.row.cursor
        if cursor.get("waits"):
            return 0.5
        if (rate := self._rate()) is None:
            return 0.0
        tokens = self._tokens(rate)
        return 0.0 if cursor.get("step") or tokens >= 1 else (1 - tokens) / rate

    # -- one step -------------------------------------------------------------------

    def step(self) -> int:
        """Do the step that is written down, then write down its result with the plan of the next one."""
        self.row.refresh_from_db()
        if not self.is_open:
            return 0
        cursor = dict(self.row.cursor)
        plan = cursor.pop("step", None)
        results, done, skipped = dict(self.row.results), self.row.done, self.row.skipped
        if plan is not None:
            words = self._act(plan)
            missing = plan.get("missing", [])
            taken = tally(results, [*plan["ids"], *missing], [*words, *["missing"] * len(missing)])
            done, skipped = done + taken, skipped + len(words) + len(missing) - taken
            self._watch(cursor, plan, words)
        else:
            taken = 0
        ending = self._ending(cursor, results, done)
        if ending is None and not self._plan_next(cursor, done):
            ending = self._close(cursor, results)
        self._write(cursor, results, done, skipped, ending)
        return taken

    def _write(
        self,
        cursor: dict[str, Any],
        results: dict[str, Any],
        done: int,
        skipped: int,
        ending: tuple[str, str] | None,
    ) -> None:
        """Compare and set by the cursor's version: another runner may have done the same step."""
        now = timezone.now()
        version = self.row.cursor["v"]
        here = Operation.objects.filter(pk=self.row.pk, cursor__v=version)
        is_through = ending is not None and ending[0] == Status.FINISHED
        total = done + skipped if is_through and self.row.total is None else self.row.total
        with transaction.atomic():
            wrote = here.update(
                cursor={**cursor, "v": version + 1},
                results=results,
                done=done,
                skipped=skipped,
                total=total,
                updated_at=now,
            )
            if wrote and self.row.started_at is None:
                mine = Operation.objects.filter(pk=self.row.pk, started_at=None)
                mine.update(started_at=now)
            if wrote and self.row.status == Status.WAITING:
                _set_status(self.row.pk, (Status.WAITING,), Status.RUNNING)
            if wrote and ending is not None:
                status, why = ending
                finished_at = None if status == Status.PAUSED else now
                _set_status(self.row.pk, (Status.RUNNING,), status, error=why, finished_at=finished_at)
        self.row.refresh_from_db()

    def _act(self, plan: dict[str, Any]) -> list[str]:
        words: list[str] = []
        items = list(zip(plan["ids"], plan["arguments"], strict=True))
        for start in range(0, len(items), SCRIPT):
            words += self.store.act(
                self.row.verb,
                plan["queue"],
                items[start : start + SCRIPT],
                actor=self.row.actor,
                reason=self.row.reason,
                operation=self.row.pk,
                frozen_ms=self.row.frozen_ms,
                from_state=self.row.from_state,
            )
        return words

    # -- what comes next ------------------------------------------------------------

    def _plan_next(self, cursor: dict[str, Any], done: int) -> bool:
        """Put the next step into the cursor where there is one; False when the walk is through."""
        if self.row.total is None and not cursor.get("counted"):
            return self._count_on(cursor)
        room = self._room(cursor, done)
        if room < 1:
            return True
        walker = self._walker()
        if "queues" not in cursor:
            cursor["queues"] = walker.queues()
        for _ in range(_PAGES):
            if not cursor["queues"]:
                return False
            queue = cursor["queues"][0]
            found = walker.page(queue, cursor.get("at"), cursor.get("until"))
            ids, missing = found.ids[:room], found.missing
            cursor["at"] = found.at
            if len(ids) < len(found.ids):  # what is not taken now is met again
                cursor["at"] = ids[-1][1]
                missing = [each for each in missing if int(each[1]) <= int(ids[-1][1])]
            cursor["until"] = found.until
            if cursor["at"] is None:
                cursor["queues"] = cursor["queues"][1:]
                cursor["until"] = None
            if ids or missing:
                cursor["step"] = {
                    "queue": queue,
                    "ids": [job_id for job_id, _ in ids],
                    "arguments": self._arguments(queue, [job_id for job_id, _ in ids]),
                    "missing": [job_id for job_id, _ in missing],
                }
                self._pay(cursor, len(ids))
                return True
        return True  # nothing yet: how far it has come is written down

    def _count_on(self, cursor: dict[str, Any]) -> bool:
        """Count some of the set, which nobody could know without looking at each job."""
        walker = self._walker()
        counting = dict(cursor.get("counting") or {"queues": walker.queues(), "n": 0})
        for _ in range(_PAGES):
            if not counting["queues"]:
                break
            found = walker.page(counting["queues"][0], counting.get("at"), counting.get("until"))
            counting["n"] += len(found.ids)
            counting["at"], counting["until"] = found.at, found.until
            if found.at is None:
                counting["queues"] = counting["queues"][1:]
                counting["at"] = counting["until"] = None
        cursor["counting"] = counting
        if not counting["queues"]:
            del cursor["counting"]
            cursor["counted"] = True
            self.row.total = counting["n"]
        return True

    def _walker(self) -> Walker:
        selection = Selection.from_json(self.row.queue, self.row.from_state, self.row.filter)
        return Walker(self.inspector, selection, frozen_ms=self.row.frozen_ms, operation=self.row.pk)

    def _arguments(self, queue: str, ids: Sequence[str]) -> list[int | str]:
        """What the verb needs for each of these jobs."""
        if self.row.verb == "cancel":
            return [self._how_to_stop()] * len(ids)
        if not self.row.arguments.get("policy"):
            return [self._argument() for _ in ids]
        policy = policy_now(self.store.connection, self.row.arguments["policy"])
        spread_s = float(self.row.arguments.get("spread_s") or 60)
        times: list[int | str] = []
        for job in self.inspector.jobs(queue, ids):
            soonest = self.row.frozen_ms + uniform(0, spread_s) * 1000
            if job is not None and job.since is not None and job.attempts:
                delay_s = retry_delay_s(policy, min(job.attempts, policy.max_retries or 1))
                soonest = max(soonest, to_ms(job.since) + delay_s * 1000)
            times.append(round(soonest))
        return times

    def _argument(self) -> int | str:
        """What the verb needs for one job: a delay or a run-at, spread where that was asked for."""
        given = self.row.arguments
        spread_ms = uniform(0, float(given.get("spread_s") or 0)) * 1000
        if self.row.verb == "requeue":
            return round(float(given.get("delay_s") or 0) * 1000 + spread_ms)
        if self.row.verb == "reschedule":
            # From when the set was frozen, so that a repeat of the step means the same.
            at_ms = given.get("run_at_ms")
            if at_ms is None:
                at_ms = self._begun_ms() + float(given.get("delay_s") or 0) * 1000
            return round(float(at_ms) + spread_ms)
        return ""

    def _how_to_stop(self) -> str:
        """What lua/lib/cancel.lua needs."""
        after_s = self.row.arguments.get("stop_after_s")
        if after_s is None:
            return ""
        action = OperatorAction.objects.filter(operation=self.row.pk).first()
        return f"{round(float(after_s) * 1000)} {(action and action.actor_name) or self.row.actor}"

    def _begun_ms(self) -> int:
        older_s = self.row.filter.get("older_than_s") or 0
        return self.row.frozen_ms + round(older_s * 1000)

    # -- how fast, how far ----------------------------------------------------------

    def _rate(self) -> float | None:
        """Jobs a second, or None; a spread of a verb that can't delay its jobs is a rate."""
        given = self.row.arguments
        rate = given.get("rate")
        spread_s = given.get("spread_s")
        if spread_s and self.row.verb not in SPREADING and self.row.total:
            by_spread = self.row.total / spread_s
            rate = min(rate, by_spread) if rate else by_spread
        return float(rate) if rate else None

    def _tokens(self, rate: float, now_ms: int | None = None) -> float:
        """What the rate has let through and nobody has used; a second's worth at most."""
        bucket = self.row.cursor.get("bucket")
        if bucket is None:
            return 1.0
        now_ms = self.inspector.now_ms() if now_ms is None else now_ms
        passed_s = max(0, now_ms - bucket["at_ms"]) / 1000
        return float(min(max(1.0, rate), bucket["tokens"] + passed_s * rate))

    def _room(self, cursor: dict[str, Any], done: int) -> int:
        """Jobs that the next step may have."""
        room = STEP
        canary = self.row.arguments.get("canary")
        cursor["waits"] = False
        if self.row.arguments.get("stop_share"):
            room = _OUT - outcomes_of(self.inspector, cursor)[2]
            cursor["waits"] = room < 1
        if canary and not cursor.get("canary_done"):
            room = min(room, max(1, canary - done))
        if (rate := self._rate()) is not None:
            now_ms = self.inspector.now_ms()
            tokens = self._tokens(rate, now_ms)
            cursor["bucket"] = {"tokens": round(tokens, 6), "at_ms": now_ms}
            room = min(room, int(tokens))
        return room

    def _pay(self, cursor: dict[str, Any], n: int) -> None:
        if bucket := cursor.get("bucket"):
            cursor["bucket"] = {**bucket, "tokens": bucket["tokens"] - n}

    # -- when it ends or rests before its end ---------------------------------------

    def _watch(self, cursor: dict[str, Any], plan: dict[str, Any], words: Sequence[str]) -> None:
        """Remember the last jobs that it sent, to see whether they fail again."""
        if self.row.verb not in RUNNING:
            return
        sent = [
            [plan["queue"], job_id] for job_id, word in zip(plan["ids"], words, strict=True) if word == "ok"
        ]
        cursor["watched"] = [*cursor.get("watched", []), *sent][-_WATCHED:]

    def _ending(self, cursor: dict[str, Any], results: dict[str, Any], done: int) -> tuple[str, str] | None:
        """The status in which it stops now and why, or None to go on."""
        given = self.row.arguments
        share = given.get("stop_share")
        if share and cursor.get("watched"):
            failed, well, _ = outcomes_of(self.inspector, cursor)
            results["again"] = {"failed": failed, "done": well}
            ended = failed + well
            if ended >= min(_JUDGED, given.get("canary") or _JUDGED) and failed > share * ended:
                why = f"stopped by itself: of its last {ended} jobs that ended, {failed} failed again"
                return Status.STOPPED, why
        canary = given.get("canary")
        if canary and not cursor.get("canary_done") and done >= canary:
            cursor["canary_done"] = True
            return Status.PAUSED, f"{done} done as a canary: look how they do, then let it go on"
        return None

    def _close(self, cursor: dict[str, Any], results: dict[str, Any]) -> tuple[str, str] | None:
        """The end of a walk that is through; a cancel stays open while jobs that it asked still run."""
        if self.row.verb != "cancel":
            return Status.FINISHED, ""
        answers = results["answers"] = asked(self.inspector, self.row.pk, self._walker().queues())
        now_ms = self.inspector.now_ms()
        through_ms = cursor.setdefault("through_ms", now_ms)
        after_s = self.row.arguments.get("stop_after_s")
        patience_s = SEEN_S if after_s is None else float(after_s) + STOPPED_S
        if not answers["running"]:
            return Status.FINISHED, ""
        if now_ms - through_ms >= patience_s * 1000:
            return Status.FINISHED, f"{answers['running']} of them still run"
        cursor["waits"] = True
        return None


__all__ = [
    "SCRIPT",
    "STEP",
    "VERBS",
    "Plan",
    "Runner",
    "Selection",
    "cancel",
    "count",
    "outcomes",
    "pause",
    "resume",
    "run_once",
    "start",
]
