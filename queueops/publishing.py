"""What people edit, on its way to Redis: queue settings and retry policies, each with a version.

The truth is the database's. A change is written with an OperatorAction in one transaction and
published after its commit; `run_once` publishes again whatever Redis lacks, has of another version,
or has from another epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import Any

from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db import DatabaseError, InterfaceError, connections, router, transaction
from django.db.models import F
from django.utils import timezone
from redis.exceptions import RedisError

from queueops import keys
from queueops.conf import config
from queueops.holds import Hold, to_setting
from queueops.inspector.reads import Reads
from queueops.job import from_ms, to_ms
from queueops.models import OperatorAction, Queue, QueueHold, RetryPolicy, RetryPolicyVersion
from queueops.policy_versions import note_versions, policies_differ, publish_policies
from queueops.store import Store, default_settings

log = logging.getLogger(__name__)

#: Why a queue waits whose settings can't be known now; a person reads it on the queue's page.
UNKNOWN = "its settings are not known yet: the database does not answer"
#: Fields of Queue that workers must see: a change of one is a new version.
PUBLISHED = (
    "paused", "paused_reason", "paused_until", "concurrency", "rate_per_s", "rate_burst", "lease_s",
    "max_rescues", "default_policy_id", "audit", "events_max", "done_keep_s", "discarded_keep_s",
)  # fmt: skip


class _Unknown(Exception):
    """The database could not be asked."""


def publish(store: Store, queue: str) -> None:
    """Publish a queue's settings as its row has them, or the site's defaults where there is no row.

    While the database does not answer the queue is published paused: one that a person paused must
    not run because Redis lost its settings. `run_once` publishes the truth when it is known.
    """
    try:
        row = _row(queue)
    except _Unknown as error:
        log.warning("queue %s is held back, %s: %s", queue, UNKNOWN, error)
        held = {**default_settings(store), "paused": "1", "paused_reason": UNKNOWN}
        store.publish(queue, 0, held)
        return
    if row is None:
        store.publish(queue, 0, {**default_settings(store), "paused": "", "paused_reason": "", "holds": ""})
        return
    if not store.connection.client.exists(keys.POLICIES):
        publish_policies(store)
    store.publish(queue, row.version, settings_of(row, store))


def settings_of(row: Queue, store: Store) -> dict[str, object]:
    """The fields of Q:settings for this row; times in ms, '' removes a field."""
    held = QueueHold.objects.using(_alias()).filter(queue=row.name)
    return _settings(row, store.epoch(), [each.hold() for each in held])


def _settings(row: Queue, epoch: str, holds: Iterable[Hold]) -> dict[str, object]:
    conf = config()

    def ms(own_s: float | None, default_s: float) -> int:
        return round((default_s if own_s is None else own_s) * 1000)

    def given(value: object) -> object:
        return "" if value is None else value

    return {
        "lease_ms": ms(row.lease_s, conf.lease_s),
        "done_keep_ms": ms(row.done_keep_s, conf.done_keep_s),
        "discarded_keep_ms": ms(row.discarded_keep_s, conf.discarded_keep_s),
        "max_rescues": conf.max_rescues if row.max_rescues is None else row.max_rescues,
        "audit": row.audit or conf.audit,
        "events_max": row.events_max or conf.events_max,
        "paused": "1" if row.paused else "",
        "paused_until": to_ms(row.paused_until) if row.paused and row.paused_until else "",
        "paused_reason": row.paused_reason if row.paused else "",
        "concurrency": given(row.concurrency),
        "rate": given(row.rate_per_s),
        "rate_burst": given(row.rate_burst),
        "holds": to_setting(holds),
        "policy": row.default_policy.name if row.default_policy else "",
        "epoch": epoch,
    }


# -- what people do ------------------------------------------------------------------------------


def pause(
    queue: str, *, actor: str, reason: str = "", until: datetime | None = None, actor_name: str = ""
) -> Queue:
    """Stop claims from a queue, until `until` when given; what runs goes on.

    Raises StoreUnavailable when Redis can't be told now: the change stands, and is published later.
    """
    changes = {"paused": True, "paused_reason": reason, "paused_until": until}
    return change_queue(queue, changes, actor=actor, actor_name=actor_name, reason=reason, verb="pause")


def resume(queue: str, *, actor: str, reason: str = "", actor_name: str = "") -> Queue:
    """Let a paused queue be claimed from again; raises as `pause` does."""
    changes = {"paused": False, "paused_reason": "", "paused_until": None}
    return change_queue(queue, changes, actor=actor, actor_name=actor_name, reason=reason, verb="resume")


def change_queue(
    queue: str,
    changes: Mapping[str, Any],
    *,
    actor: str,
    reason: str = "",
    actor_name: str = "",
    verb: str = "edit_queue",
    store: Store | None = None,
) -> Queue:
    """Change fields of a queue's row, which is made where there is none; record and publish it.

    Raises ValidationError, at the field, for what a row can't hold; StoreUnavailable as `pause` does.
    """
    alias = _alias()
    with transaction.atomic(using=alias):
        row = _locked(queue, alias)
        before = {name: _plain(getattr(row, name)) for name in changes}
        for name, value in changes.items():
            setattr(row, name, value)
        if "paused" in changes:
            row.paused_at = from_ms(_now_ms()) if row.paused else None
            row.paused_by = (actor_name or actor)[:150] if row.paused else ""
        row.full_clean(exclude=["name"], validate_unique=False)
        after = {name: _plain(getattr(row, name)) for name in changes}
        if after != before:
            row.version += any(name in PUBLISHED for name in _ids(changes))
            row.save(using=alias)
        OperatorAction.objects.using(alias).create(
            actor=actor, actor_name=actor_name, verb=verb, queue=queue, count=1, reason=reason,
            before=before, after=after,
        )  # fmt: skip
        _after_commit(alias, lambda: _publish_row(queue, store))
    return row


@contextmanager
def changing(queue: str, store: Store | None = None) -> Iterator[str]:
    """Change, in one transaction, what belongs to a queue's settings but is no field of its row; yield the
    database's alias. The settings get a new version, published after the commit; raises as `pause` does.
    """
    alias = _alias()
    with transaction.atomic(using=alias):
        row = _locked(queue, alias)
        yield alias
        row.version += 1
        row.save(using=alias, update_fields=["version", "updated_at"])
        _after_commit(alias, lambda: _publish_row(queue, store))


def save_policy(
    policy: RetryPolicy,
    *,
    actor: str,
    reason: str = "",
    actor_name: str = "",
    store: Store | None = None,
) -> RetryPolicy:
    """Save a policy: a new version when it differs from what is stored; record and publish it.

    Raises ValidationError, at the field; StoreUnavailable when Redis can't be told now.
    """
    policy.full_clean()
    alias = _alias()
    with transaction.atomic(using=alias):
        old = RetryPolicy.objects.using(alias).select_for_update().filter(pk=policy.pk).first()
        policy.save(using=alias)
        if old is None or policy.version != old.version:
            versions = RetryPolicyVersion.objects.using(alias)
            versions.filter(name=policy.name, version=policy.version).update(
                saved_by=(actor_name or actor)[:150]
            )
        OperatorAction.objects.using(alias).create(
            actor=actor, actor_name=actor_name, verb="edit_policy", count=1, reason=reason,
            filter={"policy": policy.name}, before=old.definition() if old else None,
            after=policy.definition(),
        )  # fmt: skip
        _touch_queues(alias)
        _after_commit(alias, lambda: _publish_all(store))
    return policy


def delete_policy(
    policy: RetryPolicy, *, actor: str, actor_name: str = "", reason: str = "", store: Store | None = None
) -> None:
    """Delete a policy; its versions stay, and queues whose default it was fall back to the site's."""
    alias = _alias()
    with transaction.atomic(using=alias):
        before, name = policy.definition(), policy.name
        policy.delete(using=alias)
        OperatorAction.objects.using(alias).create(
            actor=actor, actor_name=actor_name, verb="delete_policy", count=1, reason=reason,
            filter={"policy": name}, before=before,
        )  # fmt: skip
        _touch_queues(alias)
        _after_commit(alias, lambda: _publish_all(store))


