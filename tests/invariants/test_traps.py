"""Known traps of Redis, each shown on the server of this run, and that the engine does not fall into it."""

from __future__ import annotations

import re

import pytest
from redis import Redis as Client
from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from queueops import keys
from queueops.connection import connection
from queueops.job import new_job_id
from queueops.local_redis import LocalServer
from queueops.scripts import LUA_DIR
from queueops.states import JobState, Lane
from queueops.store import Store
from tests.factories import (
    QUEUE,
    Child,
    Clock,
    Redis,
    counter,
    holders,
    ids_in,
    job,
    new,
    seed_delayed,
    seed_pending,
    seed_ready,
    state,
)

NORMAL = keys.ready(QUEUE, Lane.NORMAL)


def major(redis: Redis) -> int:
    return int(redis.info("server")["redis_version"].split(".")[0])


# -- the group's pending list --------------------------------------------------------------------


def test_xack_does_not_look_at_who_owns_the_entry_so_the_hash_is_asked_first(
    redis: Redis, child: Child, other: Child
) -> None:
    redis.xadd("s", {"id": "a"})
    redis.xgroup_create("s", "g", "0")
    ((_, ((entry, _),)),) = redis.xreadgroup("g", "owner", {"s": ">"})
    assert redis.xack("s", "g", entry) == 1  # by nobody in particular
    redis.delete("s")

    jobs = seed_pending(child, "a")

    assert other.ack(*jobs) == ["lost"]
    assert holders(redis)[child.name] == 1
    child.ack(*jobs)


def test_xclaim_by_anybody_succeeds_and_without_justid_raises_the_count_so_ours_stands_in_the_hash(
    redis: Redis, store: Store, child: Child
) -> None:
    jobs = seed_pending(child, "a")
    ((entry, _),) = redis.xrange(NORMAL)

    redis.xclaim(NORMAL, keys.GROUP, "thief", 0, [entry], justid=True)
    assert redis.xpending_range(NORMAL, keys.GROUP, "-", "+", 1)[0]["times_delivered"] == 1
    redis.xclaim(NORMAL, keys.GROUP, "thief", 0, [entry])
    assert redis.xpending_range(NORMAL, keys.GROUP, "-", "+", 1)[0]["times_delivered"] == 2

    assert job(redis, "a")["delivery"] == "1"
    assert child.ack(*jobs) == ["ok"]
    store.sweep(QUEUE)


def test_xautoclaim_from_a_fixed_cursor_never_sees_what_is_behind_many_renewed_entries(
    redis: Redis, store: Store, child: Child
) -> None:
    for n in range(11):
        seed_pending(child, *[f"j{n}-{i}" for i in range(100)])
    entries = [entry for entry, _ in redis.xrange(NORMAL)]
    redis.xclaim(NORMAL, keys.GROUP, child.name, 0, [entries[-1]], idle=60_000, justid=True)

    for _ in range(3):
        found = redis.execute_command("XAUTOCLAIM", NORMAL, keys.GROUP, "x", 30_000, "0-0", "COUNT", 100)
        assert found[1] == []

    redis.zrem(keys.jobs_in(QUEUE, JobState.PENDING), "j10-99")
    assert sum(store.sweep(QUEUE, limit=200)[0] for _ in range(6)) == 1


def test_xautoclaim_tells_deleted_entries_apart_only_from_7_on_so_the_sweep_looks_itself(
    redis: Redis, store: Store, child: Child, other: Child, clock: Clock
) -> None:
    seed_pending(child, "a")
    redis.xtrim(NORMAL, maxlen=0)
    answer = redis.execute_command("XAUTOCLAIM", NORMAL, keys.GROUP, child.name, 0, "0-0")
    assert len(answer) == (3 if major(redis) >= 7 else 2)

    store.sweep(QUEUE)
    clock.advance(30_000)
    other.register()
    other.claim(0)

    assert state(redis, "a") == "ready"


