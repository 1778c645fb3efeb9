"""Jobs in each state, children that claim them, and reads of what the engine wrote.

All of it goes through `Store`, as production code does: a test starts from a state that can exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from queueops import keys
from queueops.job import Claimed, Delivery, NewJob, new_job_id
from queueops.states import JobState, Lane
from queueops.store import Outcome, Store

#: A bytes client. redis-py types each reply as a union of what any client of any protocol may answer.
Redis: TypeAlias = Any

QUEUE = "mail"
SPEC = b'{"handler": "tests.work", "args": [], "kwargs": {}}'
PERSON = "user:7"


class Clock:
    """The time that a Store's scripts see, in Unix ms: it stands still until a test moves it."""

    def __init__(self, now_ms: int) -> None:
        self.start_ms = self.now_ms = now_ms
        self._stores: list[Store] = []

    def drive(self, store: Store) -> Store:
        """Let `store` see this clock."""
        store.now_ms = str(self.now_ms)
        self._stores.append(store)
        return store

    def advance(self, ms: int) -> int:
        """Move by `ms`; return the new time."""
        self.now_ms += ms
        for store in self._stores:
            store.now_ms = str(self.now_ms)
        return self.now_ms


@dataclass
class Child:
    """A child process as Redis sees it: a name, its request number, what it last claimed."""

    store: Store
    name: str
    queue: str = QUEUE
    request: int = 0
    suspects: bool = False
    held: dict[str, Delivery] = field(default_factory=dict)

    def register(self) -> Child:
        """Have a supervisor renew its lease."""
        self.store.renew(self.queue, [self.name])
        return self

    def claim(
        self, limit: int = 1, *, starts: int | None = None, rescuing: bool = True, again: bool = False
    ) -> Claimed:
        """Claim with the next request number, or the last one `again`."""
        if limit and not again:
            self.request += 1
        answer = self.store.claim(
            self.queue,
            self.name,
            request=self.request,
            limit=limit,
            starts=starts,
            suspects=self.suspects,
            rescuing=rescuing,
        )
        self.held |= {job.id: job for job in answer.jobs}
        return answer

    def take(self, limit: int = 100) -> list[Delivery]:
        """Claim, and return the jobs."""
        return self.claim(limit).jobs

    def settle(self, *outcomes: Outcome) -> list[str]:
        return self.store.settle(self.queue, self.name, outcomes)

    def ack(self, *jobs: Delivery, result: str = "") -> list[str]:
        return self.settle(*[Outcome.ack(job, handler="tests.work", result=result, ran_ms=3) for job in jobs])

    def retry(self, *jobs: Delivery, delay_s: float = 5, cause: str = "boom") -> list[str]:
        return self.settle(*[retrying(job, delay_s=delay_s, cause=cause) for job in jobs])

    def snooze(self, *jobs: Delivery, delay_s: float = 10, unknown: bool = False) -> list[str]:
        return self.settle(
            *[Outcome.snooze(job, delay_s=delay_s, reason="later", unknown=unknown) for job in jobs]
        )

    def release(self, *jobs: Delivery) -> list[str]:
        return self.settle(*[Outcome.release(job) for job in jobs])

    def bury(self, *jobs: Delivery, cause: str = "boom", is_attempt: bool = True) -> list[str]:
        return self.settle(*[burying(job, cause=cause, is_attempt=is_attempt) for job in jobs])

    def discard(self, *jobs: Delivery) -> list[str]:
        return self.settle(*[Outcome.discard(job, reason="not wanted") for job in jobs])

    def die(self, *, ran: Iterable[str] = (), why: str = "SIGKILL") -> int:
        """Have its supervisor hand back all it held; return how many jobs."""
        given = total = self.store.hand_back(self.queue, self.name, why=why, running=ran)
        while given >= 100:
            given = self.store.hand_back(self.queue, self.name, why=why, running=ran)
            total += given
        self.held.clear()
        return total


def retrying(job: Delivery, *, delay_s: float = 5, cause: str = "boom") -> Outcome:
    text, error = f"{cause}: it failed", error_json(cause)
    return Outcome.retry(
        job, delay_s=delay_s, cause=cause, cause_text=text, error=error, policy="default@1", ran_ms=3
    )


def burying(job: Delivery, *, cause: str = "boom", is_attempt: bool = True) -> Outcome:
    text, error = f"{cause}: it failed", error_json(cause)
    return Outcome.bury(
        job, cause=cause, cause_text=text, error=error, is_attempt=is_attempt, policy="default@1", ran_ms=3
    )


def error_json(cause: str) -> str:
    return f'{{"class": "{cause}", "message": "it failed", "traceback": ""}}'


# -- jobs in each state -------------------------------------------------------------------------


def new(job_id: str | None = None, **fields: Any) -> NewJob:
    """A job that nobody has enqueued yet."""
    fields.setdefault("spec", SPEC)
    return NewJob(job_id or new_job_id(), **fields)


def seed_ready(
    store: Store, *ids: str, queue: str = QUEUE, lane: Lane = Lane.NORMAL, **fields: Any
) -> list[str]:
    store.enqueue(queue, [new(job_id, lane=lane, **fields) for job_id in ids], actor="tests")
    return list(ids)


