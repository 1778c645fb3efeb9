"""How jobs are written: states, times, attempts, text from outside. Built into every template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from django import template
from django.db import DatabaseError
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from dashboard import acts, people
from dashboard.bulk import JobSet
from dashboard.forecasts import Forecast
from dashboard.templatetags.dashboard import ICONS, count, current, duration, icon, sparkline
from dashboard.visible import one_line, visible
from queueops.inspector.decode import instant

register = template.Library()

_HALF_MOON = '<circle cx="8" cy="8" r="6.2"/><path d="M8 1.8a6.2 6.2 0 0 1 0 12.4z" fill="currentColor"/>'
ICONS.update(
    {
        "delayed": '<circle cx="8" cy="8" r="6.2"/><path d="M8 4.6V8l2.4 1.6"/>',
        "ready": '<path d="M5.2 3.4v9.2L12.6 8z"/>',
        "pending": _HALF_MOON,
        "done": '<path d="m3 8.6 3.2 3.2L13 4.8"/>',
        "dead": '<path d="m4 4 8 8M12 4l-8 8"/>',
        "discarded": '<path d="M3 4.5h10M6.2 4.5V3h3.6v1.5M4.6 4.5l.6 8.5h5.6l.6-8.5"/>',
        "accepted": '<path d="M2.5 9h3l1 2h3l1-2h3M4 3.5h8L13.5 9v4h-11V9z"/>',
        "gone": '<path d="M3.5 8h9"/>',
        "running": _HALF_MOON,
        "waiting": '<circle cx="8" cy="8" r="6.2"/><path d="M8 4.6V8l2.4 1.6"/>',
        "search": '<circle cx="7" cy="7" r="4.4"/><path d="m10.4 10.4 3.2 3.2"/>',
        "undo": '<path d="M5.5 3 2.5 6l3 3M2.5 6H9a4 4 0 0 1 0 8H6"/>',
        "close": '<path d="m4.5 4.5 7 7M11.5 4.5l-7 7"/>',
    }
)

#: State -> what it means to a reader.
MEANINGS = {
    "accepted": "waits in the database for Redis",
    "delayed": "waits for its time",
    "ready": "may start now",
    "pending": "a worker has it",
    "done": "finished",
    "dead": "gave up; waits for a person",
    "discarded": "set aside; can be restored",
    "gone": "no more in Redis",
}


@register.filter
def safe_text(value: object) -> str:
    """Show what is hidden in a text from outside: control characters, marks that turn the page round."""
    return visible(str(value)) if value is not None else ""


@register.filter
def line(value: object, limit: int) -> str:
    """Write the start of a text from outside as one line."""
    return one_line(str(value), limit) if value is not None else ""


@register.filter
def short_id(job_id: str) -> str:
    """Write a long id by its ends: its start tells when, its end tells which."""
    return job_id if len(job_id) <= 20 else f"{visible(job_id[:8])}…{visible(job_id[-8:])}"


@register.simple_tag
def state_badge(state: object, *, title: str = "") -> SafeString:
    """Write a state by icon and word, in its colour."""
    name = str(state or "unknown")
    mark = icon(name) if name in MEANINGS else icon("warn")
    meaning = title or MEANINGS.get(name, "")
    return format_html(
        '<span class="badge c-{}" title="{}">{}{}</span>',
        name if name in MEANINGS else "dead",
        meaning,
        mark,
        name,
    )


@register.simple_tag
def moment(at: datetime | None, *, mode: str = "clock", now: datetime | None = None) -> SafeString:
    """Write an instant: pages.js puts it into the viewer's zone, and UTC stands in the title.

    `mode`: clock (14:02:11), date (29 Nov 14:02:11), ago (2 min ago / in 2 min), or both.
    """
    if at is None:
        return SafeString("–")
    at = at.astimezone(UTC)
    text = at.strftime({"clock": "%H:%M:%S", "minute": "%H:%M"}.get(mode, "%Y-%m-%d %H:%M:%S"))
    if mode == "ago" and now is not None:
        text = ago(at, now)
    stamp = f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"
    return format_html(
        '<time datetime="{}" data-time="{}" title="{} UTC">{}</time>',
        stamp,
        mode,
        f"{at:%Y-%m-%d %H:%M:%S}",
        text,
    )


def ago(at: datetime, now: datetime) -> str:
    """Return how far `at` is from `now`, in words; pages.js writes the same."""
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{rounded(seconds)} ago" if seconds > 0 else f"in {rounded(-seconds)}"


def rounded(seconds: float) -> str:
    """Return a duration in its largest unit: how long ago is read at a glance."""
    text = duration(seconds)
    return " ".join(text.split()[:2])


@register.simple_tag
def pips(failed: int, allowed: int | None = None) -> SafeString:
    """Draw the attempts as dots, those that failed filled; as a number when there are many."""
    of = f" of {allowed}" if allowed else ""
    label = (
        f"{failed}{of} attempts failed"
        if failed
        else f"no attempt failed{of and ', ' + str(allowed) + ' allowed'}"
    )
    if max(failed, allowed or 0) > 10:
        return format_html('<span class="pips-n" title="{}">{}{}</span>', label, failed, of)
    total = max(failed, allowed or 0)
    dots = format_html_join(
        "", "<i{}></i>", ((SafeString(' class="f"') if i < failed else "",) for i in range(total))
    )
    return format_html(
        '<span class="pips" role="img" aria-label="{}" title="{}">{}</span>', label, label, dots
    )


@register.filter
def actor_name(actor: object) -> str:
    """Write who acted: a person by their name where it is known, a child without its random part."""
    text = str(actor)
    if text.startswith("user:") and text[5:].isdigit():
        return people.name_of(int(text[5:]))
    return one_line(text, 60)


@register.filter
def verb_word(verb: str) -> str:
    """Write a verb as a button does: run_now is "Run now"."""
    return acts.WORDS[verb][0] if verb in acts.WORDS else verb.replace("_", " ").capitalize()


@register.simple_tag
def job_url(queue: str, job_id: str) -> str:
    """Return the address of a job's page; where no address can hold its id, the queue's or the overview's."""
    for name, arguments in (("job", (queue, job_id)), ("queue", (queue,)), ("overview", ())):
        if name == "job" and not job_id:
            continue
        try:
            return reverse(name, args=arguments)
        except NoReverseMatch:
            continue
    return "/"


