"""What a job carries: its bytes, what kombu makes of them, and what is refused by name."""

from __future__ import annotations

import base64
import contextlib
import enum
import json
import math
import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils import json as kombu_utils_json

from queueops.errors import CorruptSpec
from queueops.payload import (
    MAX_PAYLOAD_BYTES,
    Spec,
    check_tags,
    decode_spec,
    decode_value,
    encode_spec,
    encode_value,
)
from queueops.policies import DEFAULT_POLICY

kombu_json: Any = kombu_utils_json  # untyped

TYPED: list[Any] = [
    datetime(2026, 5, 1, 12, 30),  # noqa: DTZ001 - naive ones survive as well
    datetime(2026, 5, 1, 12, 30, 1, 999999, tzinfo=UTC),
    datetime(2026, 5, 1, 12, 30, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    date(2026, 2, 28),
    time(23, 59, 59, 1),
    time(1, 2, tzinfo=UTC),
    Decimal("12.50"),
    Decimal("-0"),
    Decimal("1E+1000"),
    uuid.UUID(int=7),
    b"text \xc3\xa9",
    b"\xff\x00",
    [date(2026, 1, 1), {"deep": (Decimal("1.1"),)}],
]


def listed(value: Any) -> Any:
    """The value as JSON gives it back: tuples as lists."""
    if isinstance(value, (list, tuple)):
        return [listed(each) for each in value]
    if isinstance(value, dict):
        return {name: listed(each) for name, each in value.items()}
    return value


@pytest.mark.parametrize("value", TYPED)
def test_typed_values_survive_and_kombu_reads_and_writes_the_same(value: Any) -> None:
    ours = encode_value(value)

    assert decode_value(ours) == listed(value)
    assert kombu_json.loads(ours) == listed(value)
    assert json.loads(ours) == json.loads(kombu_json.dumps(value))
    assert decode_value(kombu_json.dumps(value)) == listed(value)


def test_an_aware_time_keeps_its_instant() -> None:
    berlin = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert decode_value(encode_value(berlin)) == berlin.astimezone(UTC)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary()
    | st.dates()
    | st.datetimes(timezones=st.none() | st.just(UTC))
    | st.times()
    | st.uuids()
    | st.decimals(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_any_value_survives_here_and_through_kombu_both_ways(value: Any) -> None:
    ours = encode_value(value)

    assert decode_value(ours) == value
    assert kombu_json.loads(ours) == value
    assert decode_value(kombu_json.dumps(value)) == value


@given(st.lists(json_values, max_size=3), st.dictionaries(st.text(), json_values, max_size=3))
def test_any_spec_survives(args: list[Any], kwargs: dict[str, Any]) -> None:
    assert decode_spec(encode_spec("a.b", args, kwargs)) == Spec("a.b", args, kwargs)


def test_lone_surrogates_survive_as_utf_8() -> None:
    data = encode_spec("a.b", ["\ud800é"], {"k": "\udc80"})

    data.decode("utf-8")
    assert decode_spec(data) == Spec("a.b", ["\ud800é"], {"k": "\udc80"})
    assert kombu_json.loads(data) == ["a.b", ["\ud800é"], {"k": "\udc80"}]


def test_large_integers_and_empty_containers_stay_what_they_are() -> None:
    spec = Spec("a.b", [[], {}, 2**80, 9_007_199_254_740_993], {"e": [], "f": 0.1})
    assert decode_spec(spec.encode()) == spec


def test_a_spec_is_short() -> None:
    assert encode_spec("a.b") == b'["a.b"]'
    assert encode_spec("a.b", (1,)) == b'["a.b",[1]]'
    assert encode_spec("a.b", kwargs={"x": "é"}) == '["a.b",[],{"x":"é"}]'.encode()
    assert encode_spec("a.b", extra={"slot": "s"}) == b'["a.b",[],{},{"slot":"s"}]'


def test_a_spec_keeps_policy_tags_and_extra() -> None:
    named = Spec("a.b", policy="mail", tags={"customer": "42"}, extra={"slot": "20260501T000000Z"})
    inline = Spec("a.b", [1], policy=DEFAULT_POLICY)

    assert decode_spec(named.encode()) == named
    assert decode_spec(inline.encode()) == inline


class Colour(enum.StrEnum):
    RED = "red"


class Point(NamedTuple):
    x: int


class Reduced:
    def __json__(self) -> dict[str, int]:
        return {"a": 1}


def test_texts_and_tuples_of_other_classes_become_plain_ones_as_in_kombu() -> None:
    value = [Colour.RED, Point(1), Reduced(), {2: "a", None: "b", True: "c", 1.5: "d"}]

    assert json.loads(encode_value(value)) == json.loads(kombu_json.dumps(value))
    assert decode_value(encode_value(value))[:3] == ["red", [1], {"a": 1}]


def test_django_lazy_texts_become_text() -> None:
    lazy = pytest.importorskip("django.utils.functional").lazystr
    assert decode_value(encode_value([lazy("hello")])) == ["hello"]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


circular: list[Any] = []
circular.append({"again": circular})


@pytest.mark.parametrize(
    ("args", "kwargs", "kind", "message"),
    [
        ([1, 2, object()], {}, TypeError, "args[2] is not serialisable: object is not"),
        ([], {"when": timedelta(1)}, TypeError, "kwargs['when'] is not serialisable: timedelta is not"),
        ([], {"when": {1, 2}}, TypeError, "kwargs['when'] is not serialisable: set is not"),
        ([], {"a": [{"b": 1j}]}, TypeError, "kwargs['a'][0]['b'] is not serialisable: complex is not"),
        ([{(1, 2): 3}], {}, TypeError, "args[0] is not serialisable: keys must be str"),
        ([math.nan], {}, ValueError, "args[0] is nan, which JSON has no form for"),
        ([], {"x": [1.0, -math.inf]}, ValueError, "kwargs['x'][1] is -inf, which JSON has no form for"),
        ([nested(1_000)], {}, ValueError, "args[0] is nested too deep: over 200 levels"),
        ([nested(100_000)], {}, ValueError, "args[0] is nested too deep: over 200 levels"),
        ([1], {"c": circular}, ValueError, "kwargs['c'][0]['again'] is not serialisable: it contains itself"),
        ([10**5_000], {}, ValueError, "args[0] is not serialisable: Exceeds the limit"),
        (
            [{"__type__": "odd", "__value__": 1}],
            {},
            ValueError,
            "args[0] is not serialisable: has a value of",
        ),
        (
            [{"__type__": "date", "__value__": 1}],
            {},
            ValueError,
            "args[0] is not serialisable: has a date that",
        ),
    ],
)
def test_what_can_not_be_written_is_refused_by_its_name(
    args: list[Any], kwargs: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        encode_spec("a.b", args, kwargs)

    assert message in str(caught.value)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_the_wrong_shape_of_arguments_is_refused() -> None:
    for args in ("abc", b"abc", {1: 2}, 5, {1, 2}):
        with pytest.raises(TypeError, match="args must be a list or a tuple"):
            encode_spec("a.b", args)  # type: ignore[arg-type]
    for kwargs in ([1], "a", 5):
        with pytest.raises(TypeError, match="kwargs must be a mapping"):
            encode_spec("a.b", (), kwargs)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="kwargs has a name that is no text: 1"):
        encode_spec("a.b", (), {1: 2})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="policy must be a name or a RetryPolicy, got int"):
        encode_spec("a.b", policy=5)  # type: ignore[arg-type]


def test_a_payload_over_the_limit_is_refused_with_its_largest_argument_and_the_sizes() -> None:
    with pytest.raises(ValueError, match="too large") as caught:
        encode_spec("a.b", [1, "x" * 10], {"body": "y" * MAX_PAYLOAD_BYTES})

    assert str(caught.value) == (
        "kwargs['body'] is too large: args and kwargs take 262,171 bytes as JSON, over the limit of "
        "262,144, and it has 262,146 of them"
    )


def test_the_limit_counts_bytes_of_args_and_kwargs_alone() -> None:
    fits = ["é" * 46, "1"]  # [" + 92 + "," + 1 + "]: 100, and {}: 2

    assert encode_spec("a.b" * 30, fits, extra={"slot": "x" * 50}, max_bytes=102)
    with pytest.raises(ValueError, match=r"args\[0\] is too large: .* 102 bytes .* limit of 101"):
        encode_spec("a.b" * 30, fits, max_bytes=101)


def test_a_value_names_what_it_is_in_its_errors() -> None:
    with pytest.raises(TypeError, match=r"the result\['a'\] is not serialisable: object"):
        encode_value({"a": object()}, what="the result")
    with pytest.raises(ValueError, match="the result is too large: 12 bytes as JSON, over the limit of 5"):
        encode_value("x" * 10, what="the result", max_bytes=5)
    with pytest.raises(ValueError, match=r"the value\[0\] is nested too deep"):
        encode_value(nested(500))


def test_wide_values_are_not_deep_ones() -> None:
    value = [{"a": ["[[[[", "\\", '"[']} for _ in range(500)]
    assert decode_value(encode_value(value)) == value


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff\xfe", "is not UTF-8 (byte 0)"),
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "is nested too deep"),
        (b'{"codec":"pickle","data":"gAS="}', "is not a list but an object"),
        (b'"a"', "is not a list but a text"),
        (b"12", "is not a list but a number"),
        (b"null", "is not a list but null"),
        (b"[]", "has 0 parts instead of 1 to 4"),
        (b'["a",[],{},{},1]', "has 5 parts"),
        (b"[1]", "has no handler's name but a number"),
        (b'[""]', "has no handler's name"),
        (b'["a",{}]', "has args that are an object"),
        (b'["a",[],[]]', "has kwargs that are a list"),
        (b'["a",[],{},7]', "has options that are a number"),
        (b'["a",[],{},{"policy":7}]', "has a policy that is a number"),
        (b'["a",[],{},{"policy":{"max_retries":-1}}]', "has a bad policy: max_retries"),
        (b'["a",[],{},{"tags":["x"]}]', "has tags"),
        (b'["a",[],{},{"tags":{"x":1}}]', "has tags"),
        (b'["a",[NaN]]', "has the number NaN"),
        (b'["a",[1e999]]', ""),
        (b'["a",[{"__type__":"odd","__value__":1}]]', "has a value of the unknown type 'odd'"),
        (b'["a",[{"__type__":[],"__value__":1}]]', "has a value of the unknown type []"),
        (b'["a",[{"__type__":"date","__value__":"x"}]]', "has a date that can't be read"),
        (b'["a",[{"__type__":"uuid","__value__":{"int":1}}]]', "has a uuid that can't be read"),
        (b'["a",[{"__type__":"decimal","__value__":"x"}]]', "has a decimal that can't be read"),
        (b'["a",[' + b"9" * 5_000 + b"]]", "Exceeds the limit"),
    ],
)
def test_d03_a_broken_spec_says_why_and_keeps_its_bytes(data: bytes, why: str) -> None:
    if not why:
        assert decode_spec(data).args == [math.inf]  # a large number of JSON, not a word outside it
        return
    with pytest.raises(CorruptSpec) as caught:
        decode_spec(data)

    assert why in str(caught.value)
    assert len(str(caught.value)) < 500
    raw = base64.b64decode(caught.value.raw)
    assert data.startswith(raw)
    assert len(raw) == min(len(data), 6_144)


