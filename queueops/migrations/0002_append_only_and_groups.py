"""The trigger that keeps events append-only, and the groups Viewer, Operator and Admin."""

from typing import Any

from django.db import migrations

from queueops.append_only import create_triggers, drop_triggers
from queueops.groups import make_groups


def forwards(apps: Any, schema_editor: Any) -> None:
    create_triggers(schema_editor.connection)


def backwards(apps: Any, schema_editor: Any) -> None:
    drop_triggers(schema_editor.connection)


def groups(apps: Any, schema_editor: Any) -> None:
    make_groups(apps, schema_editor.connection.alias)


class Migration(migrations.Migration):
    dependencies = [
        ("queueops", "0001_initial"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]

    operations = [
        migrations.RunPython(forwards, backwards, elidable=False),
        migrations.RunPython(groups, migrations.RunPython.noop, elidable=False),
    ]
