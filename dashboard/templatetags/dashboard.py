"""How figures, ages and states are written. Built into every template of this site."""

from collections.abc import Sequence

from django import template
from django.template.defaultfilters import stringfilter
from django.utils.html import format_html
from django.utils.safestring import SafeString

register = template.Library()

#: Icon bodies on a 16 by 16 grid, drawn with `currentColor`. Words always stand beside them.
ICONS = {
    "bad": '<circle cx="8" cy="8" r="6.2"/><path d="M8 4.6v4M8 11.2v.2"/>',
    "warn": '<path d="M8 2.2 14.4 13.4H1.6z"/><path d="M8 6.4v3.2M8 11.4v.2"/>',
    "ok": '<circle cx="8" cy="8" r="6.2"/><path d="m5.2 8.2 2 2 3.6-4.2"/>',
    "paused": '<path d="M5.5 3.5v9M10.5 3.5v9"/>',
}


@register.filter
def count(number: int) -> str:
    """Write a whole number with thousands separated: 18,420."""
    return f"{number:,}"


@register.filter
def rate(per_s: float) -> str:
    """Write a rate a second with as many digits as matter: 156, 38.2, 0.20."""
    if per_s >= 100:
        return f"{per_s:,.0f}"
    return f"{per_s:.1f}" if per_s >= 1 or not per_s else f"{per_s:.2f}"


@register.filter
def duration(seconds: float | None) -> str:
    """Write a duration in its two largest units: 12 ms, 4.1 s, 41 s, 5 min 1 s, 3 d 4 h; – for None."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, smaller_unit in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit} {rest} {smaller_unit}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


@register.filter
def time_left(seconds: float | None) -> str:
    """Write what is left of a lease, or for how long it has been over."""
    return f"over for {duration(-seconds)}" if seconds is not None and seconds < 0 else duration(seconds)


@register.filter
def duration_ms(milliseconds: float | None) -> str:
    """Write a duration given in ms."""
    return duration(None if milliseconds is None else milliseconds / 1000)


@register.simple_tag
def icon(name: str, css_class: str = "") -> SafeString:
    """Draw one of ICONS; decorative, so hidden from screen readers."""
    body = SafeString(ICONS[name])  # our own text, above
    start = '<svg class="icon {}" viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.6"'
    return format_html(start + ' aria-hidden="true" focusable="false">{}</svg>', css_class or name, body)


@register.simple_tag
def count_cell(number: int, state: str, limit: int | None = None) -> SafeString:
    """Write the table cell with the number of jobs in `state` and its limit: coloured, or faint when zero."""
    text = count(number) if limit is None else f"{count(number)} / {count(limit)}"
    return format_html('<td class="num {}">{}</td>', f"c-{state}" if number else "zero", text)


@register.simple_tag
def sparkline(history: Sequence[tuple[int, int]]) -> SafeString:
    """Draw (done, failed) of each minute as bars, failed ones at the foot; the tallest fills the height."""
    top = max((done + failed for done, failed in history), default=0) or 1
    all_of_it = "".join(_bar(i, done + failed, top) for i, (done, failed) in enumerate(history))
    failed_part = "".join(_bar(i, failed, top) for i, (_, failed) in enumerate(history))
    total_done, total_failed = (sum(column) for column in zip(*history, strict=True)) if history else (0, 0)
    return format_html(
        '<svg class="spark" viewBox="0 0 120 24" role="img" aria-label="last {} minutes: {} done, {} failed">'
        '<path class="ok" d="{}"/><path class="ko" d="{}"/></svg>',
        len(history), count(total_done), count(total_failed), all_of_it, failed_part,
    )  # fmt: skip


def _bar(place: int, number: int, top: int) -> str:
    """One bar as an SVG path on the 120 by 24 ground, at least one unit high unless it is nothing."""
    height = max(1, round(24 * number / top)) if number else 0
    return f"M{2 * place} 24v-{height}h1.4v{height}z" if height else ""


@register.simple_tag(takes_context=True)
def current(context: template.Context, name: str) -> SafeString:
    """Write `aria-current="page"` when the page shown is the URL of that name."""
    match = getattr(context.get("request"), "resolver_match", None)
    return SafeString(' aria-current="page"' if match and match.url_name == name else "")


@register.filter
@stringfilter
def initial(name: str) -> str:
    """Return the first letter of a name, upper case; ? when there is none."""
    return name[:1].upper() or "?"
