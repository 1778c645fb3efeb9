"""A Celery fleet as executor: real Celery workers, killed, stopped, cut off from their broker."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psutil
import pytest
from pytest_django import Settings

from queueops import client, doctor, keys
from queueops.bridges.celery.fleet.presence import Member, Presence
from queueops.connection import Connection
from queueops.inspector import Inspector
from queueops.job import Job
from queueops.local_redis import LocalServer, find_binary
from queueops.policies import RetryPolicy
from queueops.states import JobState
from queueops.store import Store, publish_defaults
from tests import settings as run
from tests.queueops.bridges import cases
from tests.queueops.bridges.conftest import FOLDER, Ground, Started, eventually, start

QUEUE = "fleet"
LEASE_S = 2
BROKER_SOCKET = run.RUN_DIR / "broker.sock"
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
                self.begin(name)
        self.hands = [each for each in self.hands if each.process.poll() is None]
        while len(self.hands) < hands:
            self.begin_hands()
        eventually(lambda: self.members() == {f"{name}@h" for name in names}, what=self.logs, within=40)
        for name in names:
            for each in self.hands:
                eventually(partial(_knows, each, name), what=self.logs)
        return self

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


def _knows(hands: Started, name: str) -> bool:
    """Whether its child has heard that this Celery worker joined, and not that it left."""
    words = [
        line.split(f"{name}@h ")[1].split()[0] for line in hands.log.splitlines() if f"/1: {name}@h " in line
    ]
    return words[-1:] == ["joined"]


@pytest.fixture(scope="module")
def _fleet(ground: Ground) -> Iterator[Fleet]:
    folder = run.RUN_DIR / "broker"
    with LocalServer(
        folder,
        binary=find_binary("redis"),
        port=None,
        unix_socket=BROKER_SOCKET,
        options={"appendonly": "no"},
    ) as broker:
        env = {
            **ground.env,
            "QUEUEOPS_HANDLERS": "tests.queueops.bridges.fleet_app",
            "QUEUEOPS_LEASE_S": str(LEASE_S),
            "FLEET_BROKER": str(BROKER_SOCKET),
            "CELERY_BROKER_URL": f"redis+socket://{BROKER_SOCKET}?virtual_host=0",
        }
        fleet = Fleet(ground, broker, env, Connection(ground.url))
        yield fleet
        fleet.end()


@pytest.fixture
def fleet(_fleet: Fleet, here: Ground, settings: Settings, key: str) -> Iterator[Fleet]:
    """A queue without jobs, with a lease of 2 s; whole() gives it its workers."""
    settings.QUEUEOPS = {**settings.QUEUEOPS, "LEASE_S": LEASE_S}
    _fleet.store.register(QUEUE)
    _fleet.clear_broker()
    _fleet.connection.client.xtrim(keys.queue_key(QUEUE, "events"), maxlen=0, approximate=False)
    yield _fleet
    for each in (key, f"{key}-2"):  # of a test that failed: the next one shall not see its jobs
        here.let_go(each)
    eventually(_fleet.is_idle, what=lambda: f"{_fleet.inspector.counts(QUEUE)}\n{_fleet.logs()}", within=60)
    findings = doctor.examine(_fleet.connection, server=False)
    assert [str(finding) for finding in findings if finding.severity == "error"] == []


def test_jobs_run_in_celery_workers(fleet: Fleet, key: str) -> None:
    fleet.whole("a", "b")

    retried = [fleet.call("countdown", key, 0.2, 1) for _ in range(4)]
    values = {"add": 3, "asynchronous": 2, "soft_caught": "cleaned up"}
    single = {
        name: fleet.call(name, key, *args)
        for name, args in (("add", (1, 2)), ("asynchronous", (1,)), ("soft_caught", ()))
    }

    for job in retried:
        assert fleet.wait_for(job).result == "after 1"
    for name, job in single.items():
        assert fleet.wait_for(job).result == values[name]
    context = fleet.wait_for(fleet.call("context", key)).result
    assert (context["queue"], context["retries"], context["called_directly"]) == (QUEUE, 0, False)
    failed = fleet.wait_for(fleet.call("fails", key), JobState.DEAD)
    assert failed.error is not None
    assert failed.error["message"] == "never works"


def test_plain_tasks_run_beside_jobs(fleet: Fleet, key: str) -> None:
    from tests.queueops.bridges.fleet_app import app

    fleet.whole("a", "b")

    app.tasks["cases.follow"].apply_async((5, key))
    fleet.wait_for(fleet.call("add", key, 1, 2))

    eventually(lambda: fleet.notes(key, "follow"), what=fleet.logs)


def test_no_more_is_handed_over_than_the_fleet_is_free_to_run(fleet: Fleet, key: str) -> None:
    fleet.whole("a", "b")
    held = [fleet.call("holds", key) for _ in range(12)]
    fleet.wait_for_runs(key, 4)

    assert fleet.inspector.counts(QUEUE)[JobState.PENDING] == 4
    assert fleet.in_broker() == 0
    assert len({note["pid"] for note in fleet.notes(key)}) == 4  # both workers, all of their processes
    urgent = fleet.call("add", key, 1, 2, priority="high")
    fleet.ground.let_go(key)
    fleet.wait_for(urgent)
    assert fleet.inspector.counts(QUEUE)[JobState.READY] > 0  # it did not wait for them
    for job in held:
        fleet.wait_for(job)
    assert len(fleet.notes(key, "effect")) == 12
    assert fleet.releases() == []  # nor was any claimed for nothing


def test_what_comes_back_unstarted_makes_nobody_claim_more_than_there_is_room_for(
    fleet: Fleet, key: str
) -> None:
    fleet.whole("a", "b")
    jobs = [fleet.call("holds", key) for _ in range(4)]
    fleet.wait_for_runs(key, 4)
    presence = Presence(fleet.connection)
    presence.say(keys.FLEET, "ghost@h", Member("ghost@h", "queueops.ghost@h", 2).to_json())
    eventually(lambda: _knows(fleet.hands[0], "ghost"), what=fleet.logs)

    jobs += [fleet.call("holds", key) for _ in range(8)]
    eventually(lambda: fleet.in_broker() == 2, what=fleet.logs)  # nobody reads the queue of this one
    presence.leave(keys.FLEET, "ghost@h")
    eventually(lambda: len(fleet.releases()) >= 2, what=fleet.logs)

    fleet.ground.let_go(key)
    for job in jobs:
        fleet.wait_for(job)
    assert fleet.releases() == [b"ghost@h is gone"] * 2  # none for want of a free slot
    assert len(fleet.notes(key)) == 12


def test_a_pause_acts_at_once(fleet: Fleet, key: str) -> None:
    fleet.whole("a", "b")
    running = [fleet.call("holds", key) for _ in range(4)]
    fleet.wait_for_runs(key, 4)
    waiting = fleet.call("add", key, 1, 2)

    _set(fleet, paused="1")
    fleet.ground.let_go(key)

    for job in running:
        fleet.wait_for(job)
    assert fleet.job(waiting).state == JobState.READY
    _set(fleet, paused="")
    fleet.wait_for(waiting)


def _set(fleet: Fleet, **settings: object) -> None:
    version = int(fleet.connection.client.hget("queueops:{fleet}:settings", "version") or 0)
    assert fleet.store.publish(QUEUE, version + 1, settings)


def test_a_pool_process_that_is_killed_gives_its_job_back_at_once(fleet: Fleet, key: str) -> None:
    fleet.whole("a", "b")
    job = fleet.call("holds", key)
    pid = fleet.wait_for_runs(key, 1)[0]["pid"]
    neighbour = fleet.call("holds", f"{key}-2")
    fleet.wait_for_runs(f"{key}-2", 1)

    os.kill(pid, signal.SIGKILL)
    killed_at = time.time()

    again = fleet.wait_for_runs(key, 2)[1]
    assert again["at"] - killed_at < LEASE_S  # it did not wait for the end of a lease
    fleet.ground.let_go(key)
    fleet.ground.let_go(f"{key}-2")
    assert (fleet.wait_for(job).rescues, fleet.wait_for(neighbour).rescues) == (1, 0)
    assert len(fleet.notes(key, "effect")) == 1


def test_a_job_that_kills_its_process_every_time_is_dead(fleet: Fleet, key: str) -> None:
    fleet.whole("a", "b")

    job = fleet.wait_for(fleet.call("dies", key, int(signal.SIGSEGV)), JobState.DEAD)

    assert (job.cause, job.rescues) == ("poison", 4)
    assert "SIGSEGV" in str(job.error)
    assert len(fleet.notes(key)) == 4


def test_a_hard_limit_ends_the_process_and_costs_an_attempt(fleet: Fleet, key: str) -> None:
    fleet.whole("a", "b")
    policy = RetryPolicy(name="once", max_retries=1, delays_s=(0.1,))

    job = fleet.wait_for(fleet.call("hard", key, policy=policy), JobState.DEAD)

    assert (job.cause, job.attempts, job.rescues) == ("timeout", 2, 0)
    assert len(fleet.notes(key)) == 2


def test_a_message_that_is_delivered_twice_runs_once(fleet: Fleet, key: str) -> None:
    fleet.whole("a", "b")
    job = fleet.call("holds", key)
    fleet.wait_for_runs(key, 1)
    (hand,) = Presence(fleet.connection).hands()

    _send_again(fleet, job, hand, "b")  # while it runs
    _send_again(fleet, job, hand, "a")
    eventually(
        lambda: sum(each.log.count("is not to be run here: lost") for each in fleet.celery.values()) >= 2,
        what=fleet.logs,
    )
    fleet.ground.let_go(key)
    fleet.wait_for(job)
    _send_again(fleet, job, hand, "b")  # and after it ended

    eventually(
        lambda: sum(each.log.count("is not to be run here: lost") for each in fleet.celery.values()) >= 3,
        what=fleet.logs,
    )
    assert (len(fleet.notes(key)), len(fleet.notes(key, "effect"))) == (1, 1)


def _send_again(fleet: Fleet, job: Job, hand: str, name: str) -> None:
    from queueops.bridges.celery.fleet import WRAPPER, own_queue
    from tests.queueops.bridges.fleet_app import app

    app.tasks[WRAPPER].apply_async(
        (QUEUE, hand, job.id, fleet.job(job).delivery), queue=own_queue(f"{name}@h")
    )


def test_a_message_that_is_lost_costs_seconds(fleet: Fleet, key: str) -> None:
    fleet.whole("a", "b")
    presence = Presence(fleet.connection)
    # The most welcoming of all, and nobody reads its queue.
    presence.say(keys.FLEET, "ghost@h", Member("ghost@h", "queueops.ghost@h", 100).to_json())
    eventually(lambda: _knows(fleet.hands[0], "ghost"), what=fleet.logs)

    job = fleet.call("add", key, 1, 2)

    found = fleet.wait_for(job)
    assert (found.result, found.attempts, found.rescues) == (3, 0, 0)
    assert found.delivery > 1
    assert "ghost@h" not in fleet.members()


def test_j07_a_job_that_was_handed_over_can_be_cancelled_until_it_starts(fleet: Fleet, key: str) -> None:
    fleet.whole("a", "b")
    with fleet.stopped():
        job = fleet.call("holds", key)
        fleet.wait_for(job, JobState.PENDING)

        assert fleet.store.cancel(QUEUE, [job.id], actor="user:1") == ["ok"]

    assert fleet.wait_for(job, JobState.DISCARDED).reason == "cancelled before it started"
    assert fleet.notes(key) == []


def test_a_running_job_hears_that_it_is_cancelled(fleet: Fleet, key: str) -> None:
    fleet.whole("a", "b")
    job = fleet.call("watches", key)
    eventually(lambda: fleet.job(job).progress == "1/2", what=fleet.logs)

    fleet.store.cancel(QUEUE, [job.id], actor="user:1")

    assert fleet.wait_for(job).result == "cancelled: True"


def test_j01_a_delay_longer_than_the_visibility_timeout_is_no_message(fleet: Fleet, key: str) -> None:
    fleet.whole("a", "b")
    began = time.time()
    job = fleet.call("holds", key, delay=7)  # over three visibility timeouts, and redis-py's 5 s of silence
    fleet.ground.let_go(key)

    while time.time() < began + 6.5:
        assert fleet.in_broker() == 0
        time.sleep(0.2)

    fleet.wait_for(job)
    (note,) = fleet.notes(key)
    assert 7 <= note["at"] - began < 8.5


# -- the end of workers ---------------------------------------------------------------------------------


def test_a_celery_worker_that_is_killed_loses_no_job(fleet: Fleet, key: str) -> None:
    fleet.whole("a", "b")
    jobs = [fleet.call("holds", key) for _ in range(8)]
    runs = fleet.wait_for_runs(key, 4)
    pool = {process.pid for process in fleet.pool("a")}
    lost = [note for note in runs if note["pid"] in pool]
    assert len(lost) == 2

    fleet.kill("a")
    fleet.ground.let_go(key)

    for job in jobs:
        fleet.wait_for(job)
    assert sum(fleet.job(job).rescues for job in jobs) == 2
    assert len(fleet.notes(key, "effect")) == 8  # what died had no effect yet
    assert len(fleet.notes(key)) == 10


def test_j05_a_celery_worker_that_is_asked_to_stop_fails_no_job(fleet: Fleet, key: str) -> None:
    fleet.whole("a", "b")
    jobs = [fleet.call("holds", key) for _ in range(10)]
    fleet.wait_for_runs(key, 4)

    stopped = fleet.celery.pop("a")
    stopped.process.terminate()
    eventually(lambda: fleet.members() == {"b@h"}, what=fleet.logs)
    fleet.ground.let_go(key)

    for job in jobs:
        found = fleet.wait_for(job)
        assert (found.attempts, found.rescues) == (0, 0)
    assert stopped.stop() == 0
    assert len(fleet.notes(key, "effect")) == len(fleet.notes(key)) == 10


def test_jobs_go_on_without_the_worker_that_handed_them_over(fleet: Fleet, key: str) -> None:
    fleet.whole("a", "b")
    jobs = [fleet.call("holds", key) for _ in range(6)]
    fleet.wait_for_runs(key, 4)

    (hands,) = fleet.hands
    for process in [
        *psutil.Process(hands.process.pid).children(recursive=True),
        psutil.Process(hands.process.pid),
    ]:
        process.kill()
    hands.process.wait()
    time.sleep(LEASE_S * 1.5)  # its own leases end; those of the fleet go on
    fleet.whole("a", "b")
    fleet.ground.let_go(key)

    for job in jobs:
        found = fleet.wait_for(job)
        assert (found.attempts, found.rescues) == (0, 0)
    assert len(fleet.notes(key)) == 6


def test_a_lost_broker_stops_the_handing_over_and_nothing_else(fleet: Fleet, key: str) -> None:
    fleet.whole("a", "b")
    running = fleet.call("holds", key)
    fleet.wait_for_runs(key, 1)

    fleet.broker.kill()
    waiting = fleet.call("add", key, 1, 2)
    eventually(lambda: "the broker is away" in fleet.hands[0].log, what=fleet.logs)
    fleet.ground.let_go(key)
    assert fleet.wait_for(running).rescues == 0
    fleet.broker.start()

    found = fleet.wait_for(waiting, within=60)
    assert (found.result, found.attempts, found.rescues) == (3, 0, 0)
    assert len(fleet.notes(key)) == 1
