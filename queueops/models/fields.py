"""Texts that every database takes: PostgreSQL refuses NUL, and no UTF-8 holds a lone surrogate."""

from __future__ import annotations

from typing import Any

from django.db import models

_PICTURE_OF_NUL = "\u2400"


def clean_text(text: str) -> str:
    """Return `text` with NUL as its picture and lone surrogates as escapes."""
    if "\0" in text:
        text = text.replace("\0", _PICTURE_OF_NUL)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def clean_value(value: Any) -> Any:
    """Return a JSON value with all of its texts cleaned."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): clean_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_value(each) for each in value]
    return value


class CleanJSONField(models.JSONField):
    """JSON whose texts are cleaned on the way in; jsonb refuses even an escaped NUL."""

    def get_prep_value(self, value: Any) -> Any:
        return super().get_prep_value(clean_value(value))


class CleanTextField(models.TextField):  # type: ignore[type-arg]  # takes none at run time
    """A text cleaned on the way in."""

    def get_prep_value(self, value: Any) -> Any:
        value = super().get_prep_value(value)
        return clean_text(value) if isinstance(value, str) else value