@register.simple_tag
def verb_url(noun: str, verb: str, *arguments: str) -> str:
    """Return where a verb is posted to; '' when these arguments fit no address."""
    try:
        return reverse(f"{noun}-{verb.replace('_', '-')}", args=arguments)
    except NoReverseMatch:
        return ""


@register.simple_tag(takes_context=True)
def may(context: template.Context, verb_or_right: str) -> bool:
    """Tell whether the viewer may do a verb, or holds a right."""
    from dashboard.access import may as holds
    from queueops.rights import Right

    request = context.get("request")
    right = acts.RIGHT_OF.get(verb_or_right) or Right(verb_or_right)
    return bool(request and holds(request.user, right))


@register.simple_tag
def plus(number: int | None, limit: int) -> str:
    """Write a count, or "10,000+" when it is beyond what was counted."""
    return count(number) if number is not None else f"{count(limit)}+"


@register.simple_tag
def moment_ms(at_ms: int) -> SafeString:
    """Write an instant given as Unix ms."""
    return SafeString(moment(instant(at_ms), mode="date"))


#: Status of an operation -> its icon and the colour of a state.
_STATUS = {
    "waiting": ("waiting", "delayed"),
    "running": ("running", "pending"),
    "paused": ("paused", "pending"),
    "finished": ("done", "done"),
    "cancelled": ("gone", "discarded"),
    "stopped": ("warn", "dead"),
    "failed": ("bad", "dead"),
}


#: The icon in the tab: the mark, and a dot when something is wrong.
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 20 20">'
    '<g fill="none" stroke="#3f4fd0" stroke-width="2" stroke-linecap="round">'
    '<path d="M3 5h9M3 10h14M3 15h6"/></g>'
    '<g fill="#3f4fd0"><circle cx="15.5" cy="5" r="1.8"/><circle cx="12.5" cy="15" r="1.8"/></g>{}</svg>'
)
_DOT = '<circle cx="15" cy="15" r="4.6" fill="{}" stroke="#fff" stroke-width="1.4"/>'


def icon_url(bad: int, all_of_them: int) -> str:
    """Return the tab's icon as a data URL; live.js makes the same."""
    dot = _DOT.format("#d92d20" if bad else "#b8860b") if all_of_them else ""
    return f"data:image/svg+xml,{quote(_ICON.format(dot))}"


@register.simple_tag(takes_context=True)
def favicon(context: template.Context) -> str:
    """Return the tab's icon, which shows whether something is wrong."""
    shown = _shown_snapshot(context)
    return icon_url(shown.bad, len(shown.problems)) if shown else icon_url(0, 0)