def test_a_group_made_again_at_the_end_loses_what_came_meanwhile(
    redis: Redis, store: Store, child: Child
) -> None:
    redis.xadd("s", {"id": "a"})
    redis.xgroup_create("s", "g", "$")
    assert redis.xreadgroup("g", "c", {"s": ">"}) == []
    redis.delete("s")

    child.ack(*seed_pending(child, "first"))
    redis.xgroup_destroy(NORMAL, keys.GROUP)
    seed_ready(store, "meanwhile")

    assert [j.id for j in child.take()] == ["meanwhile"]


def test_a_group_made_again_at_the_start_redelivers_what_runs_and_the_claim_repairs_it(
    redis: Redis, child: Child, other: Child
) -> None:
    jobs = seed_pending(child, "a", "b")
    redis.xgroup_destroy(NORMAL, keys.GROUP)
    redis.xgroup_create(NORMAL, keys.GROUP, "0")

    assert other.take() == []  # not delivered twice

    assert holders(redis) == {child.name: 2, other.name: 0}
    assert child.ack(*jobs) == ["ok", "ok"]


def test_delconsumer_drops_what_it_held_so_a_child_is_emptied_first(
    redis: Redis, store: Store, child: Child
) -> None:
    redis.xadd("s", {"id": "a"})
    redis.xgroup_create("s", "g", "0")
    redis.xreadgroup("g", "c", {"s": ">"})
    assert redis.xgroup_delconsumer("s", "g", "c") == 1  # pending entries, gone for good
    assert redis.xreadgroup("g", "d", {"s": ">"}) == []
    redis.delete("s")

    seed_pending(child, *[f"j{n}" for n in range(100)])

    assert store.hand_back(QUEUE, child.name, why="SIGKILL", limit=50) == 50
    assert holders(redis)[child.name] == 50  # still there: it holds something
    child.die()
    assert len(ids_in(redis, JobState.READY)) == 100


# -- streams ------------------------------------------------------------------------------------------


def test_maxlen_is_for_the_events_alone_since_on_a_ready_stream_it_drops_jobs() -> None:
    trimming = {
        (path.stem, match)
        for path in LUA_DIR.rglob("*.lua")
        for match in re.findall(r"'(?:XTRIM|XADD)'[^)]*'MAXLEN'", path.read_text())
    }

    assert {stem for stem, _ in trimming} == {"record"}
    assert all("XTRIM', events" in text for _, text in trimming)


def test_count_is_for_each_stream_so_lanes_are_read_one_by_one(
    redis: Redis, store: Store, child: Child
) -> None:
    if not connection().is_cluster:  # in one command they would be CROSSSLOT there
        for name in "abc":
            redis.xgroup_create(name, "g", "0", mkstream=True)
            for _ in range(20):
                redis.xadd(name, {"id": "x"})
        read = redis.xreadgroup("g", "c", dict.fromkeys("abc", ">"), count=10)
        assert sum(len(entries) for _, entries in read) == 30
        redis.delete(*"abc")

    for lane in (Lane.HIGH, Lane.NORMAL, Lane.LOW):
        seed_ready(store, *[f"{lane}{n}" for n in range(20)], lane=lane)

    assert len(child.take(10)) == 10


# -- scripts --------------------------------------------------------------------------------------------


def test_a_script_that_fails_half_way_is_not_rolled_back(redis: Redis) -> None:
    redis.zadd("{t}due", {"a": 1})
    redis.set("{t}ready", "foreign")

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        redis.eval(
            "redis.call('ZREM', KEYS[1], 'a') redis.call('XADD', KEYS[2], '*', 'id', 'a')",
            2, "{t}due", "{t}ready",
        )  # fmt: skip

    assert redis.zcard("{t}due") == 0  # the job is lost
    redis.delete("{t}ready")


