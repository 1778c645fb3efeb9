"""What `manage.py check` and every start of a command say of a configuration that can't keep its promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.checks import CheckMessage, Error, register
from django.db import connections, router

from queueops.errors import ConfigError

#: Where the record can be kept.
VENDORS = frozenset({"sqlite", "postgresql"})


@register("queueops")
def check_settings(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """The QUEUEOPS settings can be read."""
    from queueops.conf import config

    try:
        config()
    except (ConfigError, TypeError, ValueError) as error:
        return [Error(str(error), id="queueops.E001")]
    return []


@register("queueops")
def check_databases(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """The record's database is one that it can be kept in, and is shared without lock errors."""
    from queueops.models import Job

    found: list[CheckMessage] = []
    record = router.db_for_write(Job)
    for alias in connections:
        connection = connections[alias]
        if not router.allow_migrate_model(alias, Job):
            continue
        if connection.vendor not in VENDORS:
            if alias == record:
                hint = "Use PostgreSQL 13 or newer, or SQLite 3.35 or newer."
                text = f"QueueOps can't keep its record in {connection.vendor} (database '{alias}')."
                found.append(Error(text, hint=hint, id="queueops.E002"))
            continue
        if connection.vendor == "sqlite":
            found += _check_sqlite(alias, connection)
    return found


def _check_sqlite(alias: str, connection: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    version = connection.Database.sqlite_version_info
    if version < (3, 35):
        text = f"SQLite {'.'.join(map(str, version))} is too old (database '{alias}'): it has no RETURNING."
        found.append(Error(text, hint="Use SQLite 3.35 or newer.", id="queueops.E003"))
    options = connection.settings_dict.get("OPTIONS", {})
    if str(options.get("transaction_mode", "")).upper() != "IMMEDIATE":
        found.append(
            checks.Warning(
                f"SQLite transactions of database '{alias}' are not IMMEDIATE.",
                hint='Set OPTIONS {"transaction_mode": "IMMEDIATE"}: else two writers can meet in'
                ' mid-transaction, where SQLite does not wait but fails with "database is locked".',
                id="queueops.W001",
            )
        )
    if "journal_mode=wal" not in str(options.get("init_command", "")).lower().replace(" ", ""):
        found.append(
            checks.Warning(
                f"SQLite database '{alias}' is not in WAL mode.",
                hint='Set OPTIONS {"init_command": "PRAGMA journal_mode=WAL;"}: else readers and the'
                " mirror wait for each other.",
                id="queueops.W002",
            )
        )
    if float(options.get("timeout", 5)) < 20:
        found.append(
            checks.Warning(
                f"SQLite database '{alias}' waits for a lock {options.get('timeout', 5)} s only.",
                hint='Set OPTIONS {"timeout": 30}.',
                id="queueops.W003",
            )
        )
    return found
