"""QueueTask: what a Celery caller asks for becomes a job, and what needs more than a job is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, chain, chord, group, signature
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeout
from django.db import transaction
from kombu import Queue
from kombu.exceptions import OperationalError
from pytest_django import Settings

from queueops.bridges.celery import QueueResults
from queueops.inspector import Inspector
from queueops.job import Job
from queueops.states import JobState
from tests.factories import Redis
from tests.queueops.bridges import cases
from tests.queueops.bridges.ground import Ground, Started, eventually
from tests.queueops.bridges.queue_app import app

TASKS: Any = app.tasks
QUEUE_TASK, RESULTS = "queueops.bridges.celery:QueueTask", "queueops.bridges.celery:QueueResults"


@pytest.fixture
def add(redis: Redis) -> Any:
    """A task whose jobs nobody runs."""
    return TASKS["cases.add"]


def job_of(result: Any) -> Job:
    found = Inspector().find(result.id)
    assert found is not None
    return found


# -- options ------------------------------------------------------------------------------------------


def test_delay_makes_a_job_of_the_tasks_name_and_queue(add: Any) -> None:
    job = job_of(add.delay("k", 1, y=2))

    assert (job.handler, job.queue, job.args, job.kwargs) == ("cases.add", "cases", ["k", 1], {"y": 2})
    assert (job.state, job.priority, job.extra) == (JobState.READY, "normal", {})


def test_a_countdown_and_an_eta_delay_the_job(add: Any) -> None:
    at = datetime(2040, 5, 1, 12, tzinfo=UTC)
    countdown, eta = (
        job_of(add.apply_async(("k", 1, 2), countdown=3600)),
        job_of(add.apply_async(("k", 1, 2), eta=at)),
    )

    assert countdown.state == eta.state == JobState.DELAYED
    assert countdown.run_at is not None
    assert abs(countdown.run_at - datetime.now(UTC) - timedelta(hours=1)) < timedelta(seconds=5)
    assert eta.run_at == at


@pytest.mark.parametrize(("enable_utc", "hour"), [(True, 12), (False, 3)])
def test_a_naive_eta_is_read_as_celery_reads_it(redis: Redis, enable_utc: bool, hour: int) -> None:
    tokyo = cases.make(
        "tokyo", task_cls=QUEUE_TASK, set_as_current=False, timezone="Asia/Tokyo", enable_utc=enable_utc
    )

    result = tokyo.tasks["cases.add"].apply_async(("k", 1, 2), eta=datetime(2040, 5, 1, 12))  # noqa: DTZ001 - the point

    assert job_of(result).run_at == datetime(2040, 5, 1, hour, tzinfo=UTC)


def test_an_eta_that_has_passed_and_a_countdown_of_nothing_run_now(add: Any) -> None:
    past = datetime(2001, 1, 1, tzinfo=UTC)
    for options in ({"eta": past}, {"countdown": 0}, {"countdown": -5}):
        assert job_of(add.apply_async(("k", 1, 2), **options)).state == JobState.READY


@pytest.mark.parametrize(
    ("priority", "lane"),
    [(0, "high"), (2, "high"), (3, "normal"), (6, "normal"), (7, "low"), (9, "low"), ("low", "low")],
)
def test_a_priority_is_read_as_the_broker_reads_it(
    add: Any, priority: Any, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert job_of(add.apply_async(("k", 1, 2), priority=priority)).priority == lane

    monkeypatch.setitem(app.conf, "broker_url", "amqp://localhost")
    mirrored = {"high": "low", "low": "high", "normal": "normal"}[lane] if isinstance(priority, int) else lane
    assert job_of(add.apply_async(("k", 1, 2), priority=priority)).priority == mirrored


def test_a_priority_that_celery_has_not_is_refused(add: Any) -> None:
    with pytest.raises(ValueError, match="priority must be 0 to 9 or one of high, normal, low, got 11"):
        add.apply_async(("k", 1, 2), priority=11)


def test_a_calls_queue_wins_over_the_route(add: Any) -> None:
    assert job_of(add.apply_async(("k", 1, 2), queue="mail")).queue == "mail"
    assert job_of(add.apply_async(("k", 1, 2), queue=Queue("slow"))).queue == "slow"


def test_a_call_that_expired_is_revoked(add: Any) -> None:
    job = job_of(add.apply_async(("k", 1, 2), expires=30))

    assert job.expires_at is not None
    assert abs(job.expires_at - datetime.now(UTC) - timedelta(seconds=30)) < timedelta(seconds=5)


def test_a_task_id_is_the_jobs_and_makes_a_call_safe_to_repeat(add: Any) -> None:
    first = add.apply_async(("k", 1, 2), task_id="order-7")
    again = add.apply_async(("k", 5, 5), task_id="order-7")

    assert first.id == again.id == "order-7"
    assert job_of(again).args == ["k", 1, 2]


def test_arguments_that_the_function_does_not_take_are_refused_at_the_call(add: Any) -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        add.delay("k", 1)
    with pytest.raises(TypeError, match=r"args\[1\] is not serialisable"):
        add.delay("k", object(), 2)


def test_a_redis_that_is_away_is_celerys_operational_error(add: Any, settings: Settings) -> None:
    settings.QUEUEOPS = {**settings.QUEUEOPS, "REDIS_URL": "redis://127.0.0.1:1/0"}

    with pytest.raises(OperationalError, match=r"no Redis at redis://127\.0\.0\.1:1/0"):
        add.delay("k", 1, 2)


# -- callers ------------------------------------------------------------------------------------------


def test_a_call_by_name_is_a_job_too(add: Any) -> None:
    by_name = [
        app.send_task("cases.add", ("k", 1, 2)),
        signature("cases.add", ("k", 1, 2), app=app).delay(),
        app.signature("cases.add", args=("k", 1, 2)).apply_async(),
    ]

    assert [job_of(result).handler for result in by_name] == ["cases.add"] * 3


def test_an_app_of_queue_tasks_sends_names_that_it_does_not_know(redis: Redis) -> None:
    result = app.send_task("elsewhere.task", ("k",), countdown=60, queue="mail")

    job = job_of(result)
    assert (job.handler, job.queue, job.state) == ("elsewhere.task", "mail", JobState.DELAYED)


def test_an_app_of_plain_tasks_still_sends_them_to_its_broker(redis: Redis) -> None:
    mixed: Celery[Any] = Celery("mixed", broker="memory://", set_as_current=False)

    def work() -> None: ...

    mixed.task(name="mixed.plain", shared=False)(work)
    queued = mixed.task(name="mixed.queued", shared=False, base=app.Task)(work)
    assert "mixed.queued" in mixed.tasks  # they are loaded
    plain = mixed.send_task("mixed.plain")
    assert Inspector().find(plain.id) is None
    assert job_of(mixed.send_task("mixed.queued")).handler == "mixed.queued"
    assert job_of(queued.delay()).queue == "default"


def test_a_caller_without_a_django_project_around_it(redis: Redis) -> None:
    script = (
        "from django.conf import settings\n"
        f"settings.configure(QUEUEOPS={{'REDIS_URL': {os.environ['REDIS_URL']!r}}})\n"
        "from celery import Celery\n"
        "app = Celery('plain', task_cls='queueops.bridges.celery:QueueTask')\n"
        "@app.task(name='plain.task')\n"
        "def task(x): ...\n"
        "print(task.apply_async((5,), countdown=60).id)\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    found = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )

    assert found.returncode == 0, found.stderr
    job = Inspector().find(found.stdout.strip())
    assert job is not None
    assert (job.handler, job.args, job.state) == ("plain.task", [5], JobState.DELAYED)


def test_an_eager_app_runs_a_call_at_once(redis: Redis) -> None:
    eager: Celery[Any] = Celery("eager", task_cls=QUEUE_TASK, set_as_current=False, task_always_eager=True)

    @eager.task(name="eager.retried", bind=True, shared=False, max_retries=2)
    def retried(self: Any) -> int:
        if self.request.retries < 2:
            raise self.retry(countdown=0)
        return int(self.request.retries)

    assert retried.delay().get() == 2
    assert Inspector().queues() == []


# -- transactions (h02) ---------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_h02_a_call_in_a_transaction_is_part_of_it(add: Any) -> None:
    called: dict[str, Any] = {}

    def fail(name: str) -> None:
        with transaction.atomic():
            called[name] = add.delay_on_commit("k", 1, 2)
            raise RuntimeError

    with transaction.atomic():
        committed = add.delay_on_commit("k", 1, 2)
        with pytest.raises(RuntimeError):
            fail("inner")
        assert Inspector().find(committed.id) is None
        assert committed.state == "PENDING"
    with pytest.raises(RuntimeError):
        fail("outer")

    assert job_of(committed).state == JobState.READY
    assert [Inspector().find(result.id) for result in called.values()] == [None, None]


@pytest.mark.django_db(transaction=True)
def test_delay_on_commit_without_a_transaction_is_delay(add: Any) -> None:
    assert job_of(add.delay_on_commit("k", 1, 2)).state == JobState.READY


# -- canvas ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda add: chord([add.s("k", 1, 2), add.s("k", 3, 4)], add.s("k", 5))(),
        lambda add: (group(add.s("k", 1, 2), add.s("k", 3, 4)) | add.s("k", 5)).delay(),
        lambda add: add.map([1, 2]),
        lambda add: add.starmap([(1, 2)]),
        lambda add: add.chunks([(1, 2)], 1),
    ],
    ids=["chord", "a group with a step after it", "map", "starmap", "chunks"],
)
def test_what_needs_more_than_a_job_is_refused_at_the_call(redis: Redis, call: Any) -> None:
    with_results = cases.make("results", task_cls=QUEUE_TASK, backend=RESULTS, set_as_current=False)

    with pytest.raises(NotImplementedError, match=r"QueueTask|no chords"):
        call(with_results.tasks["cases.add"])
    assert Inspector().queues() == []


def test_a_member_of_a_chord_is_refused_whatever_the_apps_results_are(add: Any) -> None:
    with pytest.raises(
        NotImplementedError, match=r"cases\.add is a QueueTask, and a chord can't have one in its header"
    ):
        add.apply_async(("k", 1, 2), chord={"task": "cases.add"})


@pytest.fixture
def run(here: Ground, queue_worker: Started) -> Ground:
    """A worker runs what is called."""
    return here


def test_a_chain_runs_step_by_step(transactional_db: None, run: Ground, key: str) -> None:
    add, follow = TASKS["cases.add"], TASKS["cases.follow"]

    result = chain(add.si(key, 1, 2), follow.s(key), follow.s(key))()

    assert result.get(timeout=20) == 3
    assert result.parent.get(timeout=20) == result.parent.parent.get(timeout=20) == 3
    assert [note["result"] for note in run.notes("queued", key) if note["what"] == "follow"] == [3, 3]


def test_a_chain_ends_where_a_step_fails(transactional_db: None, run: Ground, key: str) -> None:
    result = chain(TASKS["cases.fails"].si(key), TASKS["cases.follow"].s(key))()

    with pytest.raises(ValueError, match="never works"):
        result.get(timeout=20)
    assert result.state == "PENDING"
    assert Inspector().find(result.id) is None


def test_a_group_runs_its_members(run: Ground, key: str) -> None:
    add = TASKS["cases.add"]

    result = group(add.s(key, n, 10) for n in range(3))()

    assert result.get(timeout=20) == [10, 11, 12]
    assert result.successful()


def test_a_chain_may_end_in_a_group(transactional_db: None, run: Ground, key: str) -> None:
    add, follow = TASKS["cases.add"], TASKS["cases.follow"]

    result = chain(add.si(key, 1, 2), group(follow.s(key), follow.s(key)))()

    assert result.get(timeout=20) == [3, 3]


# -- link and link_error ----------------------------------------------------------------------------------


def test_a_link_is_called_with_the_result_once(run: Ground, key: str) -> None:
    add, follow = TASKS["cases.add"], TASKS["cases.follow"]

    result = add.apply_async((key, 1, 2), link=[follow.s(key), follow.si("fixed", key)])

    assert result.get(timeout=20) == 3
    eventually(lambda: len([n for n in run.notes("queued", key) if n["what"] == "follow"]) == 2)
    first = Inspector().find(f"{result.id}.link0")
    assert first is not None
    assert first.state == JobState.DONE


def test_a_signature_carries_its_link(run: Ground, key: str) -> None:
    add, follow = TASKS["cases.add"], TASKS["cases.follow"]
    call = add.s(key, 1, 2)
    call.link(follow.s(key))

    call.delay()

    eventually(lambda: [n for n in run.notes("queued", key) if n["what"] == "follow"])


@pytest.mark.parametrize(
    ("errback", "expected"),
    [
        (lambda key: TASKS["cases.errback_id"].s(key), {"what": "errback"}),
        (
            lambda key: TASKS["cases.errback_request"].s(),
            {"what": "errback", "error": "ValueError('never works')", "traceback": True},
        ),
    ],
    ids=["of one argument: sent", "of three: called"],
)
def test_a_link_error_is_called_when_the_job_is_dead(
    run: Ground, key: str, errback: Any, expected: dict[str, Any]
) -> None:
    result = TASKS["cases.fails"].apply_async((key,), link_error=errback(key))

    found = eventually(lambda: [n for n in run.notes("queued", key) if n["what"] == "errback"])
    assert found == [{**expected, "id": result.id}]


def test_a_link_that_is_no_signature_is_refused_at_the_call(add: Any) -> None:
    with pytest.raises(TypeError, match="link and link_error take signatures, got 5"):
        add.apply_async(("k", 1, 2), link=5)


# -- results --------------------------------------------------------------------------------------------


def test_a_result_tells_its_states(run: Ground, key: str) -> None:
    result = TASKS["cases.progressing"].apply_async((key,), countdown=0.5)

    assert result.state == "PENDING"
    assert not result.ready()
    with pytest.raises(CeleryTimeout):
        result.get(timeout=0.1)
    eventually(lambda: result.state == "PROGRESS")
    assert result.info == {"current": 3, "total": 8}
    run.let_go(key)
    assert result.get(timeout=20) == "done"
    assert (result.state, result.successful(), result.traceback) == ("SUCCESS", True, None)
    assert result.date_done is not None


def test_the_result_of_a_failure_is_its_exception(run: Ground, key: str) -> None:
    result = TASKS["cases.fails"].delay(key)

    with pytest.raises(ValueError, match=r"^never works$"):
        result.get(timeout=20)
    assert (result.state, result.failed()) == ("FAILURE", True)
    assert result.traceback.startswith("Traceback (most recent call last):")
    assert 'raise ValueError("never works")' in result.traceback


def test_a_job_that_waits_for_its_retry_says_so(run: Ground, key: str) -> None:
    result = TASKS["cases.countdown"].delay(key, 60, 1)

    eventually(lambda: result.state == "RETRY")
    result.revoke()
    assert result.state == "REVOKED"


def test_a_result_by_id_alone(run: Ground, key: str) -> None:
    plain: Celery[Any] = Celery("only-results", backend=RESULTS, set_as_current=False)
    called = TASKS["cases.add"].delay(key, 1, 2)

    result: Any = plain.AsyncResult(called.id)

    assert isinstance(plain.backend, QueueResults)
    assert result.get(timeout=20) == 3
    assert result.name == "cases.add"
    assert result.exists()


def test_j07_a_revoked_job_does_not_start(run: Ground, key: str) -> None:
    task = TASKS["cases.countdown"]
    first, second = (task.apply_async((key, 0, 0), countdown=0.7) for _ in range(2))

    first.revoke()
    app.control.revoke(second.id)  # without a broker

    for result in (first, second):
        with pytest.raises(TaskRevokedError):
            result.get(timeout=5)
        assert job_of(result).state == JobState.DISCARDED
    last = task.apply_async((key, 0, 0), countdown=0.8)
    last.get(timeout=20)
    assert len([note for note in run.notes("queued", key) if note["what"] == "run"]) == 1


@pytest.mark.django_db
def test_a_result_that_nobody_knows_is_pending(redis: Redis) -> None:
    result = TASKS["cases.add"].AsyncResult("no-such-id")

    assert (result.state, result.result) == ("PENDING", None)
    assert not result.exists()
