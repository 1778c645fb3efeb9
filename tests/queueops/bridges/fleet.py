"""A Celery fleet for tests: real Celery workers, and workers of QueueOps that hand jobs to them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psutil

from queueops import client, keys
from queueops.connection import Connection
from queueops.inspector import Inspector
from queueops.job import Job
from queueops.local_redis import LocalServer, find_binary
from queueops.states import JobState
from queueops.store import Store, publish_defaults
from tests import settings as run
from tests.queueops.bridges import cases
from tests.queueops.bridges.ground import FOLDER, Ground, Started, eventually, start

QUEUE = "fleet"
LEASE_S = 4
REDIS_SOCKET, BROKER_SOCKET = run.RUN_DIR / "fleet.sock", run.RUN_DIR / "broker.sock"
os.environ["FLEET_BROKER"] = str(BROKER_SOCKET)


@dataclass
class Fleet:
    """Celery workers, and workers of QueueOps that hand jobs to them."""

    ground: Ground
    broker: LocalServer
    env: dict[str, str]
    connection: Connection
    started: list[Started] = field(default_factory=list)
    celery: dict[str, Started] = field(default_factory=dict)
    hands: list[Started] = field(default_factory=list)

    @property
    def inspector(self) -> Inspector:
        return Inspector(self.connection)

    @property
    def store(self) -> Store:
        return Store(self.connection, publish=publish_defaults)

    # -- processes --------------------------------------------------------------------------------

    def begin(self, name: str, processes: int = 2) -> None:
        """Start a Celery worker."""
        self.celery[name] = self._start(
            name, "-m", "celery", "-A", "tests.queueops.bridges.fleet_app", "worker", "-c", str(processes),
            "--without-mingle", "--without-gossip", "--loglevel", "INFO", "-n", f"{name}@h",
        )  # fmt: skip

    def begin_hands(self) -> Started:
        """Start a worker of QueueOps that hands jobs over."""
        self.hands.append(
            self._start("hands", "manage.py", "runworkers", "--executor", "celery", "--no-housekeeping")
        )
        return self.hands[-1]

    def _start(self, name: str, *command: str) -> Started:
        self.started.append(start(self.ground.folder / f"{name}-{len(self.started)}.log", self.env, *command))
        return self.started[-1]

    def whole(self, *names: str, hands: int = 1) -> Fleet:
        """Let it be these Celery workers and so many that hand over; wait until all know each other."""
        for name in names:
            if name not in self.celery or self.celery[name].process.poll() is not None:
                self._forget(name)
                self.begin(name)
        self.hands = [each for each in self.hands if each.process.poll() is None]
        while len(self.hands) < hands:
            self.begin_hands()
        eventually(lambda: self.members() == {f"{name}@h" for name in names}, what=self.logs, within=80)
        for name in names:
            for each in self.hands:
                eventually(partial(knows, each, name), what=self.logs)
        return self

    def _forget(self, name: str) -> None:
        """Wait until nobody takes a worker that was killed for its successor."""
        eventually(lambda: f"{name}@h" not in self.members(), what=self.logs)
        for each in self.hands:
            if each.process.poll() is None:
                eventually(lambda hand=each: not knows(hand, name), what=self.logs)  # type: ignore[misc]

    def members(self) -> set[str]:
        names: Any = self.connection.client.smembers("queueops:fleet")
        return {
            name.decode()
            for name in names
            if self.connection.client.exists(f"queueops:fleet:{name.decode()}")
        }

    def pool(self, name: str) -> list[psutil.Process]:
        return psutil.Process(self.celery[name].process.pid).children()

    def kill(self, name: str) -> None:
        """Kill a Celery worker −9: its parent process, with which its pool dies."""
        process = self.celery.pop(name).process
        process.kill()
        process.wait()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let no Celery worker do anything in the block."""
        for each in self.celery.values():
            each.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for each in self.celery.values():
                each.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        for each in self.started:
            if each.process.poll() is None:
                each.process.send_signal(signal.SIGCONT)
                each.process.terminate()
        for each in self.started:
            each.stop(within=5)

    def logs(self) -> str:
        return "\n".join(f"--- {each.log_path.name}\n{each.log[-2500:]}" for each in self.started)

    # -- jobs -------------------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **options: Any) -> Job:
        return client.put(client.JobSpec(f"cases.{name}", args, queue=QUEUE, **options))

    def job(self, job: Job) -> Job:
        found = self.inspector.job(QUEUE, job.id)
        assert found is not None
        return found

    def wait_for(self, job: Job, state: JobState = JobState.DONE, *, within: float = 30.0) -> Job:
        eventually(
            lambda: self.job(job).state == state,
            within=within,
            what=lambda: f"{self.job(job)}\n{self.logs()}",
        )
        return self.job(job)

    def notes(self, key: str, what: str = "run") -> list[dict[str, Any]]:
        return [note for note in cases.notes(FOLDER, "fleet", key) if note["what"] == what]

    def wait_for_runs(self, key: str, number: int) -> list[dict[str, Any]]:
        eventually(lambda: len(self.notes(key)) >= number, what=self.logs, within=30)
        return self.notes(key)

    def is_idle(self) -> bool:
        counts = self.inspector.counts(QUEUE)
        return not any(counts[state] for state in (JobState.DELAYED, JobState.READY, JobState.PENDING))

    def clear_broker(self) -> None:
        """Drop what killed workers left: kombu would send it again in the middle of another test."""
        with self.broker.client() as redis:
            redis.delete("unacked", "unacked_index", *redis.scan_iter("queueops.*"))

    def events(self) -> list[dict[bytes, bytes]]:
        """What happened in the queue during this test."""
        client: Any = self.connection.client
        return [fields for _, fields in client.xrange(keys.queue_key(QUEUE, "events"))]

    def releases(self) -> list[bytes]:
        """Why jobs were given back."""
        return [event.get(b"reason", b"") for event in self.events() if event[b"verb"] == b"release"]

    def in_broker(self) -> int:
        """Messages that wait in the broker, and those that a worker took and did not acknowledge."""
        with self.broker.client() as redis:
            waiting = [
                redis.llen(name) for name in redis.scan_iter("queueops.*") if redis.type(name) == b"list"
            ]
            return int(sum(waiting) + redis.hlen("unacked"))


