"""Many children at once, on the server's own clock, with lost answers and deaths: nothing is lost and
nothing takes effect twice. What took effect is counted by the test, not by the engine."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from queueops import keys
from queueops.connection import Connection
from queueops.job import Delivery, new_job_id
from queueops.states import JobState, Lane
from queueops.store import Outcome, Store, publish_defaults
from tests.factories import (
    QUEUE,
    Child,
    Redis,
    burying,
    counter,
    ids_in,
    new,
    retrying,
    seed_ready,
    set_up,
    state,
)
from tests.proxy import Proxy

DEADLINE_S = 60.0


class Work:
    """Threads that stop at the first error of one of them, which `run` raises."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def add(self, target: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                target()
            except BaseException as error:
                self._errors.append(error)
                self.stop.set()

        self._threads.append(threading.Thread(target=guarded))

    def run(self, until: Callable[[], bool] = lambda: True) -> None:
        """Start all, wait for the condition and then for the threads."""
        for thread in self._threads:
            thread.start()
        deadline = time.monotonic() + DEADLINE_S
        while not until() and not self.stop.is_set() and time.monotonic() < deadline:
            self.stop.wait(0.01)
        is_late = time.monotonic() >= deadline
        self.stop.set()
        for thread in self._threads:
            thread.join(10)
        if self._errors:
            raise self._errors[0]
        assert not is_late, "not done in time"


@pytest.fixture
def real_time() -> Store:
    """The engine on the server's own clock."""
    return Store(publish=publish_defaults)


def count(redis: Redis, where: JobState) -> int:
    return int(redis.zcard(keys.jobs_in(QUEUE, where)))


