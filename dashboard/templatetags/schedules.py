"""How slots of schedules are drawn."""

from __future__ import annotations

from collections.abc import Sequence

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from dashboard.templatetags.dashboard import icon
from dashboard.visible import one_line

register = template.Library()

#: What became of a slot -> icon, and the colour of a job's state.
WORDS = {
    "fired": ("ready", "ready"),
    "waiting": ("waiting", "delayed"),
    "running": ("running", "pending"),
    "ran": ("done", "done"),
    "late": ("warn", "pending"),
    "skipped": ("gone", "discarded"),
    "missed": ("bad", "dead"),
    "failed": ("dead", "dead"),
}
#: Height of a mark on a ground of 20: what is bad stands out by shape too.
_TALL = {"missed": 20, "failed": 20, "late": 14, "skipped": 4, "waiting": 6, "fired": 8}
_STEP = 5


@register.simple_tag
def slot_badge(word: str) -> SafeString:
    """Write what became of a slot by icon and word, in its colour."""
    mark, colour = WORDS.get(word, ("warn", "dead"))
    return format_html('<span class="badge c-{}">{}{}</span>', colour, icon(mark), word)


@register.simple_tag
def slot_strip(marks: Sequence[tuple[str, str]], places: int = 60) -> SafeString:
    """Draw the last slots as bars, the newest at the right: colour and height say what became of each."""
    start = places - len(marks)
    bars = format_html_join(
        "",
        '<rect class="s-{}" x="{}" y="{}" width="4" height="{}" rx="1"><title>{}</title></rect>',
        (
            (word, (start + i) * _STEP, 20 - _TALL.get(word, 12), _TALL.get(word, 12), one_line(title, 200))
            for i, (word, title) in enumerate(marks)
        ),
    )
    label = ", ".join(
        f"{sum(word == each for word, _ in marks)} {each}"
        for each in WORDS
        if any(word == each for word, _ in marks)
    )
    return format_html(
        '<svg class="slots" viewBox="0 0 {} 20" role="img" aria-label="last {} slots: {}">'
        '<path class="ground" d="M0 19.5h{}"/>{}</svg>',
        places * _STEP, len(marks), label or "none yet", places * _STEP, bars,
    )  # fmt: skip
