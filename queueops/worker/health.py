"""Whether a worker fetches: what `workerhealth` says."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from queueops.conf import config
from queueops.inspector import Inspector


@dataclass(frozen=True)
class Report:
    """One worker: a line for a person, and whether all is well."""

    worker: str
    is_well: bool
    text: str


def check_health(worker: str | None = None) -> list[Report]:
    """Report on one worker, or on those of this host; at least one report. Raises StoreUnavailable."""
    host = socket.gethostname()
    limit_s = config().fetch_limit_s
    found = [
        _report(each.worker, each.seen_s, each.info, limit_s)
        for each in Inspector().workers(with_jobs=False)
        if each.seen_s is not None and (each.worker == worker if worker else each.info.get("host") == host)
    ]
    if not found:
        who = worker or f"on {host}"
        return [Report(worker or host, False, f"no worker {who} has a heartbeat")]
    return found


def _report(worker: str, seen_s: float | None, info: Mapping[str, Any], limit_s: float) -> Report:
    fetched_s = info.get("fetched_s_ago")
    if seen_s is None or seen_s > limit_s:
        return Report(worker, False, f"{worker}: no heartbeat for {seen_s or 0:.0f} s")
    if fetched_s is None:
        return Report(worker, False, f"{worker}: has not fetched yet")
    total_s = seen_s + fetched_s
    if total_s > limit_s:
        return Report(worker, False, f"{worker}: has not fetched for {total_s:.0f} s, over {limit_s:g} s")
    return Report(worker, True, f"{worker}: fetched {total_s:.0f} s ago")
