"""Handlers by name: Celery tasks and Django tasks, as their own registries know them.

A name that was read from Redis is looked up, never imported. What can be found is what this
process loaded: every installed app's `tasks` module and the modules of QUEUEOPS["HANDLERS"].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from threading import RLock
from types import ModuleType
from typing import Any, Protocol

from queueops.conf import config
from queueops.errors import ConfigError, SoftTimeLimit
from queueops.job import Delivery
from queueops.payload import Spec
from queueops.policies import Bury, Retry, RetryPolicy
from queueops.store import Outcome

MAX_NAME = 200
#: Each makes its library's tasks findable; one whose library is not installed is left out.
_BRIDGES = {"celery": ("celery",), "django_tasks": ("django.tasks", "django_tasks"), "webhook": ("httpx",)}


class Call(Protocol):
    """One delivery of a job, as a handler gets it that says itself what becomes of the job."""

    @property
    def delivery(self) -> Delivery:
        """The delivery."""

    @property
    def spec(self) -> Spec:
        """What the job carries."""

    @property
    def policy(self) -> RetryPolicy:
        """The policy that the job follows."""

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """The soft and the hard limit, seconds."""

    def limited(self) -> AbstractContextManager[None]:
        """Let the block, on this thread, run no longer than the soft limit."""

    def succeeded(self, result: Any) -> Outcome:
        """Say that it returned; the result is kept with the job, unless it is None."""

    def failed(
        self, error: BaseException, said: Retry | Bury | None = None, *, is_expected: bool = False
    ) -> Outcome:
        """Say that it raised. `said` is what becomes of the job, None for what the policy says.

        An error that is expected is logged as information.
        """


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that a job runs, and what was declared with it. None: the queue's or site's own."""

    name: str
    function: Callable[..., Any]
    is_async: bool = False
    queue: str | None = None
    policy: str | RetryPolicy | None = None
    soft_limit_s: float | None = None
    hard_limit_s: float | None = None
    #: What is raised inside of it at its soft limit.
    soft_error: type[Exception] = SoftTimeLimit
    #: Runs one delivery, instead of `function`, and answers its outcome (an awaitable of it when `is_async`):
    #: for a library whose tasks say more than a return value and an exception do.
    perform: Callable[[Call], Any] | None = None

    def call(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run it, or return its coroutine when `is_async`. Raises what the function raises."""
        return self.function(*args, **(kwargs or {}))


class Resolver(Protocol):
    """One library's registry of tasks."""

    def find(self, name: str) -> Handler | None:
        """Return the handler of this registered name. Imports nothing."""

    def handler_of(self, task: object) -> Handler | None:
        """Return the handler of a task object of this library, None for any other object."""

    def adopt(self, module: ModuleType) -> None:
        """Register the tasks of a module that was just loaded, where the library does not itself."""

    def names(self) -> Iterable[str]:
        """Return every registered name."""


_lock = RLock()  # a module that is being loaded may itself ask for a handler
_resolvers: list[Resolver] = []
_own: dict[str, Handler] = {}
_are_bridges_loaded = _is_loading = False
#: The setting with which modules were loaded, and which they are.
_loaded_for: tuple[str, ...] | None = None
_adopted: set[str] = set()
#: By id of a task object: the object itself, so that its id stays its own, and its handler.
_by_object: dict[int, tuple[object, Handler]] = {}


def register_resolver(resolver: Resolver) -> None:
    """Ask `resolver` too, from now on. A bridge does so when it is loaded."""
    _resolvers.append(resolver)


def register_handler(handler: Handler) -> None:
    """Make one function of QueueOps itself a handler. Raises ConfigError when its name is taken."""
    if _own.setdefault(handler.name, handler) != handler:
        raise ConfigError(f"two handlers are named {handler.name!r}")


def load_handlers() -> None:
    """Import the modules whose tasks are handlers, once.

    Raises ConfigError when a module of the setting, or an app's `tasks`, can't be imported.
    """
    global _loaded_for, _is_loading
    given = config().handlers
    if _loaded_for == given:
        return
    with _lock:
        if _is_loading or _loaded_for == given:
            return
        _is_loading = True
        try:
            _load_bridges()
            for name in (*_tasks_modules(), *given):
                if name not in _adopted:
                    _adopt(name)
            _loaded_for = given
        finally:
            _is_loading = False


def get_handler(name: str) -> Handler | None:
    """Return the handler of a name, None when this process knows none. Raises as load_handlers does."""
    load_handlers()
    if own := _own.get(name):
        return own
    for resolver in _resolvers:
        if found := resolver.find(name):
            return found
    return None


def handler_names() -> list[str]:
    """Return the names of all handlers that this process knows, sorted."""
    load_handlers()
    return sorted({*_own, *(name for resolver in _resolvers for name in resolver.names())})


def handler_name(task: object) -> str:
    """Return the name under which a task runs; a name is checked and returned as it is.

    A name need not be known here: its worker may run elsewhere. Raises ValueError for text that is no
    name, TypeError for an object that is no task.
    """
    if (known := _seen(task)) is not None:
        return known.name
    if isinstance(task, str):
        return _checked_name(task)
    return _handler_of(task).name


def handler_queue(task: object) -> str | None:
    """Return the queue that was declared with a task (an object, or a name known here), or None."""
    if (known := _seen(task)) is not None:
        return known.queue
    if isinstance(task, str):
        found = get_handler(task)
        return found.queue if found else None
    return _handler_of(task).queue


def _seen(task: object) -> Handler | None:
    """The handler of a task met before; asked first, since a Celery proxy is slow to say what it is."""
    found = _by_object.get(id(task))
    return found[1] if found is not None and found[0] is task else None


def _handler_of(task: object) -> Handler:
    _load_bridges()
    for handler in _own.values():
        if handler.function is task:
            return handler
    for resolver in _resolvers:
        if found := resolver.handler_of(task):
            if len(_by_object) > 4096:  # tasks are made once a module; some are made on the fly
                _by_object.clear()
            _by_object[id(task)] = (task, found)
            return found
    what = f"function {task.__qualname__}" if callable(task) and hasattr(task, "__qualname__") else repr(task)
    raise TypeError(
        f"handler must be a Celery task, a Django task or a registered name, got {what:.200}"
        + ("; decorate it with @shared_task or @task" if callable(task) else "")
    )


def _checked_name(name: str) -> str:
    if not name or len(name) > MAX_NAME or not name.isprintable() or name != name.strip():
        raise ValueError(f"handler must be a name of 1 to {MAX_NAME} printable characters, got {name!r:.60}")
    return name


def _load_bridges() -> None:
    global _are_bridges_loaded
    if _are_bridges_loaded:
        return
    with _lock:
        if _are_bridges_loaded:
            return
        for bridge, libraries in _BRIDGES.items():
            try:
                import_module(f"queueops.bridges.{bridge}")
            except ModuleNotFoundError as error:
                if error.name not in libraries:
                    raise
        _are_bridges_loaded = True


def _tasks_modules() -> list[str]:
    from django.apps import apps
    from django.utils.module_loading import module_has_submodule

    return [
        f"{app.name}.tasks"
        for app in apps.get_app_configs()
        if app.module is not None and module_has_submodule(app.module, "tasks")
    ]


def _adopt(name: str) -> None:
    try:
        module = import_module(name)
    except Exception as error:
        raise ConfigError(
            f"the handlers of {name} can't be imported: {type(error).__name__}: {error}"
        ) from error
    for resolver in _resolvers:
        resolver.adopt(module)
    _adopted.add(name)
