"""The contract of Django's task backends, held by Django's own immediate one and by QueueOps'."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import django
import pytest
from django.core.checks import run_checks
from django.db import transaction
from django.utils import timezone
from pytest_django import Settings

from queueops.bridges.django_tasks import QueueOpsBackend
from queueops.bridges.django_tasks.framework import TaskResultDoesNotExist, TaskResultStatus, task_enqueued
from queueops.inspector import Inspector
from queueops.mirror import catch_up
from queueops.policies import RetryPolicy
from queueops.states import JobState
from queueops.store import Store, publish_defaults
from tests.factories import Redis
from tests.queueops.bridges import django_cases
from tests.queueops.bridges.cases import notes as read_notes
from tests.queueops.bridges.ground import FOLDER, Ground, Started, eventually

cases: Any = django_cases  # typed by two frameworks
FRAMEWORK = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
PATH = "tests.queueops.bridges.django_cases"
IMMEDIATE = {"BACKEND": f"{FRAMEWORK}.backends.immediate.ImmediateBackend", "QUEUES": []}
OURS = {"BACKEND": "queueops.bridges.django_tasks.QueueOpsBackend", "QUEUES": []}
READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Backend:
    """One backend under the contract."""

    name: str
    ground: Ground | None = None

    def heard(self, key: str) -> list[dict[str, Any]]:
        """What the signals of one task's two ends told, here or in the worker."""

        def notes() -> list[dict[str, Any]]:
            return read_notes(FOLDER, "django", key)

        eventually(lambda: len(notes()) == 2)
        return notes()

    def ended(self, result: Any) -> Any:
        """The result once it is over, as another process would ask for it."""
        if self.ground is None:
            return result
        found = eventually(lambda: (r := self.again(result)).is_finished and r)
        catch_up(Store(publish=publish_defaults), "default")
        return self.again(found)

    def again(self, result: Any) -> Any:
        return result.task.get_result(result.id)


@pytest.fixture(params=["immediate", "queueops"])
def backend(request: pytest.FixtureRequest, settings: Settings) -> Backend:
    """Each backend in turn."""
    settings.TASKS = {"default": IMMEDIATE, "queueops": OURS}
    if request.param == "immediate":
        return Backend("default")
    request.getfixturevalue("queue_worker")
    here: Ground = request.getfixturevalue("here")
    settings.QUEUEOPS = {**settings.QUEUEOPS, "HANDLERS": [PATH]}
    return Backend("queueops", here)


@pytest.fixture
def ours(redis: Redis, settings: Settings) -> str:
    """The alias of QueueOps' backend, without a worker."""
    settings.TASKS = {"default": IMMEDIATE, "queueops": OURS}
    settings.QUEUEOPS = {**settings.QUEUEOPS, "HANDLERS": [PATH]}
    return "queueops"


@dataclass
class Heard:
    """What a signal told."""

    results: list[Any] = field(default_factory=list)


@contextmanager
def hearing(signal: Any) -> Iterator[Heard]:
    heard = Heard()

    def receive(sender: Any, task_result: Any, **_: Any) -> None:
        heard.results.append((sender, task_result))

    signal.connect(receive)
    try:
        yield heard
    finally:
        signal.disconnect(receive)


# -- the contract -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["add", "add_async"])
def test_a_task_is_run_and_its_value_kept(backend: Backend, key: str, name: str) -> None:
    before = timezone.now()

    result = backend.ended(getattr(cases, name).using(backend=backend.name).enqueue(key, 1, y=2))

    assert (result.status, result.return_value, result.errors) == (SUCCESSFUL, 3, [])
    assert (result.args, result.kwargs) == ([key, 1], {"y": 2})
    assert (result.is_finished, result.attempts, result.backend) == (True, 1, backend.name)
    for at in (result.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at):
        assert before - timedelta(seconds=1) <= at <= timezone.now() + timedelta(seconds=1)
    assert result.task.func is getattr(cases, name).func


@pytest.mark.parametrize(
    ("name", "error"),
    [("fails", "tests.queueops.bridges.cases.Declined"), ("fails_async", "builtins.ValueError")],
)
def test_a_task_that_fails_tells_its_error(backend: Backend, key: str, name: str, error: str) -> None:
    result = backend.ended(getattr(cases, name).using(backend=backend.name).enqueue(key))

    assert (result.status, result.is_finished, result.attempts) == (FAILED, True, 1)
    assert [each.exception_class_path for each in result.errors] == [error]
    assert issubclass(result.errors[0].exception_class, Exception)
    assert result.errors[0].traceback.startswith("Traceback (most recent call last):")
    assert "never works" in result.errors[0].traceback
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


