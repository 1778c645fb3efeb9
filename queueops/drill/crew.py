"""The drill's workers: their settings, and the trees of processes that are started with them.

With the executor `celery` they are Celery workers on a broker in the drill's own Redis, and one
`runworkers` that hands jobs to them; those that are counted, and killed, are the Celery workers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from queueops import keys
from queueops.connection import Connection
from queueops.drill.trees import Tree
from queueops.inspector import Inspector

#: Of one worker of threads; of one Celery worker.
PROCESSES, CONCURRENCY, POOL = 2, 4, 4
#: A lost tree's jobs come back after one lease; a drill should not take long.
LEASE_S = 3.0

_SETTINGS = '''"""Settings of one drill's workers."""

SECRET_KEY = "only for this drill"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "queueops"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": {database!r}, "OPTIONS": {{
    "transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL;", "timeout": 30,
}}}}}}
USE_TZ = True
DRILL_LEDGER = {ledger!r}
QUEUEOPS = {{"REDIS_URL": {redis!r}, "HANDLERS": [{handlers!r}], "LEASE_S": {lease_s}}}
'''

#: A Celery project as a user has it: its one task is the handler.
_CELERY_APP = '''"""The Celery app of one drill."""

import django

django.setup()

from celery import Celery

import queueops.bridges.celery  # its workers join the fleet
from queueops.drill.charging import NAME, charge

app = Celery("drill", broker={broker!r}, set_as_current=True)
app.conf.broker_connection_retry_on_startup = True
app.task(name=NAME)(charge)
'''


class Crew:
    """So many workers, in `folder`; `start` starts them."""

    def __init__(self, folder: Path, *, queue: str, workers: int, executor: str) -> None:
        self.folder = folder
        self.workers = workers
        self.is_fleet = executor == "celery"
        self.trees: list[Tree] = []
        self._queue = queue
        self._env: dict[str, str] = {}

    def start(self, redis_socket: Path, redis_url: str, ledger: Path) -> None:
        """Write the settings and start every tree. Those that may be killed come first."""
        settings = _SETTINGS.format(
            database=str(self.folder / "db.sqlite3"),
            ledger=str(ledger),
            redis=redis_url,
            handlers="drill_app" if self.is_fleet else "queueops.drill.tasks",
            lease_s=LEASE_S,
        )
        (self.folder / "drill_settings.py").write_text(settings)
        root = Path(__file__).resolve().parents[2]
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("QUEUEOPS_")},
            "DJANGO_SETTINGS_MODULE": "drill_settings",
            "PYTHONPATH": os.pathsep.join([str(self.folder), str(root), os.environ.get("PYTHONPATH", "")]),
        }
        hands = ["django", "runworkers", "--queue", self._queue, "--no-housekeeping"]
        if not self.is_fleet:
            for i in range(self.workers):
                self._add(
                    f"worker-{i + 1}",
                    *(*hands, "--processes", str(PROCESSES), "--concurrency", str(CONCURRENCY)),
                )
            return
        # The same server, another database: what the fleet loses with Redis, it loses at once.
        broker = f"redis+socket://{redis_socket}?virtual_host=1"
        (self.folder / "drill_app.py").write_text(_CELERY_APP.format(broker=broker))
        for i in range(self.workers):
            name = f"worker-{i + 1}"
            self._add(
                name,
                *("celery", "-A", "drill_app", "worker", "--concurrency", str(POOL), "--hostname"),
                *(f"{name}@drill", "--without-mingle", "--without-gossip", "--loglevel", "INFO"),
            )
        self._add("hands", *hands, "--executor", "celery")

    def _add(self, name: str, *command: str) -> None:
        self.trees.append(Tree(name, [*command], env=self._env, log=self.folder / f"{name}.log"))

    def fallen(self) -> Tree | None:
        """One that has ended, if any."""
        return next((tree for tree in self.trees if not tree.is_up), None)

    def is_ready(self, connection: Connection) -> bool:
        """Whether every worker has joined."""
        known = Inspector(connection).summary(self._queue).workers
        if not self.is_fleet:
            return known >= self.workers
        names = [f"worker-{i + 1}@drill" for i in range(self.workers)]
        there: Any = connection.client.exists(*(keys.present(keys.FLEET, name) for name in names))
        return there == self.workers and known > 0

    def __str__(self) -> str:
        """What they are, for people."""
        if not self.is_fleet:
            return f"{self.workers} workers"
        return f"{self.workers} Celery workers of {POOL} processes"
