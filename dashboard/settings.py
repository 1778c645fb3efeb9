"""The site's settings: the only module that reads the environment.

Every name that an operator may set is in `.env.example`, with its meaning. A `.env` file at the top of the
checkout is read first; what the environment itself sets wins.
"""

import os
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django
import environ
from django.core.exceptions import ImproperlyConfigured

from dashboard.demo.schedules import SCHEDULES

if django.VERSION >= (6, 0):
    from django.utils.csp import CSP

    CSP_NONCE: str = CSP.NONCE
else:
    from dashboard.csp import NONCE as CSP_NONCE

BASE_DIR = Path(__file__).resolve().parent.parent

env = environ.Env()
_env_file = Path(env.str("ENV_FILE", default=str(BASE_DIR / ".env")))
if _env_file.is_file():
    env.read_env(_env_file)

# Everything that this checkout writes; never in git.
VAR_DIR = Path(env.str("VAR_DIR", default=str(BASE_DIR / "var")))


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment with `changes` laid over it, for a child process."""
    return {**os.environ, **changes}


def local_secret_key() -> str:
    """Return this checkout's own random key, made at the first call and readable by its owner only.

    It lets commands work in a checkout that nobody configured. `dashboard.asgi` refuses to serve with it.
    """
    path = VAR_DIR / "secret-key"
    if not path.exists():
        VAR_DIR.mkdir(mode=0o700, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_urlsafe(50))
        try:
            os.link(draft, path)  # fails when another process was first: then its key counts
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text()


def local_redis_url() -> str:
    """Return the URL of the Redis that `make demo` or `make run` has started here, else Redis's usual one."""
    noted = VAR_DIR / "redis-url"
    return noted.read_text().strip() if noted.exists() else "redis://127.0.0.1:6379/0"


# --- Who may serve, and under which names -------------------------------------------------------------

DEBUG: bool = env.bool("DEBUG", default=False)
SECRET_KEY: str = env.str("SECRET_KEY", default="")
SECRET_KEY_IS_LOCAL = not SECRET_KEY
if SECRET_KEY_IS_LOCAL:
    if "DEBUG" in env.ENVIRON and not DEBUG:
        raise ImproperlyConfigured(
            "set SECRET_KEY (any long random text) or, on your own machine only, DEBUG=1"
        )
    SECRET_KEY = local_secret_key()

ALLOWED_HOSTS: list[str] = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS: list[str] = env.list("CSRF_TRUSTED_ORIGINS", default=[])

# Cookies are for TLS only once every origin that the operator named is https; plain http://localhost works
# before.
SERVED_OVER_TLS = bool(CSRF_TRUSTED_ORIGINS) and all(o.startswith("https://") for o in CSRF_TRUSTED_ORIGINS)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SERVED_OVER_TLS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if SERVED_OVER_TLS else None
SECURE_HSTS_SECONDS = 31_536_000 if SERVED_OVER_TLS else 0
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
X_FRAME_OPTIONS = "DENY"

# Without one /metrics answers anybody who reaches it, as /healthz does: queue names and counts.
METRICS_TOKEN: str = env.str("METRICS_TOKEN", default="")

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "overview"
LOGOUT_REDIRECT_URL = "login"

# No inline script or style anywhere. Django 6 sends this header itself; on 5.2 `dashboard.csp` does.
SECURE_CSP: dict[str, list[str]] = {
    "default-src": ["'none'"],
    "script-src": ["'self'", CSP_NONCE],
    "style-src": ["'self'", CSP_NONCE],
    "img-src": ["'self'", "data:"],
    "font-src": ["'self'"],
    "connect-src": ["'self'"],  # covers the WebSocket of the same origin
    "form-action": ["'self'"],
    "base-uri": ["'none'"],
    "frame-ancestors": ["'none'"],
    "object-src": ["'none'"],
}

# --- The parts ----------------------------------------------------------------------------------------

DJANGO_HAS_CSP_AND_PARTIALS = django.VERSION >= (6, 0)

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "django_htmx",
    *([] if DJANGO_HAS_CSP_AND_PARTIALS else ["template_partials", "django_tasks"]),
    "queueops",
    "dashboard",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware"
    if DJANGO_HAS_CSP_AND_PARTIALS
    else "dashboard.csp.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "dashboard.htmx.LoginRedirectMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "dashboard.standing_in.StandInMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "dashboard.trouble.TroubleMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "django.template.context_processors.csp"
                if DJANGO_HAS_CSP_AND_PARTIALS
                else "dashboard.csp.csp_nonce",
                "dashboard.queries.navigation",
            ],
            "builtins": [
                "django.templatetags.static",
                "dashboard.templatetags.dashboard",
                "dashboard.templatetags.jobs",
                *([] if DJANGO_HAS_CSP_AND_PARTIALS else ["template_partials.templatetags.partials"]),
            ],
        },
    },
]

