"""A link_error is called also when the process of its job was lost, or a hard limit ended it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from celery import current_app

from queueops import mirror
from queueops.connection import Connection, connection
from queueops.inspector import Inspector
from queueops.states import JobState
from queueops.store import Store
from tests.queueops.bridges.ground import Ground, Started, eventually
from tests.queueops.bridges.queue_app import app

TASKS: Any = app.tasks


@pytest.fixture
def run(here: Ground, queue_worker: Started, transactional_db: None) -> Iterator[Ground]:
    """A worker that runs jobs; it records nothing: the test does, as a process of the same site."""
    proxy: Any = current_app
    other = proxy._get_current_object()
    app.set_current()
    yield here
    other.set_current()


def died(job_id: str) -> None:
    eventually(lambda: _state(job_id) == JobState.DEAD, within=60)


def _state(job_id: str) -> JobState | str | None:
    job = Inspector().find(job_id)
    return None if job is None else job.state


def errbacks(run: Ground, key: str) -> list[dict[str, Any]]:
    return [note for note in run.notes("queued", key) if note["what"] == "errback"]


@pytest.mark.parametrize(
    ("name", "args", "error"),
    [("dies", (int(signal.SIGKILL),), "WorkerLostError"), ("hard", (), "TimeLimitExceeded")],
)
def test_each_errback_of_a_job_whose_process_was_ended_is_called_once(
    run: Ground, key: str, name: str, args: tuple[int, ...], error: str
) -> None:
    both = [TASKS["cases.errback_id"].s(key), TASKS["cases.errback_request"].s()]
    result = TASKS[f"cases.{name}"].apply_async((key, *args), link_error=both)
    died(result.id)

    mirror.run_once()

    eventually(
        lambda: len(errbacks(run, key)) == 2,
        what=lambda: (run.notes("queued", key), Inspector().find(f"{result.id}.error1")),
    )
    by_id, by_error = sorted(errbacks(run, key), key=lambda note: "error" in note)
    assert by_id == {"what": "errback", "id": result.id}
    assert (by_error["id"], by_error["traceback"]) == (result.id, False)
    assert by_error["error"].startswith(error)


def test_an_errback_is_sent_before_its_event_leaves_the_stream_and_never_twice(
    run: Ground, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = TASKS["cases.dies"].apply_async(
        (key, int(signal.SIGKILL)), link_error=TASKS["cases.errback_id"].s(key)
    )
    died(result.id)
    store = Store(Connection(run.url, timeout_s=1, retries=0))
    with monkeypatch.context() as cut:
        cut.setattr(store.connection.client, "xtrim", _cut_off)
        with pytest.raises(ConnectionResetError):  # ... as if this process had died there
            mirror.copy_events(store, "cases", limit=100_000)
    eventually(lambda: _state(f"{result.id}.error0") == JobState.DONE)

    assert mirror.copy_events(store, "cases", limit=100_000) > 0  # the same events once more

    assert connection().client.xlen("queueops:{cases}:events") == 0
    assert errbacks(run, key) == [{"what": "errback", "id": result.id}]


def _cut_off(*_: Any, **__: Any) -> None:
    raise ConnectionResetError
