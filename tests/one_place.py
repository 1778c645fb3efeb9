"""The check that ends each engine test: every job is in exactly one place, the one its hash names.

It reads the whole of a small store by itself and shares no code with `doctor`, so that each can be held
against the other.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from queueops import keys
from queueops.states import LIVE, MOVES, JobState, Lane
from tests.factories import Redis

_QUEUE_KEY = re.compile(r"queueops:\{([^}]+)\}:(.+)\Z", re.DOTALL)
_SETS = (JobState.DELAYED, JobState.PENDING, JobState.DEAD, JobState.DISCARDED)
#: What may carry a TTL: tombstones of done jobs are judged by their state.
_MAY_EXPIRE = ("stats:", "unique:", "schedule:")  # a retired schedule's


def assert_each_job_in_one_place(client: Redis) -> None:
    """Fail with every broken rule of every queue in this store."""
    problems = examine(client)
    assert not problems, "\n".join(["the store is inconsistent:", *problems])


def examine(client: Redis) -> list[str]:
    """Every broken rule, a line each."""
    names: dict[str, list[str]] = defaultdict(list)
    for key in client.scan_iter(count=1000):
        if match := _QUEUE_KEY.match(key.decode("utf-8", "surrogateescape")):
            names[match[1]].append(match[2])
    return [
        f"{queue}: {problem}"
        for queue, found in sorted(names.items())
        for problem in _Queue(client, queue, found).problems()
    ]


@dataclass
class _Queue:
    client: Redis
    name: str
    key_names: list[str]
    found: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        self._read()
        for job_id, job in self.jobs.items():
            self._check_job(job_id, job)
        self._check_members()
        self._check_causes()
        self._check_unique_keys()
        self._check_ttls()
        self._check_counts()
        self._check_events()
        return self.found

    # -- reading --------------------------------------------------------------------------------

    def _key(self, name: str) -> str:
        return f"{keys.PREFIX}{{{self.name}}}:{name}"

    def _read(self) -> None:
        ids = [name.removeprefix("job:") for name in self.key_names if name.startswith("job:")]
        pipe = self.client.pipeline(transaction=False)
        for job_id in ids:
            pipe.hgetall(self._key(f"job:{job_id}"))
        self.jobs: dict[str, dict[str, str]] = {
            job_id: {_text(name): _text(value) for name, value in fields.items()}
            for job_id, fields in zip(ids, pipe.execute(), strict=True)
        }
        self.sets = {
            state: {
                _text(member): score
                for member, score in self.client.zrange(self._key(state), 0, -1, withscores=True)
            }
            for state in _SETS
        }
        self.entries: dict[str, str] = {}  # "<lane>/<entry id>" -> job id
        self.owners: dict[str, str] = {}  # "<lane>/<entry id>" -> consumer
        self.lanes: dict[str, list[str]] = defaultdict(list)  # job id -> its entries
        for lane in Lane:
            stream = keys.ready(self.name, lane)
            for entry, fields in self.client.xrange(stream):
                where, job_id = f"{lane}/{entry.decode()}", _text(next(iter(fields.values())))
                self.entries[where] = job_id
                self.lanes[job_id].append(where)
            if any(_text(group["name"]) == keys.GROUP for group in self._groups(stream)):
                for held in self.client.xpending_range(stream, keys.GROUP, "-", "+", 1_000_000):
                    self.owners[f"{lane}/{held['message_id'].decode()}"] = _text(held["consumer"])
        settings = self.client.hgetall(self._key("settings"))
        self.has_all_events = settings.get(b"audit") == b"full" and b"events_lost" not in settings
        self.children = {_text(child) for child in self.client.zrange(self._key("children"), 0, -1)}

    def _groups(self, stream: str) -> list[dict[str, bytes]]:
        return self.client.xinfo_groups(stream) if self.client.exists(stream) else []

    # -- the rules ------------------------------------------------------------------------------

    def _check_job(self, job_id: str, job: dict[str, str]) -> None:
        state, entry = job.get("state"), job.get("entry")
        if state not in set(JobState):
            self.found.append(f"{job_id} is in the state {state!r}")
            return
        places = [str(there) for there in _SETS if job_id in self.sets[there]]
        lanes = self.lanes.get(job_id, [])
        if state == JobState.READY:
            if places or lanes != [entry]:
                self.found.append(f"{job_id} is ready at {entry}, and stands in {[*places, *lanes]}")
            elif entry in self.owners:
                self.found.append(f"{job_id} is ready, and {self.owners[entry]} holds its entry")
        elif state == JobState.PENDING:
            if places != [state] or lanes != [entry]:
                self.found.append(f"{job_id} is pending at {entry}, and stands in {[*places, *lanes]}")
            elif self.owners.get(entry or "") != job.get("child"):
                self.found.append(
                    f"{job_id} is {job.get('child')}'s, and {self.owners.get(entry or '')} holds its entry"
                )
            if int(job.get("delivery", 0)) < 1:
                self.found.append(f"{job_id} is pending with delivery {job.get('delivery')}")
        elif state == JobState.DONE:
            if places or lanes:
                self.found.append(f"{job_id} is done, and stands in {[*places, *lanes]}")
        elif places != [state] or lanes:
            self.found.append(f"{job_id} is {state}, and stands in {[*places, *lanes]}")
        if state != JobState.DONE and "spec" not in job and job.get("cause") != "corrupt":
            self.found.append(f"{job_id} is {state} and has no spec")

    def _check_members(self) -> None:
        for state, members in self.sets.items():
            for job_id, score in members.items():
                if self.jobs.get(job_id, {}).get("state") != state:
                    self.found.append(f"{job_id} stands in {state}, and its hash says otherwise")
                if not score.is_integer():
                    self.found.append(f"{job_id} has the score {score!r} in {state}: not whole ms")
        for where, job_id in self.entries.items():
            if self.jobs.get(job_id, {}).get("entry") != where:
                self.found.append(f"{job_id} stands in the lane at {where}, and its hash says otherwise")
        for where, owner in self.owners.items():
            if where not in self.entries:
                self.found.append(f"{owner} holds the entry {where}, which is gone")

    def _check_causes(self) -> None:
        dead: dict[str, set[str]] = defaultdict(set)
        failing: Counter[str] = Counter()
        for job_id, job in self.jobs.items():
            if job.get("state") == JobState.DEAD:
                dead[job.get("cause", "")].add(job_id)
            elif job.get("state") in LIVE and job.get("cause"):
                failing[job["cause"]] += 1
        known = {_text(cause) for cause in self.client.zrange(self._key("causes"), 0, -1)}
        hashes = {name.removeprefix("cause:") for name in self.key_names if name.startswith("cause:")}
        sets = {name.removeprefix("dead:") for name in self.key_names if name.startswith("dead:")}
        if known != hashes:
            self.found.append(f"causes {sorted(known ^ hashes)} are on the index or described, not both")
        if len(known) > 1001:  # `other` is the one over
            self.found.append(f"{len(known)} causes are kept")
        for cause in sets | dead.keys():
            here = {
                _text(job_id) for job_id in self.client.zrange(keys.dead_of_cause(self.name, cause), 0, -1)
            }
            if here != dead[cause]:
                self.found.append(f"dead of cause {cause}: {sorted(here ^ dead[cause])} are in one list only")
            if here and cause not in known:
                self.found.append(f"cause {cause} has dead jobs, and is on no index")
        for cause in hashes | failing.keys():
            count = int(self.client.hget(keys.cause(self.name, cause), "failing") or 0)
            if count != failing[cause]:
                self.found.append(f"cause {cause} counts {count} failing, there are {failing[cause]}")

    def _check_unique_keys(self) -> None:
        for name in self.key_names:
            if not name.startswith("unique:"):
                continue
            digest = name.removeprefix("unique:")
            holder = _text(self.client.get(self._key(name)) or b"")
            job = self.jobs.get(holder)
            if self.client.pttl(self._key(name)) > 0:
                continue  # held for a time of its own
            if job is None or job.get("state") not in LIVE or job.get("unique") != digest:
                self.found.append(
                    f"unique key {digest} is held by {holder}, which is {job and job.get('state')}"
                )

    def _check_ttls(self) -> None:
        pipe = self.client.pipeline(transaction=False)
        for name in self.key_names:
            pipe.pttl(self._key(name))
        for name, ttl in zip(self.key_names, pipe.execute(), strict=True):
            done = name.startswith("job:") and self.jobs[name[4:]].get("state") == JobState.DONE
            if ttl == -1 and done:
                self.found.append(f"{name} is done and never leaves")
            if ttl >= 0 and not done and (not name.startswith(_MAY_EXPIRE) or name == "stats:total"):
                self.found.append(f"{name} would vanish in {ttl} ms")
            if ttl == -1 and name.startswith("stats:") and name != "stats:total":
                self.found.append(f"{name} never leaves")

    def _check_counts(self) -> None:
        ready = sum(job.get("state") == JobState.READY for job in self.jobs.values())
        counted = len(self.entries) - len(self.sets[JobState.PENDING])
        if ready != counted:
            self.found.append(f"{ready} jobs are ready, pages count {counted}")
        if self.client.llen(self._key("wake")) > 2:
            self.found.append("more than two tokens wait")
        for name in self.key_names:
            if name.startswith("child:") and name.removeprefix("child:") not in self.children:
                self.found.append(f"{name} is kept for a child that is gone")

    def _check_events(self) -> None:
        """Each event is a move of MOVES, and the moves of a job follow each other without a gap."""
        at: dict[str, str] = {}
        for _, fields in self.client.xrange(self._key("events")):
            event = {_text(name): _text(value) for name, value in fields.items()}
            verb, job_id, source, target = (event[name] for name in ("verb", "id", "from", "to"))
            if verb == "late":
                continue
            move = MOVES[verb]
            if source not in (move.sources or {""}) or target not in {t or "gone" for t in move.targets}:
                self.found.append(f"{job_id}: {verb} moved it from {source!r} to {target!r}")
            before = at.get(job_id, source) if self.has_all_events else source
            if source != before and not (source == "" and before in {"done", "gone"}):
                self.found.append(
                    f"{job_id}: {verb} found it {source!r}, and the event before left it {before!r}"
                )
            at[job_id] = target
        for job_id, job in self.jobs.items():
            if self.has_all_events and job_id in at and at[job_id] != job.get("state"):
                self.found.append(f"{job_id} is {job.get('state')}, and its last event says {at[job_id]}")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
