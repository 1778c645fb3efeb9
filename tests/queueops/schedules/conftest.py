"""A schedule, a scheduler, and time that stands still until a test moves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import override_settings

from queueops import keys
from queueops.job import from_ms, to_ms
from queueops.models import Schedule, ScheduleSlot
from queueops.schedules.scheduler import Scheduler
from queueops.store import Store
from tests.factories import Child, Clock, Redis

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
QUEUE = "reports"


def at(text: str) -> int:
    """Unix ms of '2026-05-01 00:10', UTC."""
    return to_ms(datetime.fromisoformat(text).replace(tzinfo=UTC))


class World:
    """Redis, the database and one scheduler, at a time of the test's choosing."""

    def __init__(self, redis: Redis, clock: Clock, store: Store) -> None:
        self.redis = redis
        self.clock = clock
        self.store = store
        self.scheduler = self.another()
        self.child = Child(store, "host:1:aa/1", QUEUE)
        self.moved: list[override_settings] = []  # to be undone at the end

    def another(self, name: str = "") -> Scheduler:
        """One more scheduler, in this process."""
        return Scheduler(self.store, name=name, uses_lease=False)

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms

    def set(self, now_ms: int | str) -> int:
        """Go to an instant, without a scheduler running."""
        target = at(now_ms) if isinstance(now_ms, str) else now_ms
        return self.clock.advance(target - self.clock.now_ms)

    def run(self, now_ms: int | str | None = None) -> int:
        """Let the scheduler run once, at an instant."""
        if now_ms is not None:
            self.set(now_ms)
        return self.scheduler.run_once(refresh=True) + self.scheduler.run_once(refresh=True)

    def run_until(self, until: int | str, every_ms: int = MINUTE) -> None:
        """Let the scheduler run at every step up to an instant."""
        last = at(until) if isinstance(until, str) else until
        while self.now_ms < last:
            self.run(min(self.now_ms + every_ms, last))

    def restart(self) -> None:
        """All schedulers stop; a new one will be the next to run."""
        self.scheduler = self.another()

    # -- what came of it --------------------------------------------------------------------

    def ledger(self, key: str = "tick") -> list[tuple[str, str]]:
        """(slot, state) of the rule's own slots, oldest first."""
        rows = ScheduleSlot.objects.filter(schedule__key=key, suffix="").order_by("slot_at")
        return [(f"{row.slot_at:%m-%d %H:%M:%S}".removesuffix(":00"), row.state) for row in rows]

    def states(self, key: str = "tick") -> list[str]:
        return [state for _, state in self.ledger(key)]

    def reasons(self, key: str = "tick") -> list[str]:
        rows = ScheduleSlot.objects.filter(schedule__key=key, suffix="").order_by("slot_at")
        return list(rows.values_list("reason", flat=True))

    def jobs(self, key: str = "tick", queue: str = QUEUE) -> list[str]:
        """The slots whose job is in Redis, in their order."""
        prefix = keys.job(queue, f"schedule:{key}:")
        found = [
            name.decode()
            for name in self.redis.scan_iter(match=prefix.replace("{", "[{]") + "*", count=10_000)
        ]
        return sorted(name.removeprefix(prefix) for name in found)

    def finish_jobs(self, n: int = 100) -> list[str]:
        """Run up to `n` ready jobs to their end; their ids."""
        taken = self.child.register().take(n)
        self.child.ack(*taken)
        return [job.id for job in taken]


@pytest.fixture
def world(redis: Redis, clock: Clock, store: Store, db: None) -> Iterator[World]:
    """Starts at 2026-05-01 00:00:00 UTC; `clock` also moves what the code under test makes itself."""
    made = World(redis, clock, store)
    plain_advance = clock.advance

    def advance(ms: int) -> int:
        plain_advance(ms)
        given = {**django_settings.QUEUEOPS, "TEST_NOW_MS": str(clock.now_ms)}
        made.moved.append(override_settings(QUEUEOPS=given))
        made.moved[-1].enable()
        return clock.now_ms

    clock.advance = advance  # type: ignore[method-assign]  # every move of it moves the settings too
    made.set("2026-05-01 00:00")
    yield made
    for moved in reversed(made.moved):
        moved.disable()


@pytest.fixture
def make(world: World) -> Callable[..., Schedule]:
    """Make a schedule that schedulers have taken over: `* * * * *` as `tick`, slots beside each other."""

    def made(**fields: Any) -> Schedule:
        given = {
            "key": "tick",
            "queue": QUEUE,
            "handler": "tests.work",
            "rule": "* * * * *",
            "overlap": "allow",
            **fields,
        }
        schedule = Schedule.objects.create(**given)
        world.run()
        return schedule

    return made


def edit(schedule: Schedule, **fields: Any) -> None:
    """Change a row as the form does."""
    for name, value in fields.items():
        setattr(schedule, name, value)
    schedule.save()


def instant(text: str) -> datetime:
    return from_ms(at(text))
