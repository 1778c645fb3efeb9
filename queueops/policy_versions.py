"""Retry policies on their way to Redis, and the versions that were: also of a row changed past `save`."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from typing import Any

from django.db import router, transaction

from queueops import keys
from queueops.errors import PolicyError
from queueops.models import RetryPolicy, RetryPolicyVersion
from queueops.store import Store

log = logging.getLogger(__name__)
#: What this process has said of policies that can't be, so that it says it once.
_told: set[tuple[str, str]] = set()


def publish_policies(store: Store) -> None:
    """Write every policy of the database to Redis, and remove those that it has no more."""
    wanted = _wanted()
    client = store.connection.client
    stale = [name for name in _here(store) if name not in wanted]
    pipe = client.pipeline(transaction=False)
    if stale:
        pipe.hdel(keys.POLICIES, *stale)
    if wanted:
        pipe.hset(keys.POLICIES, items=list(itertools.chain.from_iterable(wanted.items())))
    pipe.execute()


def policies_differ(store: Store) -> bool:
    """Whether Redis has other policies than the database."""
    return _wanted() != _here(store)


def note_versions(alias: str) -> int:
    """Give a policy that was changed past `save`, as by `QuerySet.update`, its new version; how many."""
    newest: dict[str, RetryPolicyVersion] = {}
    for version in RetryPolicyVersion.objects.using(alias).order_by("version"):
        newest[version.name] = version
    noted = 0
    for row in RetryPolicy.objects.using(alias):
        known, said = newest.get(row.name), row.definition()
        if said is None or (known is not None and known.definition == said and known.version == row.version):
            continue
        number = row.version if known is None or known.version < row.version else known.version + 1
        with transaction.atomic(using=alias):
            mine = RetryPolicy.objects.using(alias).filter(pk=row.pk, version=row.version)
            if mine.update(version=number):
                RetryPolicyVersion.objects.using(alias).get_or_create(
                    name=row.name, version=number, defaults={"policy": row, "definition": said}
                )
        noted += 1
    return noted


def _wanted() -> dict[str, str]:
    wanted = {}
    for row in RetryPolicy.objects.using(router.db_for_write(RetryPolicy)):
        try:
            wanted[row.name] = row.policy().to_json()
        except PolicyError as error:
            # The others are published, and of this one what it said when it could be.
            if (row.name, str(error)) not in _told:
                _told.add((row.name, str(error)))
                log.error("policy %s can't be used, what it said before stays: %s", row, error)
            if (known := row.versions.order_by("-version").first()) is not None:
                wanted[row.name] = replace(known.policy_then(), version=known.version).to_json()
    return wanted


def _here(store: Store) -> dict[str, str]:
    found: Any = store.connection.client.hgetall(keys.POLICIES)
    return {name.decode(errors="replace"): text.decode(errors="replace") for name, text in found.items()}
