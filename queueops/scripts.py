"""The Lua loader: a script's header is its contract, and names are bound from it.

A script in `lua/` starts with a comment that lists KEYS (names of `keys.SUFFIXES`), ARGV, RETURNS
and, where it must run at `maxmemory`, `FLAGS allow-oom`. `-- @include name` inlines
`lua/lib/name.lua`, whose header lists its own KEYS. Each script gets one real key, `Q:settings`,
from which it makes the others: all keys of a queue share a hash tag.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from queueops import keys
from queueops.states import JobState, Lane
from queueops.stats import BOUNDS_MS

LUA_DIR = Path(__file__).parent / "lua"
_HEADER = re.compile(r"--\[\[\n(.*?)\]\]\n?", re.DOTALL)
_SECTION = re.compile(r"^(KEYS|ARGV|RETURNS|FLAGS)\b(.*)$")
_NAME = re.compile(r"^  ([a-z_]+)(\.\.\.)?  ")
_INCLUDE = re.compile(r"^-- @include ([a-z_]+)\n", re.MULTILINE)


#: Names that Lua takes from Python, put in as literals: a table would be built at each call.
_LITERALS = {
    **{f"STATE.{state.name}": f"'{state.value}'" for state in JobState},
    **{f"LANE.{lane.name}": f"'{lane.value}'" for lane in Lane},
    "GROUP": f"'{keys.GROUP}'",
}
_LITERAL = re.compile(r"(?<!')\b(?:STATE\.[A-Z]+|LANE\.[A-Z]+|GROUP)\b")
#: Lists; each script gets those that it names.
_LISTS = {
    "LANES": f"local LANES = {{ {', '.join(repr(lane.value) for lane in Lane)} }}",
    "BOUNDS": f"local BOUNDS = {{ {', '.join(map(str, BOUNDS_MS))} }}",
}


def _sections(header: str) -> dict[str, list[str]]:
    """Names under each section of a header; the flags for FLAGS."""
    found: dict[str, list[str]] = {"KEYS": [], "ARGV": [], "FLAGS": []}
    section = ""
    for line in header.splitlines():
        if match := _SECTION.match(line):
            section = match[1]
            if section == "FLAGS":
                found["FLAGS"] = match[2].split()
        elif section in {"KEYS", "ARGV"} and (name := _NAME.match(line)):
            found[section].append(name[1] + (name[2] or ""))
    return found


class Script:
    """One Lua script: its source for a server, and its arguments by name."""

    def __init__(self, name: str) -> None:
        self.name = name
        text = (LUA_DIR / f"{name}.lua").read_text()
        used: list[str] = []
        body, header = self._inline(text, used, set())
        sections = _sections(header)
        used[:0] = [key for key in sections["KEYS"] if key not in used]
        if unknown := set(used) - keys.SUFFIXES.keys():
            raise ValueError(f"{name}.lua: no such key in keys.SUFFIXES: {', '.join(sorted(unknown))}")
        self.argv = [arg for arg in sections["ARGV"] if not arg.endswith("...")]
        #: Whether a list of any length follows the named arguments.
        self.has_rest = len(self.argv) < len(sections["ARGV"])
        self.allow_oom = "allow-oom" in sections["FLAGS"]
        self.single_key = "single-key" in sections["FLAGS"]
        body = _LITERAL.sub(self._literal, body)
        lines = [text for name, text in _LISTS.items() if re.search(rf"\b{name}\b", body)]
        lines.insert(0, "local redis = redis")  # each look-up of a global costs
        if not self.single_key:
            lines.append("local Q = string.sub(KEYS[1], 1, -10)")  # less ':settings'
        lines += [f"local {key} = Q .. '{keys.SUFFIXES[key]}'" for key in dict.fromkeys(used)]
        lines += [f"local {arg} = ARGV[{i}]" for i, arg in enumerate(self.argv, 1)]
        if self.has_rest:
            lines.append(f"local REST = {len(self.argv)}")  # ARGV[REST + i] is the i-th of the list
        self._source = "\n".join([*lines, body])
        self._shas: dict[int, str] = {}

    def _literal(self, match: re.Match[str]) -> str:
        if match[0] not in _LITERALS:
            raise ValueError(f"{self.name}.lua or a file it includes: there is no {match[0]}")
        return _LITERALS[match[0]]

    def _inline(self, text: str, used: list[str], seen: set[str]) -> tuple[str, str]:
        match = _HEADER.match(text)
        if match is None:
            raise ValueError(f"{self.name}.lua or a file it includes has no header")

        def body_of(include: re.Match[str]) -> str:
            if include[1] in seen:
                return ""
            seen.add(include[1])
            body, header = self._inline((LUA_DIR / "lib" / f"{include[1]}.lua").read_text(), used, seen)
            used.extend(key for key in _sections(header)["KEYS"] if key not in used)
            return body

        return _INCLUDE.sub(body_of, text[match.end() :]), match[1]

    def source(self, server_major: int) -> str:
        """The text to load on a server of this major version.

        From 7 on a script says itself that it may run at `maxmemory`; before, a script may write
        freely after a first write that OOM permits, and the flag is a compile error.
        """
        if not self.allow_oom:
            return self._source
        if server_major >= 7:
            return "#!lua flags=allow-oom\n" + self._source
        return "redis.call('DEL', KEYS[1] .. ':none')\n" + self._source

    def sha(self, server_major: int) -> str:
        """The SHA-1 by which EVALSHA finds the script."""
        sha = self._shas.get(server_major)
        if sha is None:
            source = self.source(server_major).encode()
            sha = self._shas[server_major] = hashlib.sha1(source, usedforsecurity=False).hexdigest()
        return sha

    def arguments(self, queue: str, rest: Sequence[object] = (), **named: object) -> list[object]:
        """`numkeys`, the key and the arguments in their order.

        `queue` is the key itself for a script with the flag `single-key`. Raises TypeError on a
        missing or an unknown name, before anything reaches Redis.
        """
        if len(named) != len(self.argv) or (rest and not self.has_rest):
            raise TypeError(f"{self.name} takes {self.argv}, got {sorted(named)} and {len(rest)} more")
        key = queue if self.single_key else keys.queue_key(queue, "settings")
        try:
            return [1, key, *[named[arg] for arg in self.argv], *rest]
        except KeyError as missing:
            raise TypeError(f"{self.name} takes {self.argv}, {missing} is not given") from None


@cache
def script(name: str) -> Script:
    """The script `lua/<name>.lua`, read once."""
    return Script(name)
