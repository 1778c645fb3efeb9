"""The Lua loader: headers are contracts, names are bound, and a wrong one fails before Redis."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from queueops import keys, scripts
from queueops.scripts import LUA_DIR, Script, script
from queueops.states import JobState, Lane
from tests.factories import QUEUE, Redis

SCRIPTS = sorted(path.stem for path in LUA_DIR.glob("*.lua"))
BODIES = sorted(LUA_DIR.rglob("*.lua"))


@pytest.fixture
def lua(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of scripts of the test's own."""
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr(scripts, "LUA_DIR", tmp_path)
    return tmp_path


def write(folder: Path, name: str, header: str, body: str) -> None:
    (folder / f"{name}.lua").write_text(f"--[[\n{header}\n]]\n{body}\n")


# -- on scripts of the tests' own -----------------------------------------------------------------


def test_keys_and_arguments_are_bound_by_their_names(redis: Redis, lua: Path) -> None:
    write(
        lua, "s", "KEYS\n  delayed  ZSET  x\nARGV\n  a  string  x\n  b  string  y", "return { delayed, a, b }"
    )
    found = Script("s")

    answer = redis.eval(found.source(7), *found.arguments(QUEUE, b="2", a="1"))

    assert answer == [keys.queue_key(QUEUE, "delayed").encode(), b"1", b"2"]


def test_a_list_follows_the_named_arguments(redis: Redis, lua: Path) -> None:
    write(lua, "s", "ARGV\n  a  string  x\n  rest...  list  y", "return { a, ARGV[REST + 1], #ARGV - REST }")
    found = Script("s")

    assert redis.eval(found.source(7), *found.arguments(QUEUE, ["x", "y"], a="1")) == [b"1", b"x", 2]


def test_includes_are_inlined_once_and_bring_their_keys(redis: Redis, lua: Path) -> None:
    write(
        lua, "s", "KEYS\n  dead  ZSET  x", "-- @include one\n-- @include two\nreturn { one(), two(), dead }"
    )
    write(
        lua / "lib",
        "one",
        "KEYS\n  delayed  ZSET  x",
        "local n = 0\nlocal function one() n = n + 1 return n end",
    )
    write(
        lua / "lib",
        "two",
        "KEYS\n  pending  ZSET  x",
        "-- @include one\nlocal function two() return one() .. pending end",
    )
    found = Script("s")

    answer = redis.eval(found.source(7), *found.arguments(QUEUE))

    assert answer == [1, b"2queueops:{mail}:pending", b"queueops:{mail}:dead"]


def test_states_and_lanes_are_python_s(redis: Redis, lua: Path) -> None:
    states = ", ".join(f"STATE.{state.name}" for state in JobState)
    lanes = ", ".join(f"LANE.{lane.name}" for lane in Lane)
    write(lua, "s", "what", f"return {{ {states}, {lanes}, GROUP, #LANES }}")
    found = Script("s")

    answer = redis.eval(found.source(7), *found.arguments(QUEUE))

    assert answer == [*[s.value.encode() for s in JobState], *[n.value.encode() for n in Lane], b"workers", 5]


@pytest.mark.parametrize("named", [{}, {"a": "1"}, {"a": "1", "c": "2"}, {"a": "1", "b": "2", "c": "3"}])
def test_a_missing_or_an_unknown_argument_fails_before_redis(lua: Path, named: dict[str, str]) -> None:
    write(lua, "s", "ARGV\n  a  string  x\n  b  string  y", "return 1")

    with pytest.raises(TypeError, match=r"s takes \['a', 'b'\]"):
        Script("s").arguments(QUEUE, **named)


def test_a_list_for_a_script_without_one_fails_before_redis(lua: Path) -> None:
    write(lua, "s", "ARGV\n  a  string  x", "return 1")

    with pytest.raises(TypeError, match="1 more"):
        Script("s").arguments(QUEUE, ["x"], a="1")


def test_a_key_that_nobody_spells_is_refused(lua: Path) -> None:
    write(lua, "s", "KEYS\n  nowhere  ZSET  x", "return 1")

    with pytest.raises(ValueError, match=r"s\.lua: no such key in keys\.SUFFIXES: nowhere"):
        Script("s")


def test_a_state_that_does_not_exist_is_refused(lua: Path) -> None:
    write(lua, "s", "what", "return STATE.SLEEPING")

    with pytest.raises(ValueError, match=r"there is no STATE\.SLEEPING"):
        Script("s")


def test_a_script_without_a_header_is_refused(lua: Path) -> None:
    (lua / "s.lua").write_text("return 1\n")

    with pytest.raises(ValueError, match=r"s\.lua or a file it includes has no header"):
        Script("s")


def test_the_flag_for_maxmemory_is_a_shebang_from_7_on_and_a_harmless_write_before(lua: Path) -> None:
    write(lua, "s", "what\n\nFLAGS allow-oom", "return 1")
    found = Script("s")

    assert found.source(7).startswith("#!lua flags=allow-oom\n")
    assert found.source(6).startswith("redis.call('DEL', KEYS[1] .. ':none')\n")
    assert found.sha(6) != found.sha(7)


def test_a_single_key_script_gets_the_key_itself(redis: Redis, lua: Path) -> None:
    write(lua, "s", "what\n\nFLAGS single-key\nARGV\n  a  string  x", "return { KEYS[1], a }")
    found = Script("s")

    assert redis.eval(found.source(7), *found.arguments("some:key", a="1")) == [b"some:key", b"1"]


# -- on the engine's own ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_compiles_and_its_hash_is_the_server_s(redis: Redis, name: str) -> None:
    found = script(name)

    assert redis.script_load(found.source(7)) == found.sha(7)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_a_queue_has_one_key_so_that_it_touches_one_slot(name: str) -> None:
    found = script(name)
    named = dict.fromkeys(found.argv, "0")

    arguments = found.arguments(QUEUE, **named)

    assert arguments[0] == 1
    assert found.single_key or arguments[1] == keys.queue_key(QUEUE, "settings")


@pytest.mark.parametrize("path", BODIES, ids=lambda path: str(path.relative_to(LUA_DIR)))
def test_a_header_says_what_the_script_does_first(path: Path) -> None:
    first = path.read_text().splitlines()[1]

    assert first.startswith(f"{path.stem}: ")


@pytest.mark.parametrize("path", BODIES, ids=lambda path: str(path.relative_to(LUA_DIR)))
def test_no_script_spells_a_key_a_state_or_a_lane(path: Path) -> None:
    code = re.sub(r"--\[\[.*?\]\]", "", path.read_text(), flags=re.DOTALL)

    assert "queueops:" not in code.replace("queueops:' ..", "")
    for word in {*JobState, *Lane} - {JobState.DEAD, JobState.DISCARDED, JobState.DONE, Lane.FIRST}:
        assert f"'{word}'" not in code


@pytest.mark.parametrize("path", BODIES, ids=lambda path: str(path.relative_to(LUA_DIR)))
def test_no_script_asks_for_what_grows_without_bound(path: Path) -> None:
    code = path.read_text()

    assert not re.search(r"'(KEYS|SMEMBERS|SCAN|HGETALL|FLUSHALL|FLUSHDB)'", code)
    assert not re.search(r"'ZRANGE', [a-z_]+, 0, -1", code)


def test_g5_scripts_of_a_queue_read_the_time_in_one_place() -> None:
    reading = {path.stem for path in BODIES if "'TIME'" in path.read_text()}

    assert reading <= {"clock", "lease", "now"}  # a lease is no queue's; `now` only tells the time
