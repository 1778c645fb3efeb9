"""Settings of a small shop."""

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "only-for-the-example")
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "queueops", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["SHOP_DB"]}}
DATABASES["default"]["OPTIONS"] = {
    "transaction_mode": "IMMEDIATE",
    "init_command": "PRAGMA journal_mode=WAL;",
    "timeout": 30,
}
USE_TZ = True

REDIS_URL = os.environ["REDIS_URL"]
CELERY_BROKER_URL = REDIS_URL
QUEUEOPS = {"REDIS_URL": REDIS_URL}