@pytest.mark.parametrize("seed", [1, 2])
def test_b03_conservation_children_die_answers_are_lost_and_every_job_takes_effect_once(
    redis: Redis, real_time: Store, proxy: Proxy, seed: int
) -> None:
    total = 1500
    set_up(real_time, lease_ms=400, max_rescues=1_000_000)
    effects: Counter[str] = Counter()  # what ended well, by the engine's word to the child that did it
    refused: Counter[str] = Counter()
    lock = threading.Lock()
    work = Work()

    def child(number: int) -> None:
        dice = random.Random(seed * 100 + number)
        store = Store(Connection(proxy.url), publish=publish_defaults)
        life = 0
        while not work.stop.is_set():
            life += 1
            one = Child(
                store, f"host:{number}:{life}/{'probation' if number == 0 else life}", suspects=number == 0
            )
            one.register()
            for _ in range(dice.randint(3, 30)):
                one.register()
                jobs = one.claim(
                    1 if number == 0 else dice.choice([1, 3, 10]), starts=dice.choice([1, 10])
                ).jobs
                settle(one, jobs, dice)
                if work.stop.is_set():
                    break
            held = one.take(1 if number == 0 else 5)  # and it dies of these
            if dice.random() < 0.5:
                one.die(ran=[job.id for job in held[:2]])

    def settle(one: Child, jobs: list[Delivery], dice: random.Random) -> None:
        outcomes = []
        for job in jobs:
            fate = dice.random()
            if fate < 0.6:
                outcomes.append(Outcome.ack(job, handler="tests.work"))
            elif fate < 0.8:
                outcomes.append(retrying(job, delay_s=dice.choice([0, 0.01, 0.05])))
            elif fate < 0.9:
                outcomes.append(Outcome.release(job))
            else:
                outcomes.append(Outcome.snooze(job, delay_s=0.01))
        words = one.settle(*outcomes)
        with lock:
            for outcome, word in zip(outcomes, words, strict=True):
                if outcome.verb == "ack":
                    (effects if word == "ok" else refused)[outcome.job_id] += 1

    def trouble() -> None:
        dice = random.Random(seed)
        while not work.stop.wait(0.05):
            if dice.random() < 0.7:
                proxy.lose_replies(dice.randint(1, 3))
            elif dice.random() < 0.5:
                proxy.refuse_requests(1)
            else:
                redis.script_flush()

    for number in range(5):
        work.add(partial(child, number))
    work.add(trouble)
    ids = [new_job_id() for _ in range(total)]
    for n in range(0, total, 500):
        real_time.enqueue(QUEUE, [new(i, lane=list(Lane)[1 + n // 500]) for i in ids[n : n + 500]])

    work.run(until=lambda: counter(redis, "done") >= total)

    assert {job_id: effects[job_id] for job_id in ids if effects[job_id] != 1} == {}
    assert {state(redis, job_id) for job_id in ids} == {"done"}
    assert counter(redis, "done") == total
    assert proxy.lost > 0
    drain(redis, real_time)


def drain(redis: Redis, store: Store) -> None:
    """Forget every child, as housekeeping does in time."""
    for name in redis.zrange(keys.queue_key(QUEUE, "children"), 0, -1):
        Child(store, name.decode()).die()
    store.sweep(QUEUE)


def test_the_concurrency_limit_is_never_passed_by_many_children_at_once(
    redis: Redis, real_time: Store
) -> None:
    set_up(real_time, concurrency=7)
    seed_ready(real_time, *[new_job_id() for _ in range(600)])
    most, running, lock = 0, 0, threading.Lock()
    work = Work()

    def child(number: int) -> None:
        nonlocal most, running
        one = Child(Store(publish=publish_defaults), f"host:{number}:a/1").register()
        while not work.stop.is_set():
            jobs = one.take(random.choice([1, 2, 9]))
            with lock:
                running += len(jobs)
                most = max(most, running)
            with lock:
                running -= len(jobs)
            one.ack(*jobs)

    for number in range(6):
        work.add(partial(child, number))
    work.run(until=lambda: counter(redis, "done") >= 600)

    assert 0 < most <= 7


def test_the_rate_limit_is_never_passed_by_many_children_at_once(redis: Redis, real_time: Store) -> None:
    set_up(real_time, rate=200, rate_burst=20)
    seed_ready(real_time, *[new_job_id() for _ in range(1000)])
    work = Work()
    began_us = now_us(redis)
    claimed: list[int] = []

    def child(number: int) -> None:
        one = Child(Store(publish=publish_defaults), f"host:{number}:a/1").register()
        while not work.stop.is_set():
            answer = one.claim(10)
            claimed.extend([answer.server_us] * len(answer.jobs))
            one.ack(*answer.jobs)

    for number in range(4):
        work.add(partial(child, number))
    work.run(until=lambda: len(claimed) >= 150)

    claimed.sort()
    for n, at_us in enumerate(claimed, 1):
        assert n <= 20 + 200 * (at_us - began_us) / 1e6 + 1, f"job {n} came too early"


def now_us(redis: Redis) -> int:
    seconds, us = redis.time()
    return int(seconds * 1_000_000 + us)


def test_ten_threads_that_enqueue_one_id_add_one_job(redis: Redis, real_time: Store) -> None:
    real_time.register(QUEUE)
    answers: list[str | None] = []
    work = Work()

    def enqueue() -> None:
        mine = Store(publish=publish_defaults)
        answers.extend(a.there for a in mine.enqueue(QUEUE, [new("same", unique="u")]))

    for _ in range(10):
        work.add(enqueue)
    work.run()

    assert sorted(answers, key=str) == [None, *["same"] * 9]
    assert ids_in(redis, JobState.READY) == ["same"]


def test_ten_threads_that_enqueue_one_unique_key_add_one_job(redis: Redis, real_time: Store) -> None:
    real_time.register(QUEUE)
    added: list[str] = []
    work = Work()

    def enqueue() -> None:
        mine = Store(publish=publish_defaults)
        added.extend(a.id for a in mine.enqueue(QUEUE, [new(unique="u")]) if a.there is None)

    for _ in range(10):
        work.add(enqueue)
    work.run()

    assert ids_in(redis, JobState.READY) == added
    assert len(added) == 1


def test_a_person_and_ten_children_never_both_have_a_job(redis: Redis, real_time: Store) -> None:
    """Discard and restore race with claims: each job is run or set aside, and counted once."""
    ids = [new_job_id() for _ in range(400)]
    seed_ready(real_time, *ids)
    done: Counter[str] = Counter()
    discarded: set[str] = set()
    work = Work()

    def child(number: int) -> None:
        one = Child(Store(publish=publish_defaults), f"host:{number}:a/1").register()
        while not work.stop.is_set():
            jobs = one.take(3)
            one.ack(*jobs)
            done.update(job.id for job in jobs)

    def person() -> None:
        mine = Store(publish=publish_defaults)
        for job_id in reversed(ids):
            if mine.discard(QUEUE, [job_id], actor="user:1") == ["ok"]:
                discarded.add(job_id)

    for number in range(3):
        work.add(partial(child, number))
    work.add(person)
    work.run(until=lambda: len(done) + count(redis, JobState.DISCARDED) >= 400)

    assert not discarded & done.keys()
    assert max(done.values(), default=1) == 1
    assert set(ids_in(redis, JobState.DISCARDED)) == discarded


def test_many_dead_letters_and_requeues_at_once_keep_their_counts(redis: Redis, real_time: Store) -> None:
    ids = [new_job_id() for _ in range(200)]
    seed_ready(real_time, *ids)
    work = Work()

    def child(number: int) -> None:
        one = Child(Store(publish=publish_defaults), f"host:{number}:a/1").register()
        dice = random.Random(number)
        while not work.stop.is_set():
            one.settle(*[fate(job, dice) for job in one.take(5)])

    def fate(job: Delivery, dice: random.Random) -> Outcome:
        match dice.randrange(3):
            case 0:
                return burying(job, cause=dice.choice("abc"))
            case 1:
                return retrying(job, cause=dice.choice("abc"))
        return Outcome.ack(job, handler="tests.work")

    def person() -> None:
        mine = Store(publish=publish_defaults)
        while not work.stop.is_set():
            mine.requeue(QUEUE, ids_in(redis, JobState.DEAD)[:20], actor="user:1")
            mine.run_now(QUEUE, ids_in(redis, JobState.DELAYED)[:20], actor="user:1")

    for number in range(3):
        work.add(partial(child, number))
    work.add(person)
    work.run(until=lambda: counter(redis, "done") >= 200)

    assert {state(redis, job_id) for job_id in ids} == {"done"}
