"""Workers on record: who has been seen, where, from when until when."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from queueops import keys
from queueops.inspector.reads import Reads
from queueops.job import from_ms
from queueops.mirror.copy import alias
from queueops.models import WorkerRecord
from queueops.models.fields import clean_value
from queueops.store import Store

_MOST = 1_000


def record_workers(store: Store | None = None) -> int:
    """Note each worker's last heartbeat, and who has stopped; how many are new.

    Safe to repeat, and to run twice at once.
    """
    store = store or Store()
    reads = Reads(store.connection, now_ms=store.now_ms)
    pipe = reads.pipe()
    pipe.zrevrange(keys.WORKERS, 0, _MOST - 1, withscores=True)
    pipe.hgetall(keys.WORKER_INFO)
    beats, infos = reads.answers(pipe)
    seen = {name.decode(errors="replace")[:255]: from_ms(at) for name, at in beats}
    said = {name.decode(errors="replace")[:255]: _info(raw) for name, raw in infos.items()}
    using = alias()
    known = WorkerRecord.objects.using(using).in_bulk(list(seen))
    fresh = [_row(name, at, said.get(name, {})) for name, at in seen.items() if name not in known]
    WorkerRecord.objects.using(using).bulk_create(fresh, ignore_conflicts=True)
    for name, row in known.items():
        if seen[name] > row.last_seen_at or row.stopped_at is not None:
            WorkerRecord.objects.using(using).filter(pk=name).update(
                last_seen_at=max(seen[name], row.first_seen_at),
                info=said.get(name, row.info),
                stopped_at=None,
            )
    running = WorkerRecord.objects.using(using).filter(stopped_at=None)
    running.exclude(pk__in=list(seen)).update(stopped_at=from_ms(reads.now_ms()))
    return len(fresh)


def _info(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except ValueError:
        return {}
    return clean_value(found) if isinstance(found, dict) else {}


def _row(name: str, at: datetime, info: dict[str, Any]) -> WorkerRecord:
    host, _, rest = name.partition(":")
    pid = rest.partition(":")[0]
    return WorkerRecord(
        worker=name,
        host=str(info.get("host", host))[:255],
        pid=int(pid) if pid.isdigit() and len(pid) < 18 else None,
        info=info,
        first_seen_at=at,
        last_seen_at=at,
    )
