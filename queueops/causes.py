"""What went wrong: a failure as bounded text, and the fingerprint that says which failures are one.

Nothing here trusts the exception: its text may raise, be 5 MB long or hold what no UTF-8 has, its
traceback may be 900 frames deep, its group a million wide. The work done is bounded.
"""

from __future__ import annotations

import json
import linecache
import os
import re
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from types import CodeType, FrameType, TracebackType
from typing import Any

#: All of a Failure as JSON in UTF-8, at most, bytes.
MAX_FAILURE_BYTES = 65_536
_MAX_MESSAGE_BYTES = 8_192
_MAX_TRACEBACK_BYTES = 40_960
#: Inside a traceback: an exception's text, its frames from either end, and how many exceptions.
_MAX_LINE_BYTES = 2_000
_HEAD_FRAMES, _TAIL_FRAMES = 20, 60
_MAX_EXCEPTIONS = 20
#: So much of a message is looked at for its fingerprint, and so much of the result is kept.
_NORMALISED_FROM, _MAX_NORMALISED = 1_000, 200

#: Causes that are no exception of the user's code, and what they say to a person. They are words,
#: never hex: no fingerprint can meet them.
POISON, TIMEOUT, CANCELLED, UNKNOWN_HANDLER = "poison", "timeout", "cancelled", "unknown-handler"
CORRUPT, EXPIRED, OTHER = "corrupt", "expired", "other"
CAUSE_TEXTS = {
    POISON: "its process was lost at every start",
    TIMEOUT: "ran past its hard time limit",
    CANCELLED: "a person stopped it while it ran",
    UNKNOWN_HANDLER: "no worker knows the handler's name",
    CORRUPT: "the stored job can't be read",
    EXPIRED: "was not started before it expired",
    OTHER: "one of more causes than a queue keeps apart",
}

#: C0 controls but tab and newline become their pictures: PostgreSQL refuses NUL, terminals obey ESC.
_PICTURES = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {127: 0x2421}

_URL = re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.-]{1,15}://[^\s'\"<>]+")
_QUOTED = re.compile(r"""(?<![\w'"])(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")(?![\w])""")
_UUID = re.compile(r"\b[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\b")
_PATH = re.compile(r"(?<![\w<.])(?:~|\.{1,2})?(?:/[\w.@+-]+)+/?|\b[A-Za-z]:\\[^\s'\"<>|]+")
_HEX = re.compile(r"\b0[xX][0-9a-fA-F]+\b|\b(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{6,}\b")
_ID = re.compile(r"\b(?=\w*\d[A-Za-z])\w{8,}\b")  # cus_NffrFeUfNV2Hib, but not user_12345
_NUMBER = re.compile(r"[+-]?\d+(?:[.,:_]\d+)*(?:[eE][+-]?\d+\b)?")


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt, ready for storing: valid UTF-8 without NUL, at most 64 KiB as JSON.

    `cause` is twelve hex digits, or one of the words above; `cause_text` is what a person reads in
    a list of causes. What was cut says so where it was cut.
    """

    error: str
    message: str
    traceback: str
    cause: str
    cause_text: str

    def to_json(self) -> bytes:
        """Return the failure as JSON, at most MAX_FAILURE_BYTES long."""
        room = _MAX_TRACEBACK_BYTES
        while len(data := self._json(_cut_middle(self.traceback, room))) > MAX_FAILURE_BYTES:
            room //= 2  # JSON doubles quotes and backslashes: only a strange text comes here
        return data

    def _json(self, traceback: str) -> bytes:
        fields = {
            "error": self.error,
            "message": self.message,
            "traceback": traceback,
            "cause": self.cause,
            "cause_text": self.cause_text,
        }
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes | str) -> Failure:
        """Read a stored failure. What can't be read becomes its message: a page must still show it."""
        try:
            given = json.loads(data)
            texts = {name: safe_text(given.get(name) or "") for name in cls.__slots__}
        except (ValueError, AttributeError, RecursionError):
            shown = data.decode(errors="backslashreplace") if isinstance(data, bytes) else data
            return known_failure(OTHER, cut_text(safe_text(shown), _MAX_MESSAGE_BYTES))
        return cls(**texts)


def failure_of(error: BaseException, *, hide: Callable[[str], str] | None = None) -> Failure:
    """Return what is kept of an exception, in milliseconds whatever it is given.

    `hide` takes out of a text what must not be kept, such as the secrets of the job's arguments.
    """
    name, message = class_name(error), _message(error, _MAX_MESSAGE_BYTES)
    traceback = _traceback_text(error)
    if hide is not None:
        message, traceback = hide(message), hide(traceback)
    cause, text = _fingerprint(error, name, message)
    return Failure(name, message, traceback, cause, hide(text) if hide is not None else text)


