"""What a site needs before its first page: tables, static files, somebody who may log in."""

import hashlib
import secrets
from pathlib import Path

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor

LOGIN_NAME = "admin"


def migrate() -> bool:
    """Bring the database up to date; tell whether there was anything to do."""
    executor = MigrationExecutor(connections[DEFAULT_DB_ALIAS])
    if not executor.migration_plan(executor.loader.graph.leaf_nodes()):
        return False
    call_command("migrate", interactive=False, verbosity=0)
    return True


def collect_static() -> bool:
    """Collect, hash and compress the static files if any changed; tell whether it did."""
    stamp = Path(settings.STATIC_ROOT) / "sources"
    found = _static_sources()
    if not settings.STATIC_MANIFEST or (stamp.exists() and stamp.read_text() == found):
        return False
    call_command("collectstatic", interactive=False, clear=True, verbosity=0)
    stamp.write_text(found)
    return True


def _static_sources() -> str:
    digest = hashlib.sha256()
    for finder in get_finders():
        for path, storage in finder.list(ignore_patterns=None):
            about = Path(storage.path(path)).stat()
            digest.update(f"{path} {about.st_size} {about.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def login() -> tuple[str, str] | None:
    """Return name and password of the generated administrator, made at the first start.

    The password is kept in `var/login`, readable by its owner only, to be printed at each start. None when
    accounts exist that this did not make, or when the password was changed since.
    """
    kept = settings.VAR_DIR / "login"
    users = get_user_model()._default_manager
    if not users.exists():
        password = secrets.token_urlsafe(9)
        kept.touch(mode=0o600)
        kept.write_text(password)
        users.create_superuser(LOGIN_NAME, password=password)
        return LOGIN_NAME, password
    user = users.filter(username=LOGIN_NAME).first()
    if user is None or not kept.exists():
        return None
    password = kept.read_text()
    return (LOGIN_NAME, password) if user.check_password(password) else None