# -- housekeeping --------------------------------------------------------------------------------


def run_once(store: Store | None = None) -> int:
    """Publish what Redis lacks or has otherwise; resume what is due. Return how many were published.

    So a row that was changed in any way, and a default of the site that was, is in force a moment later.
    Safe to repeat, and to run twice at once: the higher version stays.
    """
    store = store or Store()
    alias = _alias()
    rows = _known_rows(store, alias)
    published = _resume_due(store, alias, rows)
    client = store.connection.client
    pipe = client.pipeline(transaction=False)
    wanted = _wanted_settings(store, alias, rows)
    for row in rows:
        pipe.hmget(keys.queue_key(row.name, "settings"), "version", *wanted[row.name])
    for row, answer in zip(rows, pipe.execute(raise_on_error=False) if rows else [], strict=True):
        if isinstance(answer, RedisError):
            log.error("the settings of queue %s can't be read: %s", row.name, answer)
            continue
        version, *values = answer
        here = dict(zip(wanted[row.name], values, strict=True))
        if version == str(row.version).encode() and here == wanted[row.name]:
            continue
        newest = int(version) if version is not None and version.isdigit() else 0
        is_edited = newest == row.version and here["epoch"] == wanted[row.name]["epoch"]
        if is_edited or newest > row.version:
            # Changed past `change_queue`; or the database is older than what it published, from a backup.
            Queue.objects.using(alias).filter(pk=row.pk, version=row.version).update(version=newest + 1)
        _register(store, row.name)
        published += 1
    note_versions(alias)
    if policies_differ(store):
        _touch_queues(alias)
        _publish_all(store)
        published += 1
    return published