@pytest.mark.parametrize("name", ["with_context", "with_context_async"])
def test_a_task_that_takes_its_context_gets_it(backend: Backend, key: str, name: str) -> None:
    result = backend.ended(getattr(cases, name).using(backend=backend.name).enqueue(key))

    assert result.return_value == [1, result.id, "RUNNING", [key], {}]


def test_a_value_is_kept_as_json(backend: Backend, key: str) -> None:
    result = backend.ended(cases.complex_value.using(backend=backend.name).enqueue(key))

    assert result.return_value == {"list": [1, [2, 3]], "none": None, "text": "ü"}


def test_a_value_that_is_not_json_is_a_failure(backend: Backend, key: str) -> None:
    result = backend.ended(cases.not_json.using(backend=backend.name).enqueue(key))

    assert result.status == FAILED
    assert result.errors[0].exception_class is TypeError


def test_arguments_that_are_not_json_are_refused(backend: Backend, key: str) -> None:
    with pytest.raises(TypeError, match="Unsupported type"):
        cases.add.using(backend=backend.name).enqueue(key, object())


def test_a_task_can_be_enqueued_from_async_code(backend: Backend, key: str) -> None:
    async def call() -> Any:
        return await cases.add.using(backend=backend.name).aenqueue(key, 2, y=3)

    result = backend.ended(asyncio.run(call()))

    assert result.return_value == 5


@pytest.mark.parametrize("priority", [-100, 0, 100])
def test_a_priority_is_taken(backend: Backend, key: str, priority: int) -> None:
    result = cases.add.using(backend=backend.name, priority=priority).enqueue(key, 1)

    assert result.task.priority == priority
    assert backend.ended(result).return_value == 1


@pytest.mark.parametrize("priority", [-101, 101, 0.5])
def test_a_priority_out_of_range_is_refused(backend: Backend, priority: float) -> None:
    with pytest.raises(Exception, match="priority must be a whole number between -100 and 100"):
        cases.add.using(backend=backend.name, priority=priority)


def test_signals_tell_of_a_task_that_succeeds(backend: Backend, key: str) -> None:
    with hearing(task_enqueued) as enqueued:
        result = backend.ended(cases.add.using(backend=backend.name).enqueue(key, 1))

    (sender, told), *others = enqueued.results
    assert (told.id, told.enqueued_at is not None, others) == (result.id, True, [])
    assert sender.__name__ == ("ImmediateBackend" if backend.ground is None else "QueueOpsBackend")
    assert backend.heard(key) == [
        {"what": "started", "status": "RUNNING", "attempts": 1},
        {"what": "finished", "status": "SUCCESSFUL", "attempts": 1},
    ]


def test_signals_tell_of_a_task_that_fails(backend: Backend, key: str) -> None:
    backend.ended(cases.fails.using(backend=backend.name).enqueue(key))

    assert [note["status"] for note in backend.heard(key)] == ["RUNNING", "FAILED"]


# -- what the immediate backend has not -------------------------------------------------------------------


@pytest.fixture
def run(here: Ground, queue_worker: Started, settings: Settings) -> Ground:
    """A worker runs what is enqueued."""
    settings.TASKS = {"default": IMMEDIATE, "queueops": OURS}
    settings.QUEUEOPS = {**settings.QUEUEOPS, "HANDLERS": [PATH]}
    return here


def test_a_result_goes_from_ready_to_running_to_its_end(run: Ground, key: str) -> None:
    task = cases.holds.using(backend="queueops", run_after=timezone.now() + timedelta(seconds=0.7))
    result = task.enqueue(key)

    assert (result.status, result.attempts, result.started_at) == (READY, 0, None)
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = result.return_value
    eventually(lambda: task.get_result(result.id).status == RUNNING)
    result.refresh()
    assert (result.attempts, result.is_finished, result.finished_at) == (1, False, None)
    run.let_go(key)
    eventually(lambda: task.get_result(result.id).is_finished)
    asyncio.run(result.arefresh())
    assert result.return_value == "done"


