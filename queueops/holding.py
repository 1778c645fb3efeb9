"""Hold back one handler, one cause or one tag of a queue, and lift that again.

What is held waits; nothing is dropped, and what runs goes on. The truth is the database's, published with
the queue's settings: a claim delays what it would have delivered, and lifts what is held no longer.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError

from queueops import keys
from queueops.holds import MOST_HOLDS, check
from queueops.inspector.reads import Reads
from queueops.job import from_ms
from queueops.models import OperatorAction, QueueHold
from queueops.publishing import changing
from queueops.store import Store


def hold(
    queue: str,
    kind: str,
    value: str,
    *,
    actor: str,
    reason: str = "",
    until: datetime | None = None,
    actor_name: str = "",
    store: Store | None = None,
) -> QueueHold:
    """Hold back jobs of a queue, until `until` when given; one that is there gets this reason and end.

    Raises ValueError for what no hold can mean, ValidationError when there are too many or the reason is too
    long; StoreUnavailable when Redis can't be told now: the hold stands, and is published later.
    """
    keys.check_queue(queue)
    kind = check(kind, value).value
    with changing(queue, store) as alias:
        rows = QueueHold.objects.using(alias)
        row = rows.filter(queue=queue, kind=kind, value=value).first()
        before = None if row is None else _told(row)
        if row is None:
            if rows.filter(queue=queue).count() >= MOST_HOLDS:
                raise ValidationError(
                    f"{queue} has {MOST_HOLDS} holds, and each claim reads them all: lift some, or pause it."
                )
            row = QueueHold(queue=queue, kind=kind, value=value)
        row.reason, row.until, row.by = reason, until, (actor_name or actor)[:150]
        row.full_clean(exclude=["queue"], validate_unique=False)
        row.save(using=alias)
        _record(alias, "hold", row, actor, actor_name, reason, before=before, after=_told(row))
    return row


def lift(
    queue: str,
    kind: str,
    value: str,
    *,
    actor: str,
    reason: str = "",
    actor_name: str = "",
    store: Store | None = None,
) -> bool:
    """Let the jobs of a hold go on; False when there is none. Raises StoreUnavailable as `hold` does."""
    with changing(queue, store) as alias:
        row = QueueHold.objects.using(alias).filter(queue=queue, kind=kind, value=value).first()
        if row is None:
            return False
        _record(alias, "lift", row, actor, actor_name, reason, before=_told(row))
        row.delete(using=alias)
    return True


def run_once(store: Store | None = None) -> int:
    """Forget the holds that are over by Redis TIME, which claims do by themselves; return how many."""
    store = store or Store()
    waiting = list(QueueHold.objects.exclude(until=None))
    now = from_ms(Reads(store.connection, now_ms=store.now_ms).now_ms()) if waiting else None
    ended = 0
    for row in waiting:
        if now and row.until and row.until <= now:
            why = f"it ended at {row.until:%Y-%m-%d %H:%M:%S} UTC"
            ended += lift(row.queue, row.kind, row.value, actor="queueops", reason=why, store=store)
    return ended


def _told(row: QueueHold) -> dict[str, Any]:
    return {"reason": row.reason, "until": row.until.isoformat() if row.until else None, "by": row.by}


def _record(
    alias: str, verb: str, row: QueueHold, actor: str, actor_name: str, reason: str, **told: Any
) -> None:
    OperatorAction.objects.using(alias).create(
        actor=actor, actor_name=actor_name, verb=verb, queue=row.queue, count=1, reason=reason,
        filter={row.kind: row.value}, **told,
    )  # fmt: skip
