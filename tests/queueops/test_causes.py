"""Failures as bounded text, and which of them are the same cause."""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queueops.causes import (
    CAUSE_TEXTS,
    MAX_FAILURE_BYTES,
    OTHER,
    POISON,
    Failure,
    cut_text,
    failure_of,
    known_failure,
    normalise,
    safe_text,
)


def caught(raiser: Callable[[], Any]) -> BaseException:
    try:
        raiser()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


class TwoArguments(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__("always the same text")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit("no")


class HoldsSocket(Exception):
    pass


def raise_two_arguments() -> None:
    raise TwoArguments(1, 2)


def raise_unprintable() -> None:
    raise Unprintable


def raise_with_socket() -> None:
    with socket.socket() as held:
        raise HoldsSocket(held)


def raise_chain_of_ten() -> None:
    error: Exception = ValueError("root")
    for number in range(10):
        try:
            raise RuntimeError(f"link {number}") from error
        except RuntimeError as raised:
            error = raised
    raise error


def raise_group() -> None:
    raise ExceptionGroup("several", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])])


@pytest.mark.parametrize(
    ("raiser", "error", "in_message"),
    [
        (raise_two_arguments, f"{__name__}.TwoArguments", "always the same text"),
        (raise_unprintable, f"{__name__}.Unprintable", "<no text: __str__ raised SystemExit>"),
        (raise_with_socket, f"{__name__}.HoldsSocket", "<socket.socket"),
        (raise_chain_of_ten, "RuntimeError", "link 9"),
        (raise_group, "ExceptionGroup", "several (2 sub-exceptions)"),
    ],
)
def test_d05_an_awkward_exception_is_kept_with_its_class_and_a_safe_text(
    raiser: Callable[[], Any], error: str, in_message: str
) -> None:
    failure = failure_of(caught(raiser))

    assert failure.error == error
    assert in_message in failure.message
    assert f"in {raiser.__name__}" in failure.traceback
    assert "Traceback (most recent call last):" in failure.traceback
    assert raiser.__name__ in failure.cause_text
    assert Failure.from_json(failure.to_json()) == failure


def test_d05_a_chain_reads_as_python_prints_it() -> None:
    text = failure_of(caught(raise_chain_of_ten)).traceback

    assert text.splitlines()[0] == "ValueError: root"
    assert text.count("The above exception was the direct cause of the following exception:") == 10
    assert text.splitlines()[-1] == "RuntimeError: link 9"


def test_d05_a_suppressed_context_is_left_out_and_an_implicit_one_shown() -> None:
    def implicit() -> None:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer")  # noqa: B904

    def suppressed() -> None:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer") from None

    assert "During handling of the above exception" in failure_of(caught(implicit)).traceback
    assert "inner" not in failure_of(caught(suppressed)).traceback


def test_d05_a_circular_chain_and_a_wide_group_end() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    wide = ExceptionGroup("wide", [ValueError(str(number)) for number in range(100_000)])

    assert failure_of(first).traceback.count("ValueError") == 2
    assert "more exceptions left out" in failure_of(wide).traceback


def test_d05_notes_are_shown() -> None:
    error = ValueError("x")
    error.add_note("while charging order 5\0")
    assert "while charging order 5␀" in failure_of(error).traceback


def raise_deep(depth: int) -> None:
    if depth:
        raise_deep(depth - 1)
    raise RuntimeError("x" * 5_000_000 + "🙂")


@pytest.mark.parametrize("tail", ["🙂", "é", "x"])
def test_d07_a_huge_message_from_deep_recursion_is_cut_marked_and_quick(tail: str) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(2_000)
    try:
        error = caught(lambda: raise_deep(900))
    finally:
        sys.setrecursionlimit(limit)
    huge = RuntimeError(tail * 5_000_000).with_traceback(error.__traceback__)

    start = time.perf_counter()
    failure = failure_of(huge)
    data = failure.to_json()
    took = time.perf_counter() - start

    assert took < 1
    assert len(data) <= MAX_FAILURE_BYTES
    assert failure.message.endswith("… [truncated, 5,000,000 characters]")
    assert set(failure.message.split("…")[0]) == {tail}
    assert "frames left out]" in failure.traceback
    assert failure.traceback.splitlines()[-1].endswith("[truncated, 5,000,000 characters]")