@given(st.binary(max_size=60))
def test_d03_no_bytes_raise_anything_but_corrupt_spec(data: bytes) -> None:
    with contextlib.suppress(CorruptSpec):
        decode_spec(data)


def test_a_stored_value_that_is_broken_is_a_value_error() -> None:
    for data in (b"\xff", b"{", b"[" * 100_000, b"NaN", b'{"__type__":"x","__value__":1}'):
        with pytest.raises(ValueError, match="the value can't be read: "):
            decode_value(data)


def test_tags_are_texts_by_name() -> None:
    assert check_tags({"customer": 42, "trace": uuid.UUID(int=1), "plan": "pro"}) == {
        "customer": "42",
        "trace": "00000000-0000-0000-0000-000000000001",
        "plan": "pro",
    }
    assert check_tags(["nightly", "big"]) == {"nightly": "", "big": ""}


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ("one", "not one text"),
        ({1: "x"}, "a name must be text"),
        ({"a": 1.5}, r"tags\['a'\] must be text or a whole number, got float"),
        ({"a": True}, "got bool"),
        ({"": "x"}, "a name is empty"),
        ({"a" * 65: "x"}, "the name has 65 characters, over 64"),
        ({"a": "x" * 201}, "the value has 201 characters, over 200"),
        ({"a": "x\0"}, "can't be shown"),
        ({"a": "\ud800"}, "can't be shown"),
        ({str(number): "" for number in range(17)}, "at most 16, got 17"),
    ],
)
def test_bad_tags_are_refused(tags: Mapping[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        check_tags(tags)
