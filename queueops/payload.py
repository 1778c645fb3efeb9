"""What a job carries, as bytes: the handler's name, its arguments and its options.

A spec is JSON, `["shop.charge", [args], {kwargs}, {"policy": …, "tags": …, …}]`, with what is empty at
its end left out: it is the greatest part of what a waiting job costs. Values are written as Celery's
(kombu's) JSON serializer writes them, so that dates, times, UUIDs, decimals and bytes survive.
Everything that read it from Redis hands it on as bytes; only `decode_spec` looks inside.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from itertools import accumulate
from typing import Any, NoReturn

from queueops.errors import CorruptSpec, PolicyError
from queueops.policies import RetryPolicy

MAX_PAYLOAD_BYTES = 262_144
#: Deeper values are refused: how deep a JSON reader can go differs from interpreter to interpreter.
MAX_DEPTH = 200
#: So many of the first bytes of a spec that can't be read are kept.
_KEPT_RAW_BYTES = 6_144

MAX_TAGS, MAX_TAG_NAME, MAX_TAG_VALUE = 16, 64, 200


@dataclass(frozen=True, slots=True)
class Spec:
    """A decoded spec. `policy` is a policy's name, a policy, or None for the handler's or queue's."""

    handler: str
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    policy: str | RetryPolicy | None = None
    tags: dict[str, str] = field(default_factory=dict)
    #: What belongs to the engine's other parts: a schedule's slot, a Celery link.
    extra: dict[str, Any] = field(default_factory=dict)

    def encode(self, *, max_bytes: int = MAX_PAYLOAD_BYTES) -> bytes:
        """Return the bytes that decode_spec reads; raises as encode_spec does."""
        return encode_spec(
            self.handler,
            self.args,
            self.kwargs,
            policy=self.policy,
            tags=self.tags,
            extra=self.extra,
            max_bytes=max_bytes,
        )


def encode_spec(
    handler: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    policy: str | RetryPolicy | None = None,
    tags: Mapping[str, object] | Iterable[str] | None = None,
    extra: Mapping[str, Any] | None = None,
    max_bytes: int = MAX_PAYLOAD_BYTES,
) -> bytes:
    """Return a job's spec. `max_bytes` bounds its args and kwargs as JSON.

    As in any JSON, tuples come back as lists and the keys of a mapping as text.
    Raises TypeError for what JSON has no form for, ValueError for NaN, infinity, what is nested
    too deep or contains itself, and what is too large; each names the argument, as args[2] or
    kwargs['lines'][0]['price'].
    """
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise TypeError(f"args must be a list or a tuple, got {type(args).__name__}")
    if kwargs is None:
        kwargs = {}
    elif not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a mapping, got {type(kwargs).__name__}")
    for name in kwargs:
        if not isinstance(name, str):
            raise TypeError(f"kwargs has a name that is no text: {name!r:.60}")
    options: dict[str, Any] = dict(extra) if extra else {}
    if isinstance(policy, RetryPolicy):
        options["policy"] = json.loads(policy.to_json())
    elif policy is not None:
        if not isinstance(policy, str):
            raise TypeError(f"policy must be a name or a RetryPolicy, got {type(policy).__name__}")
        options["policy"] = policy
    if tags:
        options["tags"] = check_tags(tags)
    parts: list[Any] = [handler, list(args), dict(kwargs), options]
    while not parts[-1]:
        parts.pop()
    try:
        data = _encode(parts)
    except (TypeError, ValueError, RecursionError) as error:
        _explain(error, {"args": list(args), "kwargs": dict(kwargs), "extra": options})
    if len(data) > max_bytes:
        _check_size(args, kwargs, max_bytes)
    return data


