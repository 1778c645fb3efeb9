"""What a site needs before its first page: tables, static files, somebody who may log in."""

import hashlib
import secrets
from importlib.metadata import distributions
from pathlib import Path

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor

from dashboard import settings as site

LOGIN_NAME = "admin"


def migrate() -> bool:
    """Bring the database up to date; tell whether there was anything to do."""
    executor = MigrationExecutor(connections[DEFAULT_DB_ALIAS])
    if not executor.migration_plan(executor.loader.graph.leaf_nodes()):
        return False
    call_command("migrate", interactive=False, verbosity=0)
    return True


def has_static() -> bool:
    """Tell whether the collected static files are those of now. Needs no set-up of Django."""
    stamp = _stamp()
    return not site.STATIC_MANIFEST or (stamp.exists() and stamp.read_text() == _static_sources())


def collect_static() -> None:
    """Collect, hash and compress the static files."""
    call_command("collectstatic", interactive=False, clear=True, verbosity=0)
    _stamp().write_text(_static_sources())


def _stamp() -> Path:
    return site.STATIC_ROOT / "sources"


def _static_sources() -> str:
    """Describe where static files come from: our folders, and the packages that are installed."""
    folders = [*site.STATICFILES_DIRS, *(site.BASE_DIR / app / "static" for app in ("queueops", "dashboard"))]
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    lines = [f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
    lines += sorted(f"{each.name} {each.version}" for each in distributions())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def login() -> tuple[str, str] | None:
    """Return name and password of the generated administrator, made at the first start.

    The password is kept in `var/login`, readable by its owner only, to be printed at each start. None when
    accounts exist that this did not make, or when the password was changed since.
    """
    kept = site.VAR_DIR / "login"
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
