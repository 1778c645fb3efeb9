"""Editing a job's payload: masked values stay what they were, and the difference is shown first."""

from __future__ import annotations

import base64
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dashboard.payloads import also_secret, payload_of
from dashboard.visible import visible
from queueops.conf import config
from queueops.job import Job
from queueops.masking import MASK, mask
from queueops.payload import decode_value, encode_spec

#: Lines of a difference that a page shows.
MOST_LINES = 400


@dataclass(frozen=True)
class Line:
    """A line of a difference: `kind` is same, old, new or skip."""

    kind: str
    text: str


@dataclass(frozen=True)
class Edit:
    """A checked new payload of a job."""

    spec: bytes
    lines: list[Line]
    is_same: bool
    secrets_changed: bool


def editable(job: Job) -> str:
    """Return a job's payload as a person edits it: JSON, secrets masked."""
    shown, _ = mask(payload_of(job), also_secret())
    return json.dumps(shown, indent=2, ensure_ascii=False)


def read(job: Job, text: str) -> Edit:
    """Check a new payload of `job`. Raises ValueError, whose text a person understands."""
    old = payload_of(job)
    try:
        given = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(given, dict) or set(given) - {"args", "kwargs"}:
        raise ValueError('it must be an object with "args" and "kwargs" only')
    given = {"args": given.get("args", []), "kwargs": given.get("kwargs", {})}
    if not isinstance(given["args"], list) or not isinstance(given["kwargs"], dict):
        raise ValueError('"args" must be a list and "kwargs" an object')
    new = unmask(given, old)
    try:
        spec = encode_spec(
            job.handler or "",
            decode_value(json.dumps(new["args"])),
            decode_value(json.dumps(new["kwargs"])),
            policy=job.policy,
            tags=job.tags,
            extra=job.extra,
            max_bytes=config().max_payload_bytes,
        )
    except TypeError as error:
        raise ValueError(str(error)) from None
    masked, _ = mask(old, also_secret())
    shown, _ = mask(new, also_secret())
    lines = difference(masked, shown)
    return Edit(spec, lines, new == old, not lines and new != old)


def difference(old: Any, new: Any) -> list[Line]:
    """Return what differs between two JSON values, line by line with two lines around; [] for nothing."""
    before, after = (_lines(value) for value in (old, new))
    if before == after:
        return []
    found: list[Line] = []
    for text in list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]:
        kind = {"-": "old", "+": "new", "@": "skip"}.get(text[:1], "same")
        found.append(Line(kind, "…" if kind == "skip" else visible(text[1:])[:2_000]))
    found = found[1:] if found and found[0].kind == "skip" else found
    return found[:MOST_LINES] + ([Line("skip", "…")] if len(found) > MOST_LINES else [])


def kept(spec: bytes | None) -> str:
    """Return a spec as an OperatorAction keeps it: whole, and not legible at a glance."""
    return base64.b64encode(spec or b"").decode()


def _lines(value: Any) -> list[str]:
    return json.dumps(value, indent=2, ensure_ascii=False).splitlines()[:20_000]


def unmask(given: Any, old: Any) -> Any:
    """Put old values back where their masked form was left. Raises ValueError for a mask left over."""
    masked, _ = mask(old, also_secret())
    new = _unmask(given, old, masked)
    if _has_mask(new) and not _has_mask(old):
        raise ValueError(f"a value still says {MASK}: type the secret, or leave it where it was")
    return new


def _unmask(given: Any, old: Any, masked: Any) -> Any:
    """Put the old value back wherever its masked form was left in place."""
    if given == masked:
        return old
    if isinstance(given, dict) and isinstance(old, Mapping) and isinstance(masked, Mapping):
        return {
            key: _unmask(each, old[key], masked[key]) if key in old and key in masked else each
            for key, each in given.items()
        }
    if isinstance(given, list) and isinstance(old, list) and isinstance(masked, list):
        known = min(len(old), len(masked))
        return [_unmask(each, old[i], masked[i]) if i < known else each for i, each in enumerate(given)]
    return given


def _has_mask(value: Any) -> bool:
    if isinstance(value, str):
        return MASK in value
    if isinstance(value, Mapping):
        return any(_has_mask(each) for each in value.values())
    return isinstance(value, (list, tuple)) and any(_has_mask(each) for each in value)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number that JSON knows")