@pytest.mark.parametrize("size", [*range(8_180, 8_200), 4_095, 4_096, 4_097])
def test_d07_no_cut_breaks_a_character(size: int) -> None:
    text = "x" * (size % 4) + "🙂" * (size // 4)
    cut = cut_text(text, 8_192)

    assert len(cut.encode()) <= 8_192
    assert cut == text or "truncated" in cut
    assert "\ufffd" not in cut


def test_d07_quotes_and_backslashes_that_json_doubles_stay_under_the_limit() -> None:
    failure = Failure("E", '"' * 8_192, '\\"' * 20_480, "abc", "text")
    data = failure.to_json()

    assert len(data) <= MAX_FAILURE_BYTES
    assert "[truncated," in Failure.from_json(data).traceback


def test_nul_control_characters_and_lone_surrogates_become_safe_text() -> None:
    failure = failure_of(ValueError("a\0b\x1b[31m\udc80\ud83d\tc\n"))

    assert failure.message == "a␀b␛[31m\\udc80\\ud83d\tc\n"
    assert json.loads(failure.to_json().decode("utf-8"))["message"] == failure.message


def test_a_text_subclass_that_lies_about_itself_is_no_trouble() -> None:
    class Liar(str):
        __slots__ = ()

        def __len__(self) -> int:
            raise RuntimeError

        def __getitem__(self, key: Any) -> str:
            raise RuntimeError

    class Odd(Exception):
        def __str__(self) -> str:
            return Liar("hello")

    assert failure_of(Odd()).message == "hello"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 not found", "order 18000 not found"),
        ("timed out after 1.5 s", "timed out after 30 s"),
        ("no customer 'alice'", "no customer 'bob o\\'hara'"),
        ('no customer "alice"', 'no customer "bob"'),
        ("job 018f2b6e-0000-7000-8000-0123456789ab lost", "job 118F2B6E-1111-7000-8000-ffffffffffff lost"),
        ("at 0x7f3a9c", "at 0xDEADBEEF"),
        ("commit 1f3e9ab missing", "commit 00ff00ff00ff missing"),
        ("GET https://a.example/x?y=1 failed", "GET http://10.0.0.1:80/ failed"),
        ("cannot open /srv/app/data.csv", "cannot open /home/x/y/z"),
        ("cannot open C:\\data\\x", "cannot open D:\\y"),
        ("customer cus_NffrFeUfNV2Hib declined", "customer cus_9s6XKzkNRiz8i3 declined"),
        ("until 2026-05-01T10:00:00+02:00", "until 1999-12-31T23:59:59+00:00"),
    ],
)
def test_what_varies_from_job_to_job_does_not_make_a_cause(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)
    assert failure_of(ValueError(one)).cause == failure_of(ValueError(other)).cause


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("card declined", "card expired"),
        ("can't reach it, don't know why", "can't reach it, won't know why"),
        ("read and/or write", "read and write"),
    ],
)
def test_different_words_are_different_causes(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)
    assert failure_of(ValueError(one)).cause != failure_of(ValueError(other)).cause


def test_class_and_place_are_part_of_the_cause() -> None:
    def here() -> None:
        raise ValueError("x")

    def there() -> None:
        raise ValueError("x")

    def another() -> None:
        raise TypeError("x")

    causes = [failure_of(caught(function)).cause for function in (here, here, there, another)]
    assert causes[0] == causes[1]
    assert len(set(causes)) == 3
    assert all(len(cause) == 12 and int(cause, 16) >= 0 for cause in causes)


