"""The check that ends each engine test: every job is in exactly one place, the one its hash names.

It reads the whole of a small store by itself and shares no code with `doctor`, so that each can be held
against the other.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from queueops import keys
from queueops.states import LIVE, MOVES, JobState, Lane
from tests.factories import Redis

_QUEUE_KEY = re.compile(r"queueops:\{([^}]+)\}:(.+)\Z", re.DOTALL)
_SETS = (JobState.DELAYED, JobState.PENDING, JobState.DEAD, JobState.DISCARDED)
#: What may carry a TTL: tombstones of done jobs are judged by their state.
_MAY_EXPIRE = ("stats:", "unique:", "schedule:", "asked:")  # a retired schedule's


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
        self._check_holds()
        self._check_unique_keys()
        self._check_ttls()
        self._check_counts()
        self._check_events()
        return self.found

    # -- reading --------------------------------------------------------------------------------

    def _key(self, name: str) -> str:
        return f"{keys.PREFIX}{{{self.name}}}:{name}"

    def _named(self, prefix: str) -> list[str]:
        return [name.removeprefix(prefix) for name in self.key_names if name.startswith(prefix)]

    def _read(self) -> None:
        """Everything in one round trip."""
        ids, causes, dead, unique = (self._named(p) for p in ("job:", "cause:", "dead:", "unique:"))
        holds = self._named("held:")
        pipe = self.client.pipeline(transaction=False)
        for job_id in ids:
            pipe.hgetall(self._key(f"job:{job_id}"))
        for state in _SETS:
            pipe.zrange(self._key(state), 0, -1, withscores=True)
        for lane in Lane:
            pipe.xrange(keys.ready(self.name, lane))
            pipe.xpending_range(keys.ready(self.name, lane), keys.GROUP, "-", "+", 1_000_000)
        for cause in causes:
            pipe.hget(self._key(f"cause:{cause}"), "failing")
        for cause in dead:
            pipe.zrange(self._key(f"dead:{cause}"), 0, -1)
        for hold in holds:
            pipe.zrange(self._key(f"held:{hold}"), 0, -1)
        pipe.zrange(self._key("held"), 0, -1)
        for digest in unique:
            pipe.get(self._key(f"unique:{digest}"))
        for name in self.key_names:
            pipe.pttl(self._key(name))
        pipe.zrange(self._key("children"), 0, -1)
        pipe.zrange(self._key("causes"), 0, -1)
        pipe.hgetall(self._key("settings"))
        pipe.xrange(self._key("events"))
        pipe.llen(self._key("wake"))
        answers = iter(pipe.execute(raise_on_error=False))

        self.jobs = {job_id: _texts(next(answers)) for job_id in ids}
        self.sets = {
            state: {_text(member): score for member, score in _rows(next(answers))} for state in _SETS
        }
        self.entries: dict[str, str] = {}  # "<lane>/<entry id>" -> job id
        self.owners: dict[str, str] = {}  # "<lane>/<entry id>" -> consumer
        self.lanes: dict[str, list[str]] = defaultdict(list)  # job id -> its entries
        for lane in Lane:
            for entry, fields in _rows(next(answers)):
                where, job_id = f"{lane}/{entry.decode()}", _text(next(iter(fields.values())))
                self.entries[where] = job_id
                self.lanes[job_id].append(where)
            for held in _rows(next(answers)):  # no group is no pending list
                self.owners[f"{lane}/{held['message_id'].decode()}"] = _text(held["consumer"])
        self.failing = {cause: int(next(answers) or 0) for cause in causes}
        self.dead = {cause: {_text(job_id) for job_id in next(answers)} for cause in dead}
        self.kept_back = {hold: {_text(job_id) for job_id in next(answers)} for hold in holds}
        self.holding = {_text(hold) for hold in next(answers)}
        self.holders = {digest: _text(next(answers) or b"") for digest in unique}
        self.ttls = {name: next(answers) for name in self.key_names}
        self.children = {_text(child) for child in next(answers)}
        self.causes = {_text(cause) for cause in next(answers)}
        settings = _texts(next(answers))
        self.says_held = "held" in settings
        self.has_all_events = settings.get("audit") == "full" and "events_lost" not in settings
        self.events = [_texts(fields) for _, fields in _rows(next(answers))]
        self.tokens = next(answers)

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
        if odd := self.causes ^ self.failing.keys():
            self.found.append(f"causes {sorted(odd)} are on the index or described, not both")
        if len(self.causes) > 1001:  # `other` is the one over
            self.found.append(f"{len(self.causes)} causes are kept")
        for cause in self.dead.keys() | dead.keys():
            here = self.dead.get(cause, set())
            if odd := here ^ dead[cause]:
                self.found.append(f"dead of cause {cause}: {sorted(odd)} are in one list only")
            if here and cause not in self.causes:
                self.found.append(f"cause {cause} has dead jobs, and is on no index")
        for cause in self.failing.keys() | failing.keys():
            count = self.failing.get(cause, 0)
            if count != failing[cause]:
                self.found.append(f"cause {cause} counts {count} failing, there are {failing[cause]}")

    def _check_holds(self) -> None:
        """Who is held stands in the set of its hold, and the queue says that there are such jobs."""
        held: dict[str, set[str]] = defaultdict(set)
        for job_id, job in self.jobs.items():
            if "held" in job:
                held[job["held"]].add(job_id)
                if job["state"] != JobState.DELAYED:
                    self.found.append(f"{job_id} is {job['state']} and held by {job['held']}")
        for hold in held.keys() | self.kept_back.keys():
            if odd := held[hold] ^ self.kept_back.get(hold, set()):
                self.found.append(f"held by {hold}: {sorted(odd)} are in one list only")
        if odd := self.kept_back.keys() - self.holding:
            self.found.append(f"holds {sorted(odd)} keep jobs back, and are on no index")
        if self.kept_back and not self.says_held:
            self.found.append("jobs are held, and the settings don't say so: nobody would lift them")

    def _check_unique_keys(self) -> None:
        for digest, holder in self.holders.items():
            if self.ttls[f"unique:{digest}"] > 0:
                continue  # held for a time of its own
            job = self.jobs.get(holder)
            if job is None or job.get("state") not in LIVE or job.get("unique") != digest:
                is_now = job and job.get("state")
                self.found.append(f"unique key {digest} is held by {holder}, which is {is_now}")

    def _check_ttls(self) -> None:
        for name, ttl in self.ttls.items():
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
        if self.tokens > 2:
            self.found.append("more than two tokens wait")
        for child in self._named("child:"):
            if child not in self.children:
                self.found.append(f"{child} is gone, and what it claimed last is kept")

    def _check_events(self) -> None:
        """Each event is a move of MOVES, and the moves of a job follow each other without a gap."""
        at: dict[str, str] = {}
        for event in self.events:
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


def _texts(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in fields.items()}


def _rows(answer: Any) -> list[Any]:
    """A list that was asked for; none where there is no such key or group."""
    return answer if isinstance(answer, list) else []