def seed_delayed(store: Store, *ids: str, run_at_ms: int, queue: str = QUEUE, **fields: Any) -> list[str]:
    store.enqueue(queue, [new(job_id, run_at_ms=run_at_ms, **fields) for job_id in ids], actor="tests")
    return list(ids)


def seed_pending(child: Child, *ids: str, **fields: Any) -> list[Delivery]:
    """Ready jobs that `child` claims; it must find no others."""
    seed_ready(child.store, *ids, queue=child.queue, **fields)
    jobs = child.register().take(len(ids))
    assert [job.id for job in jobs] == list(ids)
    return jobs


def seed_dead(child: Child, *ids: str, cause: str = "boom", **fields: Any) -> list[str]:
    child.bury(*seed_pending(child, *ids, **fields), cause=cause)
    return list(ids)


def seed_discarded(store: Store, *ids: str, queue: str = QUEUE, **fields: Any) -> list[str]:
    seed_ready(store, *ids, queue=queue, **fields)
    assert store.discard(queue, ids, actor=PERSON) == ["ok"] * len(ids)
    return list(ids)


# -- settings and reads ---------------------------------------------------------------------------


def set_up(store: Store, queue: str = QUEUE, **settings: object) -> None:
    """Publish settings of the queue, each as `Q:settings` holds it; '' removes one."""
    store.register(queue)
    version = int(store.connection.client.hget(keys.queue_key(queue, "settings"), "version") or 0)
    assert store.publish(queue, version + 1, settings)


def job(redis: Redis, job_id: str, queue: str = QUEUE) -> dict[str, str]:
    """The job's hash as text; empty when there is none."""
    fields = redis.hgetall(keys.job(queue, job_id))
    return {name.decode(): value.decode("utf-8", "replace") for name, value in fields.items()}


def state(redis: Redis, job_id: str, queue: str = QUEUE) -> str | None:
    return job(redis, job_id, queue).get("state")


def ids_in(redis: Redis, where: JobState, queue: str = QUEUE) -> list[str]:
    """Ids of a sorted set in its order, or of all lanes in the order in which they are read."""
    if where is JobState.READY:
        return [job_id for lane in Lane for job_id in ids_in_lane(redis, lane, queue)]
    return [member.decode() for member in redis.zrange(keys.jobs_in(queue, where), 0, -1)]


def ids_in_lane(redis: Redis, lane: Lane, queue: str = QUEUE) -> list[str]:
    """Ids of the jobs of a lane that are ready, oldest first."""
    stream = keys.ready(queue, lane)
    held: set[bytes] = set()
    if redis.exists(stream) and redis.xinfo_groups(stream):
        held = {entry["message_id"] for entry in redis.xpending_range(stream, keys.GROUP, "-", "+", 100_000)}
    return [fields[b"id"].decode() for entry, fields in redis.xrange(stream) if entry not in held]


def run_at(redis: Redis, job_id: str, queue: str = QUEUE) -> Any:
    return redis.zscore(keys.jobs_in(queue, JobState.DELAYED), job_id)


def events(redis: Redis, job_id: str | None = None, queue: str = QUEUE) -> list[dict[str, str]]:
    """The events, of one job or of all, oldest first."""
    entries = redis.xrange(keys.queue_key(queue, "events"))
    found = [
        {name.decode(): value.decode("utf-8", "replace") for name, value in fields.items()}
        for _, fields in entries
    ]
    return [event for event in found if job_id in (None, event["id"])]


def verbs(redis: Redis, job_id: str | None = None, queue: str = QUEUE) -> list[str]:
    return [event["verb"] for event in events(redis, job_id, queue)]


def counter(redis: Redis, name: str, queue: str = QUEUE) -> int:
    """A counter of all time."""
    return int(redis.hget(keys.queue_key(queue, "stats_total"), name) or 0)


def failing(redis: Redis, cause: str = "boom", queue: str = QUEUE) -> int:
    return int(redis.hget(keys.cause(queue, cause), "failing") or 0)


def token_waits(redis: Redis, queue: str = QUEUE) -> bool:
    return bool(redis.llen(keys.queue_key(queue, "wake")))


def take_token(redis: Redis, queue: str = QUEUE) -> bool:
    """Pop the token, as a waiting worker's BLPOP does."""
    return redis.lpop(keys.queue_key(queue, "wake")) is not None


def clock_of(redis: Redis, queue: str = QUEUE) -> dict[str, str]:
    """keeper, alarm and token_at, as far as they are there."""
    return {
        name.decode(): value.decode() for name, value in redis.hgetall(keys.queue_key(queue, "clock")).items()
    }


def holders(redis: Redis, queue: str = QUEUE) -> dict[str, int]:
    """How many entries each consumer of the lanes holds."""
    found: dict[str, int] = {}
    for lane in Lane:
        stream = keys.ready(queue, lane)
        if not redis.exists(stream):
            continue
        for group in redis.xinfo_groups(stream):
            for consumer in redis.xinfo_consumers(stream, group["name"]):
                name = consumer["name"].decode()
                found[name] = found.get(name, 0) + consumer["pending"]
    return found
