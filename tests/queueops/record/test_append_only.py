"""The record of events is added to, and pruned when its time is over; a trigger refuses the rest."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from queueops.append_only import pruning
from queueops.models import Job, JobEvent, PrunePermit
from queueops.rights import GROUPS, Right

pytestmark = pytest.mark.django_db(transaction=True)
QUEUE = "mail"


def seed(job_id: str = "a", *, kept_for_s: float | None = None) -> JobEvent:
    now = timezone.now()
    keep = None if kept_for_s is None else now + timedelta(seconds=kept_for_s)
    state, finished_at = ("ready", None) if keep is None else ("done", now)
    Job.objects.create(
        queue=QUEUE, job_id=job_id, state=state, since=now, finished_at=finished_at, keep_until=keep
    )
    return JobEvent.objects.create(queue=QUEUE, stream_id=f"{job_id}-0", job_id=job_id, verb="ack", at=now)


def test_an_event_can_not_be_changed() -> None:
    event = seed()
    event.verb = "purge"
    for change in (
        event.save,
        lambda: JobEvent.objects.update(verb="purge"),
        lambda: connection.cursor().execute("UPDATE queueops_jobevent SET verb = 'purge'"),
    ):
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            change()
    event.refresh_from_db()
    assert event.verb == "ack"


def test_an_event_can_not_be_deleted() -> None:
    event = seed(kept_for_s=-60)  # though its time is over: only prune may
    for delete in (
        event.delete,
        lambda: JobEvent.objects.all().delete(),
        lambda: connection.cursor().execute("DELETE FROM queueops_jobevent"),
    ):
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            delete()
    assert JobEvent.objects.count() == 1


def test_it_can_not_be_truncated() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no TRUNCATE")
    seed()
    with pytest.raises(DatabaseError, match="TRUNCATE refused"), transaction.atomic():
        connection.cursor().execute("TRUNCATE queueops_jobevent")


def test_prune_deletes_what_is_over_and_nothing_else() -> None:
    seed("over", kept_for_s=-60)
    seed("kept", kept_for_s=60)
    seed("unfinished")
    seed("forgotten", kept_for_s=-60)
    Job.objects.filter(job_id="forgotten").delete()

    with pruning("default", timezone.now()):
        JobEvent.objects.filter(job_id__in=["over", "forgotten"]).delete()
    for job_id in ("kept", "unfinished"):
        with pytest.raises(DatabaseError, match="append-only"), pruning("default", timezone.now()):
            JobEvent.objects.filter(job_id=job_id).delete()

    assert set(JobEvent.objects.values_list("job_id", flat=True)) == {"kept", "unfinished"}
    assert not PrunePermit.objects.exists()


def test_an_event_is_inserted_once_a_stream_id() -> None:
    event = seed()
    with pytest.raises(DatabaseError), transaction.atomic():
        JobEvent.objects.create(queue=QUEUE, stream_id=event.stream_id, job_id="b", verb="ack", at=event.at)


def test_flush_empties_it_and_leaves_the_groups_with_their_rights() -> None:
    seed()
    call_command("flush", interactive=False, verbosity=0)

    assert not JobEvent.objects.exists()
    assert not PrunePermit.objects.exists()
    assert set(Group.objects.values_list("name", flat=True)) == set(GROUPS)
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        seed("b").delete()


def test_migrate_may_be_run_again() -> None:
    seed()
    call_command("migrate", verbosity=0)

    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        JobEvent.objects.all().delete()


@pytest.mark.parametrize("name", sorted(GROUPS))
def test_a_group_has_its_rights(name: str) -> None:
    rights = Group.objects.get(name=name).permissions.filter(content_type__app_label="queueops")

    assert set(rights.values_list("codename", flat=True)) == {right.value for right in GROUPS[name]}


def test_every_right_is_a_permission_and_viewers_only_view() -> None:
    assert GROUPS["Admin"] == frozenset(Right)
    assert GROUPS["Viewer"] == {Right.VIEW_JOB}


def test_a_group_that_a_person_deleted_stays_deleted() -> None:
    Group.objects.get(name="Operator").delete()
    call_command("migrate", verbosity=0)

    assert not Group.objects.filter(name="Operator").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": "lost"},
        {"state": "done", "finished_at": None},
        {"state": "ready", "finished_at": "now"},
        {"state": "delayed", "run_at": None},
        {"state": "ready", "keep_until": "now"},
        {"state": "dead", "finished_at": "now", "keep_until": "now"},
        {"state": "accepted"},
        {"queue": ""},
        {"job_id": ""},
    ],
)
def test_a_row_that_can_not_be_is_refused(wrong: dict[str, object]) -> None:
    now = timezone.now()
    fields = {"queue": QUEUE, "job_id": "a", "state": "ready", "since": now}
    fields |= {name: now if value == "now" else value for name, value in wrong.items()}
    with pytest.raises(DatabaseError), transaction.atomic():
        Job.objects.create(**fields)
