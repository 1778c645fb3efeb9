"""Form fields that take durations and lists as a person writes them, and say what is wrong with them."""

from __future__ import annotations

import math
import re
from typing import Any

from django import forms

_UNITS = {
    "ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0,
}  # fmt: skip
_PART = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(ms|sec|min|s|m|h|d|w)?(?=[\s\d]|\Z)", re.IGNORECASE)
_MOST_DELAYS = 1_000
_HOW = "write 90, 90 s, 5 min, 1 h 30 min or 2 d"


def seconds(text: str) -> float:
    """Read a duration. Raises ValidationError."""
    text = text.strip()
    if text.startswith("-"):
        raise forms.ValidationError("must not be negative")
    total, at = 0.0, 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or (part[2] is None and (at > 0 or part.end() < len(text.rstrip()))):
            raise forms.ValidationError(f"{text!r:.40} is no duration: {_HOW}")
        total += float(part[1]) * _UNITS[(part[2] or "s").lower()]
        at = part.end()
    if not text or not math.isfinite(total):
        raise forms.ValidationError(f"{text!r:.40} is no duration: {_HOW}")
    return total


def words(value: float) -> str:
    """Write a duration so that `seconds` reads the same number again: "1 h 30 min"."""
    if not math.isfinite(value) or value != int(value) or value < 0:
        return f"{value!r} s"
    rest, parts = int(value), []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
            rest %= size
    return " ".join(parts) or "0 s"


class DurationField(forms.CharField):
    """Seconds, written with or without a unit; empty is None."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("required", False)
        options.setdefault("max_length", 60)
        super().__init__(**options)

    def prepare_value(self, value: Any) -> Any:
        return words(value) if isinstance(value, (int, float)) else value

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        return seconds(text) if text else None

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(self.clean(data) != initial)
        except forms.ValidationError:
            return True


class DurationsField(forms.CharField):
    """A list of durations, separated by commas; one a line is as good."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("required", False)
        super().__init__(**options)

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(words(each) for each in value) if isinstance(value, (list, tuple)) else value

    def clean(self, value: Any) -> Any:
        parts = [part for part in re.split(r"[,;\n]", super().clean(value)) if part.strip()]
        if len(parts) > _MOST_DELAYS:
            raise forms.ValidationError(f"must be at most {_MOST_DELAYS:,} delays, got {len(parts):,}")
        return [seconds(part) for part in parts]

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(self.clean(data) != (initial or []))
        except forms.ValidationError:
            return True


class NamesField(forms.CharField):
    """Names, one a line or separated by commas."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("required", False)
        super().__init__(**options)

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, (list, tuple)) else value

    def clean(self, value: Any) -> Any:
        return [part.strip() for part in re.split(r"[,;\n]", super().clean(value)) if part.strip()]

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(self.clean(data) != (initial or []))
