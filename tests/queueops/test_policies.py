"""Retry arithmetic: counting, delays, jitter, validation."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import accumulate
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queueops.errors import PolicyError
from queueops.policies import (
    DEFAULT_POLICY,
    MAX_DELAY_S,
    Bury,
    Jitter,
    Retry,
    RetryPolicy,
    decide,
    delay_before_jitter_s,
    describe,
    duration_text,
    exception_names,
    jitter_band,
    preview,
    retry_delay_s,
    storm,
)

EXPONENTIAL = RetryPolicy(name="exp", base_s=10, factor=2, cap_s=3600, max_retries=5_000, jitter=Jitter.NONE)


def test_c01_three_retries_after_1_2_and_4_seconds_then_dead() -> None:
    policy = RetryPolicy(base_s=1, factor=2, max_retries=3, jitter=Jitter.NONE)

    answers = [decide(policy, attempt) for attempt in (1, 2, 3, 4)]

    assert answers == [Retry(1.0), Retry(2.0), Retry(4.0), Bury("exhausted")]


def test_c03_delays_grow_to_the_cap_and_never_overflow() -> None:
    delays = [retry_delay_s(EXPONENTIAL, attempt) for attempt in range(1, 5_001)]

    assert delays[:11] == [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]
    assert sum(delays[:10]) == 8_710
    assert all(0 < delay <= 3600 for delay in delays)
    assert delays[-1] == 3600


@pytest.mark.parametrize("jitter", list(Jitter))
@pytest.mark.parametrize("attempt", [1, 9, 10, 1_000, 10**9])
def test_c03_no_jitter_passes_the_cap_at_any_attempt(jitter: Jitter, attempt: int) -> None:
    policy = replace(EXPONENTIAL, jitter=jitter, jitter_ratio=0.9)

    for rand in (lambda: 0.0, lambda: math.nextafter(1, 0)):
        assert 0 <= retry_delay_s(policy, attempt, rand=rand) <= 3600


def test_c05_a_base_over_an_explicit_cap_is_refused_and_an_empty_cap_cuts_nothing() -> None:
    with pytest.raises(PolicyError, match="over the cap of 60 s") as caught:
        RetryPolicy(base_s=3600, cap_s=60)
    assert caught.value.field == "base_s"

    policy = RetryPolicy(base_s=3600, jitter=Jitter.NONE)
    assert [each.delay_s for each in preview(policy)] == [3600, 7200, 14400, 28800]
    assert [retry_delay_s(policy, n) for n in (1, 2, 3, 4)] == [3600, 7200, 14400, 28800]


def test_c05_a_list_over_an_explicit_cap_is_refused() -> None:
    with pytest.raises(PolicyError) as caught:
        RetryPolicy(delays_s=(5, 600), cap_s=60)
    assert caught.value.field == "delays_s"


def test_c08_delays_without_retries_give_a_warning_and_an_empty_preview() -> None:
    policy = RetryPolicy(base_s=10, max_retries=0)

    assert preview(policy) == []
    assert describe(policy) == "no retries"
    assert policy.warnings() == (
        "No retries: the first error makes the job dead.",
        "The delays are never used.",
    )


def test_c12_a_job_without_retries_is_buried_by_its_first_error() -> None:
    assert decide(RetryPolicy(max_retries=0), 1) == Bury("exhausted")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("base_s", value) for value in (0, -1, 1e309, math.nan, -math.inf, "5", True, 10**400, 5e-324)],
        *[("factor", value) for value in (0, 0.5, -2, math.inf, math.nan, None, "2")],
        *[("cap_s", value) for value in (0, -1, math.inf, math.nan, MAX_DELAY_S * 2)],
        *[("max_retries", value) for value in (-1, 10**9, 10**400, 1.5, True, "4", None)],
        *[("jitter_ratio", value) for value in (-0.1, 1, 1.5, math.nan)],
        *[("hard_limit_s", value) for value in (0, -1, math.inf)],
        *[("fatal", value) for value in ("ValueError", ("not a name",), (1,), ("a..b",))],
        *[("version", value) for value in (0, -1, 1.0)],
        *[("name", value) for value in ("", " ", "x" * 101, None)],
        ("jitter", "some"),
        ("honour_retry_after", "no"),
        ("max_rescues", -1),
        ("done_keep_s", 299),
    ],
)
def test_c15_a_bad_value_is_refused_and_its_field_named(field: str, value: Any) -> None:
    given: dict[str, Any] = {"base_s": 10, field: value}

    with pytest.raises(PolicyError) as caught:
        RetryPolicy(**given)

    assert isinstance(caught.value, ValueError)
    assert caught.value.field == field
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("delays", [(0,), (5, -1), (math.nan,), (math.inf,), ("5",), "5, 30", 5, [5] * 1_001])
def test_c15_a_bad_list_of_delays_is_refused(delays: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        RetryPolicy(delays_s=delays)
    assert caught.value.field == "delays_s"


def test_c15_a_factor_of_one_is_constant_and_a_huge_one_meets_the_cap() -> None:
    constant = RetryPolicy(base_s=7, factor=1, cap_s=60)
    huge = RetryPolicy(base_s=7, factor=1e9, cap_s=60)

    assert [delay_before_jitter_s(constant, n) for n in (1, 2, 10**9)] == [7, 7, 7]
    assert [delay_before_jitter_s(huge, n) for n in (1, 2, 10**9)] == [7, 60, 60]


def test_a_policy_with_retries_and_no_delays_is_refused() -> None:
    with pytest.raises(PolicyError, match="give a list of delays"):
        RetryPolicy(max_retries=1)


def test_a_list_and_a_base_together_are_refused() -> None:
    with pytest.raises(PolicyError, match="not both"):
        RetryPolicy(delays_s=(5,), base_s=1)


def test_a_soft_limit_at_or_over_the_hard_one_is_refused() -> None:
    with pytest.raises(PolicyError) as caught:
        RetryPolicy(delays_s=(5,), soft_limit_s=60, hard_limit_s=60)
    assert caught.value.field == "soft_limit_s"


def test_the_default_policy_is_the_classic_with_each_delay_20_per_cent_either_way() -> None:
    assert [jitter_band(DEFAULT_POLICY, n) for n in (1, 2, 3, 4)] == [
        (4.0, 6.0),
        (24.0, 36.0),
        (240.0, 360.0),
        (2880.0, 4320.0),
    ]
    assert [decide(DEFAULT_POLICY, n, rand=lambda: 0.5) for n in (1, 2, 3, 4, 5)] == [
        Retry(5.0),
        Retry(30.0),
        Retry(300.0),
        Retry(3600.0),
        Bury("exhausted"),
    ]
    assert describe(DEFAULT_POLICY) == "4 retries after 5 s, 30 s, 5 min and 1 h, each ±20 %"


def test_the_last_delay_of_a_list_repeats() -> None:
    policy = RetryPolicy(delays_s=(1, 2), max_retries=10, jitter=Jitter.NONE)
    assert [retry_delay_s(policy, n) for n in (1, 2, 3, 10)] == [1, 2, 2, 2]


def test_the_cap_cuts_the_band_before_the_draw_so_no_storm_gathers_on_it() -> None:
    policy = replace(EXPONENTIAL, jitter=Jitter.RATIO)
    rand = Random(1).random

    draws = [retry_delay_s(policy, 12, rand=rand) for _ in range(2_000)]

    assert jitter_band(policy, 12) == (2880, 3600)
    assert sum(draw == 3600 for draw in draws) <= 1
    assert abs(sum(draws) / len(draws) - 3240) < 20  # the middle: uniform


@pytest.mark.parametrize(
    ("jitter", "band"),
    [(Jitter.NONE, (10, 10)), (Jitter.RATIO, (8, 12)), (Jitter.FULL, (0, 10)), (Jitter.EQUAL, (5, 10))],
)
def test_each_jitter_has_its_band(jitter: Jitter, band: tuple[float, float]) -> None:
    policy = replace(EXPONENTIAL, jitter=jitter)

    assert jitter_band(policy, 1) == band
    assert retry_delay_s(policy, 1, rand=lambda: 0.0) == band[0]
    assert retry_delay_s(policy, 1, rand=lambda: 0.5) == sum(band) / 2


def test_retry_after_lengthens_a_delay_and_is_stretched_by_up_to_a_fifth() -> None:
    for drawn, expected in ((0.0, 100.0), (0.5, 110.0)):
        delay = retry_delay_s(EXPONENTIAL, 1, retry_after_s=100, rand=lambda drawn=drawn: drawn)  # type: ignore[misc]
        assert delay == pytest.approx(expected)


def test_retry_after_never_shortens_a_delay() -> None:
    assert retry_delay_s(EXPONENTIAL, 10, retry_after_s=5) == 3600
    month = RetryPolicy(delays_s=(30 * 86_400,), jitter=Jitter.NONE)
    assert retry_delay_s(month, 1, retry_after_s=math.inf) == 30 * 86_400


@pytest.mark.parametrize("asked", [86_400, 90_000, 1e300, math.inf])
def test_retry_after_counts_24_hours_at_most(asked: float) -> None:
    assert retry_delay_s(EXPONENTIAL, 1, retry_after_s=asked, rand=lambda: 0.9) == 86_400


@pytest.mark.parametrize("asked", [0, -5, -math.inf, math.nan])
def test_a_retry_after_that_asks_for_nothing_is_passed_over(asked: float) -> None:
    assert retry_delay_s(EXPONENTIAL, 1, retry_after_s=asked) == 10


def test_a_policy_may_refuse_to_honour_retry_after() -> None:
    policy = replace(EXPONENTIAL, honour_retry_after=False)
    assert retry_delay_s(policy, 1, retry_after_s=100) == 10


@pytest.mark.parametrize("attempt", [0, -1])
def test_an_attempt_below_one_is_an_error(attempt: int) -> None:
    with pytest.raises(ValueError, match="counts from 1"):
        retry_delay_s(EXPONENTIAL, attempt)
    with pytest.raises(ValueError, match="counts from 1"):
        decide(EXPONENTIAL, attempt)


class _Declined(ValueError):
    pass


@pytest.mark.parametrize(
    "name", ["_Declined", "ValueError", "Exception", "builtins.ValueError", f"{__name__}._Declined"]
)
def test_a_fatal_name_matches_the_class_and_its_bases(name: str) -> None:
    policy = RetryPolicy(delays_s=(5,), fatal=(name,))

    assert decide(policy, 1, error=_Declined("no")) == Bury("fatal")
    assert isinstance(decide(policy, 1, error=KeyboardInterrupt()), Retry)


def test_fatal_by_word_of_the_caller_needs_no_name() -> None:
    assert decide(DEFAULT_POLICY, 1, fatal=True) == Bury("fatal")
    assert "object" not in exception_names(_Declined)


def test_preview_adds_the_waits_up() -> None:
    tries = preview(DEFAULT_POLICY)

    assert [each.attempt for each in tries] == [1, 2, 3, 4]
    assert [each.since_lo_s for each in tries] == list(accumulate([4, 24, 240, 2880]))
    assert [each.since_hi_s for each in tries] == list(accumulate([6, 36, 360, 4320]))


def test_json_gives_the_same_policy_back() -> None:
    for policy in (
        DEFAULT_POLICY,
        EXPONENTIAL,
        RetryPolicy(max_retries=0),
        RetryPolicy(
            name="päy",
            version=7,
            delays_s=(1.5,),
            fatal=("ValueError", "shop.errors.Declined"),
            soft_limit_s=5,
            hard_limit_s=6,
            max_rescues=0,
            done_keep_s=300,
            discarded_keep_s=1,
            honour_retry_after=False,
        ),
    ):
        text = policy.to_json()
        assert RetryPolicy.from_json(text) == policy
        assert RetryPolicy.from_json(text.encode()) == policy
        assert RetryPolicy.from_json(json.loads(text)) == policy


def test_json_of_a_newer_writer_is_read_and_missing_fields_get_defaults() -> None:
    policy = RetryPolicy.from_json('{"delays_s":[5],"from_the_future":{"a":1},"cap_s":null}')
    assert policy == RetryPolicy(delays_s=(5,))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "policy"),
        (b"\xff\xfe", "policy"),
        ("[]", "policy"),
        ("null", "policy"),
        ("[" * 100_000, "policy"),
        ('{"delays_s": "5"}', "delays_s"),
        ('{"delays_s": [NaN]}', "delays_s"),
        ('{"delays_s": [5], "max_retries": "4"}', "max_retries"),
        ('{"delays_s": [5], "jitter": []}', "jitter"),
        ('{"delays_s": [5], "fatal": {"a": 1}}', "fatal"),
    ],
)
def test_bad_json_is_one_clear_error(text: str | bytes, field: str) -> None:
    with pytest.raises(PolicyError) as caught:
        RetryPolicy.from_json(text)
    assert caught.value.field == field


@given(
    base=st.floats(0.001, 1e6),
    factor=st.floats(1, 1e12),
    cap=st.floats(0.001, MAX_DELAY_S),
    jitter=st.sampled_from(list(Jitter)),
    ratio=st.floats(0, 0.99),
    attempt=st.integers(1, 10**12),
    drawn=st.floats(0, 1, exclude_max=True),
)
def test_every_delay_is_inside_its_band_and_under_the_cap(
    base: float, factor: float, cap: float, jitter: Jitter, ratio: float, attempt: int, drawn: float
) -> None:
    if base > cap:
        base, cap = cap, min(base, MAX_DELAY_S)
    policy = RetryPolicy(base_s=base, factor=factor, cap_s=cap, jitter=jitter, jitter_ratio=ratio)

    low, high = jitter_band(policy, attempt)
    delay = retry_delay_s(policy, attempt, rand=lambda: drawn)

    assert 0 <= low <= high <= cap
    assert low <= delay <= high or math.isclose(delay, high)
    assert delay <= cap or math.isclose(delay, cap)


def test_a_storm_of_10_000_jobs_is_spread_and_loses_no_try() -> None:
    tries = storm(DEFAULT_POLICY, 10_000, 6_000, Random(2).random)

    assert len(tries) == 6_000
    assert sum(tries) == 40_000
    assert sum(tries[:4]) == 0
    assert max(tries[2_900:]) < 60  # an hour away they come over 24 minutes


def test_a_storm_without_jitter_stays_one_spike() -> None:
    tries = storm(replace(EXPONENTIAL, max_retries=1), 10_000, 60, Random(3).random)
    assert {second: count for second, count in enumerate(tries) if count} == {10: 10_000}


def test_a_storm_of_a_policy_that_hammers_is_sampled_and_scaled() -> None:
    policy = RetryPolicy(delays_s=(0.001,), max_retries=100_000)
    tries = storm(policy, 10_000, 5, Random(4).random)

    assert tries[3] == pytest.approx(10_000 / 0.001, rel=0.02)


def test_a_storm_without_retries_is_calm() -> None:
    assert storm(RetryPolicy(max_retries=0), 10**9, 3) == [0, 0, 0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "250 ms"),
        (5, "5 s"),
        (90, "1 min 30 s"),
        (3_600, "1 h"),
        (100_000, "1 d 3 h"),
        (59.999, "60 s"),
    ],
)
def test_durations_read_like_a_person_wrote_them(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
