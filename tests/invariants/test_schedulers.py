"""A minute of what tests/queueops/schedules/test_fleet.py tries for ten seconds."""

from __future__ import annotations

import pytest

from tests.factories import Redis
from tests.queueops.schedules.test_fleet import try_fleet


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("shifted", [0, 2])
def test_f05_ten_schedulers_for_a_minute(redis: Redis, site_env: dict[str, str], shifted: int) -> None:
    try_fleet(redis, site_env, seconds=60, shifted=shifted)
