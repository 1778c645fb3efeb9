"""The record of what happened, and what people edit. Redis, not this, is the truth for what will run."""

from queueops.models.holds import QueueHold
from queueops.models.jobs import Attempt, Effect, Job, JobEvent, JobTag
from queueops.models.mirror import MirrorState, PrunePermit, SetAsideEvent, WorkerRecord
from queueops.models.operations import Operation, OperatorAction
from queueops.models.queues import Queue, RetryPolicy, RetryPolicyVersion
from queueops.models.schedules import Schedule, ScheduleSlot

__all__ = [
    "Attempt",
    "Effect",
    "Job",
    "JobEvent",
    "JobTag",
    "MirrorState",
    "Operation",
    "OperatorAction",
    "PrunePermit",
    "Queue",
    "QueueHold",
    "RetryPolicy",
    "RetryPolicyVersion",
    "Schedule",
    "ScheduleSlot",
    "SetAsideEvent",
    "WorkerRecord",
]