def known_failure(cause: str, message: str, *, error: str = "", traceback: str = "") -> Failure:
    """Return a failure whose cause is one of the words of this module."""
    return Failure(
        cut_text(safe_text(error or cause), 200),
        cut_text(safe_text(message), _MAX_MESSAGE_BYTES),
        _cut_middle(safe_text(traceback), _MAX_TRACEBACK_BYTES),
        cause,
        f"{cause}: {CAUSE_TEXTS[cause]}",
    )


def class_name(error: BaseException) -> str:
    """Return the class as people write it: ValueError, shop.errors.Declined. At most 200 bytes."""
    kind = type(error)
    module, name = str(kind.__module__), str(kind.__qualname__)
    return cut_text(safe_text(name if module == "builtins" else f"{module}.{name}"), 200)


def normalise(message: str) -> str:
    """Return the message with what varies from job to job replaced by the name of its kind.

    Numbers, hex, ids, UUIDs, quoted strings, paths and URLs; one line, at most 200 characters.
    """
    text = message[:_NORMALISED_FROM]
    for pattern, kind in (
        (_URL, "<url>"),
        (_QUOTED, "<str>"),
        (_UUID, "<uuid>"),
        (_PATH, "<path>"),
        (_HEX, "<hex>"),
        (_ID, "<id>"),
        (_NUMBER, "<n>"),
    ):
        text = pattern.sub(kind, text)
    return " ".join(text.split())[:_MAX_NORMALISED]


def safe_text(value: object) -> str:
    """Return any text as valid UTF-8 text without control characters but tab and newline.

    A lone surrogate becomes its escape (\\udc80), NUL its picture (␀). Costs as much as the text
    is long: cut first what may be huge.
    """
    text = value if isinstance(value, str) else str(value)
    return text.encode("utf-8", "backslashreplace").decode().translate(_PICTURES)


def cut_text(text: str, max_bytes: int, *, of: int = 0) -> str:
    """Return text that takes at most `max_bytes` in UTF-8, cut on a character and marked if it was.

    `of` is the true number of characters, when `text` itself is only the first of them.
    """
    data = text[: max_bytes + 1].encode()
    if len(data) <= max_bytes and of <= len(text):
        return text
    mark = f"… [truncated, {max(of, len(text)):,} characters]"
    return data[: max(0, max_bytes - len(mark.encode()))].decode(errors="ignore") + mark


def _cut_middle(text: str, max_bytes: int) -> str:
    """Cut as cut_text does, but keep both ends, since a traceback's last lines say the most."""
    data = text.encode()
    if len(data) <= max_bytes:
        return text
    mark = f"\n… [truncated, {len(text):,} characters] …\n"
    room = max(0, max_bytes - len(mark.encode()))
    head, tail = room // 4, room - room // 4
    end = data[-tail:].decode(errors="ignore") if tail else ""
    return data[:head].decode(errors="ignore") + mark + end


def _message(error: BaseException, max_bytes: int) -> str:
    """Return str(error), however it behaves, as safe text of at most `max_bytes`."""
    try:
        text = str(error)
        # str's own methods: __str__ may return a subclass that overrides anything.
        size, text = str.__len__(text), str.__getitem__(text, slice(max_bytes))
    except BaseException as second:  # its __str__ is anybody's code: not even SystemExit may leave
        return f"<no text: __str__ raised {safe_text(type(second).__name__[:100])}>"
    shown = safe_text(text)
    return cut_text(shown, max_bytes, of=size if size > len(text) else 0)


def _fingerprint(error: BaseException, name: str, message: str) -> tuple[str, str]:
    where, kinds = _own_frame(error.__traceback__), ""
    if isinstance(error, BaseExceptionGroup):
        leaves = list(_leaves(error))
        kinds = ", ".join(sorted({class_name(leaf) for leaf in leaves})[:5])
        where = where or next(filter(None, (_own_frame(leaf.__traceback__) for leaf in leaves)), "")
    what = f"{name}[{kinds}]" if kinds else name
    text = normalise(message)
    digest = sha256("\0".join((what, text, where)).encode()).hexdigest()[:12]
    shown = f"{what}: {text}" if text else what
    return digest, cut_text(f"{shown} (in {where})" if where else shown, 600)


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    """Yield the first exceptions of a group that are no groups, looking at 100 at most."""
    queue: deque[BaseException] = deque([group])
    for _ in range(100):
        if not queue:
            return
        error = queue.popleft()
        if isinstance(error, BaseExceptionGroup):
            queue.extend(error.exceptions[:100])
        else:
            yield error