def test_an_attempt_that_is_followed_by_another_has_not_finished(
    run: Ground, key: str, settings: Settings
) -> None:
    policy = {"max_retries": 1, "delays_s": [0.2], "jitter": "none"}
    settings.TASKS = {
        "default": IMMEDIATE,
        "queueops": {**OURS, "OPTIONS": {"TASK_POLICIES": {f"{PATH}.second_time": policy}}},
    }

    task = cases.second_time.using(backend="queueops")
    result = task.enqueue(key)

    eventually(lambda: task.get_result(result.id).is_finished)
    result.refresh()
    assert (result.return_value, result.attempts) == ("attempt 2", 2)
    eventually(lambda: len(run.notes("django", key)) == 3)
    assert [note["what"] for note in run.notes("django", key)] == ["started", "started", "finished"]
    catch_up(Store(publish=publish_defaults), "default")
    result.refresh()
    assert [error.exception_class.__name__ for error in result.errors] == ["Declined"]


def test_a_priority_is_a_lane_and_a_queue_the_engines(ours: str) -> None:
    found = []
    for priority, queue in ((50, "mail"), (0, "default"), (-1, "slow")):
        result = cases.add.using(backend=ours, priority=priority, queue_name=queue).enqueue("k", 1)
        job = Inspector().job(queue, result.id)
        assert job is not None
        found.append(job.priority)

    assert found == ["high", "normal", "low"]


def test_a_run_after_delays_the_job(ours: str) -> None:
    at = datetime(2040, 5, 1, 12, tzinfo=UTC)

    job = Inspector().find(cases.add.using(backend=ours, run_after=at).enqueue("k", 1).id)

    assert job is not None
    assert (job.state, job.run_at) == (JobState.DELAYED, at)


def test_a_naive_run_after_is_refused(ours: str) -> None:
    with pytest.raises(Exception, match="run_after must be an aware datetime"):
        cases.add.using(backend=ours, run_after=datetime(2040, 5, 1))  # noqa: DTZ001 - that is the point


def test_a_queue_that_the_backend_has_not_is_refused(ours: str, settings: Settings) -> None:
    settings.TASKS = {"default": IMMEDIATE, ours: {**OURS, "QUEUES": ["mail"]}}

    with pytest.raises(Exception, match="Queue 'slow' is not valid for backend"):
        cases.add.using(backend=ours, queue_name="slow")


def test_h02_a_task_enqueued_in_a_transaction_is_part_of_it(ours: str) -> None:
    task = cases.add.using(backend=ours)
    with transaction.atomic():
        committed = task.enqueue("k", 1)
        assert Inspector().find(committed.id) is None
        assert task.get_result(committed.id).status == READY
    called = []

    def fail() -> None:
        with transaction.atomic():
            called.append(task.enqueue("k", 1))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()

    assert Inspector().find(committed.id) is not None
    assert Inspector().find(called[0].id) is None


@pytest.mark.parametrize("result_id", ["no-such-id", "", "a b", "x" * 200])
def test_a_result_that_nobody_knows_does_not_exist(ours: str, result_id: str) -> None:
    task = cases.add.using(backend=ours)

    with pytest.raises(TaskResultDoesNotExist):
        task.get_result(result_id)
    with pytest.raises(TaskResultDoesNotExist):
        asyncio.run(task.aget_result(result_id))


def test_a_policy_is_that_of_the_task_or_its_queue(ours: str, settings: Settings) -> None:
    options = {
        "POLICY": "site",
        "QUEUE_POLICIES": {"mail": "gentle"},
        "TASK_POLICIES": {f"{PATH}.fails": {"name": "fails", "max_retries": 9, "delays_s": [1]}},
    }
    settings.TASKS = {"default": IMMEDIATE, ours: {**OURS, "OPTIONS": options}}

    def policy_of(task: Any, queue: str) -> Any:
        job = Inspector().find(task.using(backend=ours, queue_name=queue).enqueue("k").id)
        assert job is not None
        return job.policy

    assert policy_of(cases.complex_value, "default") == "site"
    assert policy_of(cases.complex_value, "mail") == "gentle"
    assert policy_of(cases.fails, "mail") == RetryPolicy(name="fails", max_retries=9, delays_s=(1.0,))


def test_options_that_are_wrong_are_found_by_the_checks(ours: str, settings: Settings) -> None:
    settings.TASKS = {
        "default": IMMEDIATE,
        ours: {**OURS, "OPTIONS": {"POLICIES": {}, "QUEUE_POLICIES": {"mail": {"max_retries": -1}}}},
    }

    found = [error.msg for error in QueueOpsBackend(ours, settings.TASKS[ours]).check()]

    assert found == [
        "TASKS['queueops'] OPTIONS has no option POLICIES, only POLICY, QUEUE_POLICIES, TASK_POLICIES",
        "TASKS['queueops'] OPTIONS QUEUE_POLICIES['mail']: max_retries: must be from 0 to 100,000, got -1",
    ]
    assert run_checks() is not None
