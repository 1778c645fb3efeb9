"""The books of the service that the drill's jobs charge: the proof, kept apart from the engine.

It does what an API with idempotency keys does: a key that it knows gets the old answer and no
second charge. Everything that came in is kept, so that a missing, a second and a strange charge show.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS started (job TEXT, delivery INTEGER, PRIMARY KEY (job, delivery));
CREATE TABLE IF NOT EXISTS request (key TEXT, job TEXT, delivery INTEGER, was_new INTEGER);
CREATE TABLE IF NOT EXISTS charge (key TEXT PRIMARY KEY, job TEXT, amount INTEGER);
CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY CHECK (id = 1), balance INTEGER);
INSERT OR IGNORE INTO account VALUES (1, 0);
"""


@dataclass(frozen=True)
class Books:
    """What the service has on record."""

    balance: int
    charges: Mapping[str, int]  # job -> number of charges
    started: int  # handlers that began
    requests: int
    repeated: int  # requests whose key was known: they charged nothing


class Ledger:
    """One SQLite file, written through by every process of the drill."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writing = threading.Lock()
        self._connection: sqlite3.Connection | None = None  # of the writers

    def close(self) -> None:
        """Close what its writers opened."""
        with self._writing:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def create(self) -> None:
        """Make the tables."""
        with closing(self._connect()) as connection:
            connection.executescript(_SCHEMA)

    def start(self, job: str, delivery: int) -> None:
        """Note that a handler has begun."""
        with self._transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO started VALUES (?, ?)", (job, delivery))

    def charge(self, key: str, job: str, delivery: int, amount: int) -> bool:
        """Charge once a key; whether this was the time."""
        with self._transaction() as connection:
            added = connection.execute("INSERT OR IGNORE INTO charge VALUES (?, ?, ?)", (key, job, amount))
            is_new = added.rowcount == 1
            if is_new:
                connection.execute("UPDATE account SET balance = balance + ?", (amount,))
            connection.execute("INSERT INTO request VALUES (?, ?, ?, ?)", (key, job, delivery, is_new))
        return is_new

    def books(self) -> Books:
        """Read all of it."""
        with closing(self._connect()) as connection:

            def one(sql: str) -> int:
                return int(connection.execute(sql).fetchone()[0])

            charges = dict(connection.execute("SELECT job, count(*) FROM charge GROUP BY job").fetchall())
            return Books(
                balance=one("SELECT balance FROM account"),
                charges=charges,
                started=one("SELECT count(*) FROM started"),
                requests=one("SELECT count(*) FROM request"),
                repeated=one("SELECT count(*) FROM request WHERE NOT was_new"),
            )

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # what was answered is on disk
        return connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        # SQLite has one writer anyway, and a lock wakes the next thread where SQLite would sleep and look.
        with self._writing:
            if self._connection is None:
                self._connection = self._connect()
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
