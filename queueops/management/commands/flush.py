"""Django's flush, with leave to empty the append-only table of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management.commands import flush
from django.db import connections

from queueops.append_only import TABLE


class Command(flush.Command):
    """Delete all data: for once the record of events too, since that is what was asked for."""

    def handle(self, **options: Any) -> None:
        connection = connections[options["database"]]

        def permit(
            execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
        ) -> Any:
            if TABLE not in sql or not sql.lstrip().upper().startswith(("DELETE", "TRUNCATE")):
                return execute(sql, params, many, context)
            execute("INSERT INTO queueops_prunepermit (kept_until) VALUES (NULL)", None, False, context)
            answer = execute(sql, params, many, context)
            execute("DELETE FROM queueops_prunepermit", None, False, context)
            return answer

        with connection.execute_wrapper(permit):
            super().handle(**options)
