"""Redis away, restarted, emptied, full, a replica: workers keep what ended, log little, and go on."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from queueops import JobState, enqueue, enqueue_many
from queueops.local_redis import LocalServer
from tests.proxy import Proxy
from tests.queueops.worker.conftest import QUEUE, Fleet, Worker, eventually

AT_REST = 3.0  # seconds over which log lines are counted


def test_b05_killed_connections_and_a_restart_leave_a_worker_that_consumes(
    fleet: Fleet, redis_server: LocalServer
) -> None:
    worker = fleet.start_ready()
    began = time.monotonic()
    for _ in range(3):
        fleet.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        fleet.run_one()
    assert time.monotonic() - began < 20
    pids = {process.pid for process in worker.tree()}
    redis_server.kill()
    redis_server.start()
    fleet.store.register(QUEUE)
    ids = [job.id for job in enqueue_many([{"handler": "test.note"}] * 10, queue=QUEUE)]
    fleet.wait_for_done(*ids, within=20)

    assert {process.pid for process in worker.tree()} == pids
    assert not worker.log_lines("ended (")


def test_finished_job_settles_when_redis_is_back(fleet: Fleet, redis_server: LocalServer) -> None:
    redis = fleet.redis
    redis.config_set("appendonly", "yes")
    redis.config_set("appendfsync", "always")
    try:
        worker = fleet.start_ready()
        enqueue("test.hold", job_id="h", queue=QUEUE)
        enqueue("test.hold_and_fail", job_id="f", queue=QUEUE)
        fleet.wait_for_start("h")
        fleet.wait_for_start("f")
        eventually(lambda: redis.info("persistence")["aof_rewrite_in_progress"] == 0)
        redis_server.options["appendonly"] = "yes"
        redis_server.kill()
        fleet.notes.let_go()
        eventually(lambda: fleet.notes.effects == {"h": 1})
        eventually(lambda: worker.log_lines("Redis is away"))
        redis_server.start()
        fleet.wait_for_done("h")
        fleet.wait_for("f", JobState.DELAYED)

        assert len(fleet.notes.starts) == 2
        assert fleet.job("h").rescues == 0
        assert fleet.job("f").attempts == 1
        for who in {
            line.split("queueops.worker: ")[1].split(": Redis")[0]
            for line in worker.log_lines("Redis is away")
        }:
            assert len(worker.log_lines(who + ": Redis is away")) == 1
    finally:
        redis_server.options["appendonly"] = "no"
        if redis_server.process is None or redis_server.process.poll() is not None:
            redis_server.start()
        redis.config_set("appendonly", "no")


def test_long_outage_logs_two_lines_and_does_not_spin(fleet: Fleet, redis_server: LocalServer) -> None:
    worker = fleet.start_ready()
    redis_server.kill()
    try:
        eventually(lambda: len(worker.log_lines("Redis is away")) >= 3)
        before, cpu = len(worker.log.splitlines()), _cpu(worker)
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > AT_REST)

        assert len(worker.log.splitlines()) == before
        assert _cpu(worker) - cpu < 0.1 * AT_REST
    finally:
        redis_server.start()
    fleet.store.register(QUEUE)
    fleet.run_one()
    # The supervisor, its child and the probation child.
    eventually(lambda: len(worker.log_lines("Redis is back")) == 3, what="each says it once")


def _cpu(worker: Worker) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in worker.tree())


def test_b01_forgotten_scripts_are_loaded_again(fleet: Fleet) -> None:
    worker = fleet.start_ready()
    fleet.redis.script_flush()
    job = enqueue("test.note", queue=QUEUE)
    fleet.wait_for_done(job.id)
    assert not worker.log_lines("ERROR")


def test_b07_flushed_redis_is_served_again_at_once(fleet: Fleet) -> None:
    worker = fleet.start_ready()
    fleet.redis.flushall()
    ids = [job.id for job in enqueue_many([{"handler": "test.note"}] * 5, queue=QUEUE)]
    fleet.wait_for_done(*ids)
    lines = worker.log_lines("ERROR") + worker.log_lines("WARNING")
    assert len(lines) <= 5, lines


def test_b07_lost_stream_is_made_again(fleet: Fleet) -> None:
    worker = fleet.start_ready()
    fleet.redis.delete("queueops:{work}:ready:normal")
    ids = [job.id for job in enqueue_many([{"handler": "test.note"}] * 5, queue=QUEUE)]
    fleet.wait_for_done(*ids)
    assert not worker.log_lines("ERROR")


@pytest.mark.damages("a foreign key stands where a lane belongs")
def test_i07_wrong_type_stops_nothing_and_heals(fleet: Fleet) -> None:
    worker = fleet.start_ready()
    enqueue("test.noop", job_id="n", queue=QUEUE)
    fleet.wait_for_done("n")
    fleet.redis.set("queueops:{work}:pending", "foreign")
    enqueue("test.note", job_id="held", queue=QUEUE)
    eventually(
        lambda: worker.log_lines("queue work", "another type") or worker.log_lines("queue work", "holds a")
    )
    began, before = time.monotonic(), len(worker.log.splitlines())
    eventually(lambda: time.monotonic() - began > AT_REST)
    assert len(worker.log.splitlines()) - before <= 4 * AT_REST
    fleet.redis.delete("queueops:{work}:pending")
    fleet.wait_for_done("held")
    assert not worker.log_lines("ended (")


def test_i01_full_redis_lets_workers_drain(fleet: Fleet) -> None:
    ids = [job.id for job in enqueue_many([{"handler": "test.note"}] * 200, queue=QUEUE)]
    fleet.redis.config_set("maxmemory", 1_000_000)
    try:
        worker = fleet.start()
        fleet.wait_for_done(*ids)
        assert not worker.log_lines("ended (")
    finally:
        fleet.redis.config_set("maxmemory", 0)


def test_d12_settlement_refused_for_a_while_is_made_later(fleet: Fleet) -> None:
    fleet.start_ready()
    enqueue("test.hold_and_fail", job_id="f", queue=QUEUE)
    fleet.wait_for_start("f")
    fleet.redis.execute_command("CLIENT", "PAUSE", 3000, "WRITE")
    fleet.notes.let_go()
    job = fleet.wait_for("f", JobState.DELAYED)
    assert (job.attempts, job.rescues) == (1, 0)
    assert len(fleet.notes.starts) == 1


def test_lost_replies_neither_lose_nor_double_a_job(fleet: Fleet, proxy: Proxy) -> None:
    fleet.start_ready(REDIS_URL=proxy.url, concurrency=8)
    for round_ in range(10):
        proxy.lose_replies(2)
        ids = [f"r{round_}-{i}" for i in range(20)]
        enqueue_many([{"handler": "test.note", "job_id": job_id} for job_id in ids], queue=QUEUE)
        fleet.wait_for_done(*ids)

    assert proxy.lost >= 10
    assert set(fleet.notes.effects.values()) == {1}
    assert set(Counter(start.job_id for start in fleet.notes.starts).values()) == {1}


def test_i05_replica_after_a_failover_is_left_for_the_new_primary(
    fleet: Fleet, redis_server: LocalServer, proxy: Proxy
) -> None:
    if redis_server.cluster:
        pytest.skip("a Cluster's node knows no REPLICAOF")
    fleet.start_ready(REDIS_URL=proxy.url)
    fleet.redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    eventually(lambda: any(worker.log_lines("Redis is away") for worker in fleet.workers), what="it notices")
    fleet.redis.execute_command("REPLICAOF", "NO", "ONE")
    job = enqueue("test.note", queue=QUEUE)
    fleet.wait_for_done(job.id, within=15)


def test_i03_server_that_may_evict_is_warned_of_at_the_start(fleet: Fleet) -> None:
    fleet.redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        worker = fleet.start("--burst")
        worker.wait()
    finally:
        fleet.redis.config_set("maxmemory-policy", "noeviction")
    assert worker.log_lines("WARNING", "maxmemory-policy is allkeys-lru")


def test_no_redis_at_the_start_is_one_line_and_exit_1(fleet: Fleet) -> None:
    worker = fleet.start(REDIS_URL="redis://:secret@127.0.0.1:1/0")
    assert worker.wait() == 1
    assert len(worker.log.splitlines()) == 1
    assert "secret" not in worker.log
    assert "redis://:***@127.0.0.1:1/0" in worker.log