def decode_spec(data: bytes) -> Spec:
    """Read a spec. Raises CorruptSpec, which says what is wrong and keeps the first bytes in base64."""
    try:
        parts = _decode(data)
        if not isinstance(parts, list):
            raise ValueError(f"is not a list but {_json_kind(parts)}")
        if not 1 <= len(parts) <= 4:
            raise ValueError(f"has {len(parts)} parts instead of 1 to 4")
        empty: tuple[Any, ...] = ([], {}, {})
        handler, args, kwargs, options = (*parts, *empty[len(parts) - 1 :])
        if not isinstance(handler, str) or not handler:
            raise ValueError(f"has no handler's name but {_json_kind(handler)}")
        for name, value, kind in (("args", args, list), ("kwargs", kwargs, dict), ("options", options, dict)):
            if not isinstance(value, kind):
                raise ValueError(f"has {name} that are {_json_kind(value)}")
        policy, tags = options.pop("policy", None), options.pop("tags", {})
        if isinstance(policy, dict):
            policy = RetryPolicy.from_json(policy)
        elif policy is not None and not isinstance(policy, str):
            raise ValueError(f"has a policy that is {_json_kind(policy)}")
        if not isinstance(tags, dict) or not all(isinstance(value, str) for value in tags.values()):
            raise ValueError("has tags that are not texts by name")
    except RecursionError:
        raise _corrupt("is nested too deep", data) from None
    except UnicodeDecodeError as error:
        raise _corrupt(f"is not UTF-8 (byte {error.start})", data) from None
    except json.JSONDecodeError as error:
        raise _corrupt(f"is not JSON: {error}", data) from None
    except PolicyError as error:
        raise _corrupt(f"has a bad policy: {error}", data) from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise _corrupt(str(error)[:300], data) from None
    return Spec(handler, args, kwargs, policy, tags, options)


def encode_value(value: object, *, what: str = "the value", max_bytes: int = MAX_PAYLOAD_BYTES) -> bytes:
    """Return one value, such as a handler's result, as JSON; raises as encode_spec does, naming `what`."""
    try:
        data = _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        _explain(error, {what: value})
    if len(data) > max_bytes:
        raise ValueError(f"{what} is too large: {len(data):,} bytes as JSON, over the limit of {max_bytes:,}")
    return data


def decode_value(data: bytes | str) -> Any:
    """Read what encode_value wrote. Raises ValueError."""
    try:
        return _decode(data.encode() if isinstance(data, str) else data)
    except (ValueError, RecursionError, TypeError, ArithmeticError) as error:
        raise ValueError(f"the value can't be read: {error}") from None


def check_tags(tags: Mapping[str, object] | Iterable[str]) -> dict[str, str]:
    """Return tags as texts by name; a plain list of names gives each an empty value.

    Raises TypeError, or ValueError over 16 tags, 64 characters in a name or 200 in a value.
    """
    if isinstance(tags, (str, bytes)):
        raise TypeError("tags must be a mapping or a list of names, not one text")
    given = dict(tags) if isinstance(tags, Mapping) else dict.fromkeys(tags, "")
    if len(given) > MAX_TAGS:
        raise ValueError(f"tags: at most {MAX_TAGS}, got {len(given)}")
    checked = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise TypeError(f"tags: a name must be text, got {name!r:.60}")
        if isinstance(value, bool) or not isinstance(value, (str, int, uuid.UUID)):
            raise TypeError(f"tags[{name!r:.60}] must be text or a whole number, got {type(value).__name__}")
        text = str(value)
        for what, part, most in (("name", name, MAX_TAG_NAME), ("value", text, MAX_TAG_VALUE)):
            if len(part) > most:
                raise ValueError(f"tags[{name!r:.60}]: the {what} has {len(part)} characters, over {most}")
            if not part.isprintable():
                raise ValueError(f"tags[{name!r:.60}]: the {what} has a character that can't be shown")
        if not name:
            raise ValueError("tags: a name is empty")
        checked[name] = text
    return checked


def _default(value: Any) -> Any:
    """Wrap what JSON lacks, in the order and the form of kombu.utils.json."""
    if (reducer := getattr(value, "__json__", None)) is not None:
        return reducer()
    if isinstance(value, datetime):  # before date, which it also is
        return {"__type__": "datetime", "__value__": value.isoformat()}
    if isinstance(value, date):
        return {"__type__": "date", "__value__": value.isoformat()}
    if isinstance(value, time):
        return {"__type__": "time", "__value__": value.isoformat()}
    if isinstance(value, Decimal):
        return {"__type__": "decimal", "__value__": str(value)}
    if isinstance(value, uuid.UUID):
        return {"__type__": "uuid", "__value__": {"hex": value.hex}}
    if isinstance(value, bytes):
        try:
            return {"__type__": "bytes", "__value__": value.decode()}
        except UnicodeDecodeError:
            return {"__type__": "base64", "__value__": base64.b64encode(value).decode()}
    # Django's lazy texts, without importing Django here.
    if any(base.__module__ == "django.utils.functional" for base in type(value).__mro__):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON serialisable")


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": lambda text: datetime.fromisoformat(text).date(),
    "time": time.fromisoformat,
    "decimal": Decimal,
    "uuid": lambda fields: uuid.UUID(hex=fields["hex"]),
    "bytes": lambda text: text.encode(),
    "base64": lambda text: base64.b64decode(text, validate=True),
}