def _own_frame(traceback: TracebackType | None) -> str:
    """Return the innermost frame of the user's own code as module.function, or "".

    Without a line number, so that a deploy that moves the line does not make a new cause.
    """
    found: FrameType | None = None
    while traceback is not None:
        if _is_own(traceback.tb_frame.f_code):
            found = traceback.tb_frame
        traceback = traceback.tb_next
    if found is None:
        return ""
    module = found.f_globals.get("__name__")
    prefix = module if isinstance(module, str) else os.path.basename(found.f_code.co_filename)
    return cut_text(safe_text(f"{prefix}.{found.f_code.co_qualname}"), 300)


_ENGINE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARIES = tuple(
    place + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_path(name))
    for place in (path, os.path.realpath(path))
)


def _is_own(code: CodeType) -> bool:
    """Tell whether code is the user's: not a library's, not Python's, not the engine's."""
    file = code.co_filename
    if file.startswith((_ENGINE, "<")) or f"{os.sep}site-packages{os.sep}" in file:
        return False
    return f"{os.sep}dist-packages{os.sep}" not in file and not file.startswith(_LIBRARIES)


def _traceback_text(error: BaseException) -> str:
    """Return the traceback as Python prints it, of bounded size and made with bounded work.

    Python's own formatter reads every frame, message and note of every exception, and calls
    dir() on the user's objects for its suggestions.
    """
    chain: list[tuple[BaseException, str]] = []
    seen: set[int] = set()
    current: BaseException | None = error
    link = ""
    while current is not None and id(current) not in seen and len(chain) < _MAX_EXCEPTIONS:
        seen.add(id(current))
        chain.append((current, link))
        if current.__cause__ is not None:
            current, link = (
                current.__cause__,
                "The above exception was the direct cause of the following exception:",
            )
        elif not current.__suppress_context__:
            current, link = (
                current.__context__,
                "During handling of the above exception, another exception occurred:",
            )
        else:
            current = None
    lines: list[str] = []
    if current is not None and id(current) not in seen:
        lines += ["[earlier exceptions left out]", ""]
    for each, after in reversed(chain):
        lines += _exception_lines(each)
        if after:
            lines += ["", after, ""]
    return _cut_middle("\n".join(lines), _MAX_TRACEBACK_BYTES)


def _exception_lines(error: BaseException) -> list[str]:
    lines = _frame_lines(error.__traceback__)
    text, name = _message(error, _MAX_LINE_BYTES), class_name(error)
    lines.append(f"{name}: {text}" if text else name)
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        lines += [cut_text(safe_text(note), _MAX_LINE_BYTES) for note in notes[:5] if isinstance(note, str)]
    if isinstance(error, BaseExceptionGroup):
        for number, leaf in enumerate(_leaves(error), 1):
            if number > 5:
                lines.append("  … [more exceptions left out]")
                break
            lines.append(f"  +- {number} -")
            lines += [f"  | {line}" for line in _exception_lines(leaf)]
    return lines


def _frame_lines(traceback: TracebackType | None) -> list[str]:
    while traceback is not None and traceback.tb_next is not None and _is_engine(traceback):
        traceback = traceback.tb_next  # it begins where the user's handler does
    head: list[TracebackType] = []
    tail: deque[TracebackType] = deque(maxlen=_TAIL_FRAMES)
    count = 0
    while traceback is not None:
        (head if count < _HEAD_FRAMES else tail).append(traceback)
        count += 1
        traceback = traceback.tb_next
    if not count:
        return []
    lines = ["Traceback (most recent call last):", *map(_frame_text, head)]
    if left_out := count - len(head) - len(tail):
        lines.append(f"  [{left_out:,} frames left out]")
    return lines + list(map(_frame_text, tail))


def _is_engine(traceback: TracebackType) -> bool:
    return traceback.tb_frame.f_code.co_filename.startswith(_ENGINE)


def _frame_text(traceback: TracebackType) -> str:
    code = traceback.tb_frame.f_code
    text = f'  File "{code.co_filename[:300]}", line {traceback.tb_lineno}, in {code.co_name[:100]}'
    try:
        line = linecache.getline(code.co_filename, traceback.tb_lineno, traceback.tb_frame.f_globals)
    except Exception:  # a loader of anybody's
        line = ""
    if line := line.strip():
        text = f"{text}\n    {line[:200]}"
    return safe_text(text)