def _wanted_settings(store: Store, alias: str, rows: Iterable[Queue]) -> dict[str, dict[str, bytes | None]]:
    """What Q:settings of each queue should hold, as Redis gives it back."""
    epoch, holds = store.epoch(), dict[str, list[Hold]]()
    for held in QueueHold.objects.using(alias).all():
        holds.setdefault(held.queue, []).append(held.hold())
    return {
        row.name: {
            name: None if value == "" else str(value).encode()
            for name, value in _settings(row, epoch, holds.get(row.name, [])).items()
        }
        for row in rows
    }


def _known_rows(store: Store, alias: str) -> list[Queue]:
    """Every queue's row, made for a queue that only Redis knows; not of a name that none can have."""
    names = Reads(store.connection, now_ms=store.now_ms).queues()
    known = set(Queue.objects.using(alias).values_list("name", flat=True))
    missing = [Queue(name=name) for name in names if name not in known]
    if missing:
        Queue.objects.using(alias).bulk_create(missing, ignore_conflicts=True)
    rows = Queue.objects.using(alias).select_related("default_policy")
    return [row for row in rows if keys.is_queue(row.name)]


def _resume_due(store: Store, alias: str, rows: Iterable[Queue]) -> int:
    """Take back pauses whose time has come: Redis has resumed by itself, the row follows."""
    waiting = [row for row in rows if row.paused and row.paused_until]
    now = from_ms(Reads(store.connection, now_ms=store.now_ms).now_ms()) if waiting else None
    due = [row for row in waiting if now and row.paused_until and row.paused_until <= now]
    for row in due:
        resume(
            row.name, actor="queueops", reason=f"the pause ended at {row.paused_until:%Y-%m-%d %H:%M:%S} UTC"
        )
        row.refresh_from_db(using=alias)
    return len(due)


# -- inside --------------------------------------------------------------------------------------


def _alias() -> str:
    return router.db_for_write(Queue)


def _row(queue: str) -> Queue | None:
    """The queue's row. Raises _Unknown when the database can't be asked."""
    try:
        return _read_row(queue)
    except SynchronousOnlyOperation:  # on an event loop: ask from another thread
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(_read_row, queue, close=True).result()


def _read_row(queue: str, *, close: bool = False) -> Queue | None:
    alias = _alias()
    connection = connections[alias]
    try:
        # In the caller's transaction a failing query must not take the rest with it.
        with transaction.atomic(using=alias) if connection.in_atomic_block else nullcontext():
            return Queue.objects.using(alias).select_related("default_policy").filter(name=queue).first()
    except ImproperlyConfigured:
        return None  # no database at all: the engine runs without a record
    except RuntimeError:
        return None  # a test that may not use a database: as without one
    except (DatabaseError, InterfaceError) as error:
        if _is_missing_table(error):
            return None  # not migrated: no queue is known to it
        raise _Unknown(str(error).strip()) from error
    finally:
        if close:
            connection.close()


def _is_missing_table(error: Exception) -> bool:
    text = str(error)
    return "no such table" in text or ("does not exist" in text and "queueops_queue" in text)


def _locked(queue: str, alias: str) -> Queue:
    keys.check_queue(queue)
    Queue.objects.using(alias).bulk_create([Queue(name=queue)], ignore_conflicts=True)
    return Queue.objects.using(alias).select_for_update().get(name=queue)


def _touch_queues(alias: str) -> None:
    """Give every queue a new version, so that each worker reads the policies again."""
    Queue.objects.using(alias).update(version=F("version") + 1)


def _register(store: Store, queue: str) -> None:
    """Put the queue on the index and publish its row, whatever the store itself would publish."""
    store.connection.client.sadd(keys.QUEUES, queue)
    publish(store, queue)


def _publish_row(queue: str, store: Store | None) -> None:
    store = store or Store()
    try:
        _register(store, queue)
    except RedisError as error:
        raise store.connection.translated(error) from error


def _publish_all(store: Store | None) -> None:
    """Policies first, then the versions that make workers read them."""
    store = store or Store()
    try:
        publish_policies(store)
        for row in _known_rows(store, _alias()):
            store.publish(row.name, row.version, settings_of(row, store))
    except RedisError as error:
        raise store.connection.translated(error) from error


def _after_commit(alias: str, call: Callable[[], None]) -> None:
    """Call right after the outermost commit; what it raises reaches who committed."""
    transaction.on_commit(call, using=alias)


def _now_ms() -> int:
    return to_ms(timezone.now())


def _ids(names: Iterable[str]) -> set[str]:
    return {f"{name}_id" if name == "default_policy" else name for name in names}


def _plain(value: Any) -> Any:
    """A field's value as an OperatorAction keeps it."""
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, RetryPolicy) else value
