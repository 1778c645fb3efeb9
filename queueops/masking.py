"""Secrets in what a job carries: which values pages mask, and how they leave an error's text. Pure.

A value is secret by the name it stands under, or by its form: a bearer token, the password or a
secret parameter of a URL.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

#: What pages show instead of a secret.
MASK = "[masked]"

_WORDS = frozenset(
    {
        *("password", "passwd", "passphrase", "passcode", "pwd", "pass", "secret", "secrets", "signature"),
        *("token", "tokens", "jwt", "authorization", "auth", "credential", "credentials", "apikey", "bearer"),
        *("cookie", "cookies", "session", "sessionid", "csrf", "cvv", "cvc", "otp", "pin", "ssn", "pan"),
        *("iban", "creditcard"),
    }
)
#: Two words in a row that together name a secret: api key, card number.
_PAIRS = frozenset(
    [
        *((first, "key") for first in ("api", "access", "private", "signing", "encryption", "license")),
        *((first, "number") for first in ("card", "account")),
        *((first, "card") for first in ("credit", "debit")),
        ("connection", "string"),
    ]
)
#: After these a "token" is a number of words and no secret: max_tokens, token_count.
_COUNTS = frozenset({"max", "min", "count", "total", "num", "number", "usage", "limit", "used"})
_TOKENS = frozenset({"token", "tokens"})
_SPLIT = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

_SCHEME = re.compile(r"\A\s*(?:Bearer|Basic|Token|Digest)\s+\S", re.IGNORECASE)
_USERINFO = re.compile(
    r"(?P<before>\b[a-z][a-z0-9+.-]{1,15}://[^\s/?#@:]*:)(?P<secret>[^\s/?#@]+)(?=@)", re.IGNORECASE
)
_PARAMETER = re.compile(r"(?P<before>[?&;](?P<name>[\w.-]{1,64})=)(?P<secret>[^&#\s'\"]+)")
#: Shorter values are too common to be taken out of a text: "1" would tear every number apart.
_SHORTEST = 3
_DEEPEST = 200


def is_secret(name: object, also: Iterable[str] = ()) -> bool:
    """Tell whether a value under this name is a secret; `also` are further names, compared without case."""
    if not isinstance(name, str) or len(name) > 200:
        return False
    if name.lower() in {each.lower() for each in also}:
        return True
    words = [word.lower() for word in _SPLIT.split(name) if word]
    found = _WORDS.intersection(words)
    if found and not (found <= _TOKENS and _COUNTS.intersection(words)):
        return True
    return any(pair in _PAIRS for pair in itertools.pairwise(words))


def mask(value: Any, also: Iterable[str] = ()) -> tuple[Any, int]:
    """Return a copy with every secret replaced by MASK, and how many there were."""
    masker = _Masker(tuple(also))
    return masker.mask(value, 0), masker.found


def secrets_in(value: Any, also: Iterable[str] = ()) -> frozenset[str]:
    """Return the texts of the secrets in a value, without those too short to look for."""
    masker = _Masker(tuple(also))
    masker.mask(value, 0)
    return frozenset(masker.texts)


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return `text` without these secrets, the longest first, and without those it shows by its form."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return mask_text(text)


def mask_text(text: str, also: Iterable[str] = ()) -> str:
    """Return `text` with passwords and secret parameters of its URLs masked."""
    return _Masker(tuple(also)).text(text)


class _Masker:
    """One walk through one value."""

    def __init__(self, also: tuple[str, ...]) -> None:
        self.also = also
        self.found = 0
        self.texts: set[str] = set()

    def mask(self, value: Any, depth: int) -> Any:
        if depth > _DEEPEST:
            return self._take(value)  # deeper than any job may be: nobody knows what is in there
        if isinstance(value, str):
            return self._take(value) if _SCHEME.match(value) else self.text(value)
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, (list, tuple)):
            # A header as a pair: ["Authorization", "…"].
            if len(value) == 2 and is_secret(value[0], self.also) and isinstance(value[1], str):
                return [value[0], self._take(value[1])]
            return [self.mask(each, depth + 1) for each in value]
        return value

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[Any, Any]:
        # {"name": "password", "value": "…"}: a form field written out.
        is_field = any(is_secret(value.get(key), self.also) for key in ("name", "key", "Name", "Key"))
        return {
            key: self._take(each)
            if is_secret(key, self.also) or (is_field and str(key).lower() == "value")
            else self.mask(each, depth + 1)
            for key, each in value.items()
        }

    def _take(self, value: Any) -> Any:
        """Mask a secret; None and empty values are none."""
        if value is None or value in ("", [], {}) or isinstance(value, bool):
            return value
        self.found += 1
        self.texts.update(text for text in _texts(value, 0) if len(text) >= _SHORTEST)
        return MASK

    def text(self, value: str) -> str:
        if "://" not in value and "=" not in value:
            return value
        value = _USERINFO.sub(self._matched, value)
        return _PARAMETER.sub(lambda m: self._matched(m) if is_secret(m["name"], self.also) else m[0], value)

    def _matched(self, match: re.Match[str]) -> str:
        secret = match["secret"]
        if secret == MASK:
            return match[0]
        self.found += 1
        if len(secret) >= _SHORTEST:
            self.texts.update({secret, unquote(secret)})
        return match["before"] + MASK


def _texts(value: Any, depth: int) -> Iterator[str]:
    """Every text and number inside a secret value; of "Bearer x" also x alone."""
    if depth > _DEEPEST:
        return
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each, depth + 1)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each, depth + 1)
    elif isinstance(value, str):
        yield value
        if _SCHEME.match(value):
            yield value.split(None, 1)[1]
    elif value is not None and not isinstance(value, bool):
        yield str(value)
