"""The Django app: what is connected when Django is ready."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.apps import apps as installed
from django.db.models.signals import post_migrate, pre_migrate


class QueueOpsConfig(AppConfig):
    """The engine's models, admin, commands and checks."""

    name = "queueops"
    verbose_name = "QueueOps"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        import queueops.checks  # registers them
        import queueops.schedules.checks  # noqa: F401  # registers them
        from queueops import append_only, client, store
        from queueops.publishing import publish
        from queueops.record import Record

        client.use_record(Record())
        store.use_publisher(publish)
        pre_migrate.connect(append_only.drop_triggers, sender=self, dispatch_uid="queueops.triggers")
        post_migrate.connect(append_only.create_triggers, sender=self, dispatch_uid="queueops.triggers")
        post_migrate.connect(_restore_groups, sender=self, dispatch_uid="queueops.groups")


def _restore_groups(*, using: str, apps: Any = installed, **_: object) -> None:
    """Make the groups again where all three are gone, as after `flush`; else they are a person's."""
    from queueops.groups import make_groups
    from queueops.rights import GROUPS

    group = apps.get_model("auth", "Group")
    if not group.objects.using(using).filter(name__in=list(GROUPS)).exists():
        make_groups(apps, using)