ROOT_URLCONF = "dashboard.urls"
ASGI_APPLICATION = "dashboard.asgi.application"

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True

# --- Static files: served by dashboard.asgi from STATIC_ROOT, under names that hold their content's hash --

STATIC_URL = "/static/"
STATIC_ROOT = VAR_DIR / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
# Off: files come straight from their folders, for work on them and for tests. On: `collectstatic` ran first.
STATIC_MANIFEST: bool = env.bool("STATIC_MANIFEST", default=not DEBUG)
STORAGES: dict[str, dict[str, Any]] = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "servestatic.storage.CompressedManifestStaticFilesStorage"
        if STATIC_MANIFEST
        else "django.contrib.staticfiles.storage.StaticFilesStorage",
    },
}

# --- Database -----------------------------------------------------------------------------------------

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASE_URL = env.str("DATABASE_URL", default="") or f"sqlite:///{VAR_DIR / 'db.sqlite3'}"
if urlsplit(DATABASE_URL).scheme not in environ.Env.DB_SCHEMES:
    raise ImproperlyConfigured("DATABASE_URL must be a URL as postgres://user:password@host:5432/database")
DATABASES: dict[str, dict[str, Any]] = {"default": dict(env.db_url_config(DATABASE_URL))}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    # Web, workers and mirror share the file. WAL lets readers go on while one writes; IMMEDIATE takes the
    # write lock at BEGIN, where waiting works, and not in mid-transaction, where SQLite answers "database
    # is locked".
    DATABASES["default"].setdefault("OPTIONS", {}).update(
        transaction_mode="IMMEDIATE",
        timeout=30,  # seconds
        init_command="PRAGMA journal_mode=WAL;",
    )
    Path(DATABASES["default"]["NAME"]).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True

# --- Redis --------------------------------------------------------------------------------------------

GIVEN_REDIS_URL: str = env.str("REDIS_URL", default="")
REDIS_URL = GIVEN_REDIS_URL or local_redis_url()
CHANNELS_REDIS_URL: str = env.str("CHANNELS_REDIS_URL", default="")


def channel_hosts() -> list[dict[str, Any]]:
    """Return what channels_redis connects to: CHANNELS_REDIS_URL, or the engine's Redis.

    channels_redis knows no Cluster. Publish and subscribe reach every node of one, so its first node serves.
    A Sentinel URL is `sentinel://[:password@]host:port[,host:port…]/<service>[/<db>]`.
    """
    # socket_timeout: None, since redis-py 8's default of 5 s ends a subscription on which nothing was said.
    idle = {"socket_timeout": None, "socket_connect_timeout": 5}
    url = CHANNELS_REDIS_URL or REDIS_URL
    parts = urlsplit(url)
    if parts.scheme == "sentinel":
        service, _, db = parts.path.strip("/").partition("/")
        addresses = [each.partition(":") for each in parts.netloc.rpartition("@")[2].split(",")]
        login = {"username": parts.username or None, "password": parts.password}
        return [
            {
                "sentinels": [(host, int(port or 26379)) for host, _, port in addresses],
                "master_name": service,
                "db": int(db or 0),
                **{name: value for name, value in login.items() if value},
                **idle,
            }
        ]
    if parts.scheme == "redis+cluster":
        url = "redis" + url.removeprefix("redis+cluster")
    return [{"address": url, **idle}]


CHANNEL_LAYERS = {
    "default": {
        # Publish and subscribe: a message costs Redis one command whatever the number of viewers.
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": channel_hosts(), "prefix": "queueops-live"},
    },
}

# --- The engine: every QUEUEOPS_* variable, typed and checked by queueops.conf --------------------------

QUEUEOPS: dict[str, Any] = {
    **{
        name.removeprefix("QUEUEOPS_"): text
        for name, text in env.ENVIRON.items()
        if name.startswith("QUEUEOPS_")
    },
    "REDIS_URL": REDIS_URL,
}

# --- Celery: what a fleet (`runworkers --executor celery`) and plain Celery calls use -----------------------

CELERY_BROKER_URL: str = env.str("CELERY_BROKER_URL", default=REDIS_URL)
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]

# --- The demo: its API, for its handlers and traffic, and its schedules ---------------------------------

DEMO_API_URL: str = env.str("DEMO_API_URL", default="")
if DEMO_API_URL:
    QUEUEOPS["SCHEDULES"] = SCHEDULES

# --- Logs ---------------------------------------------------------------------------------------------

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)-7s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "INFO"},
    "loggers": {
        "django": {"handlers": ["console"], "level": "INFO", "propagate": False},
        "httpx": {"level": "WARNING"},
    },
}
