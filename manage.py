#!/usr/bin/env python3
"""Run one management command of this site."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.core.management import execute_from_command_line
    except ImportError:
        sys.exit(
            "Django is not installed for this Python: run 'make run' or 'make demo' once, "
            "then '.venv/bin/python manage.py …'"
        )
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"QueueOps is not configured: {error}")


if __name__ == "__main__":
    main()