@register.simple_tag(takes_context=True)
def problem_mark(context: template.Context) -> str:
    """Write how many things are wrong before a page's title: "(3) "."""
    shown = _shown_snapshot(context)
    return f"({len(shown.problems)}) " if shown and shown.problems else ""


def _shown_snapshot(context: template.Context) -> Any:
    found = context.get("snapshot")
    if callable(found):
        found = found()
    perms = context.get("perms")
    try:
        return found if found and perms and "queueops.view_job" in perms else None
    except DatabaseError:  # the page that says so needs no icon of its own
        return None


@register.simple_tag(takes_context=True)
def schedules_link(context: template.Context) -> SafeString:
    """Write the menu's link to the schedules, where this site has that page."""
    try:
        url = reverse("schedules")
    except NoReverseMatch:
        return SafeString("")
    return format_html('<a href="{}"{} data-key="s">Schedules</a>', url, current(context, "schedules"))


@register.simple_tag
def operation_badge(status: str) -> SafeString:
    """Write an operation's status by icon and word."""
    mark, colour = _STATUS.get(status, ("warn", "dead"))
    return format_html('<span class="badge c-{}">{}{}</span>', colour, icon(mark), status)


@register.simple_tag
def progress(percent: int) -> SafeString:
    """Draw how far something has come."""
    return format_html(
        '<svg class="progress" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label="{} %">'
        '<rect class="ground" width="100" height="6"/>'
        '<rect class="done" width="{}" height="6"/></svg>',
        percent, percent,
    )  # fmt: skip


@register.filter
def hours(span: str) -> str:
    """Write a span of the forecast: "3h" as "3 h"."""
    return f"{span.removesuffix('h')} h"


@register.filter
def highest(numbers: Sequence[int]) -> int:
    """Return the greatest number, 0 for none."""
    return max(numbers, default=0)


@register.filter
def value_of(mapping: Mapping[str, int], name: str) -> int:
    """Return what a mapping has under a name, else 0."""
    return mapping.get(name, 0)


@register.simple_tag
def stacked_chart(ahead: Forecast) -> SafeString:
    """Draw the jobs due in each step as stacked bars; pages draw it anew with uPlot under a pointer."""
    wide, high = 960, 180
    top = max(ahead.totals, default=0) or 1
    step = wide / max(1, ahead.bars)
    bars: list[SafeString] = []
    below = [0] * ahead.bars
    for place, series in enumerate(ahead.series):
        path = []
        for i, number in enumerate(series.counts):
            if number:
                tall = max(1.0, number / top * high)
                foot = high - below[i] / top * high
                path.append(f"M{i * step:.1f} {foot:.1f}v{-tall:.1f}h{max(1.0, step - 1):.1f}v{tall:.1f}z")
                below[i] += number
        bars.append(format_html('<path class="q{}" d="{}"/>', place, " ".join(path)))
    marks = [
        (i, ahead.start + timedelta(minutes=i * ahead.step_min))
        for i in range(0, ahead.bars + 1, max(1, ahead.bars // 6))  # the last is where the last bar ends
    ]
    labels = format_html_join("", "<span>{}</span>", ((moment(at, mode="minute"),) for _, at in marks))
    return format_html(
        '<figure class="chart" data-chart="{}" tabindex="0" aria-label="Jobs due per {} minutes, at most {}">'
        '<span class="top">{}</span>'
        '<svg viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
        '<div class="ticks">{}</div></figure>',
        json.dumps(ahead.data(), ensure_ascii=False), ahead.step_min, count(top), count(top),
        wide, high, SafeString("".join(bars)), labels,
    )  # fmt: skip


@register.simple_tag
def share_bar(percent: float) -> SafeString:
    """Write a share as a number over a bar."""
    return format_html(
        '<span>{} %</span>'
        '<svg class="progress thin" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="ground" width="100" height="4"/>'
        '<rect class="bad" width="{}" height="4"/></svg>',
        f"{percent:.1f}" if percent < 10 else round(percent), round(percent, 1),
    )  # fmt: skip


@register.simple_tag
def failures(history: Sequence[int]) -> SafeString:
    """Draw failed attempts of each minute."""
    return sparkline([(0, number) for number in history])


@register.simple_tag
def set_query(jobs: JobSet, verb: str) -> str:
    """Write the query of a set of jobs and what is to be done to it."""
    return query(**jobs.fields, verb=verb)


@register.simple_tag
def query(**parameters: Any) -> str:
    """Write a URL's query of what is not empty, with its question mark."""
    given = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""


@register.filter
def choices(text: str) -> list[str]:
    """Split a literal at its commas."""
    return text.split(",")