def _object_hook(value: dict[str, Any]) -> Any:
    if value.keys() != {"__type__", "__value__"}:
        return value
    kind = value["__type__"]
    decoder = _DECODERS.get(kind) if isinstance(kind, str) else None
    if decoder is None:
        raise ValueError(f"has a value of the unknown type {kind!r:.60}")
    try:
        return decoder(value["__value__"])
    except Exception as error:
        raise ValueError(f"has a {kind} that can't be read: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"has the number {name}")


# One encoder for the process: json.dumps would make one a call. Not ASCII only: a letter of most
# of the world's scripts takes 2 or 3 bytes so, and 6 as an escape.
_ENCODER = json.JSONEncoder(default=_default, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
_ASCII_ENCODER = json.JSONEncoder(default=_default, allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(object_hook=_object_hook, parse_constant=_no_constant)
_PLAIN_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_ENVELOPE = '"__type__"'


def _encode(value: object) -> bytes:
    text = _ENCODER.encode(value)
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise RecursionError
    if _ENVELOPE in text:
        _DECODER.decode(text)  # a user's own {"__type__": …} must fail here, not in the worker
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate: JSON's escapes can carry it
        return _ASCII_ENCODER.encode(value).encode()


def _decode(data: bytes) -> Any:
    text = data.decode()
    return (_DECODER if _ENVELOPE in text else _PLAIN_DECODER).decode(text)


_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')


def _depth(text: str) -> int:
    """Return how deep JSON text is nested, in C but for the outermost call."""
    steps = {"[": 1, "{": 1, "]": -1, "}": -1}
    return max(accumulate(map(steps.__getitem__, re.sub(r"[^\[\]{}]", "", _STRINGS.sub("", text)))))


def _explain(error: Exception, roots: Mapping[str, Any]) -> NoReturn:
    """Raise the error of encoding again, now with the name of the innermost value that fails."""
    for name, value in roots.items():
        if fault := _fault(value):
            path, value, error = _innermost(name, value, fault)
            break
    else:
        path, value = next(iter(roots)), None
    if isinstance(error, RecursionError):
        raise ValueError(f"{path} is nested too deep: over {MAX_DEPTH} levels") from None
    if isinstance(value, float) and not isinstance(error, TypeError):
        raise ValueError(f"{path} is {value}, which JSON has no form for") from None
    if isinstance(error, TypeError):
        reason = f"{path} is not serialisable: {error}"
        raise TypeError(reason if len(reason) < 400 else reason[:400] + "…") from None
    raise ValueError(f"{path} is not serialisable: {error}") from None


def _fault(value: object) -> Exception | None:
    try:
        _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        return error
    return None


def _innermost(path: str, value: Any, fault: Exception) -> tuple[str, Any, Exception]:
    root, above = path, set[int]()
    while path == root or not isinstance(fault, RecursionError):
        if id(value) in above:
            return path, None, ValueError("it contains itself")
        above.add(id(value))
        for step, child in _children(value):
            if deeper := _fault(child):
                path, value, fault = f"{path}[{step!r:.60}]", child, deeper
                break
        else:
            break
    return path, value, fault


def _children(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)


def _check_size(args: Sequence[Any], kwargs: Mapping[str, Any], max_bytes: int) -> None:
    sizes = {f"args[{index}]": len(_encode(value)) for index, value in enumerate(args)}
    sizes |= {f"kwargs[{name!r:.60}]": len(_encode(value)) for name, value in kwargs.items()}
    size = len(_encode(list(args))) + len(_encode(dict(kwargs)))
    if size <= max_bytes:
        return  # it was the options that made it longer
    largest = max(sizes, key=sizes.__getitem__)
    raise ValueError(
        f"{largest} is too large: args and kwargs take {size:,} bytes as JSON, over the limit of "
        f"{max_bytes:,}, and it has {sizes[largest]:,} of them"
    )


def _corrupt(reason: str, data: bytes) -> CorruptSpec:
    raw = base64.b64encode(data[:_KEPT_RAW_BYTES]).decode()
    more = f" (the first {_KEPT_RAW_BYTES:,} of its {len(data):,} bytes are kept)"
    if len(data) <= _KEPT_RAW_BYTES:
        more = ""
    return CorruptSpec(f"the spec {reason}{more}", raw)


def _json_kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number" if isinstance(value, (int, float)) else type(value).__name__)
