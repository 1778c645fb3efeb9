"""A second database, and the record's own reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import MethodType

import pytest
from django.core.management import call_command
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from queueops import outbox


def add_database(alias: str, path: Path) -> None:
    """Let this thread know another SQLite database."""
    connections.settings[alias] = {
        **connections.settings["default"],
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }
    # Django's test case forbids databases that it did not set up itself.
    connection = connections[alias]
    connection.ensure_connection = MethodType(_ensure_connection, connection)  # type: ignore[method-assign]


def _ensure_connection(connection: BaseDatabaseWrapper) -> None:
    if connection.connection is None:
        with connection.wrap_database_errors:
            connection.connect()


def drop_database(alias: str) -> None:
    """Forget it again."""
    connections[alias].close()
    del connections[alias]
    del connections.settings[alias]


@pytest.fixture
def plain_database(tmp_path: Path, transactional_db: None) -> Iterator[str]:
    """A second database without tables of ours."""
    add_database("shop", tmp_path / "shop.sqlite3")
    yield "shop"
    drop_database("shop")
    outbox.forget_databases()


@pytest.fixture
def second_database(plain_database: str) -> str:
    """A second database with tables of ours: an outbox."""
    call_command("migrate", database=plain_database, verbosity=0)
    return plain_database
