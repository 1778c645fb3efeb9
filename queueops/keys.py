"""Every Redis key. Nothing else in the tree spells one.

`Q` is `queueops:{<queue>}`: the braces keep all keys of a queue in one Cluster slot, so that
each script touches one slot. Lua gets the names from `SUFFIXES` through the loader.
"""

from __future__ import annotations

import re

from queueops.states import JobState, Lane

PREFIX = "queueops:"
#: The consumer group of every ready stream.
GROUP = "workers"

#: Set of queue names. A queue is registered before its first enqueue.
QUEUES = PREFIX + "queues"
#: ZSET worker -> last heartbeat, Unix ms.
WORKERS = PREFIX + "workers"
#: HASH worker -> JSON of what it says about itself.
WORKER_INFO = PREFIX + "worker-info"
#: STRING: the name of this life of the data set.
EPOCH = PREFIX + "epoch"
#: SET of Celery workers that run jobs, and SET of children that hand jobs to them; `present` says who lives.
FLEET = PREFIX + "fleet"
HANDS = PREFIX + "hands"
#: HASH policy name -> JSON, with its version.
POLICIES = PREFIX + "policies"

#: Name in a script's header -> what follows Q. Types: docs/redis.md.
SUFFIXES: dict[str, str] = {
    "settings": ":settings",
    "delayed": ":delayed",
    "pending": ":pending",
    "dead": ":dead",
    "discarded": ":discarded",
    "causes": ":causes",
    "events": ":events",
    "children": ":children",  # ZSET child -> end of its lease, Unix ms
    "wake": ":wake",
    "wake_suspect": ":wake:suspect",  # LIST: at most one token, for the probation children
    "clock": ":clock",  # HASH keeper, alarm (Unix ms), token_at (Unix ms)
    "rate": ":rate",  # HASH tokens, at (Unix ms): the bucket of the rate limit
    "held": ":held",  # ZSET hold -> since when it keeps jobs back, Unix ms
    "stops": ":stops",  # ZSET job -> when it is stopped hard, Unix ms
    "sweep": ":sweep",  # HASH lane -> last entry id that the sweep looked at
    "stats_total": ":stats:total",  # HASH: the counters of `stats`, never reset
    "job_prefix": ":job:",
    "ready_prefix": ":ready:",
    "dead_prefix": ":dead:",
    "cause_prefix": ":cause:",
    "asked_prefix": ":asked:",  # HASH of one operation: job -> delivery that it asked to stop; expiring
    "held_prefix": ":held:",  # ZSET of one hold: job -> when it was due, Unix ms
    "child_prefix": ":child:",  # HASH request, batch, running: a child's last claim
    "stats_prefix": ":stats:",
    "schedule_prefix": ":schedule:",
    "unique_prefix": ":unique:",
    "corrupt_prefix": ":corrupt:",  # what stood under a job's key with a wrong type
}

_QUEUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z", re.ASCII)
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}\Z", re.ASCII)


def check_queue(queue: object) -> str:
    """Return `queue` when it is a legal queue name. Raises TypeError or ValueError."""
    if not isinstance(queue, str):
        raise TypeError(f"queue must be a string, got {type(queue).__name__}")
    if not _QUEUE_NAME.match(queue):
        raise ValueError(
            f"queue name {_shown(queue)} is not allowed: "
            "1 to 64 of A-Z a-z 0-9 . _ -, a letter or digit first"
        )
    return queue


def is_queue(name: str) -> bool:
    """Whether a queue can have this name."""
    return _QUEUE_NAME.match(name) is not None


def check_job_id(job_id: object) -> str:
    """Return `job_id` when it is a legal job id. Raises TypeError or ValueError."""
    if not isinstance(job_id, str):
        raise TypeError(f"job_id must be a string, got {type(job_id).__name__}")
    if not _JOB_ID.match(job_id):
        raise ValueError(
            f"job_id {_shown(job_id)} is not allowed: "
            "1 to 128 of A-Z a-z 0-9 . _ : @ -, a letter or digit first"
        )
    return job_id


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:77] + "...")


def queue_key(queue: str, name: str) -> str:
    """The key of `queue` that scripts call `name` (a key of SUFFIXES)."""
    return f"{PREFIX}{{{queue}}}{SUFFIXES[name]}"


def job(queue: str, job_id: str) -> str:
    """HASH: the job."""
    return queue_key(queue, "job_prefix") + job_id


def ready(queue: str, lane: Lane | str) -> str:
    """STREAM of the ids to run in one lane; consumer group GROUP."""
    return queue_key(queue, "ready_prefix") + lane


def jobs_in(queue: str, state: JobState) -> str:
    """ZSET of the ids in `state`. Ready jobs are in the lanes, done ones in no collection."""
    if state in {JobState.READY, JobState.DONE}:
        raise ValueError(f"{state} jobs are in no sorted set")
    return queue_key(queue, state.value)


def dead_of_cause(queue: str, cause: str) -> str:
    """ZSET of the dead of one cause, by time of death, Unix ms."""
    return queue_key(queue, "dead_prefix") + cause


def cause(queue: str, cause: str) -> str:
    """HASH text, first (Unix ms), failing, failures: one cause."""
    return queue_key(queue, "cause_prefix") + cause


def held_by(queue: str, hold: int | str) -> str:
    """ZSET of the ids that one hold keeps back, by when they were due, Unix ms."""
    return queue_key(queue, "held_prefix") + str(hold)


def asked(queue: str, operation: str) -> str:
    """HASH, expiring: job -> '<delivery>' that an operation asked to stop, or '<delivery> seen'."""
    return queue_key(queue, "asked_prefix") + operation


def child(queue: str, child: str) -> str:
    """HASH: the last claim of one child."""
    return queue_key(queue, "child_prefix") + child


def stats(queue: str, minute: int) -> str:
    """HASH of counters of one minute (Unix minutes), expiring."""
    return queue_key(queue, "stats_prefix") + str(minute)


def unique(queue: str, digest: str) -> str:
    """STRING: the id that holds a unique key."""
    return queue_key(queue, "unique_prefix") + digest


def schedule(queue: str, key: str) -> str:
    """HASH: the last slot fired and the version of one schedule."""
    return queue_key(queue, "schedule_prefix") + key


def lease(role: str) -> str:
    """STRING: who runs `role` now, with its term; a single-runner lease."""
    return f"{PREFIX}lease:{role}"


def drain(worker: str) -> str:
    """STRING: a person asked this worker to finish and stop; read with each heartbeat."""
    return f"{PREFIX}drain:{worker}"


def pace(task: str) -> str:
    """HASH: the turns of a task with a rate limit of its own."""
    return f"{PREFIX}pace:{task}"


def present(index: str, name: str) -> str:
    """STRING, expiring: a member of FLEET or HANDS lives; what it says about itself, JSON."""
    return f"{index}:{name}"


def ended(child: str) -> str:
    """LIST, expiring: jobs that this child handed over and that have ended, `<queue> <id> <delivery>`."""
    return f"{PREFIX}ended:{child}"
