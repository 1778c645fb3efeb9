"""Every other key: its type, its time to live, its bound, and what the clock wrote into it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from queueops import keys
from queueops.doctor.ground import Ground, Scanned
from queueops.inspector.reads import listed, number, text
from queueops.job import new_job_id
from queueops.scripts import script
from queueops.states import Lane

#: A key of a queue: its name and what follows.
KEY = re.compile(re.escape(keys.PREFIX) + r"\{(.*?)\}(:.*)\Z", re.DOTALL)
#: What a script calls a key -> its type, for the keys that a queue has once.
_SHARED = {
    "settings": "hash",
    "delayed": "zset",
    "pending": "zset",
    "dead": "zset",
    "discarded": "zset",
    "causes": "zset",
    "events": "stream",
    "children": "zset",
    "wake": "list",
    "clock": "hash",
    "rate": "hash",
    "held": "zset",
    "stops": "zset",
    "sweep": "hash",
    "stats_total": "hash",
}
#: The same for those that it has many of.
_MANY = {
    "dead_prefix": "zset",
    "cause_prefix": "hash",
    "held_prefix": "zset",
    "asked_prefix": "hash",
    "child_prefix": "hash",
    "schedule_prefix": "hash",
    "unique_prefix": "string",
    "ready_prefix": "stream",
}
#: Those of them that may have a time to live: a unique key, a retired schedule, whom an operation asked.
_MAY_EXPIRE = {"unique_prefix", "schedule_prefix", "asked_prefix"}
_GLOBAL = {
    "queues": "set",
    "workers": "zset",
    "worker-info": "hash",
    "epoch": "string",
    "policies": "hash",
    "fleet": "set",
    "hands": "set",
}
#: Beginnings of those of one lease, worker, task or child: each has a time to live.
_EXPIRING = ("lease:", "drain:", "fleet:", "hands:", "ended:", "pace:")
_STATS_KEPT_S = 90_000
#: A clock that is so far ahead was set wrong, and what it wrote holds things up. Unix ms.
_AHEAD_MS = 86_400_000


class Keyspace(Ground):
    def _examine_index(self, queue: str) -> None:
        try:
            keys.check_queue(queue)
        except ValueError as error:
            return self.add("error", queue, None, str(error))
        if self.mend:
            self.client.sadd(keys.QUEUES, queue)
        self.add("error", queue, None, "has keys and is not on the index of queues", mended=self.mend)
        return None

    def _examine_types(self, queues: Sequence[str]) -> None:
        """The keys that every script of a queue relies on, before any script runs."""
        wanted = [
            (queue, keys.queue_key(queue, name), kind) for queue in queues for name, kind in _SHARED.items()
        ] + [(queue, keys.ready(queue, lane), "stream") for queue in queues for lane in Lane]
        pipe = self.client.pipeline(transaction=False)
        for _, key, _ in wanted:
            pipe.type(key)
        for (queue, key, kind), found in zip(wanted, pipe.execute() if wanted else [], strict=True):
            if found.decode() not in {kind, "none"}:
                self._add_wrong_type(key, kind, found.decode(), queue)

    def _add_wrong_type(self, key: str, kind: str, found: str, queue: str | None) -> None:
        aside = ""
        if self.mend and queue is not None:
            # Its jobs are put back below: their hashes say where they belong.
            aside = f"{keys.queue_key(queue, 'corrupt_prefix')}{key.rpartition('}:')[2]}.{new_job_id()}"
            self.client.rename(key, aside)
        what = f"{key} holds a {found} where a {kind} belongs" + (f"; it is kept as {aside}" if aside else "")
        self.add("error", queue, None, what, mended=bool(aside))

    def _examine_keys(self, names: Sequence[bytes], seen: Scanned) -> None:
        """Types and times to live of all keys that are no jobs."""
        if not names:
            return
        pipe = self.client.pipeline(transaction=False)
        for name in names:
            pipe.type(name)
            pipe.pttl(name)
        answers = pipe.execute()
        uniques: dict[str, list[str]] = defaultdict(list)
        for raw, kind, ttl in zip(names, answers[::2], answers[1::2], strict=True):
            if kind == b"none":
                continue
            full = raw.decode(errors="replace")
            match = KEY.match(full)
            if match is None:
                self._examine_global(full, kind.decode(), ttl)
                continue
            queue, suffix = match[1], match[2]
            seen.queues.add(queue)
            self._examine_key(queue, full, suffix, kind.decode(), ttl, seen)
            digest = suffix.removeprefix(keys.SUFFIXES["unique_prefix"])
            if digest != suffix and ttl < 0 and kind == b"string":
                uniques[queue].append(digest)
        for queue, digests in uniques.items():
            self._examine_uniques(queue, digests)

    def _examine_key(self, queue: str, name: str, suffix: str, kind: str, ttl: int, seen: Scanned) -> None:
        shared = next((n for n in _SHARED if keys.SUFFIXES[n] == suffix), None)
        many = next((n for n in _MANY if suffix.startswith(keys.SUFFIXES[n])), None)
        if shared is not None or many is not None:
            wanted = _SHARED[shared] if shared is not None else _MANY[many or ""]
            if kind != wanted:
                if shared is None:  # the shared ones have been looked at
                    self._add_wrong_type(name, wanted, kind, queue)
            elif ttl >= 0 and many not in _MAY_EXPIRE:
                if self.mend:
                    self.client.persist(name)
                self.add("error", queue, None, f"{name} would vanish in {ttl:,} ms", mended=self.mend)
            if many == "cause_prefix":
                seen.causes[queue].add(suffix.removeprefix(keys.SUFFIXES["cause_prefix"]))
            if many == "ready_prefix" and suffix.removeprefix(keys.SUFFIXES["ready_prefix"]) not in set(Lane):
                self.add("warning", queue, None, f"{name} is no lane: nothing reads it")
        elif suffix.startswith(keys.SUFFIXES["stats_prefix"]):
            if ttl < 0:
                if self.mend:
                    self.client.expire(name, _STATS_KEPT_S)
                self.add("error", queue, None, f"{name} would stay for ever", mended=self.mend)
        elif suffix.startswith(keys.SUFFIXES["corrupt_prefix"]):
            self.add("warning", queue, None, f"{name} is data set aside: look at it, then delete it")
        else:
            self.add("warning", queue, None, f"{name} is no key of this version")

    def _examine_global(self, name: str, kind: str, ttl: int) -> None:
        short = name.removeprefix(keys.PREFIX)
        if short.startswith(_EXPIRING):
            if ttl < 0:
                if self.mend:
                    self.client.expire(name, 60)
                self.add("error", None, None, f"{name} would stay for ever", mended=self.mend)
        elif (wanted := _GLOBAL.get(short)) is None:
            self.add("warning", None, None, f"{name} is no key of this version")
        elif kind != wanted:
            self._add_wrong_type(name, wanted, kind, None)
        elif ttl >= 0:
            if self.mend:
                self.client.persist(name)
            self.add("error", None, None, f"{name} would vanish in {ttl:,} ms", mended=self.mend)

    def _examine_uniques(self, queue: str, digests: Sequence[str]) -> None:
        answers = self.connection.run(script("unclaim"), queue, digests, mend="1" if self.mend else "")
        for digest, holder in zip(digests, answers, strict=True):
            if holder:
                what = f"unique key {digest} is held by a job that does not hold it"
                self.add("error", queue, text(holder), what, mended=self.mend)

    def _examine_bounds(self, queue: str) -> None:
        now_ms = self.reads.now_ms()
        pipe = self.client.pipeline(transaction=False)
        pipe.hmget(keys.queue_key(queue, "settings"), "events_max", "events_lost", "lease_ms")
        pipe.xlen(keys.queue_key(queue, "events"))
        pipe.llen(keys.queue_key(queue, "wake"))
        pipe.hmget(keys.queue_key(queue, "clock"), "token_at")
        pipe.hget(keys.queue_key(queue, "rate"), "at")
        pipe.zrange(keys.queue_key(queue, "children"), -1, -1, withscores=True)
        settings, events, tokens, clock, rate_at, last_child = pipe.execute(raise_on_error=False)
        most, lost, lease_ms = listed(settings) or (None, None, None)
        if most is not None and number(events) > number(most) + 1_000:
            self.add("error", queue, None, f"{events:,} events, over the bound of {number(most):,}")
        if number(lost):
            self.add(
                "warning", queue, None, f"{number(lost):,} events were dropped before a mirror took them"
            )
        if number(tokens) > 2:
            if self.mend:
                self.client.ltrim(keys.queue_key(queue, "wake"), 0, 0)
            self.add("warning", queue, None, f"{tokens:,} wake tokens", mended=self.mend)
        if number((listed(clock) or [0])[0]) > now_ms + _AHEAD_MS:
            if self.mend:
                self.client.hdel(keys.queue_key(queue, "clock"), "token_at")
            self.add("warning", queue, None, "its wake token is from the future", mended=self.mend)
        if number(rate_at) > now_ms + _AHEAD_MS:
            if self.mend:
                self.client.delete(keys.queue_key(queue, "rate"))
            self.add("warning", queue, None, "its rate limit was filled in the future", mended=self.mend)
        for child, end in listed(last_child):
            if end > now_ms + number(lease_ms) + _AHEAD_MS:
                if self.mend:
                    self.client.zadd(keys.queue_key(queue, "children"), {child: now_ms + number(lease_ms)})
                name = child.decode(errors="replace")
                self.add("warning", queue, None, f"the lease of {name} ends in days", mended=self.mend)