def test_unpack_fails_near_8000_values_so_batches_are_bounded(redis: Redis, store: Store) -> None:
    with pytest.raises(ResponseError, match="too many results to unpack"):
        redis.eval("local t = {} for i = 1, 8000 do t[i] = i end return redis.call('ECHO', unpack(t))", 0)

    store.register(QUEUE)
    ids = [new_job_id() for _ in range(4000)]
    store.enqueue(QUEUE, [new(job_id, spec=b"x" * 1900, run_at_ms=9_999_999_999_999) for job_id in ids])

    assert redis.zcard(keys.jobs_in(QUEUE, JobState.DELAYED)) == 4000


def test_a_settlement_of_too_many_records_is_refused_before_it_writes(
    redis: Redis, store: Store, child: Child
) -> None:
    jobs = seed_pending(child, *[f"j{n}" for n in range(100)])

    with pytest.raises(ResponseError, match="too many records"):
        child.ack(*(jobs * 12))

    assert state(redis, "j0") == "pending"
    assert counter(redis, "done") == 0


def test_in_a_pipeline_the_other_half_is_applied_when_a_script_is_forgotten(redis: Redis) -> None:
    redis.script_flush()
    pipe = redis.pipeline(transaction=False)
    pipe.execute_command("EVALSHA", "0" * 40, 0)
    pipe.incr("n")

    answers = pipe.execute(raise_on_error=False)

    assert isinstance(answers[0], NoScriptError)
    assert answers[1] == 1
    redis.delete("n")


def test_cjson_changes_empty_lists_and_large_integers_so_specs_pass_as_bytes(
    redis: Redis, store: Store, child: Child
) -> None:
    spec = b'{"args":[],"n":12345678901234567890}'
    through = redis.eval("return cjson.encode(cjson.decode(ARGV[1]))", 0, spec)
    assert b'"args":{}' in through
    assert b"12345678901234567890" not in through

    seed_ready(store, "a", spec=spec)

    assert child.take()[0].spec == spec


def test_a_number_answered_by_lua_loses_its_fraction_and_tostring_rounds_large_ones(redis: Redis) -> None:
    assert redis.eval("return 3.99", 0) == 3
    assert redis.eval("return tostring(1790000000000123)", 0) == b"1.7900000000001e+15"  # no µs in text
    assert redis.eval("return tostring(1790000000000)", 0) == b"1790000000000"


# -- clients ----------------------------------------------------------------------------------------------


def test_a_client_that_decodes_breaks_a_whole_batch_on_one_payload(
    redis: Redis, redis_server: LocalServer, store: Store, child: Child
) -> None:
    seed_ready(store, "bad", spec=b"\xff\xfe")
    seed_ready(store, "good")
    with redis_server.client(decode_responses=True) as decoding:
        pipe = decoding.pipeline(transaction=False)
        pipe.hget(keys.job(QUEUE, "good"), "spec")
        pipe.hget(keys.job(QUEUE, "bad"), "spec")
        with pytest.raises(UnicodeDecodeError):
            pipe.execute()

    assert [j.id for j in child.take()] == ["bad", "good"]


def test_redis_py_ends_a_blpop_at_its_socket_timeout_and_our_blocking_client_does_not(
    redis_server: LocalServer, redis: Redis
) -> None:
    with redis_server.client(socket_timeout=0.3, retry=None) as plain, pytest.raises(RedisTimeoutError):
        plain.blpop(["nothing"], timeout=1)

    ours: Redis = connection().blocking_client(0.6)
    assert ours.blpop(["nothing"], timeout=0.5) is None
    ours.close()


def test_blpop_s_own_timeout_is_only_as_fine_as_the_server_s_tick(redis: Redis) -> None:
    """Up to 100 ms late with hz 10: a worker keeps its timer itself."""
    late_us = []
    for _ in range(5):
        before = redis.time()
        assert redis.blpop(["nothing"], timeout=0.003) is None
        after = redis.time()
        late_us.append((after[0] - before[0]) * 1_000_000 + after[1] - before[1] - 3000)

    assert max(late_us) > 5_000


