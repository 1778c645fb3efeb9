"""What keeps jobs back, as pages name it."""

from django import template
from django.utils.http import urlencode

from dashboard import bulk
from dashboard.visible import one_line
from queueops.holds import Hold, HoldKind

register = template.Library()


@register.filter
def hold_words(hold: Hold) -> str:
    """Write what a hold is on: "handler shop.charge", "cause ConnectTimeout: timed out"."""
    value = bulk.cause_text(hold.value) if hold.kind is HoldKind.CAUSE else hold.value
    return one_line(f"{hold.kind} {value}", 120)


@register.filter
def hold_filter(hold: Hold) -> str:
    """Write the query of the delayed jobs that a hold may keep back."""
    return urlencode({"state": "delayed", hold.kind.value: hold.value})
