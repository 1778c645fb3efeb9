"""One entry of a queue's event stream, parsed. Pure.

What an entry may hold besides is in the header of `lua/lib/<verb>.lua`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Extras that are whole numbers; the rest are texts.
_NUMBERS = frozenset({"delivery", "attempts", "rescues", "edition", "run_at", "delay_ms", "ran_ms"})
#: The spec stays bytes; what every entry has stands in fields of its own.
_OWN = frozenset({b"verb", b"id", b"from", b"to", b"actor", b"at", b"spec"})
_LARGEST = 2**63 - 1  # of a database's integer
_LAST_MS = 253_402_300_799_999  # the end of the year 9999


class BadEvent(ValueError):
    """An entry that no event can be made of; the text says why."""


@dataclass(slots=True)
class Event:
    """One move of one job. `at_ms` is Redis TIME, Unix ms; `order` sorts as the stream does."""

    stream_id: str
    order: str
    verb: str
    job_id: str
    from_state: str
    to_state: str
    actor: str
    at_ms: int
    spec: bytes | None
    numbers: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


def order_of(stream_id: str) -> str:
    """Return a text that sorts as stream ids do. Raises ValueError for what is none."""
    ms, _, seq = stream_id.partition("-")
    return f"{int(ms):016d}-{int(seq or 0):020d}"


def after(stream_id: str) -> str:
    """Return the smallest stream id over this one."""
    ms, _, seq = stream_id.partition("-")
    return f"{ms}-{int(seq or 0) + 1}"


def parse(stream_id: str, fields: Mapping[bytes, bytes]) -> Event:
    """Read one entry. Raises BadEvent."""
    try:
        verb, job_id, at_ms = _text(fields[b"verb"]), _text(fields[b"id"]), int(fields[b"at"])
    except KeyError as error:
        raise BadEvent(f"it has no {_text(error.args[0])}") from None
    except ValueError:
        raise BadEvent(f"its time is no number: {_text(fields[b'at'])[:40]!r}") from None
    if not verb or len(verb) > 20:
        raise BadEvent("its verb is empty or too long")
    if not job_id or len(job_id) > 128:
        raise BadEvent("its job id is empty or too long")
    if not 0 <= at_ms <= _LAST_MS:
        raise BadEvent(f"its time is out of range: {at_ms}")
    event = Event(
        stream_id,
        order_of(stream_id),
        verb,
        job_id,
        _text(fields.get(b"from", b"")),
        _text(fields.get(b"to", b"")),
        _text(fields.get(b"actor", b"")),
        at_ms,
        fields.get(b"spec") or None,
    )
    for raw_name, value in fields.items():
        if raw_name in _OWN:
            continue
        name = _text(raw_name)
        if name in _NUMBERS:
            event.numbers[name] = _number(name, value)
        else:
            event.texts[name] = _text(value)
    return event


def _number(name: str, value: bytes) -> int:
    try:
        number = int(value) if value else 0
    except ValueError:
        try:
            number = int(float(value))  # Lua prints a double: 1.7e+12
        except (ValueError, OverflowError):
            raise BadEvent(f"its {name} is no number: {_text(value)[:40]!r}") from None
    most = _LAST_MS if name == "run_at" else _LARGEST
    if not 0 <= number <= most:
        raise BadEvent(f"its {name} is out of range: {_text(value)[:40]}")
    return number


def _text(value: bytes) -> str:
    """Bytes as a text that every database takes."""
    text = value.decode("utf-8", "replace")
    return text.replace("\0", "\u2400") if "\0" in text else text