def test_blpop_over_two_queues_is_crossslot_on_a_cluster(redis: Redis) -> None:
    lists = [keys.queue_key("mail", "wake"), keys.queue_key("other", "wake")]
    if not connection().is_cluster:
        redis.rpush(lists[1], "1")
        assert redis.blpop(lists, timeout=0.1) == (lists[1].encode(), b"1")
        return
    with pytest.raises(ResponseError, match=r"(?i)slot"):
        redis.blpop(lists, timeout=0.1)


# -- numbers and order ------------------------------------------------------------------------------------


def test_scores_are_doubles_so_they_hold_whole_milliseconds_and_nothing_packed(redis: Redis) -> None:
    redis.zadd("z", {"a": 2**53, "b": 2**53 + 1})
    assert redis.zscore("z", "a") == redis.zscore("z", "b")

    redis.zadd("z", {"c": 253_402_300_799_999})
    assert redis.zscore("z", "c") == 253_402_300_799_999
    redis.delete("z")


def test_time_s_microseconds_come_unpadded_so_they_are_added_as_numbers(redis: Redis) -> None:
    text = redis.eval("local t = redis.call('TIME') return t[2]", 0).decode()

    assert text == str(int(text))
    assert "* 1000000 +" in (LUA_DIR / "lib" / "clock.lua").read_text()


def test_equal_scores_sort_by_member_so_ids_are_ordered_by_time(redis: Redis) -> None:
    redis.zadd("z", {f"job-{n}": 7 for n in (1, 2, 9, 10)})
    assert redis.zrange("z", 0, -1) == [b"job-1", b"job-10", b"job-2", b"job-9"]
    redis.delete("z")

    ids = [new_job_id() for _ in range(2000)]

    assert sorted(ids) == ids
    assert all(keys.check_job_id(job_id) and len(job_id) == 26 for job_id in ids)


def test_zadd_takes_infinity_so_a_time_is_checked_before(redis: Redis) -> None:
    redis.zadd("z", {"a": float("inf")})
    assert redis.zscore("z", "a") == float("inf")
    redis.delete("z")


# -- memory --------------------------------------------------------------------------------------------------


def test_at_maxmemory_a_first_hincrby_fails_and_what_may_run_says_so(
    redis: Redis, store: Store, clock: Clock, child: Child
) -> None:
    seed_delayed(store, "a", run_at_ms=clock.now_ms + 1)
    redis.config_set("maxmemory", 1_000_000)
    try:
        with pytest.raises(OutOfMemoryError):
            redis.hincrby("h", "n", 1)
        with pytest.raises(ResponseError, match="command not allowed when used memory"):
            redis.eval("return redis.call('HINCRBY', KEYS[1], 'n', 1)", 1, "h")
        clock.advance(1)

        assert [j.id for j in child.take()] == ["a"]
        assert child.ack(*child.held.values()) == ["ok"]
    finally:
        redis.config_set("maxmemory", 0)


def test_the_flag_that_permits_it_is_known_from_7_on_only(redis: Redis) -> None:
    source = "#!lua flags=allow-oom\nreturn 1"

    if major(redis) >= 7:
        assert redis.eval(source, 0) == 1
    else:
        with pytest.raises(ResponseError):
            redis.eval(source, 0)


def test_an_expired_key_is_noticed_lazily_so_nothing_hangs_on_its_notification(redis: Redis) -> None:
    """Why not EXPIRE and keyspace notifications: the event comes when somebody looks, or at a cycle."""
    client: Client = redis
    client.set("soon", "x", px=1)

    assert client.config_get("notify-keyspace-events") == {"notify-keyspace-events": ""}
    assert client.pttl("soon") in (-2, 0, 1)
    client.delete("soon")
