"""Holds: what keeps one handler's, one cause's or one tag's jobs of a queue back while the rest runs. Pure.

Published as the field `holds` of `Q:settings`, where the claim reads it; nothing is there for a queue
without holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from queueops.payload import encode_spec

#: Each claim reads all of a queue's holds: more of them would be everybody's wait.
MOST_HOLDS = 20
_MOST_VALUE = 300


class HoldKind(StrEnum):
    """By what a hold chooses its jobs."""

    HANDLER = "handler"
    CAUSE = "cause"  # the fingerprint of the job's last error
    TAG = "tag"  # name=value


@dataclass(frozen=True)
class Hold:
    """One hold that is in force. Times are Unix ms by Redis TIME; no `until_ms`: a person lifts it."""

    id: int
    kind: HoldKind
    value: str
    until_ms: int | None = None
    reason: str = ""
    by: str = ""  # a person's name, or who else acts
    at_ms: int = 0
    #: How many jobs it keeps back now.
    jobs: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.value}"


def check(kind: str, value: str) -> HoldKind:
    """The kind of a hold that can be meant. Raises ValueError."""
    if kind not in set(HoldKind):
        raise ValueError(f"a hold is on a {', a '.join(HoldKind)}, not on {kind!r:.40}")
    if not value or len(value) > _MOST_VALUE or not value.isprintable():
        raise ValueError(f"{kind} must be 1 to {_MOST_VALUE} printable characters, got {value!r:.60}")
    name, has_value, _ = value.partition("=")
    if kind == HoldKind.TAG and not (name and has_value):
        raise ValueError(f"a tag is named as name=value, got {value!r:.60}")
    return HoldKind(kind)


def to_setting(holds: Iterable[Hold]) -> str:
    """What `Q:settings` holds, by id; '' for none, which removes the field."""
    told = [_told(each) for each in sorted(holds, key=lambda each: each.id)]
    return json.dumps(told, separators=(",", ":")) if told else ""


def _told(hold: Hold) -> dict[str, Any]:
    told: dict[str, Any] = {"id": hold.id, "kind": hold.kind.value, "value": hold.value, "at_ms": hold.at_ms}
    if hold.until_ms is not None:
        told["until_ms"] = hold.until_ms
    if hold.reason:
        told["reason"] = hold.reason
    if hold.by:
        told["by"] = hold.by
    # `mark` is what the bytes of a matching spec must have: so most jobs are told without reading JSON.
    if hold.kind is HoldKind.HANDLER:
        told["mark"] = encode_spec(hold.value).decode()[:-1]
    elif hold.kind is HoldKind.TAG:
        told["name"], _, told["is"] = hold.value.partition("=")
        # Text beyond ASCII has two spellings in JSON.
        told["mark"] = json.dumps({told["name"]: told["is"]}, separators=(",", ":"))[1:-1]
        if not hold.value.isascii():
            told["mark"] = '"tags"'
    return told


def of_setting(raw: bytes | None, *, now_ms: int | None = None) -> list[Hold]:
    """Read what `to_setting` wrote; with `now_ms` those in force then. What can't be read is none."""
    try:
        told = json.loads(raw or b"[]")
        found = [
            Hold(
                int(each["id"]),
                HoldKind(each["kind"]),
                str(each["value"]),
                each.get("until_ms"),
                str(each.get("reason", "")),
                str(each.get("by", "")),
                int(each.get("at_ms", 0)),
            )
            for each in told
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
    return [each for each in found if now_ms is None or each.until_ms is None or each.until_ms > now_ms]
