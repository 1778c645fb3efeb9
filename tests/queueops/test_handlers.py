"""Handlers by name: what is found, under which name, and how it runs."""

from __future__ import annotations

import asyncio
import copy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import CDeprecationWarning
from pytest_django import Settings

from queueops import handlers
from queueops.bridges.celery import handler_from
from queueops.current import running
from queueops.errors import ConfigError
from queueops.handlers import (
    Handler,
    get_handler,
    handler_name,
    handler_names,
    handler_queue,
    load_handlers,
)
from queueops.job import Delivery
from tests.queueops import sample_tasks

HERE = "tests.queueops.sample_tasks"


@pytest.fixture(autouse=True)
def _sample(settings: Settings) -> None:
    settings.QUEUEOPS = {**settings.QUEUEOPS, "HANDLERS": [HERE]}


def delivery(**changes: Any) -> Delivery:
    given: dict[str, Any] = {
        "queue": "mail",
        "id": "job-1",
        "delivery": 3,
        "attempts": 2,
        "rescues": 0,
        "edition": 0,
        "is_started": True,
        "due_ms": 0,
        "spec": b"",
    }
    return Delivery(**(given | changes))


def found(name: str) -> Handler:
    handler = get_handler(name)
    assert handler is not None
    return handler


def test_a_shared_task_is_found_by_its_registered_name_and_runs() -> None:
    handler = found(f"{HERE}.add")

    assert handler.call([2], {"y": 3}) == 5
    assert handler.call((2,)) == 2
    assert not handler.is_async
    assert handler_name(sample_tasks.add) == handler.name
    assert get_handler(handler.name) is handler


def test_what_a_celery_task_declares_is_known() -> None:
    handler = found("named.elsewhere")

    assert handler.policy == "gentle"
    assert (handler.soft_limit_s, handler.hard_limit_s) == (5, 9)
    assert found(f"{HERE}.add").policy is None
    assert handler_queue(sample_tasks.add) is None


def test_a_celery_tasks_queue_is_that_of_its_route_or_attribute() -> None:
    routes = {"routed.*": {"queue": "mail"}, "routed": "slow"}
    app = Celery("test-routes", set_as_current=False, task_routes=routes)
    app.task(name="routed.one", shared=False)(sample_tasks.undecorated)
    app.task(name="routed", shared=False)(sample_tasks.undecorated)
    app.task(name="elsewhere", shared=False)(sample_tasks.undecorated)
    app.task(name="old.way", shared=False, queue="old")(sample_tasks.undecorated)
    with pytest.warns(CDeprecationWarning, match="'queue' task attribute"):
        tasks = app.tasks

    names = ("routed.one", "routed", "elsewhere", "old.way")
    assert [handler_from(tasks[name]).queue for name in names] == ["mail", "slow", None, "old"]


def test_a_bound_task_has_a_request_of_this_job() -> None:
    with running(delivery()):
        seen = found(f"{HERE}.bound").call([1], {"a": 2})

    assert seen == {
        "name": f"{HERE}.bound",
        "id": "job-1",
        "retries": 2,
        "args": (1,),
        "kwargs": {"a": 2},
        "queue": "mail",
    }
    assert sample_tasks.bound.request.id is None  # the request ended with the call


def test_a_bound_task_called_by_hand_runs_outside_of_a_worker() -> None:
    assert found(f"{HERE}.bound").call([1])["id"] is None


def test_the_current_task_of_celery_is_the_one_that_runs() -> None:
    assert found(f"{HERE}.current").call() == f"{HERE}.current"


def test_a_task_class_with_its_own_call_is_honoured() -> None:
    assert found(f"{HERE}.loud").call() == "loud hello"


def test_an_async_celery_task_gives_its_coroutine() -> None:
    handler = found(f"{HERE}.asynchronous")

    assert handler.is_async
    assert asyncio.run(handler.call([1])) == 2


