"""Filters of the admin's own templates."""

from __future__ import annotations

from django import template

from queueops.policies import duration_text

register = template.Library()


@register.filter
def duration(seconds: float) -> str:
    """A duration as a person writes it."""
    return duration_text(seconds) if seconds else "0 s"


@register.filter
def thousands(number: float) -> str:
    """A whole number with commas."""
    return f"{round(number):,}"
