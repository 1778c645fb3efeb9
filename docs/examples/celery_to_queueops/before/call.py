"""A caller, the same before and after: charge now, remind in a moment, print both results."""

import os
import sys

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django.setup()

from shop.tasks import charge, remind  # noqa: E402 - tasks come after Django

charged = charge.delay("order-7", 1250)
reminded = remind.apply_async(("Ada",), countdown=1)
for result in (charged, reminded):
    sys.stdout.write(f"{result.get(timeout=30)}\n")
