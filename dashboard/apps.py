"""The site as a Django app."""

from django.apps import AppConfig


class DashboardConfig(AppConfig):
    name = "dashboard"
    verbose_name = "Dashboard"

    def ready(self) -> None:
        from dashboard import access_changes
        from dashboard import celery as _celery  # noqa: F401  (the app that shared tasks belong to)

        access_changes.connect()
