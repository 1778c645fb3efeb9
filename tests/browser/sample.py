"""A site with something of everything on it: for screenshots and for walks over all pages.

Jobs go through the engine and the record through the mirror, so that every page shows what could really be.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from queueops import keys, models, operations, publishing
from queueops.causes import Failure
from queueops.inspector import Inspector
from queueops.job import Delivery, NewJob, new_job_id
from queueops.mirror import catch_up
from queueops.operations import Plan, Selection
from queueops.payload import encode_spec
from queueops.states import Lane
from queueops.store import Outcome, Store

_RANDOM = random.Random(7)
_REQUESTS = itertools.count(1)

TRACE = """Traceback (most recent call last):
  File "shop/hooks.py", line 88, in deliver
    response = client.post(url, json=body, timeout=10)
  File "httpx/_client.py", line 1144, in post
    return self.request("POST", url)
httpx.ConnectTimeout: timed out after 10.0 s"""

FAILURES = [
    Failure(
        "httpx.ConnectTimeout",
        "timed out after 10.0 s",
        TRACE,
        "3f2a91bc77d0",
        "ConnectTimeout: timed out after <n> s",
    ),
    Failure(
        "HTTPStatusError",
        "503 Service Unavailable",
        TRACE,
        "a1b2c3d4e5f6",
        "HTTPStatusError: <n> Service Unavailable",
    ),
    Failure("HTTPStatusError", "410 Gone", TRACE, "0badc0de1234", "HTTPStatusError: <n> Gone"),
    Failure("KeyError", "signing_key", TRACE, "77aa88bb99cc", "KeyError: <str>"),
]
WORKERS = ["app-1:4121:k3f9q2", "app-2:977:m81xw0"]


@dataclass
class Sample:
    """Makes the sample; `ids` names some of its jobs by what they show."""

    store: Store
    now_ms: int = 0
    ids: dict[str, str] = field(default_factory=dict)

    def fill(self, *, scale: int = 1) -> Sample:
        """Make queues, jobs in every state, causes, workers, a record, operations and actions."""
        self.now_ms = Inspector(self.store.connection).now_ms()
        for queue in ("webhooks", "mail", "billing", "crm-sync", "reports"):
            self.store.register(queue)
        self._policies()
        self._dead(64 * scale)
        self._history()
        self._delayed(180 * scale)
        self._running()
        self._ready(31)
        self._discarded(9)
        self._schedules()
        for queue in ("webhooks", "mail", "billing", "crm-sync", "reports"):
            catch_up(self.store, queue)
        self._people()
        return self

    def _policies(self) -> None:
        policy = models.RetryPolicy(name="external-api", delays_s=[5, 30, 300, 3_600], jitter_ratio=0.1)
        for ratio in (0.1, 0.15, 0.2):  # the third version is the one in force
            policy.jitter_ratio = ratio
            publishing.save_policy(
                policy, actor="user:1", actor_name="dana", reason="spread the retries more"
            )

    # -- jobs -----------------------------------------------------------------------------------------

    def _hook(self, i: int) -> bytes:
        event = _RANDOM.choice(["order.paid", "order.shipped", "refund.made"])
        return encode_spec(
            "webhook.deliver",
            ["https://api.partner.example/hooks"],
            {
                "json": {"event": event, "order": 77_000 + i, "customer": f"c{_RANDOM.randrange(9000)}"},
                "headers": {"Authorization": "Bearer s3cr3t-token"},
            },
            policy="external-api",
            tags={"customer": str(8_800 + i % 50)},
        )  # fmt: skip

    def _put(
        self, queue: str, specs: list[bytes], *, delays_ms: list[int] | None = None, lane: Lane = Lane.NORMAL
    ) -> list[str]:
        jobs = []
        for i, spec in enumerate(specs):
            run_at = f"+{delays_ms[i]}" if delays_ms else None
            jobs.append(NewJob(new_job_id(), spec, run_at_ms=run_at, lane=lane))
        self.store.enqueue(queue, jobs, actor="sample")
        return [job.id for job in jobs]

    def _child(self, queue: str, worker: str = WORKERS[0], n: int = 1) -> tuple[str, int]:
        child = f"{worker}/{n}"
        self.store.renew(queue, [child])
        return child, next(_REQUESTS)

    def _take(self, queue: str, limit: int, *, worker: str = WORKERS[0]) -> tuple[str, list[Delivery]]:
        child, request = self._child(queue, worker)
        return child, self.store.claim(queue, child, request=request, limit=min(100, limit)).jobs

    def _history(self) -> None:
        """Let jobs finish and fail, so that charts and figures have something to show."""
        for queue, count, failing in (
            ("webhooks", 60, 9),
            ("mail", 90, 1),
            ("billing", 20, 0),
            ("crm-sync", 16, 3),
        ):
            self._put(queue, [self._hook(i) for i in range(count)])
            child, jobs = self._take(queue, count)
            failed = jobs[:failing]
            self.store.settle(
                queue,
                child,
                [
                    Outcome.ack(
                        job, handler="webhook.deliver", result='"ok"', ran_ms=_RANDOM.randrange(3, 900)
                    )
                    for job in jobs[failing:]
                ],
            )
            self.store.settle(queue, child, [self._retry(job, 1, 60_000) for job in failed])
        # Past minutes of the statistics: the engine writes them as they pass, for which this has no time.
        pipe = self.store.connection.client.pipeline(transaction=False)
        minute = self.now_ms // 60_000
        for queue, rate, bad in (
            ("webhooks", 240, 0.04),
            ("mail", 700, 0.002),
            ("billing", 26, 0.03),
            ("crm-sync", 12, 0.2),
            ("reports", 2, 0.0),
        ):
            for ago in range(1, 60):
                storm = queue == "webhooks" and ago < 12
                fails = round(rate * (0.6 if storm else bad) * _RANDOM.uniform(0.5, 1.4))
                done = round(rate * (0.5 if storm else 1) * _RANDOM.uniform(0.7, 1.1))
                cause = FAILURES[0].cause
                pipe.hset(
                    keys.stats(queue, minute - ago),
                    mapping={"done": done, "failed": fails, f"failed:{cause}": fails, "enqueued": done},
                )
                pipe.expire(keys.stats(queue, minute - ago), 90_000)
        pipe.execute()

    def _retry(self, job: Delivery, which: int, delay_ms: int, ran_ms: int = 412) -> Outcome:
        failure = FAILURES[which]
        return Outcome.retry(
            job,
            delay_s=delay_ms / 1000,
            cause=failure.cause,
            cause_text=failure.cause_text,
            error=failure.to_json(),
            policy="external-api@3",
            ran_ms=ran_ms,
        )

    def _delayed(self, count: int) -> None:
        storm = [
            _RANDOM.gauss(1_500_000, 120_000) if i % 2 else _RANDOM.uniform(5_000, 3_500_000)
            for i in range(count)
        ]
        ids = self._put(
            "webhooks",
            [self._hook(i) for i in range(count)],
            delays_ms=[max(1000, round(at)) for at in storm],
        )
        self.ids["delayed"] = ids[0]
        reminders = [encode_spec("mail.send", [f"ada{i}@example.com", "reminder"]) for i in range(count // 2)]
        self._put("mail", reminders, delays_ms=[round(_RANDOM.uniform(1e4, 3.4e6)) for _ in reminders])
        self._put(
            "crm-sync",
            [encode_spec("crm.sync_contact", [i, "Béla"]) for i in range(12)],
            delays_ms=[i * 90_000 for i in range(1, 13)],
        )

    def _dead(self, count: int) -> None:
        """Let jobs fail five times over the last hour, on one worker after another, until they are dead."""
        share = max(1, count // 4)
        for ago_s in (5_900, 4_700, 4_100, 3_960):
            self._lives(share, ago_s)
        for n in range(1, 6):
            for worker in WORKERS:
                self.store.renew("webhooks", [f"{worker}/{n}"])

    def _lives(self, count: int, ago_s: float) -> None:
        at_ms = -round(ago_s * 1000)
        store = Store(self.store.connection, now_ms=str(at_ms))
        specs = [self._hook(i) for i in range(count)]
        store.enqueue("webhooks", [NewJob(new_job_id(), spec) for spec in specs], actor="sample")
        for attempt, wait_s in enumerate((5.6, 27.1, 301, 3_540, 0), 1):
            child = f"{WORKERS[attempt % 2]}/{attempt}"
            store = Store(self.store.connection, now_ms=str(at_ms + 9))
            store.renew("webhooks", [child])
            jobs = store.claim("webhooks", child, request=next(_REQUESTS), limit=count).jobs
            ran_ms = 10_004 if attempt > 3 else _RANDOM.randrange(300, 700)
            store = Store(self.store.connection, now_ms=str(at_ms + 9 + ran_ms))
            if wait_s:
                which = 1 if attempt < 4 else 0
                store.settle(
                    "webhooks", child, [self._retry(job, which, round(wait_s * 1000), ran_ms) for job in jobs]
                )
                at_ms += 9 + ran_ms + round(wait_s * 1000)
                continue
            bury = []
            for i, job in enumerate(jobs):
                failure = FAILURES[0] if i % 8 else FAILURES[2 + (i // 8) % 2]
                bury.append(
                    Outcome.bury(
                        job,
                        cause=failure.cause,
                        cause_text=failure.cause_text,
                        error=failure.to_json(),
                        policy="external-api@3",
                        ran_ms=ran_ms,
                    )
                )
            store.settle("webhooks", child, bury)
            self.ids["dead"] = jobs[1].id
        self.ids["cause"] = FAILURES[0].cause

    def _running(self) -> None:
        for queue, count in (("webhooks", 12), ("mail", 5), ("billing", 2)):
            self._put(queue, [self._hook(i) for i in range(count)])
            child, jobs = self._take(queue, count, worker=WORKERS[1])
            for i, job in enumerate(jobs[:3]):
                self.store.look(queue, child, job.id, job.delivery, f"{i * 30}/100")
            if queue == "webhooks":
                self.ids["pending"] = jobs[0].id
        client = self.store.connection.client
        for i, worker in enumerate(WORKERS):
            about = {
                "host": worker.split(":")[0], "pid": int(worker.split(":")[1]), "version": "0.1.0",
                "queues": "all",
                "processes": 2, "concurrency": 16, "draining": False, "rss_mb": 182 + 31 * i,
                "fetched_s_ago": 0.2 if i else 95,
            }  # fmt: skip
            client.zadd(keys.WORKERS, {worker: self.now_ms})
            client.hset(keys.WORKER_INFO, worker, json.dumps(about))

    def _ready(self, count: int) -> None:
        self.ids["ready"] = self._put("webhooks", [self._hook(i) for i in range(count)])[0]
        self._put("crm-sync", [encode_spec("crm.sync_contact", [i, "Jūratė"]) for i in range(14)])

    def _discarded(self, count: int) -> None:
        ids = self._put("webhooks", [self._hook(i) for i in range(count)])
        self.store.discard("webhooks", ids, actor="user:1", reason="customer left; ticket 4411")
        self.ids["discarded"] = ids[0]

    def _schedules(self) -> None:
        """Make two schedules whose slots of late have run, but for one that ran late and one left out."""
        now = timezone.now().replace(second=0, microsecond=0)
        for key, queue, handler, rule, every in (
            ("nightly-report", "reports", "reports.nightly", "0 3 * * *", timedelta(days=1)),
            ("sync-contacts", "crm-sync", "crm.sync_contact", "*/15 * * * *", timedelta(minutes=15)),
        ):
            row = models.Schedule.objects.create(key=key, queue=queue, handler=handler, rule=rule)
            last = now.replace(hour=3, minute=0) if every.days else now.replace(minute=now.minute // 15 * 15)
            last -= every if last + timedelta(minutes=2) > now else timedelta()
            row.next_slot_at = last + every
            row.save(update_fields=["next_slot_at"])
            for ago in range(40):
                at = last - ago * every
                if ago == 9:
                    row.slots.create(slot_at=at, state="skipped", reason="left out by dana")
                    continue
                started = at + timedelta(minutes=4 if ago == 23 else 0, seconds=1)
                row.slots.create(
                    slot_at=at,
                    state="late" if ago == 23 else "ran",
                    queue=queue,
                    job_id=f"{key}-{ago}",
                    fired_at=started,
                    started_at=started,
                    finished_at=started + timedelta(seconds=_RANDOM.uniform(8, 40)),
                    outcome="done",
                )

    # -- what people did ---------------------------------------------------------------------------------

    def _people(self) -> None:
        actor = User.objects.order_by("pk").first()
        who: dict[str, Any] = {
            "actor": f"user:{actor.pk if actor else 1}",
            "actor_name": actor.username if actor else "alice",
        }
        publishing.pause(
            "reports",
            reason="warehouse is migrating; ticket 881",
            until=timezone.now() + timedelta(hours=2),
            **who,
        )
        publishing.change_queue(
            "webhooks",
            {"concurrency": 64, "rate_per_s": 40.0},
            reason="partner asked for it",
            verb="edit_limits",
            **who,
        )
        cause = FAILURES[2].cause
        row = operations.start(
            "requeue",
            Selection(state="dead", cause=cause),
            Plan(canary=2, stop_share=0.5),
            reason="partner is back",
            **who,
        )
        operations.Runner(row.pk).run_guarded(float("inf"))
        self.ids["operation"] = row.pk
        done = operations.start(
            "discard",
            Selection(queue="webhooks", state="dead", cause=FAILURES[3].cause),
            reason="never valid",
            **who,
        )
        operations.Runner(done.pk).run_guarded(float("inf"))
        models.OperatorAction.objects.create(
            verb="reveal",
            queue="webhooks",
            job_id=self.ids["dead"],
            count=1,
            reason="checking the header",
            **who,
        )
        for queue in ("webhooks", "reports"):
            catch_up(self.store, queue)
