"""`QueueTask`: a Celery task whose calls are jobs of QueueOps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from celery import Celery, Signature, Task
from celery.result import AsyncResult, EagerResult

from queueops.bridges.celery.adopting import adopt
from queueops.bridges.celery.calling import put
from queueops.bridges.celery.request import install
from queueops.bridges.celery.results import JobResult, results_of


class QueueTask(Task[..., Any]):
    """A task base class: `@shared_task(base=QueueTask)`, or for all tasks of an app
    `Celery(task_cls="queueops.bridges.celery:QueueTask")`.

    `.delay`, `.apply_async`, signatures, `link`, `link_error`, chains and groups go through the engine,
    whoever calls; `.retry` delays the job. A call inside `transaction.atomic()` is written with the
    transaction. With `task_always_eager` a call runs at once, as in Celery.
    """

    abstract = True
    is_queue_task = True

    # What Celery gives every task class and its stubs leave out.
    _get_app: Callable[[], Celery[Any]]
    _get_exec_options: Callable[[], dict[str, Any]]
    _dump_pydantic_arguments: Callable[[Any, Any], tuple[Any, Any]] | None
    _backend: Any
    shadow_name: Callable[..., Any]

    @classmethod
    def on_bound(cls, app: Celery[Any]) -> None:
        """Celery calls it when the task joins an app."""
        install()
        adopt(app)

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> AsyncResult[Any] | EagerResult[Any]:
        """Enqueue a job; its id is the result's.

        Takes Celery's options: countdown, eta, expires, priority (0 to 9, or high, normal, low), queue,
        headers, ignore_result, soft_time_limit and time_limit. What is about a broker is passed over.
        Raises kombu's OperationalError when Redis took nothing in: call again with the same `task_id`.
        """
        app = self._get_app()
        if app.conf.task_always_eager or self.name.startswith("celery."):  # its own stay with its broker
            return super().apply_async(args, kwargs, task_id, producer, link, link_error, shadow, **options)
        self._check_call(args, kwargs, options)
        if self._dump_pydantic_arguments is not None:
            args, kwargs = self._dump_pydantic_arguments(args, kwargs)
        given = {**self._get_exec_options(), **options}
        given |= {"task_id": task_id, "link": link, "link_error": link_error}
        given["shadow"] = shadow or self.shadow_name(args, kwargs, options)
        result = self.AsyncResult(put(app, self.name, self, args, kwargs, given).id)
        result.ignored = bool(given.get("ignore_result", self.ignore_result))
        if options.get("add_to_parent", True) and (parent := app.current_worker_task) is not None:
            parent.add_trail(result)
        return result

    def _check_call(self, args: Any, kwargs: Any, options: dict[str, Any]) -> None:
        """Raise TypeError for arguments that the function does not take, as Celery does."""
        soft, hard = self.soft_time_limit, self.time_limit
        if soft and hard and soft > hard:
            raise ValueError("soft_time_limit must be less than or equal to time_limit")
        check = getattr(self, "__header__", None) if self.typing else None
        if check is not None:
            check(*(args or ()), **(kwargs or {}))

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> AsyncResult[Any] | EagerResult[Any]:
        """As `delay`, when the open transaction commits; at once when none is open."""
        return self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(self, *args: Any, **options: Any) -> AsyncResult[Any] | EagerResult[Any]:
        """As `apply_async`, when the open transaction commits; the id is known now."""
        return self.apply_async(*args, **options)

    def AsyncResult(  # noqa: N802 - Celery's name
        self, task_id: str, **kwargs: Any
    ) -> JobResult:
        """The result of one call."""
        return JobResult(
            task_id, **{"backend": self.backend, "task_name": self.name, "app": self._get_app(), **kwargs}
        )

    @property
    def backend(self) -> Any:
        """Where its results are: with the jobs."""
        return self._backend or results_of(self._get_app())

    @backend.setter
    def backend(self, value: Any) -> None:
        self._backend = value

    # -- what needs more than a job ---------------------------------------------------------

    def replace(self, sig: Signature[Any]) -> NoReturn:
        """Refuse: a job keeps its handler for life."""
        self._refuse("replace()", "Call the other task with `link`, or from this one.")

    def add_to_chord(self, sig: Signature[Any], lazy: bool = False) -> NoReturn:
        """Refuse, as a chord's header is refused."""
        self._refuse("add_to_chord()", "A QueueTask can't be in a chord's header.")

    def map(self, it: Any) -> NoReturn:
        """Refuse."""
        self._refuse("map()", "Enqueue a job for each with a group, or with queueops.enqueue_many.")

    def starmap(self, it: Any) -> NoReturn:
        """Refuse."""
        self._refuse("starmap()", "Enqueue a job for each with a group, or with queueops.enqueue_many.")

    def chunks(self, it: Any, n: int) -> NoReturn:
        """Refuse."""
        self._refuse("chunks()", "Enqueue a job for each with a group, or with queueops.enqueue_many.")

    def _refuse(self, what: str, instead: str) -> NoReturn:
        raise NotImplementedError(f"{self.name} is a QueueTask, which has no {what}. {instead}")
