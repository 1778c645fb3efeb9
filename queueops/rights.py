"""Who may do what: the rights, and the groups that the first migration makes of them."""

from __future__ import annotations

from enum import StrEnum


class Right(StrEnum):
    """A permission's codename in the app `queueops`."""

    VIEW_JOB = "view_job"
    VIEW_PAYLOAD = "view_payload"
    REQUEUE_JOB = "requeue_job"
    DISCARD_JOB = "discard_job"
    PURGE_JOB = "purge_job"
    PAUSE_QUEUE = "pause_queue"
    EDIT_POLICY = "edit_policy"
    EDIT_SCHEDULE = "edit_schedule"
    RUN_OPERATION = "run_operation"


_VIEWER = frozenset({Right.VIEW_JOB})
_OPERATOR = _VIEWER | {
    Right.VIEW_PAYLOAD,
    Right.REQUEUE_JOB,
    Right.DISCARD_JOB,
    Right.PAUSE_QUEUE,
    Right.RUN_OPERATION,
}

#: Group -> its rights.
GROUPS: dict[str, frozenset[Right]] = {"Viewer": _VIEWER, "Operator": _OPERATOR, "Admin": frozenset(Right)}
