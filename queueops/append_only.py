"""The trigger that keeps JobEvent append-only: no UPDATE, and DELETE by prune only.

Prune puts a PrunePermit into its transaction, which no other transaction sees, deletes events of
jobs whose keep time has ended by then, and takes the permit back before it commits.

The triggers are made after each `migrate` and, on SQLite, dropped before it: there a table is changed
by making it anew, which loses its triggers and fails where another's trigger names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from django.db import connections, transaction

TABLE = "queueops_jobevent"

# May this event be deleted now? Rows of a job that the record no longer has, or may forget.
_ALLOWED = """
    EXISTS (SELECT 1 FROM queueops_prunepermit p WHERE p.kept_until IS NULL
        OR NOT EXISTS (SELECT 1 FROM queueops_job j WHERE j.queue = OLD.queue AND j.job_id = OLD.job_id
            AND (j.keep_until IS NULL OR j.keep_until > p.kept_until)))
"""
_POSTGRESQL = [
    # Constants only are set into these texts.
    f"""
CREATE OR REPLACE FUNCTION queueops_jobevent_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        IF EXISTS (SELECT 1 FROM queueops_prunepermit p WHERE p.kept_until IS NULL) THEN RETURN NULL; END IF;
    ELSIF TG_OP = 'DELETE' THEN
        IF {_ALLOWED} THEN RETURN OLD; END IF;
    END IF;
    RAISE EXCEPTION 'queueops_jobevent is append-only: % refused', TG_OP USING ERRCODE = 'restrict_violation';
END $$
""",  # noqa: S608
    f"DROP TRIGGER IF EXISTS queueops_jobevent_append_only ON {TABLE}",
    f"""
CREATE TRIGGER queueops_jobevent_append_only BEFORE UPDATE OR DELETE ON {TABLE}
    FOR EACH ROW EXECUTE FUNCTION queueops_jobevent_append_only()
""",
    f"DROP TRIGGER IF EXISTS queueops_jobevent_no_truncate ON {TABLE}",
    f"""
CREATE TRIGGER queueops_jobevent_no_truncate BEFORE TRUNCATE ON {TABLE}
    FOR EACH STATEMENT EXECUTE FUNCTION queueops_jobevent_append_only()
""",
]
_SQLITE = [
    f"""
CREATE TRIGGER IF NOT EXISTS queueops_jobevent_no_update BEFORE UPDATE ON {TABLE}
BEGIN SELECT RAISE(ABORT, 'queueops_jobevent is append-only: UPDATE refused'); END
""",
    f"""
CREATE TRIGGER IF NOT EXISTS queueops_jobevent_no_delete BEFORE DELETE ON {TABLE}
WHEN NOT {_ALLOWED}
BEGIN SELECT RAISE(ABORT, 'queueops_jobevent is append-only: DELETE refused'); END
""",
]


def create_triggers(*, using: str, **_: object) -> None:
    """Make the triggers in this database. Safe to repeat. A receiver of post_migrate."""
    connection = connections[using]
    statements = {"postgresql": _POSTGRESQL, "sqlite": _SQLITE}.get(connection.vendor)
    if statements is None:
        raise NotImplementedError(
            f"QueueOps keeps its record in SQLite or PostgreSQL, not in {connection.vendor}"
        )
    with connection.cursor() as cursor:
        if TABLE in connection.introspection.table_names(cursor):
            for statement in statements:
                cursor.execute(statement)


def drop_triggers(*, using: str, **_: object) -> None:
    """Let tables be changed on SQLite. A receiver of pre_migrate."""
    if connections[using].vendor == "sqlite":
        with connections[using].cursor() as cursor:
            cursor.execute("DROP TRIGGER IF EXISTS queueops_jobevent_no_update")
            cursor.execute("DROP TRIGGER IF EXISTS queueops_jobevent_no_delete")


@contextmanager
def pruning(using: str, before: datetime | None) -> Iterator[None]:
    """A transaction in which events of jobs kept until `before` may be deleted; None: all events."""
    connection = connections[using]
    with transaction.atomic(using=using), connection.cursor() as cursor:
        value = None if before is None else connection.ops.adapt_datetimefield_value(before)
        cursor.execute("INSERT INTO queueops_prunepermit (kept_until) VALUES (%s)", [value])
        yield
        cursor.execute("DELETE FROM queueops_prunepermit")