def knows(hands: Started, name: str) -> bool:
    """Whether its child has heard that this Celery worker joined, and not that it left."""
    words = [
        line.split(f"{name}@h ")[1].split()[0] for line in hands.log.splitlines() if f"/1: {name}@h " in line
    ]
    return words[-1:] == ["joined"]


@contextmanager
def begun(site: Ground) -> Iterator[Fleet]:
    """A fleet without workers yet, its broker, and a Redis of its own: a worker that other tests started
    serves every queue that it finds."""
    binary, folder = find_binary("redis"), run.RUN_DIR / "fleet"
    options = {"appendonly": "no"}
    with (
        LocalServer(
            folder / "redis", binary=binary, port=None, unix_socket=REDIS_SOCKET, options=options
        ) as redis,
        LocalServer(
            folder / "broker", binary=binary, port=None, unix_socket=BROKER_SOCKET, options=options
        ) as broker,
    ):
        ground = Ground(redis, site.folder, {})
        ground.env |= {
            **site.env,
            "REDIS_URL": ground.url,
            "QUEUEOPS_HANDLERS": "tests.queueops.bridges.fleet_app",
            "QUEUEOPS_LEASE_S": str(LEASE_S),
            "FLEET_BROKER": str(BROKER_SOCKET),
            "CELERY_BROKER_URL": f"redis+socket://{BROKER_SOCKET}?virtual_host=0",
        }
        fleet = Fleet(ground, broker, ground.env, Connection(ground.url))
        try:
            yield fleet
        finally:
            fleet.end()
