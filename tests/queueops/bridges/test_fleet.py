"""A Celery fleet as executor: real Celery workers, killed, stopped, cut off from their broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil

from queueops import keys
from queueops.bridges.celery.fleet.presence import Member, Presence
from queueops.connection import Connection
from queueops.job import Job
from queueops.policies import RetryPolicy
from queueops.states import JobState
from tests.queueops.bridges.fleet import LEASE_S, QUEUE, Fleet, knows
from tests.queueops.bridges.ground import Ground, Started, eventually, start


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
    for job in (urgent, *held):
        fleet.wait_for(job)
    claimed = [event[b"id"].decode() for event in fleet.events() if event[b"verb"] == b"claim"]
    assert claimed.index(urgent.id) == 4  # the next one, before the eight that waited already
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
    eventually(lambda: knows(fleet.hands[0], "ghost"), what=fleet.logs)

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

    fleet.wait_for_runs(key, 2)
    (rescue,) = [event for event in fleet.events() if event[b"verb"] == b"rescue"]
    assert rescue[b"reason"] == b"SIGKILL"  # it was told, and did not wait for the end of a lease
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


def test_the_workers_of_the_sites_own_app_join_the_fleet(ground: Ground) -> None:
    words = ["-m", "celery", "-A", "dashboard", "worker", "-c", "1", "--loglevel", "INFO", "-n", "site@h"]
    broker = f"redis+socket://{ground.server.unix_socket}?virtual_host=8"
    worker = start(ground.folder / "site.log", {**ground.env, "CELERY_BROKER_URL": broker}, *words)
    try:
        presence = Presence(Connection(ground.url))
        eventually(lambda: "site@h" in presence.members(), what=lambda: worker.log, within=80)
    finally:
        worker.stop()


_PLAIN_APP = """
import queueops.bridges.celery
from celery import Celery
app = Celery("alone", broker={url!r}, backend={url!r})
@app.task(name="alone.double")
def double(x):
    return 2 * x
"""


def test_a_celery_worker_without_a_django_project_runs_its_own_tasks_and_says_what_it_does_not(
    ground: Ground, tmp_path: Path
) -> None:
    url = f"redis+socket://{ground.server.unix_socket}?virtual_host=7"
    (tmp_path / "alone.py").write_text(_PLAIN_APP.format(url=url))
    env = {name: value for name, value in ground.env.items() if name != "DJANGO_SETTINGS_MODULE"}
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), os.getcwd()])
    worker = start(
        tmp_path / "alone.log", env, "-m", "celery", "-A", "alone", "worker", "-c", "1", "-l", "INFO"
    )
    try:
        call = "from alone import double; print(double.delay(4).get(timeout=60))"
        found = subprocess.run(
            [sys.executable, "-c", call], env=env, capture_output=True, text=True, check=True
        )
        assert found.stdout == "8\n"
        eventually(lambda: worker.log.count("runs no jobs of QueueOps: ") == 1, what=lambda: worker.log)
    finally:
        worker.stop()


_ENDS = """
import os, select, billiard, django
django.setup()
from queueops.bridges.celery.fleet.steps import how_a_process_ended
for end in ("os.kill(os.getpid(), 9)", "os._exit(3)"):
    process = billiard.Process(target=exec, args=(f"import os; {end}",))
    process.start()
    pidfd = os.pidfd_open(process.pid)
    select.select([pidfd], [], [], 20)
    print(how_a_process_ended(pidfd, process))
    process.join()
    print(how_a_process_ended(pidfd, process))
    print(how_a_process_ended(pidfd, None))
"""


def test_how_a_process_ended_is_known_also_when_the_pool_took_its_status_first(ground: Ground) -> None:
    found = subprocess.run(
        [sys.executable, "-c", _ENDS], env=ground.env, capture_output=True, text=True, check=True
    )

    lost = "its process was lost"
    assert found.stdout.splitlines() == ["SIGKILL", "SIGKILL", lost, "exit 3", "exit 3", lost]


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
    eventually(lambda: knows(fleet.hands[0], "ghost"), what=fleet.logs)

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
    running = [fleet.call("holds", key) for _ in range(4)]
    fleet.wait_for_runs(key, 4)
    workers = {name: each.process.pid for name, each in fleet.celery.items()}
    (hand,) = Presence(fleet.connection).hands()
    for name in workers:  # received, and no process is free to take it: kombu can't lose a connection so
        seen = fleet.celery[name].log.count("received")
        _send_again(fleet, running[0], hand, name)
        eventually(partial(_has_received, fleet.celery[name], seen), what=fleet.logs)

    fleet.broker.kill()
    waiting = fleet.call("add", key, 1, 2)
    fleet.ground.let_go(key)
    for job in running:
        assert fleet.wait_for(job).rescues == 0
    eventually(lambda: not fleet.members(), what=fleet.logs)  # nobody can be sent anything
    fleet.broker.start()

    found = fleet.wait_for(waiting, within=60)
    assert (found.result, found.attempts, found.rescues) == (3, 0, 0)
    assert len(fleet.notes(key)) == 4
    eventually(lambda: fleet.members() == {"a@h", "b@h"}, what=fleet.logs)
    assert {name: each.process.pid for name, each in fleet.celery.items()} == workers
    assert all(each.process.poll() is None for each in fleet.celery.values())


def _has_received(worker: Started, seen: int) -> bool:
    return worker.log.count("received") > seen
