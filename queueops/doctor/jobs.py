"""Jobs: each in exactly the structure of its state, and each place held by a job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis.exceptions import RedisError

from queueops import keys
from queueops.doctor.ground import TRIP, Ground, Scanned, chunks
from queueops.errors import CorruptSpec
from queueops.inspector.decode import whole_spec
from queueops.payload import decode_spec
from queueops.scripts import script
from queueops.states import LIVE, JobState, Lane

#: Ids in one script: about 2 ms.
_IDS = 50


class Jobs(Ground):
    def _examine_jobs(
        self, queue: str, items: Sequence[tuple[str, str]], seen: Scanned | None = None
    ) -> None:
        """Hold jobs against the rules; each item is an id and where it was met."""
        found = script("examine")
        for part in chunks(items, _IDS):
            flat = [word for item in part for word in item]
            named = {"now_ms": self.store.now_ms, "mend": "1" if self.mend else ""}
            answer = self.connection.run(found, queue, flat, **named)
            if answer == b"fresh":
                self.store.register(queue)
                answer = self.connection.run(found, queue, flat, **named)
            for (job_id, _), state, cause, problems in zip(
                part, answer[::3], answer[1::3], answer[2::3], strict=True
            ):
                self._add_problems(queue, job_id, problems.decode(errors="replace"))
                if seen is not None and cause and state.decode() in LIVE:
                    seen.failing[queue, cause.decode(errors="replace")].add(job_id)
            if self.specs and seen is not None:
                self._examine_specs(queue, [job_id for job_id, _ in part])

    def _add_problems(self, queue: str, job_id: str, problems: str) -> None:
        for line in problems.splitlines():
            severity = "warning" if line.startswith("? ") else "error"
            mended = line.endswith("(mended)") or "(mended):" in line
            what = line.removeprefix("? ").replace(" (mended)", "")
            self.add(severity, queue, job_id, what, mended=mended)
        try:
            keys.check_job_id(job_id)
        except ValueError as error:
            self.add("error", queue, job_id, str(error))

    def _examine_specs(self, queue: str, job_ids: Sequence[str]) -> None:
        pipe = self.client.pipeline(transaction=False)
        for job_id in job_ids:
            pipe.hgetall(keys.job(queue, job_id))
        for job_id, fields in zip(job_ids, pipe.execute(raise_on_error=False), strict=True):
            if not isinstance(fields, dict) or fields.get(b"state") == JobState.DONE.encode():
                continue
            if fields.get(b"cause") == b"corrupt" and fields.get(b"state") == JobState.DEAD.encode():
                continue  # a worker or the doctor has said so already
            raw, why = whole_spec(fields)
            if raw is None or why:
                continue  # said by the script, which saw one instant
            try:
                decode_spec(raw)
            except CorruptSpec as error:
                # A worker that claims it makes it a dead job that says so: nothing to mend here.
                self.add("error", queue, job_id, f"can't be run: {error}")

    def _examine_structures(self, queue: str) -> None:
        """Every id in a set or a lane must be a job that belongs there."""
        for state in (JobState.DELAYED, JobState.PENDING, JobState.DEAD, JobState.DISCARDED):
            members = self.members(keys.jobs_in(queue, state))
            self._examine_places(queue, ((m, state.value) for m in members), state.value.encode())
        for cause in self.members(keys.queue_key(queue, "causes")):
            members = self.members(keys.dead_of_cause(queue, cause))
            place = f"{JobState.DEAD}:{cause}"
            of_cause = ("cause", cause.encode())
            self._examine_places(queue, ((m, place) for m in members), JobState.DEAD.encode(), of_cause)
        for hold in self.members(keys.queue_key(queue, "held")):
            place = f"held:{hold}"
            members = self.members(keys.held_by(queue, hold))
            of_hold = ("held", hold.encode())
            self._examine_places(queue, ((m, place) for m in members), JobState.DELAYED.encode(), of_hold)
        for lane in Lane:
            self._examine_lane(queue, lane)

    def _examine_places(
        self, queue: str, places: Iterable[tuple[str, str]], state: bytes, of: tuple[str, bytes] | None = None
    ) -> None:
        """Look at those whose hash is not in `state`, or does not have the field and value of `of`."""
        for part in chunks(places, TRIP):
            pipe = self.client.pipeline(transaction=False)
            for job_id, _ in part:
                pipe.hmget(keys.job(queue, job_id), "state", of[0] if of else "cause")
            suspects = [
                item
                for item, found in zip(part, pipe.execute(raise_on_error=False), strict=True)
                if not isinstance(found, list) or found[0] != state or (of and found[1] != of[1])
            ]
            self._examine_jobs(queue, suspects)

    def _examine_lane(self, queue: str, lane: Lane) -> None:
        key, after = keys.ready(queue, lane), b"-"
        while True:
            try:
                entries = self.client.xrange(key, min=after, max="+", count=TRIP)
            except RedisError as error:
                if "WRONGTYPE" not in str(error):
                    raise
                return
            if not entries:
                break
            after = b"(" + entries[-1][0]
            self._examine_entries(queue, lane, entries)
        self._examine_group(queue, lane)

    def _examine_entries(self, queue: str, lane: Lane, entries: Sequence[tuple[bytes, Any]]) -> None:
        pipe = self.client.pipeline(transaction=False)
        named = []
        for entry_id, fields in entries:
            if not (fields or {}).get(b"id"):
                self._add_bare_entry(queue, lane, entry_id)
                continue
            job_id = fields[b"id"].decode(errors="replace")
            named.append((job_id, f"{lane}/{entry_id.decode()}"))
            pipe.hmget(keys.job(queue, job_id), "state", "entry")
        running = {JobState.READY.encode(), JobState.PENDING.encode()}
        suspects = [
            item
            for item, found in zip(named, pipe.execute(raise_on_error=False) if named else [], strict=True)
            if not isinstance(found, list) or found[0] not in running or found[1] != item[1].encode()
        ]
        self._examine_jobs(queue, suspects)

    def _add_bare_entry(self, queue: str, lane: Lane, entry_id: bytes) -> None:
        if self.mend:
            self.client.xack(keys.ready(queue, lane), keys.GROUP, entry_id)
            self.client.xdel(keys.ready(queue, lane), entry_id)
        self.add("error", queue, None, f"entry {lane}/{entry_id.decode()} names no job", mended=self.mend)

    def _examine_group(self, queue: str, lane: Lane) -> None:
        """What the group says is delivered must exist: other entries are dust that a dead child left."""
        key, after = keys.ready(queue, lane), b"-"
        while True:
            try:
                held = self.client.xpending_range(key, keys.GROUP, min=after, max="+", count=TRIP)
            except RedisError as error:
                if "NOGROUP" not in str(error):
                    raise
                return  # no group yet, or a lost one: the first claim makes it from 0
            if not held:
                return
            ids = [entry["message_id"] for entry in held]
            after = b"(" + ids[-1]
            gone = self._without_entry(key, ids)
            gone = self._without_entry(key, self._still_held(key, gone))
            for entry_id in gone:
                if self.mend:
                    self.client.xack(key, keys.GROUP, entry_id)
                what = f"the group holds {lane}/{entry_id.decode()}, which is gone"
                self.add("warning", queue, None, what, mended=self.mend)

    def _without_entry(self, key: str, ids: Sequence[bytes]) -> list[bytes]:
        pipe = self.client.pipeline(transaction=False)
        for entry_id in ids:
            pipe.xrange(key, min=entry_id, max=entry_id)
        answers = pipe.execute() if ids else []
        return [entry_id for entry_id, found in zip(ids, answers, strict=True) if not found]

    def _still_held(self, key: str, ids: Sequence[bytes]) -> list[bytes]:
        pipe = self.client.pipeline(transaction=False)
        for entry_id in ids:
            pipe.xpending_range(key, keys.GROUP, min=entry_id, max=entry_id, count=1)
        answers = pipe.execute() if ids else []
        return [entry_id for entry_id, found in zip(ids, answers, strict=True) if found]
