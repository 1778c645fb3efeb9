"""The QUEUEOPS setting: typed, defaults in one place, an unknown name an error."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_django.fixtures import Settings

from queueops.conf import Config, config
from queueops.errors import ConfigError


def given(settings: Settings, **values: Any) -> Config:
    settings.QUEUEOPS = values
    return config()


def test_defaults_are_those_of_the_design(settings: Settings) -> None:
    conf = given(settings)

    assert (conf.lease_s, conf.max_rescues, conf.done_keep_s, conf.grace_s) == (30.0, 3, 600.0, 25.0)
    assert (conf.max_payload_bytes, conf.hard_limit_s, conf.default_queue) == (262_144, 3600.0, "default")


def test_an_unknown_name_is_an_error_that_names_it(settings: Settings) -> None:
    with pytest.raises(ConfigError, match=r"unknown QUEUEOPS settings: LEASE, leases"):
        given(settings, LEASE=5, leases=5)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("LEASE_S", "2.5", 2.5),
        ("LEASE_S", 2, 2.0),
        ("MAX_RESCUES", "0", 0),
        ("WEBHOOK_ALLOW_PRIVATE", "1", True),
        ("WEBHOOK_ALLOW_PRIVATE", "off", False),
        ("WEBHOOK_ALLOW_PRIVATE", "", False),
        ("HANDLERS", "a.tasks, b.tasks,", ("a.tasks", "b.tasks")),
        ("HANDLERS", ["a.tasks"], ("a.tasks",)),
        ("HANDLERS", "", ()),
        ("REDIS_URL", "redis://h:1/2", "redis://h:1/2"),
    ],
)
def test_text_from_an_environment_becomes_the_field_s_type(
    settings: Settings, name: str, text: Any, value: object
) -> None:
    found = getattr(given(settings, **{name: text}), name.lower())

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("LEASE_S", "soon", "QUEUEOPS LEASE_S must be a number, got 'soon'"),
        ("LEASE_S", 0, "LEASE_S must be a number of seconds over 0"),
        ("LEASE_S", -1, "LEASE_S must be a number of seconds over 0"),
        ("LEASE_S", "nan", "LEASE_S must be a number of seconds over 0"),
        ("HARD_LIMIT_S", "inf", "HARD_LIMIT_S must be a number of seconds over 0"),
        ("DONE_KEEP_S", 299, "DONE_KEEP_S must be at least 300 s, got 299"),
        ("MAX_RESCUES", -1, "MAX_RESCUES must not be negative"),
        ("MAX_RESCUES", "many", "QUEUEOPS MAX_RESCUES must be a whole number, got 'many'"),
        ("GRACE_S", -0.5, "GRACE_S must not be negative"),
        ("CONCURRENCY", 0, "CONCURRENCY must be at least 1"),
        ("PROCESSES", 0, "PROCESSES must be at least 1"),
        ("EVENTS_MAX", 0, "EVENTS_MAX must be at least 1"),
        ("AUDIT", "none", "AUDIT must be 'full' or 'outcome', got 'none'"),
        ("WEBHOOK_ALLOW_PRIVATE", "maybe", "WEBHOOK_ALLOW_PRIVATE must be 1 or 0, got 'maybe'"),
        ("POLICIES", "{}", "QUEUEOPS POLICIES is a table: set it in the settings, not in the environment"),
        ("DEFAULT_QUEUE", "no queue", "DEFAULT_QUEUE: queue name 'no queue' is not allowed"),
    ],
)
def test_a_bad_value_is_one_line_that_names_it(
    settings: Settings, name: str, value: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        given(settings, **{name: value})


def test_overriding_the_setting_takes_effect_at_once(settings: Settings) -> None:
    given(settings, LEASE_S=5)

    assert given(settings, LEASE_S=6).lease_s == 6


def test_the_settings_can_t_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        config().lease_s = 1  # type: ignore[misc]
