"""The groups Viewer, Operator and Admin, with their rights."""

from __future__ import annotations

from typing import Any

from django.apps import apps as installed
from django.contrib.auth.management import create_permissions

from queueops.rights import GROUPS


def make_groups(apps: Any, using: str) -> None:
    """Make the three groups and give them their rights. Safe to repeat; takes no right away.

    `apps` is the registry, as it is or as a migration sees it. Permissions otherwise come only after
    the last migration, so those of this app are made first.
    """
    create_permissions(installed.get_app_config("queueops"), verbosity=0, using=using, apps=apps)
    permission = apps.get_model("auth", "Permission")
    group = apps.get_model("auth", "Group")
    for name, rights in GROUPS.items():
        made, _ = group.objects.using(using).get_or_create(name=name)
        made.permissions.add(
            *permission.objects.using(using).filter(
                content_type__app_label="queueops", codename__in=[right.value for right in rights]
            )
        )
