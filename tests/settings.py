"""The site's settings for a test run: its own Redis, its own database, nothing of the caller's environment.

The environment is set before `dashboard.settings` reads it, so that processes which a test starts see the
same. TEST_REDIS (redis, valkey, redis-cluster, valkey-cluster) chooses the server; TEST_DATABASE_URL names
a database server of the run, where the database may be dropped and made anew; in a parallel run each
process has one of its own there.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

RUN_DIR = Path(tempfile.mkdtemp(prefix="queueops-test-"))  # short: a Unix socket's path holds 107 bytes
_owner = os.getpid()


@atexit.register
def _remove() -> None:
    if os.getpid() == _owner:  # not from a fork
        shutil.rmtree(RUN_DIR, ignore_errors=True)


for _name in list(os.environ):
    if _name.startswith("QUEUEOPS_") or _name in {"DEBUG", "CHANNELS_REDIS_URL", "CELERY_BROKER_URL"}:
        del os.environ[_name]

REDIS_CHOICE = os.environ.get("TEST_REDIS", "")
REDIS_SOCKET = RUN_DIR / "redis.sock"
REDIS_PORT: int | None = None
if REDIS_CHOICE.endswith("cluster"):
    from queueops.local_redis import free_port

    REDIS_PORT = free_port()  # a Cluster's clients are sent to host and port


def _own_database(url: str | None) -> str:
    """The database server's URL with the name of this process's own database."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if not url or not worker:
        return url or ""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path}_{worker}"))


os.environ.update(
    ENV_FILE=os.devnull,
    SECRET_KEY="only-for-tests",
    STATIC_MANIFEST="0",
    ALLOWED_HOSTS="localhost,127.0.0.1,testserver",
    CSRF_TRUSTED_ORIGINS="",
    REDIS_URL=f"redis+cluster://127.0.0.1:{REDIS_PORT}" if REDIS_PORT else f"unix://{REDIS_SOCKET}?db=0",
    DATABASE_URL=_own_database(os.environ.get("TEST_DATABASE_URL")) or f"sqlite:///{RUN_DIR}/db.sqlite3",
)

from dashboard.settings import *  # noqa: E402, F403
from dashboard.settings import DATABASES  # noqa: E402

# The test database under its plain name: a process that a test starts finds it by DATABASE_URL.
DATABASES["default"]["TEST"] = {"NAME": str(DATABASES["default"]["NAME"])}
PASSWORD_HASHERS = ["tests.hashers.QuickHasher"]
