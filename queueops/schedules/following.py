"""Which schedules this process follows, by which definition: from the rows of the database."""

from __future__ import annotations

import logging
import time

from queueops.errors import QueueOpsError, StoreUnavailable
from queueops.schedules import code
from queueops.schedules.rows import Row, RowReader, open_by_hand, skipped_ahead
from queueops.schedules.takeover import Takeover, flag
from queueops.schedules.watch import Watched

log = logging.getLogger(__name__)

#: A schedule that can't be followed is looked at again after this.
RETRY_MS = 15_000
#: What one schedule's data may make its code raise: it must not stop the others.
ODD = (QueueOpsError, ValueError, TypeError, ArithmeticError, LookupError)


class Following:
    """Watched schedules by their row's number, kept as the rows are."""

    def __init__(self, takeover: Takeover) -> None:
        self.watched: dict[int, Watched] = {}
        #: A row was taken over, and is to be read as it is then.
        self.is_to_be_read_again = False
        self._takeover = takeover
        self._reader = RowReader()
        #: Rows that can't be followed here, why, and when to look again (monotonic seconds).
        self._bad: dict[int, tuple[Row, str, float]] = {}

    def refresh(self, now_ms: int, *, is_leader: bool) -> list[Watched]:
        """Read the rows; return schedules that are followed anew.

        Takes over what was edited, flags what can't be followed, retires what was deleted. Raises
        StoreUnavailable and what the database raises.
        """
        self.is_to_be_read_again = False
        rows = self._reader.read()
        by_hand, skips = open_by_hand(), skipped_ahead(now_ms)
        for pk in self.watched.keys() - rows.keys():
            self._forget(self.watched.pop(pk), rows)
        begun = []
        for pk, row in rows.items():
            try:
                if self._look_at(row, now_ms, is_leader):
                    begun.append(self.watched[pk])
            except StoreUnavailable:
                raise
            except ODD as error:
                self.give_up(row, str(error), is_leader=is_leader)
            if each := self.watched.get(pk):
                each.by_hand, each.skips = by_hand.get(pk, ()), skips.get(pk, {})
        self._bad = {pk: bad for pk, bad in self._bad.items() if pk in rows}
        return begun

    def _look_at(self, row: Row, now_ms: int, is_leader: bool) -> bool:
        """Follow a row as it is now; whether it is followed anew."""
        each = self.watched.get(row.pk)
        is_same = each is not None and each.definition is row.taken and each.row.version == row.version
        if (
            each
            and is_same
            and not each.newer_version
            and each.row.definition is row.definition
            and not row.error
        ):
            each.row, each.recorded = row, max(each.recorded, row.recorded)
            return False
        if self._error_of(row, is_leader):
            return False
        newer = each.newer_version if each else 0
        if each and row.version < newer and not each.is_long_refused(now_ms):
            return False  # another scheduler is taking it over
        is_edited = row.taken != row.definition or row.placed_queue != row.definition.queue
        if is_edited or row.version < newer or (row.error and is_leader):
            self.watched.pop(row.pk, None)
            self.is_to_be_read_again = True
            self._takeover.take(row, now_ms, known_version=newer)
            return False
        self.watched[row.pk] = Watched.of(row, each)
        return True

    def _error_of(self, row: Row, is_leader: bool) -> str:
        """Why this row can't be followed here; '' when it can. Looked at again when it changes, or later."""
        if bad := self._bad.get(row.pk):
            seen, error, again_at = bad
            is_same = seen.definition is row.definition and seen.version == row.version
            if is_same and time.monotonic() < again_at:
                return error
            del self._bad[row.pk]
        try:
            problems = row.definition.problems()
            error = code.error_of(row) or "; ".join(f"{name}: {why}" for name, why in problems.items())
        except ODD as odd:
            error = f"{type(odd).__name__}: {odd}"
        if error:
            self.give_up(row, error, is_leader=is_leader)
        return error

    def give_up(self, row: Row, error: str, *, is_leader: bool) -> None:
        """Leave a row alone for a while; who leads says in it why."""
        if row.error != error:
            log.error("schedule %s can't be followed: %s", row.definition.key, error)
        self.watched.pop(row.pk, None)
        self._bad[row.pk] = (row, error, time.monotonic() + RETRY_MS / 1000)
        if is_leader and row.error != error:
            flag(row, error)

    def _forget(self, each: Watched, rows: dict[int, Row]) -> None:
        """Its row was deleted: nothing may fire under its key, unless another row has it."""
        if any(row.definition.key == each.definition.key for row in rows.values()):
            return
        try:
            self._takeover.retire(each.definition, each.row.version + 1, each.recorded)
        except ODD as error:
            log.error(
                "schedule %s was deleted, and its key could not be retired: %s", each.definition.key, error
            )
