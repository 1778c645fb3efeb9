"""What Celery documents, run once by Celery 5.7's own worker and once through QueueOps, and compared."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import TimeLimitExceeded
from celery.result import AsyncResult

from tests.queueops.bridges import plain_app, queue_app
from tests.queueops.bridges.ground import Ground, Started, eventually


@dataclass
class Seen:
    """What one call of a task came to, as its caller and its notes tell."""

    state: str
    value: Any
    notes: list[dict[str, Any]]
    id: str = field(compare=False)
    at: list[float] = field(default_factory=list, compare=False)

    @property
    def runs(self) -> int:
        return sum(1 for note in self.notes if note["what"] == "run")

    def whats(self) -> list[str]:
        return [note["what"] for note in self.notes]


@dataclass
class Both:
    """Calls a task in Celery and in QueueOps."""

    ground: Ground

    def call(
        self,
        name: str,
        key: str,
        *args: Any,
        kwargs: dict[str, Any] | None = None,
        ends: bool = True,
        **options: Any,
    ) -> tuple[Seen, Seen]:
        """What Celery showed, and what QueueOps did. Without `ends` the result never comes."""
        apps: list[Celery[Any]] = [plain_app.app, queue_app.app]
        results = [
            app.tasks[f"cases.{name}"].apply_async((key, *args), kwargs or {}, **options) for app in apps
        ]
        found = [self._seen(app, result, key, ends) for app, result in zip(apps, results, strict=True)]
        return found[0], found[1]

    def _seen(self, app: Celery[Any], result: AsyncResult[Any], key: str, ends: bool) -> Seen:
        value: Any = None
        if ends:
            try:
                value = result.get(timeout=20, disable_sync_subtasks=False)
            except Exception as error:
                value = (type(error).__name__, str(error))

        def notes() -> list[dict[str, Any]]:
            return self.ground.notes(app.main, key)

        def is_over() -> bool:
            return bool(notes()) and notes()[-1]["what"] == "postrun" and notes()[-1]["state"] != "RETRY"

        eventually(is_over, what=lambda: f"{app.main}: {notes()}")
        found = json.loads(json.dumps(notes()).replace(result.id, "ID"))
        at = [note.pop("at") for note in found if "at" in note]
        if isinstance(value, tuple):
            value = tuple(text.replace(result.id, "ID") for text in value)
        return Seen(result.state, value, found, result.id, at)


@pytest.fixture
def both(here: Ground, celery_worker: Started, queue_worker: Started) -> Both:
    return Both(here)


def test_a_bound_task_sees_the_same_request(both: Both, key: str) -> None:
    celery, ours = both.call("context", key, 1, kwargs={"a": 2}, headers={"mine": 5})

    assert celery.value.pop("same id") == celery.id
    assert ours.value.pop("same id") == ours.id
    assert ours.value == celery.value
    assert ours.value["args"] == [key, 1]
    assert ours == celery


def test_a_task_called_in_a_task_knows_its_parent(both: Both, key: str) -> None:
    found = both.call("calls_another", key)

    for app, seen in zip((plain_app.app, queue_app.app), found, strict=True):
        child = (
            app.AsyncResult(seen.value)
            if app is plain_app.app
            else app.tasks["cases.context"].AsyncResult(seen.value)
        )
        assert child.get(timeout=20)["parent"] == seen.id


def test_retry_with_a_countdown(both: Both, key: str) -> None:
    celery, ours = both.call("countdown", key, 0.3, 2)

    assert ours == celery
    assert ours.value == "after 2"
    assert [note["retries"] for note in ours.notes if note["what"] == "run"] == [0, 1, 2]
    for first, second in zip(ours.at, ours.at[1:], strict=False):
        assert 0.29 < second - first < 0.6


def test_retry_at_an_eta(both: Both, key: str) -> None:
    celery, ours = both.call("eta", key)

    for seen in (celery, ours):  # the instants differ
        for note in seen.notes:
            note.pop("reason", None)
            note.pop("retval", None)
    assert ours == celery
    assert (ours.state, ours.runs) == ("SUCCESS", 2)


@pytest.mark.parametrize(
    ("name", "runs", "error"),
    [
        ("with_exc", 3, "Declined"),
        ("without_exc", 2, "MaxRetriesExceededError"),
        ("override", 2, "Declined"),
    ],
)
def test_retry_stops_at_the_tasks_own_limit(both: Both, key: str, name: str, runs: int, error: str) -> None:
    celery, ours = both.call(name, key)

    assert ours == celery
    assert (ours.state, ours.runs, ours.value[0]) == ("FAILURE", runs, error)


def test_a_task_may_catch_that_its_retries_are_over(both: Both, key: str) -> None:
    celery, ours = both.call("gives_up", key)

    assert ours == celery
    assert (ours.value, ours.runs) == ("gave up", 2)


def test_max_retries_none_retries_for_ever(both: Both, key: str) -> None:
    celery, ours = both.call("endless", key, 5)

    assert ours == celery
    assert ours.value == 5


def test_retry_with_other_arguments(both: Both, key: str) -> None:
    celery, ours = both.call("other_args", key, 1)

    assert ours.value == celery.value == [2, 5]
    assert [n for n in ours.notes if n["what"] == "run"] == [n for n in celery.notes if n["what"] == "run"]


@pytest.mark.parametrize(
    ("name", "args", "runs"),
    [
        ("auto", ("Declined",), 3),
        ("auto", ("ValueError",), 1),
        ("auto_but", ("Declined",), 3),
        ("auto_but", ("ValueError",), 1),
    ],
)
def test_autoretry(both: Both, key: str, name: str, args: tuple[str], runs: int) -> None:
    celery, ours = both.call(name, key, *args)

    assert ours == celery
    assert (ours.state, ours.runs) == ("FAILURE", runs)


def test_autoretry_backs_off(both: Both, key: str) -> None:
    celery, ours = both.call("backoff", key)

    assert ours == celery
    assert ours.runs == 3
    gaps = [second - first for first, second in zip(ours.at, ours.at[1:], strict=False)]
    assert gaps == pytest.approx([1, 2], abs=0.3)


def test_an_error_that_a_task_throws(both: Both, key: str, queue_worker: Started) -> None:
    celery, ours = both.call("expected", key)

    assert ours == celery
    assert (ours.state, ours.value) == ("FAILURE", ("Declined", "as expected"))
    assert not [line for line in queue_worker.log.splitlines() if ours.id in line and "ERROR" in line]


def test_a_plain_error_is_a_failure(both: Both, key: str) -> None:
    celery, ours = both.call("fails", key)

    assert ours == celery
    assert (ours.state, ours.value) == ("FAILURE", ("ValueError", "never works"))


def test_ignore_ends_a_job_without_a_result(both: Both, key: str) -> None:
    celery, ours = both.call("ignored", key, ends=False)

    assert ours.notes == celery.notes
    assert ours.whats() == ["prerun", "run", "postrun"]
    assert ours.notes[-1]["state"] == "IGNORED"


def test_reject_without_requeue_ends_a_job(both: Both, key: str) -> None:
    celery, ours = both.call("rejected", key, ends=False)

    assert ours.notes == celery.notes
    assert ours.notes[-1]["state"] == "REJECTED"
    assert ours.state == "FAILURE"  # a dead letter, where Celery's Redis broker drops the message


def test_reject_with_requeue_runs_again(both: Both, key: str) -> None:
    celery, ours = both.call("requeued", key)

    assert ours.notes == celery.notes
    assert (ours.value, ours.runs) == ("done", 2)


def test_a_soft_limit_is_celerys_exception(both: Both, key: str) -> None:
    celery, ours = both.call("soft_caught", key)

    assert ours == celery
    assert ours.value == "cleaned up"


def test_a_soft_limit_of_one_call(both: Both, key: str) -> None:
    celery, ours = both.call("soft", key, soft_time_limit=1)

    assert ours.state == celery.state == "FAILURE"
    assert ours.value[0] == celery.value[0] == "SoftTimeLimitExceeded"


def test_a_hard_limit_is_celerys_end(both: Both, key: str) -> None:
    calls = [app.tasks["cases.hard"].delay(key) for app in (plain_app.app, queue_app.app)]

    for result in calls:
        with pytest.raises(TimeLimitExceeded):
            result.get(timeout=30, disable_sync_subtasks=False)
        assert result.state == "FAILURE"
    for app in ("plain", "queued"):
        assert [note["what"] for note in both.ground.notes(app, key)].count("run") == 1


def test_ignore_result(both: Both, key: str) -> None:
    celery, ours = both.call("without_result", key)

    assert ours.value is celery.value is None
    assert ours.notes == celery.notes


def test_ignore_result_of_one_call(both: Both, key: str) -> None:
    celery, ours = both.call("add", key, 1, 2, ignore_result=True)

    assert ours.value is celery.value is None


@pytest.mark.parametrize("how", ["done", "retry", "fail"])
def test_the_hooks_of_a_task_run_in_their_order(both: Both, key: str, how: str) -> None:
    celery, ours = both.call("hooked", key, how)

    assert ours == celery
    assert ours.state == ("SUCCESS" if how == "done" else "FAILURE")
    assert {"before_start", "after_return"} < set(ours.whats())


def test_arguments_keep_their_types(both: Both, key: str) -> None:
    given = (
        datetime(2026, 3, 1, 12, tzinfo=UTC), date(2026, 3, 1), Decimal("1.10"), uuid.UUID(int=5), "ü", None,
    )  # fmt: skip
    celery, ours = both.call("types", key, *given)

    assert ours == celery
    assert "Decimal=1.10" in ours.value


def test_a_rate_limit_spaces_the_starts(both: Both, key: str) -> None:
    for app in (plain_app.app, queue_app.app):
        for _ in range(5):
            app.tasks["cases.limited"].delay(key)

    def starts(app: str) -> list[float]:
        return sorted(note["at"] for note in both.ground.notes(app, key) if note["what"] == "run")

    for name in ("plain", "queued"):
        eventually(partial(lambda name: len(starts(name)) == 5, name), what=name)
        took_s = starts(name)[-1] - starts(name)[0]
        assert 0.7 < took_s < 2, (name, starts(name))  # four intervals of 0.2 s
