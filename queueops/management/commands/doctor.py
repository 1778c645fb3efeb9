"""Hold the live store against every rule about where a job is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser
from django.db import DatabaseError, InterfaceError

from queueops import doctor
from queueops.management.engine_command import EngineCommand
from queueops.mirror import compare_all
from queueops.store import Store


class Command(EngineCommand):
    help = "Look at every job in Redis; exit 1 when one is not where it must be, and say which."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--repair", action="store_true", help="mend what can be mended")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def answer(self, **given: Any) -> None:
        findings = [*doctor.examine(mend=given["repair"]), *_compared_with_record()]
        left = [each for each in findings if each.severity == "error" and not each.mended]
        if given["json"]:
            self.say_json({"ok": not left, "findings": [asdict(each) for each in findings]})
        else:
            for each in findings:
                self.say(f"{each.severity:<7}  {each}")
            mended = sum(each.mended for each in findings)
            self.say(_verdict(len(left), mended, len(findings)))
        if left:
            raise SystemExit(1)


def _compared_with_record() -> list[doctor.Finding]:
    try:
        return compare_all(Store())
    except (DatabaseError, InterfaceError) as error:
        told = f"the record can't be compared, its database does not answer: {str(error).strip()}"
        return [doctor.Finding("warning", None, None, told)]


def _verdict(left: int, mended: int, found: int) -> str:
    if left:
        return f"{left:,} broken" + (
            f", {mended:,} mended" if mended else "; --repair mends what can be mended"
        )
    if mended:
        return f"well, after {mended:,} were mended"
    return "well" if not found else "well, with warnings"
