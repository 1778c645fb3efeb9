"""CSV, streamed row by row, that no spreadsheet takes for a formula."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.http import StreamingHttpResponse

from dashboard.visible import visible

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class _Echo:
    """A file that gives back what is written."""

    def write(self, text: str) -> str:
        return text


def csv_response(name: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> StreamingHttpResponse:
    """Return `rows` as the file `name`.csv."""
    writer = csv.writer(_Echo())

    def lines() -> Iterator[str]:
        yield "\ufeff"  # spreadsheets read UTF-8 by it
        yield writer.writerow(head)
        for row in rows:
            yield writer.writerow([cell(value) for value in row])

    response = StreamingHttpResponse(lines(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    response["Cache-Control"] = "no-store"
    return response


def cell(value: Any) -> str:
    """Return a value as a cell: visible text, and a formula with a quote before it."""
    text = "" if value is None else visible(str(value))
    if text.startswith(_FORMULA) and not _is_number(text):
        return f"'{text}"
    return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