def test_the_place_is_the_innermost_frame_of_the_users_own_code(tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "a_library.py").write_text("def parse(x):\n    return int(x)\n")
    sys.path.insert(0, str(library))
    try:
        parse = importlib.import_module("a_library").parse
    finally:
        sys.path.remove(str(library))

    def my_handler() -> None:
        parse("x")

    def my_json() -> None:
        json.loads("{")

    assert failure_of(caught(my_handler)).cause_text.endswith("my_handler)")
    assert failure_of(caught(my_json)).cause_text.endswith("my_json)")


def test_a_deploy_that_moves_the_line_keeps_the_cause(tmp_path: Path) -> None:
    causes = []
    for lines in ("", "\n\n\n"):
        scope: dict[str, Any] = {"__name__": "shop.tasks"}
        source = f"{lines}def charge():\n    raise ValueError('x')\n"
        exec(compile(source, str(tmp_path / "tasks.py"), "exec"), scope)
        failure = failure_of(caught(scope["charge"]))
        causes.append((failure.cause, failure.cause_text))

    assert causes[0] == causes[1]
    assert causes[0][1] == "ValueError: x (in shop.tasks.charge)"


def test_a_group_is_one_cause_by_its_leaves_and_their_place() -> None:
    async def fail(kind: type[Exception]) -> None:
        raise kind("x")

    async def both(*kinds: type[Exception]) -> None:
        async with asyncio.TaskGroup() as group:
            for kind in kinds:
                group.create_task(fail(kind))

    one = failure_of(caught(lambda: asyncio.run(both(ValueError, KeyError))))
    two = failure_of(caught(lambda: asyncio.run(both(KeyError, ValueError))))
    three = failure_of(caught(lambda: asyncio.run(both(OSError))))

    assert one.cause == two.cause != three.cause
    assert "[KeyError, ValueError]" in one.cause_text


def test_the_traceback_begins_at_the_handler_not_in_the_engine() -> None:
    engine_file = str(Path(sys.modules["queueops.causes"].__file__ or "").parent / "worker" / "run.py")
    scope: dict[str, Any] = {}
    exec(compile("def run(handler):\n    handler()\n", engine_file, "exec"), scope)

    text = failure_of(caught(lambda: scope["run"](raise_two_arguments))).traceback
    only_engine = failure_of(caught(lambda: scope["run"](None)))

    assert "in raise_two_arguments" in text
    assert only_engine.traceback.startswith("Traceback")
    assert only_engine.cause_text.startswith("TypeError: ")


@pytest.mark.parametrize("cause", sorted(CAUSE_TEXTS))
def test_a_known_cause_is_a_word_with_its_text(cause: str) -> None:
    failure = known_failure(cause, "killed by SIGKILL\0 on host-1")

    assert (failure.cause, failure.error) == (cause, cause)
    assert failure.message == "killed by SIGKILL␀ on host-1"
    assert failure.cause_text == f"{cause}: {CAUSE_TEXTS[cause]}"
    assert not set(cause) <= set("0123456789abcdef")


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[]", b"null", b"3", b"[" * 100_000, "text"])
def test_a_stored_failure_that_is_broken_is_still_shown(data: bytes | str) -> None:
    failure = Failure.from_json(data)

    assert failure.cause == OTHER
    assert len(failure.to_json()) <= MAX_FAILURE_BYTES


def test_a_stored_failure_without_some_fields_is_read() -> None:
    failure = Failure.from_json(b'{"error":"E","cause":"poison","message":null}')
    assert (failure.error, failure.cause, failure.message) == ("E", POISON, "")


def test_safe_text_of_anything() -> None:
    assert safe_text(5) == "5"
    assert safe_text("\x7f\r") == "␡␍"


def test_secrets_leave_the_failure_and_its_fingerprint() -> None:
    def of(secret: str) -> Failure:
        try:
            raise ValueError(f"login with {secret} failed")
        except ValueError as error:
            return failure_of(error, hide=lambda text: text.replace(secret, "[masked]"))

    one, other = of("pw1-zz"), of("another")

    assert "pw1-zz" not in one.to_json().decode()
    assert one.message == "login with [masked] failed"
    assert one.cause == other.cause
