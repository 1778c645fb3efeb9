"""The groups Viewer, Operator and Admin. (Triggers on events are made after each migrate: `append_only`.)"""

from typing import Any

from django.db import migrations

from queueops.groups import make_groups


def groups(apps: Any, schema_editor: Any) -> None:
    make_groups(apps, schema_editor.connection.alias)


class Migration(migrations.Migration):
    dependencies = [
        ("queueops", "0001_initial"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]

    operations = [migrations.RunPython(groups, migrations.RunPython.noop, elidable=False)]
