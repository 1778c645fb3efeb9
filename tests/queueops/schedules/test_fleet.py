"""Ten scheduler processes on a one-second schedule, killed at random: every slot exactly once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db.models import Count

from queueops import keys
from queueops.models import Schedule, ScheduleSlot
from queueops.schedules.scheduler import Scheduler
from tests.factories import Redis, events
from tests.queueops.schedules.fleet import find_faketime

QUEUE = "reports"


def run_fleet(site_env: dict[str, str], *, seconds: float, shifted: int, seed: int) -> dict[str, Any]:
    """Run ten scheduler processes for so long; what was `killed`, and how far shifted clocks were off."""
    command = [
        sys.executable, "-m", "tests.queueops.schedules.fleet", "--processes=10", f"--seconds={seconds}",
        f"--shifted={shifted}", f"--seed={seed}",
    ]  # fmt: skip
    ended = subprocess.run(
        command, env=site_env, capture_output=True, text=True, timeout=seconds + 60, check=False
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "Traceback" not in ended.stderr, ended.stderr[-4000:]
    believed = [
        float(line.split()[-1]) - time.time() for line in ended.stderr.splitlines() if "believes" in line
    ]
    return {**json.loads(ended.stdout.splitlines()[-1]), "believed": believed}


def check_every_slot_once(redis: Redis, seconds: float) -> int:
    """Ledger, jobs and events agree, and no second is left out; how many slots there were."""
    # Whoever comes next writes down what the last ones could not: theirs for two seconds, then anybody's.
    last = Scheduler(uses_lease=False)
    slots = ScheduleSlot.objects.order_by("slot_at")
    deadline = time.monotonic() + 20
    while True:
        last.run_once(refresh=True)
        fired = Counter(event["id"] for event in events(redis, queue=QUEUE) if event["verb"] == "fire")
        if sorted(fired) == sorted(slots.values_list("job_id", flat=True)):
            break
        assert time.monotonic() < deadline, "what was fired is not written down"
        time.sleep(0.05)
    times = list(slots.values_list("slot_at", flat=True))
    doubled = slots.values("schedule", "slot_at").annotate(n=Count("pk")).order_by().exclude(n=1)
    assert not doubled.exists()
    assert {b - a for a, b in pairwise(times)} == {timedelta(seconds=1)}
    assert Counter(slots.values_list("state", flat=True)) == {"fired": len(times)}
    assert set(fired.values()) == {1}
    assert all(redis.exists(keys.job(QUEUE, job_id)) for job_id in fired)
    assert len(times) >= seconds - 6
    return len(times)


def try_fleet(redis: Redis, site_env: dict[str, str], seconds: float, shifted: int) -> None:
    """Make the schedule, run the fleet, and check."""
    if shifted and find_faketime() is None:
        pytest.skip("needs libfaketime (Debian: apt install faketime)")
    Schedule.objects.create(
        key="tick", queue=QUEUE, handler="tests.work", kind="interval", rule="1", overlap="allow"
    )

    said = run_fleet(site_env, seconds=seconds, shifted=shifted, seed=int(seconds) + shifted)

    assert said["killed"] >= seconds / 2
    assert all(3_500 < abs(hour) < 3_700 for hour in said["believed"])
    assert len(said["believed"]) >= shifted
    check_every_slot_once(redis, seconds)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("shifted", [0, 2])
def test_f05_ten_schedulers_killed_at_random_fire_every_second_exactly_once(
    redis: Redis, site_env: dict[str, str], shifted: int
) -> None:
    try_fleet(redis, site_env, seconds=10, shifted=shifted)
