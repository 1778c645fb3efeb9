"""What a job carries, as a page shows it: formatted, secrets masked, and never too long."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from dashboard.visible import folded, one_line
from queueops.conf import config
from queueops.job import Job
from queueops.masking import MASK, mask, redact, secrets_in
from queueops.payload import encode_value

#: Characters of one text, entries of one list or mapping, levels, and characters in all, that a page shows.
LONGEST_TEXT, MOST_ENTRIES, DEEPEST, LONGEST, LONGEST_COMMAND = 2_000, 200, 40, 40_000, 20_000


@dataclass(frozen=True)
class Shown:
    """A payload ready for a page."""

    html: SafeString
    masked: int  # how many values are hidden
    is_cut: bool


def also_secret() -> tuple[str, ...]:
    """Names that this site's settings add to the secret ones."""
    return config().secret_names


def payload_of(job: Job) -> dict[str, Any]:
    """Return what a person edits and copies: args and kwargs as plain JSON values."""
    return {"args": plain(job.args), "kwargs": plain(job.kwargs)}


def plain(value: Any) -> Any:
    """Return a value as JSON has it: dates and decimals as the wire writes them."""
    try:
        return json.loads(encode_value(value, max_bytes=1 << 30))
    except (TypeError, ValueError):
        return str(value)


def show(value: Any, *, reveal: bool = False) -> Shown:
    """Format a JSON value as HTML, its secrets masked unless `reveal`."""
    masked = 0
    if not reveal:
        value, masked = mask(value, also_secret())
    cut = _Cut()
    text = json.dumps(cut.cut(value, 0), indent=2, ensure_ascii=False, default=str)
    text, left_out = folded(text, LONGEST)
    html: str = escape(text)
    if masked:  # a text of the payload's own that says the same looks the same, which gives nothing away
        html = html.replace(escape(json.dumps(MASK)), '<span class="mask">masked</span>')
    return Shown(mark_safe(html), masked, bool(cut.left_out or left_out))  # noqa: S308  (escaped above)


class _Cut:
    """One walk that leaves out what would make a page too long."""

    def __init__(self) -> None:
        self.left_out = 0

    def cut(self, value: Any, depth: int) -> Any:
        if depth >= DEEPEST and isinstance(value, (Mapping, list, tuple)):
            self.left_out += 1
            return f"… {len(value):,} more inside, over {DEEPEST} levels deep"
        if isinstance(value, str):
            shown, left_out = folded(value, LONGEST_TEXT)
            self.left_out += left_out
            return shown
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, (list, tuple)):
            shown_list = [self.cut(each, depth + 1) for each in value[:MOST_ENTRIES]]
            return shown_list + self._more(len(value))
        return value

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        entries = list(value.items())[:MOST_ENTRIES]
        shown = {one_line(str(key), 200): self.cut(each, depth + 1) for key, each in entries}
        if more := self._more(len(value)):
            shown["…"] = more[0]
        return shown

    def _more(self, length: int) -> list[str]:
        if length <= MOST_ENTRIES:
            return []
        self.left_out += length - MOST_ENTRIES
        return [f"… {length - MOST_ENTRIES:,} more entries"]


def summary(job: Job, limit: int = 90) -> str:
    """Return the arguments as one masked line: what tells two jobs apart, not how they are written.

    Named values first; what is nested without its names, which are the same in every row; of a URL its host.
    """
    args, _ = mask(job.args, also_secret())
    kwargs, _ = mask(job.kwargs, also_secret())
    parts: list[str] = []
    for name, each in list(kwargs.items())[:8]:
        if isinstance(each, Mapping):
            parts += [
                _short(inner) for inner in list(each.values())[:4] if not isinstance(inner, (Mapping, list))
            ]
        else:
            parts.append(f"{name}={_short(each)}")
    where = [_short(each) for each in args[:6]]
    line = " · ".join(part for part in parts if part and MASK not in part)
    return one_line(" → ".join(filter(None, [line, " · ".join(where)])), limit)


def _short(value: Any) -> str:
    if isinstance(value, str):
        if value.startswith(("https://", "http://")) and len(value) < 2_000:
            return value.split("/", 3)[2]
        return value[:200] or '""'
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key}: {_short(each)}" for key, each in list(value.items())[:6])
        return f"{{{inner}}}"
    if isinstance(value, Sequence):
        return f"[{', '.join(_short(each) for each in value[:6])}]"
    return str(value)[:200]


def secrets_of(job: Job) -> frozenset[str]:
    """Return the texts of a job's secrets, to be taken out of its errors."""
    return secrets_in({"args": job.args, "kwargs": job.kwargs}, also_secret())


def error_of(job: Job) -> dict[str, str]:
    """Return a job's last error with its secrets taken out: error, message, traceback, all visible text."""
    return clean_error(job.error, secrets_of(job))


def clean_error(error: Mapping[str, Any] | None, secrets: frozenset[str]) -> dict[str, str]:
    """Return the texts of a failure, redacted, visible and of a bounded length."""
    given = error or {}
    told = {
        name: str(given.get(name) or "") for name in ("error", "message", "traceback", "cause", "cause_text")
    }
    told["error"] = told["error"] or str(given.get("class") or "")
    longest = {"traceback": 20_000, "message": 4_000}
    return {name: folded(redact(text, secrets), longest.get(name, 400))[0] for name, text in told.items()}


def redacted(text: str, secrets: frozenset[str]) -> str:
    """Return one line of text from outside without these secrets."""
    return one_line(redact(text, secrets), 200)


def command_for(job: Job, *, reveal: bool = False) -> str:
    """Return the `manage.py enqueue` command that sends the same work again, masked unless `reveal`."""
    payload = payload_of(job)
    if not reveal:
        payload, _ = mask(payload, also_secret())
    words = ["manage.py", "enqueue", job.handler or "?"]
    if payload["args"]:
        words += ["--args", json.dumps(payload["args"], ensure_ascii=False)]
    if payload["kwargs"]:
        words += ["--kwargs", json.dumps(payload["kwargs"], ensure_ascii=False)]
    words += ["--queue", job.queue]
    command = " ".join(shlex.quote(word) for word in words)
    return folded(command, LONGEST_COMMAND)[0]
