"""Text from outside, made safe to look at: what is invisible, or turns the page round, is shown by name."""

from __future__ import annotations

import re

#: C0 and C1 controls but tab and newline, zero-width marks, bidi controls, line separators, lone surrogates,
#: tags and the byte-order mark. The zero-width joiner stays: emoji are made with it.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """Return `text` with hidden characters as ⟨U+202E⟩, NUL as ␀, and plain newlines."""
    if text.isascii() and text.isprintable():
        return text
    return _HIDDEN.sub(_named, text.replace("\r\n", "\n"))


def _named(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else f"\u27e8U+{code:04X}\u27e9"


def one_line(text: str, limit: int) -> str:
    """Return the start of `text` as one visible line of at most `limit` characters, … where it was cut."""
    line = " ".join(visible(text[: 4 * limit]).split())
    return line if len(line) <= limit and len(text) <= 4 * limit else line[: limit - 1] + "…"


def folded(text: str, limit: int) -> tuple[str, int]:
    """Return `text`, visible, cut in its middle to about `limit` characters, and how many were left out."""
    if len(text) <= limit:
        return visible(text), 0
    head, tail = limit * 2 // 3, limit - limit * 2 // 3
    left_out = len(text) - head - tail
    return f"{visible(text[:head])}\n… {left_out:,} more characters …\n{visible(text[-tail:])}", left_out
