"""The doctor: every rule about where a job is, held against the live store; and the mending of what broke.

This is the one place that scans the keyspace. What it says of a job was true at one instant, since
one script looked (lua/examine.lua); a count that can't be is told only when nothing moved meanwhile.
"""

from __future__ import annotations

from collections import defaultdict

from redis.exceptions import RedisError

from queueops import keys
from queueops.connection import Connection, connection
from queueops.doctor.causes import Causes
from queueops.doctor.ground import TRIP, Finding, Scanned, chunks
from queueops.doctor.jobs import Jobs
from queueops.doctor.keyspace import KEY, Keyspace
from queueops.inspector import Inspector

__all__ = ["Finding", "assert_each_job_in_one_place", "examine"]


#: Mending one thing may bring another to light, such as the place of what stood in a wrong one.
_ROUNDS = 3


def examine(
    conn: Connection | None = None,
    *,
    mend: bool = False,
    specs: bool = True,
    server: bool = True,
    now_ms: str = "",
) -> list[Finding]:
    """Look at everything, and return what is wrong; with `mend`, mend what can be mended.

    Safe beside running workers. `specs` reads every payload, `server` asks Redis about itself.
    Raises StoreUnavailable.
    """
    conn = conn or connection()
    mended: list[Finding] = []
    try:
        for _ in range(_ROUNDS if mend else 0):
            found = [f for f in _Examination(conn, mend=True, specs=False, now_ms=now_ms).run() if f.mended]
            mended += found
            if not found:
                break
        left = _Examination(conn, mend=False, specs=specs, now_ms=now_ms).run()
    except RedisError as error:
        raise conn.translated(error) from error
    if server:
        left += [Finding("warning", None, None, told) for told in Inspector(conn).server().warnings]
    return list(dict.fromkeys(mended + left))  # met from the job's side and from the set's


def assert_each_job_in_one_place(conn: Connection | None = None, *, now_ms: str = "") -> None:
    """Raise AssertionError naming each job that is not in exactly the structure of its state.

    For tests: payloads may be any bytes, and the server may be of any kind.
    """
    errors = [f for f in examine(conn, specs=False, server=False, now_ms=now_ms) if f.severity == "error"]
    if errors:
        raise AssertionError("\n".join(["the doctor found:", *map(str, errors)]))


class _Examination(Jobs, Causes, Keyspace):
    """One walk over one store."""

    def run(self) -> list[Finding]:
        """Walk over everything once."""
        kind = self.client.type(keys.QUEUES)
        if kind not in {b"set", b"none"}:
            self.add("error", None, None, f"{keys.QUEUES} holds a {kind.decode()} where a set belongs")
            return self.findings
        indexed = set(self.reads.queues())
        self._examine_types(sorted(indexed))
        seen = self.scan()
        for queue in sorted(indexed | seen.queues):
            if queue not in indexed:
                self._examine_index(queue)
            self._examine_structures(queue)
            self._examine_causes(queue, seen.causes[queue])
            self._examine_bounds(queue)
        self._examine_failing(seen)
        return self.findings

    def recount(self) -> Scanned:
        """Walk over the jobs once more, to count only."""
        return _Examination(self.connection, mend=False, specs=False, now_ms=self.store.now_ms).scan()

    def scan(self) -> Scanned:
        """Look at every key of ours once."""
        seen = Scanned()
        jobs: dict[str, list[str]] = defaultdict(list)
        for chunk in chunks(self.client.scan_iter(match=keys.PREFIX + "*", count=1000), TRIP):
            others = []
            for raw in dict.fromkeys(chunk):
                name = raw.decode(errors="replace")
                match = KEY.match(name)
                if match is not None and match[2].startswith(keys.SUFFIXES["job_prefix"]):
                    seen.queues.add(match[1])
                    jobs[match[1]].append(match[2][len(keys.SUFFIXES["job_prefix"]) :])
                else:
                    others.append(raw)
            self._examine_keys(others, seen)
            for queue in list(jobs):
                self._examine_jobs(queue, [(job_id, "") for job_id in jobs.pop(queue)], seen)
        return seen
