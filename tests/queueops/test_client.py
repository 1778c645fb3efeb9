"""The way in: what enqueue and get_job take, refuse and answer."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.test import override_settings

from queueops import JobState, RetryPolicy, aenqueue, aget_job, enqueue, enqueue_many, get_job
from queueops.job import from_ms, to_ms
from tests.factories import QUEUE, Redis, ids_in, run_at

YEAR_S = 365 * 86_400


def now_ms(redis: Redis) -> int:
    seconds, us = redis.time()
    return int(seconds * 1000 + us // 1000)


# -- when ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [timedelta(seconds=90), 90, 90.0, timedelta(days=30), 30 * 86_400, 100 * YEAR_S]
)
def test_i11_a_delay_counts_from_redis_time_and_the_job_says_its_instant(
    redis: Redis, given: float | timedelta
) -> None:
    before = now_ms(redis)
    made = enqueue("shop.charge", delay=given, queue=QUEUE)

    delay_ms = round((given.total_seconds() if isinstance(given, timedelta) else given) * 1000)
    assert made.state == "delayed"
    assert made.run_at is not None
    assert before + delay_ms <= to_ms(made.run_at) <= now_ms(redis) + delay_ms
    assert run_at(redis, made.id) == to_ms(made.run_at)
    found = get_job(made.id, QUEUE)
    assert found is not None
    assert found.run_at == made.run_at


@pytest.mark.parametrize(
    "given", [0, -1, -2e9, -1e300, 1e-9, timedelta(0), timedelta(days=-9), timedelta.min]
)
def test_i11_a_delay_that_is_over_runs_now(redis: Redis, given: float | timedelta) -> None:
    made = enqueue("shop.charge", delay=given, queue=QUEUE)

    assert made.state == JobState.READY
    assert ids_in(redis, JobState.READY) == [made.id]


@pytest.mark.parametrize(
    "given", [float("nan"), float("inf"), -float("inf"), 1e400, 10**20, 10**400, timedelta.max]
)
def test_i11_a_delay_that_is_no_instant_is_refused(redis: Redis, given: float | timedelta) -> None:
    with pytest.raises(ValueError, match=r"^delay (must be finite|ends past the year 9999)"):
        enqueue("shop.charge", delay=given, queue=QUEUE)

    assert redis.dbsize() == 0


@pytest.mark.parametrize("given", [True, "5", Decimal(5)])
def test_i11_a_delay_of_another_type_is_refused(redis: Redis, given: Any) -> None:
    with pytest.raises(TypeError, match="delay must be seconds or a timedelta"):
        enqueue("shop.charge", delay=given, queue=QUEUE)


@pytest.mark.parametrize("use_tz", [True, False])
def test_h09_a_naive_time_is_refused_whatever_django_thinks_of_zones(redis: Redis, use_tz: bool) -> None:
    with (
        override_settings(USE_TZ=use_tz, TIME_ZONE="Asia/Manila"),
        pytest.raises(
            ValueError, match="run_at must be an aware datetime, 2026-09-10T07:35:00 has no time zone"
        ),
    ):
        enqueue("shop.charge", run_at=datetime(2026, 9, 10, 7, 35), queue=QUEUE)  # noqa: DTZ001 - the point


@pytest.mark.parametrize("use_tz", [True, False])
@pytest.mark.parametrize(
    "given",
    [
        datetime(2996, 9, 10, 7, 35, tzinfo=ZoneInfo("Asia/Manila")),
        datetime(2996, 9, 9, 23, 35, tzinfo=UTC),
        datetime(2996, 9, 9, 23, 35, 0, 999, tzinfo=UTC),
    ],
)
def test_h09_an_aware_time_is_exact(redis: Redis, given: datetime, use_tz: bool) -> None:
    with override_settings(USE_TZ=use_tz, TIME_ZONE="Asia/Manila"):
        made = enqueue("shop.charge", run_at=given, queue=QUEUE)

    assert run_at(redis, made.id) == 32_399_307_300_000
    assert made.run_at == from_ms(32_399_307_300_000)


@pytest.mark.parametrize(
    "given",
    [
        datetime(2020, 1, 1, tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=12))),
    ],
)
def test_h09_a_past_time_runs_now(redis: Redis, given: datetime) -> None:
    assert enqueue("shop.charge", run_at=given, queue=QUEUE).state == "ready"


def test_a_time_past_the_year_9999_is_refused(redis: Redis) -> None:
    with pytest.raises(ValueError, match="run_at is past the year 9999"):
        enqueue(
            "shop.charge", run_at=datetime.max.replace(tzinfo=timezone(-timedelta(hours=12))), queue=QUEUE
        )


@pytest.mark.parametrize("delay", [0, 5])
def test_a_delay_and_a_time_are_refused(redis: Redis, delay: float) -> None:
    with pytest.raises(ValueError, match="delay or run_at, not both"):
        enqueue("shop.charge", delay=delay, run_at=datetime(2990, 1, 1, tzinfo=UTC), queue=QUEUE)


# -- what ---------------------------------------------------------------------------------------------


def test_the_job_that_enqueue_returns_says_what_get_job_says(redis: Redis) -> None:
    made = enqueue(
        "shop.charge",
        [7],
        {"note": "x"},
        queue=QUEUE,
        delay=60,
        priority="high",
        policy="slow",
        tags={"customer": 42},
        expires=datetime(2990, 1, 1, tzinfo=UTC),
    )

    found = get_job(made.id, QUEUE)
    assert found is not None
    names = ("id", "queue", "state", "handler", "args", "kwargs", "attempts", "rescues", "delivery", "run_at")
    for name in (*names, "error", "result", "priority", "policy", "tags", "expires_at"):
        assert getattr(made, name) == getattr(found, name), name


def test_what_json_lacks_survives(redis: Redis) -> None:
    args = [
        date(2020, 2, 29),
        datetime(2020, 2, 29, 1, tzinfo=UTC),
        uuid.UUID(int=7),
        Decimal("1.10"),
        2**70,
        [],
    ]

    made = enqueue("shop.charge", args, {"nothing": {}}, queue=QUEUE)

    found = get_job(made.id, QUEUE)
    assert found is not None
    assert (found.args, found.kwargs) == (args, {"nothing": {}})


def test_an_argument_that_can_not_be_kept_is_named(redis: Redis) -> None:
    with pytest.raises(TypeError, match=r"^args\[1\] is not serialisable"):
        enqueue("shop.charge", [1, object()], queue=QUEUE)
    with pytest.raises(TypeError, match=r"^kwargs\['lines'\]\[0\]\['price'\] is not serialisable"):
        enqueue("shop.charge", kwargs={"lines": [{"price": {1}}]}, queue=QUEUE)
    with pytest.raises(ValueError, match=r"^args\[0\] is too large"):
        enqueue("shop.charge", ["x" * 262_145], queue=QUEUE)
    assert redis.dbsize() == 0


@pytest.mark.parametrize("job_id", ["a", "a" * 128, "a:b.c_d@e-f", "7"])
def test_g15_an_id_of_the_allowed_characters_is_the_jobs(redis: Redis, job_id: str) -> None:
    assert enqueue("shop.charge", job_id=job_id, queue=QUEUE).id == job_id
    found = get_job(job_id, QUEUE)
    assert found is not None
    assert found.id == job_id


BAD_NAMES = [
    *("", "a/b", "a%2Fb", "a%b", "a b", "a+b", "a#b", "a?b", "a&b", "{x}", "{}", "..", ".", "a\n", "a\tb"),
    *("'\"", "\U0001f600", "a\u202eb", "-a", "é"),
]


@pytest.mark.parametrize("job_id", [*BAD_NAMES, "a" * 129, "a" * 200_000])
def test_g15_another_id_is_refused_where_it_enters(redis: Redis, job_id: str) -> None:
    with pytest.raises(ValueError, match=r"^job_id .* is not allowed"):
        enqueue("shop.charge", job_id=job_id, queue=QUEUE)
    assert redis.dbsize() == 0


@pytest.mark.parametrize("queue", [*(name for name in BAD_NAMES if name), "a:b", "a" * 65])
def test_g15_another_queue_name_is_refused_where_it_enters(redis: Redis, queue: str) -> None:
    with pytest.raises(ValueError, match=r"^queue name .* is not allowed"):
        enqueue("shop.charge", queue=queue)
    assert redis.dbsize() == 0


def test_a15_attempts_that_a_caller_counts_are_refused(redis: Redis) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'attempts'"):
        enqueue("shop.charge", queue=QUEUE, attempts=20)  # type: ignore[call-arg]


@pytest.mark.parametrize("priority", ["first", "suspect", "HIGH", None, 1])
def test_only_the_named_priorities_are_taken(redis: Redis, priority: Any) -> None:
    with pytest.raises(ValueError, match="priority must be one of high, normal, low"):
        enqueue("shop.charge", priority=priority, queue=QUEUE)


def test_a_policy_can_stand_with_the_job(redis: Redis) -> None:
    policy = RetryPolicy(name="twice", max_retries=2, delays_s=(1, 2), jitter="none")  # type: ignore[arg-type]

    made = enqueue("shop.charge", policy=policy, queue=QUEUE)

    found = get_job(made.id, QUEUE)
    assert found is not None
    assert found.policy == policy


def test_the_same_id_is_the_same_job(redis: Redis) -> None:
    first = enqueue("shop.charge", [1], job_id="a", queue=QUEUE)
    second = enqueue("shop.refund", [2], job_id="a", queue=QUEUE, delay=60)

    assert (second.id, second.handler, second.args, second.state) == (first.id, "shop.charge", [1], "ready")
    assert enqueue("shop.charge", job_id="a", queue="other").handler == "shop.charge"


def test_a_unique_key_answers_its_holder(redis: Redis) -> None:
    holder = enqueue("shop.charge", [1], unique_key="k", queue=QUEUE)

    assert enqueue("shop.charge", [2], unique_key="k", queue=QUEUE).id == holder.id
    assert enqueue("shop.charge", [2], unique_key="k", queue="other").id != holder.id


# -- many, and from a coroutine ---------------------------------------------------------------------------


def test_many_are_answered_in_their_order(redis: Redis) -> None:
    specs = ({"handler": "shop.charge", "args": [i], "delay": 60 if i % 2 else 0} for i in range(1_203))

    made = enqueue_many(specs, queue=QUEUE)

    assert [each.args for each in made] == [[i] for i in range(1_203)]
    assert [each.state for each in made[:4]] == ["ready", "delayed", "ready", "delayed"]
    assert all((each.run_at is None) == (each.state == "ready") for each in made)
    assert ids_in(redis, JobState.READY) == [each.id for each in made[::2]]
    assert enqueue_many([]) == []


def test_one_bad_spec_of_many_is_named_and_none_is_sent(redis: Redis) -> None:
    with pytest.raises(ValueError, match=r"^specs\[1\]: delay must be finite"):
        enqueue_many(
            [{"handler": "shop.charge"}, {"handler": "shop.charge", "delay": float("nan")}], queue=QUEUE
        )
    assert redis.dbsize() == 0


def test_coroutines_have_twins(redis: Redis) -> None:
    async def ask() -> tuple[str, str]:
        made = await aenqueue("shop.charge", [1], job_id="a", queue=QUEUE)
        found = await aget_job("a", queue=QUEUE)
        assert found is not None
        return made.id, found.id

    assert asyncio.run(ask()) == ("a", "a")


@pytest.mark.django_db
def test_nobody_knows_a_job_that_was_never_enqueued(redis: Redis) -> None:
    assert get_job("nobody") is None
    assert get_job("nobody", QUEUE) is None