def test_django_tasks_are_found_by_their_module_path() -> None:
    plain, plain_async = found(f"{HERE}.plain"), found(f"{HERE}.plain_async")

    assert (plain.is_async, plain_async.is_async) == (False, True)
    assert plain.call([4]) == 8
    assert asyncio.run(plain_async.call([4])) == 12
    assert handler_name(sample_tasks.plain) == plain.name
    assert handler_queue(sample_tasks.plain) is None  # "default" is what Django says for none

    slow = copy.copy(sample_tasks.plain)
    object.__setattr__(
        slow, "queue_name", "slow"
    )  # .using() asks a backend, and the default one has one queue
    assert handler_queue(slow) == "slow"


def test_a_django_task_that_takes_its_context_gets_it() -> None:
    with running(delivery()):
        assert found(f"{HERE}.with_context").call([5]) == ["job-1", 3, 5]


def test_names_list_what_this_process_knows_without_celerys_own() -> None:
    names = handler_names()

    assert names == sorted(names)
    assert {f"{HERE}.add", "named.elsewhere", f"{HERE}.plain"} <= set(names)
    assert not [name for name in names if name.startswith("celery.")]
    assert get_handler("celery.chord_unlock") is None


@pytest.mark.parametrize(
    "name", ["os.system", "tests.queueops.sample_tasks.undecorated", "no.such", "__main__"]
)
def test_a_name_that_no_registry_has_is_not_imported(name: str) -> None:
    assert get_handler(name) is None


def test_a_name_need_not_be_known_here() -> None:
    assert handler_name("another.host.knows") == "another.host.knows"
    assert handler_queue("another.host.knows") is None


@pytest.mark.parametrize("name", ["", " ", "x" * 201, "a\nb", "a\0", " a", "\ud800"])
def test_text_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="handler must be a name of 1 to 200"):
        handler_name(name)


@pytest.mark.parametrize("task", [None, 5, object(), b"a.b", sample_tasks.undecorated, print, dict])
def test_an_object_that_is_no_task_is_refused(task: object) -> None:
    with pytest.raises(
        TypeError, match="handler must be a Celery task, a Django task or a registered name, got"
    ):
        handler_name(task)


def test_a_plain_function_is_told_to_be_decorated() -> None:
    with pytest.raises(TypeError, match="got function undecorated; decorate it with @shared_task or @task"):
        handler_name(sample_tasks.undecorated)


def test_a_module_that_is_not_there_is_one_clear_error_each_time(settings: Settings) -> None:
    settings.QUEUEOPS = {**settings.QUEUEOPS, "HANDLERS": ["no_such_module.tasks"]}

    for _ in range(2):
        with pytest.raises(ConfigError, match=r"handlers of no_such_module\.tasks can't be imported: Module"):
            load_handlers()


def test_a_module_that_fails_is_loaded_when_it_is_mended(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "mended_tasks.py"
    module.write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings.QUEUEOPS = {**settings.QUEUEOPS, "HANDLERS": ["mended_tasks"]}
    with pytest.raises(ConfigError, match="mended_tasks can't be imported: ZeroDivisionError"):
        get_handler("mended.task")

    module.write_text("from celery import shared_task\n@shared_task(name='mended.task')\ndef f(): return 7\n")
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert found("mended.task").call() == 7
    sys.modules.pop("mended_tasks", None)


def test_a_module_may_ask_for_handlers_while_it_is_loaded(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from queueops.handlers import get_handler\nfound = get_handler('asked.while.loading')\n"
    (tmp_path / "asking_tasks.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings.QUEUEOPS = {**settings.QUEUEOPS, "HANDLERS": ["asking_tasks"]}

    load_handlers()

    assert sys.modules.pop("asking_tasks").found is None


def test_two_handlers_of_queueops_itself_may_not_share_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_own", {})
    first = Handler("own.name", print)
    handlers.register_handler(first)
    handlers.register_handler(first)

    with pytest.raises(ConfigError, match=r"two handlers are named 'own\.name'"):
        handlers.register_handler(Handler("own.name", repr))
    assert found("own.name") is first
    assert handler_name(print) == "own.name"
