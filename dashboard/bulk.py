"""Sets of jobs that a bulk action is for: named by the filter of a list, or a cause over all queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

from dashboard import acts, hints, lists, queries
from dashboard.lists import Filter
from dashboard.visible import one_line
from queueops import models, operations
from queueops.actors import who
from queueops.causes import CAUSE_TEXTS
from queueops.inspector import Inspector
from queueops.selection import VERBS, Selection, count_quickly
from queueops.states import JobState

#: A requeue of more than this first does so many and waits for a look.
CANARY = 100
#: A requeue stops by itself when more than this share of its jobs fail again, percent.
STOP_PERCENT = 50


@dataclass(frozen=True)
class JobSet:
    """Jobs in one state that match. `queue` '' is every queue."""

    queue: str
    state: JobState
    handler: str = ""
    cause: str = ""
    tag: str = ""
    id: str = ""
    operation: str = ""

    @classmethod
    def read(cls, given: Mapping[str, str]) -> JobSet:
        """Read a set from a form or a URL. Raises ValueError for a state that has no list."""
        texts = {
            name: given.get(name, "").strip()
            for name in ("queue", "handler", "cause", "tag", "id", "operation")
        }
        found = cls(state=JobState(given.get("state", "") or "dead"), **texts)
        found.selection()  # says what is wrong with it
        return found

    def selection(self) -> Selection:
        """Return it as the engine takes it."""
        return Selection(
            queue=self.queue,
            state=self.state.value,
            handler=self.handler,
            cause=self.cause,
            tag=self.tag,
            id_prefix=self.id,
            operation=self.operation,
        )

    @property
    def verbs(self) -> list[str]:
        """What may be done to jobs in this state, the first as the natural one."""
        return [verb for verb in acts.VERBS_IN[self.state] if verb in VERBS and self.state in VERBS[verb]]

    @property
    def fields(self) -> dict[str, str]:
        """What a form carries on."""
        given = {"queue": self.queue, "state": self.state.value, "handler": self.handler, "cause": self.cause}
        given |= {"tag": self.tag, "id": self.id, "operation": self.operation}
        return {name: value for name, value in given.items() if value}

    @cached_property
    def count(self) -> int:
        """How many match now: from Redis where a set's size says so, else by the record's index."""
        quick = count_quickly(Inspector(), self.selection())
        if quick is not None:
            return quick
        if self.operation:
            known = models.Operation.objects.filter(pk=self.operation).values_list("done", flat=True).first()
            return known or 0
        queues = [self.queue] if self.queue else Inspector().queues()
        return sum(
            lists.count(Filter(queue, self.state, self.handler, self.cause, self.tag, self.id))
            for queue in queues
        )

    @property
    def words(self) -> str:
        """The set as a person reads it."""
        return words(self.queue, self.state.value, self.selection().to_json())


def undo_discard(user: AbstractBaseUser | AnonymousUser, queue: str, operation: str, total: int) -> str:
    """Begin to restore what a bulk discard set aside, as an operation of its own; return its id."""
    selection = Selection(queue=queue, state=JobState.DISCARDED.value, operation=operation)
    new = operations.start("restore", selection, **who(user), reason=f"undo of {operation}", total=total)
    hints.hint(queue)
    return str(new.pk)


def words(queue: str, state: str, given: Mapping[str, Any]) -> str:
    """Return a filter as a person reads it: "dead in webhooks, cause 3f2a…"."""
    if schedule := given.get("schedule"):
        return one_line(f"slots of schedule {schedule}", 200)
    said = [f"{state or 'jobs'} in {queue or 'every queue'}"]
    for name, label in (("handler", "handler"), ("cause", "cause"), ("tag", "tag"), ("id_prefix", "id from")):
        if value := given.get(name):
            said.append(f"{label} {cause_text(value) if name == 'cause' else value}")
    if given.get("operation"):
        said.append("of one operation")
    if ids := given.get("ids"):
        said.append(f"{len(ids):,} by id" if len(ids) > 1 else f"job {ids[0]}")
    return one_line(", ".join(said), 200)


def cause_text(cause: str) -> str:
    """Return what a cause says, where it was seen lately, else its fingerprint."""
    known = next((each.text for each in queries.last_fleet().causes if each.cause == cause), None)
    return one_line(known, 90) if known else CAUSE_TEXTS.get(cause, cause)
