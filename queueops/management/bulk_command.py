"""The commands that do one verb to many jobs: an operation, run here and now, with its progress."""

from __future__ import annotations

import sys
import time
from typing import Any

from django.core.management.base import CommandParser

from queueops import client, keys, operations
from queueops.job import to_ms
from queueops.management.engine_command import EngineCommand, Refused, instant, seconds, shell_actor
from queueops.models import Operation
from queueops.operations import Plan, Runner, Selection
from queueops.selection import VERBS

#: How often progress is told, seconds.
_TELL_S = 1.0


class BulkCommand(EngineCommand):
    """Subclasses name their `verb`, and how it reads when it is done."""

    verb = ""
    past = ""

    def add_arguments(self, parser: CommandParser) -> None:
        which = parser.add_argument_group("which jobs")
        which.add_argument("--id", action="append", nargs="+", dest="ids", metavar="ID", help="these jobs")
        which.add_argument("--queue", default="", metavar="Q", help="of this queue; default: of every queue")
        sources = ", ".join(sorted(VERBS[self.verb]))
        which.add_argument("--state", default="", metavar="S", help=f"in this state: {sources}")
        which.add_argument("--handler", default="", metavar="H", help="of this handler")
        which.add_argument("--cause", default="", metavar="C", help="whose last failure has this cause")
        which.add_argument("--tag", default="", metavar="NAME[=VALUE]", help="with this tag")
        which.add_argument("--id-prefix", default="", metavar="TEXT", help="whose id starts so")
        which.add_argument("--of-operation", default="", metavar="ID", help="that a bulk action touched last")
        which.add_argument("--older-than", metavar="T", help="in that state for so long: 90s, 15m, 2h, 1d")
        how = parser.add_argument_group("how")
        how.add_argument("--rate", metavar="N/s", help="so many jobs a second at most")
        how.add_argument("--spread", metavar="T", help="spread them over so long")
        if self.verb in {"requeue", "run_now"}:
            how.add_argument("--canary", type=int, metavar="N", help="pause after N, to look how they do")
            how.add_argument(
                "--stop-share", type=float, metavar="X", help="stop when over this share fails again: 0.5"
            )
        if self.verb == "requeue":
            how.add_argument("--delay", metavar="T", help="let each wait so long")
        if self.verb == "reschedule":
            how.add_argument("--in", dest="delay", metavar="T", help="run so long from now")
            how.add_argument("--at", metavar="TIME", help="run at this time, as 2026-01-31T09:30:00+01:00")
        if self.verb == "cancel":
            how.add_argument(
                "--stop-after", metavar="T", help="end the process of what still runs after so long: 30s"
            )
        how.add_argument("--dry-run", action="store_true", help="only count the jobs that it would take")
        how.add_argument("--reason", default="", help="why, for the record")
        how.add_argument("--go-on", metavar="OPERATION", help="go on with one that was paused or left")
        how.add_argument("--json", action="store_true", help="print JSON")

    def answer(self, **given: Any) -> None:
        if given["go_on"]:
            return self._finish([self._left(given["go_on"])], given["json"])
        selections = self._selections(given)
        plan = self._plan(given)
        if given["dry_run"]:
            return self._count(selections, given["json"])
        actor = shell_actor()
        try:
            started = [
                operations.start(self.verb, selection, plan, actor=actor, reason=given["reason"])
                for selection in selections
            ]
        except ValueError as error:
            raise Refused(str(error)) from error
        return self._finish(started, given["json"])

    # -- which and how ---------------------------------------------------------------

    def _selections(self, given: dict[str, Any]) -> list[Selection]:
        """The filter; named ids are one for each of their queues."""
        ids = [job_id for part in given["ids"] or () for job_id in part]
        filters = {
            "state": given["state"],
            "handler": given["handler"],
            "cause": given["cause"],
            "tag": given["tag"],
            "id_prefix": given["id_prefix"],
            "operation": given["of_operation"],
        }
        if given["queue"]:
            self.known_queue(given["queue"])
        if given["state"]:
            self.known_state(given["state"])
        if not ids and not given["queue"] and not any(filters.values()):
            raise Refused("say which jobs: --id, or --queue, --state, --handler, --cause, --tag …")
        if ids and any(value for name, value in filters.items() if name != "state"):
            raise Refused("--id names the jobs: no filter goes with it")
        older_s = seconds(given["older_than"], "--older-than") if given["older_than"] else None
        try:
            if not ids:
                return [Selection.for_verb(self.verb, queue=given["queue"], older_than_s=older_s, **filters)]
            return [
                Selection.for_verb(
                    self.verb, queue=queue, ids=named, state=given["state"], older_than_s=older_s
                )
                for queue, named in self._by_queue(ids, given["queue"]).items()
            ]
        except ValueError as error:
            raise Refused(str(error)) from error

    def _by_queue(self, ids: list[str], queue: str) -> dict[str, list[str]]:
        """The ids by the queue that has them. Raises Refused for one that nobody knows."""
        found: dict[str, list[str]] = {}
        for job_id in dict.fromkeys(ids):
            keys.check_job_id(job_id)
            job = client.get_job(job_id, queue or None)
            if job is None:
                raise Refused(f"no job has the id {job_id}" + (f" in queue {queue}" if queue else ""))
            found.setdefault(job.queue, []).append(job_id)
        return found

    def _plan(self, given: dict[str, Any]) -> Plan:
        try:
            plan = Plan(
                delay_s=seconds(given["delay"], "the delay") if given.get("delay") else None,
                run_at_ms=to_ms(instant(given["at"], "--at")) if given.get("at") else None,
                spread_s=seconds(given["spread"], "--spread") if given["spread"] else None,
                rate=_rate(given["rate"]) if given["rate"] else None,
                canary=given.get("canary"),
                stop_share=given.get("stop_share"),
                stop_after_s=seconds(given["stop_after"], "--stop-after")
                if given.get("stop_after")
                else None,
            )
            plan.check(self.verb)
        except ValueError as error:
            raise Refused(str(error)) from error
        return plan

    def _left(self, operation_id: str) -> Operation:
        row = Operation.objects.filter(pk=operation_id, verb=self.verb).first()
        if row is None:
            raise Refused(f"no {self.verb} operation has the id {operation_id}")
        if row.status not in Operation.OPEN:
            raise Refused(f"operation {operation_id} is {row.status}")
        operations.resume(row.pk)
        return row

    # -- doing it --------------------------------------------------------------------

    def _count(self, selections: list[Selection], as_json: bool) -> None:
        inspector = self.inspector()
        total = sum(operations.count(inspector, selection, self.verb) for selection in selections)
        told = "; ".join(str(selection) for selection in selections)
        if as_json:
            self.say_json({"verb": self.verb, "dry_run": True, "total": total, "jobs": told})
        else:
            self.say(f"{total:,} jobs would be {self.past}: {told}")

    def _finish(self, started: list[Operation], as_json: bool) -> None:
        rows = [self._run(row, quiet=as_json) for row in started]
        if as_json:
            reports = [_report(row) for row in rows]
            self.say_json(reports[0] if len(reports) == 1 else reports)
        else:
            for row in rows:
                self._say_end(row)
        if any(row.status in {Operation.Status.FAILED, Operation.Status.STOPPED} for row in rows):
            raise SystemExit(1)
        if rows and not any(row.done for row in rows) and any(row.skipped for row in rows):
            raise SystemExit(1)  # somebody was first, or it can't be done to these

    def _run(self, row: Operation, *, quiet: bool) -> Operation:
        told = time.monotonic()

        def tell(now: Operation) -> None:
            nonlocal told
            if not quiet and time.monotonic() - told >= _TELL_S:
                told = time.monotonic()
                of = "" if now.total is None else f" of {now.total:,}"
                self.stderr.write(f"{now.done + now.skipped:,}{of} …")

        runner = Runner(row.pk)
        try:
            return runner.run(say=tell)
        except KeyboardInterrupt:
            operations.pause(row.pk)
            runner.row.refresh_from_db()
            hint = f"paused; go on with: manage.py {self.name} --go-on {row.pk}"
            self.stderr.write(f"\n{runner.row.done:,} {self.past}, {hint}")
            sys.exit(130)

    @property
    def name(self) -> str:
        """The command's own name."""
        return type(self).__module__.rpartition(".")[2]

    def _say_end(self, row: Operation) -> None:
        total = "" if row.total is None else f" of {row.total:,}"
        self.say(f"{row.done:,}{total} {self.past} (operation {row.pk}, {row.status})")
        for word, number in row.results.items():
            if isinstance(number, int) and word != "ok":
                samples = row.results.get("samples", {}).get(word, [])
                shown = ", ".join(" held by ".join(sample) for sample in samples[:3])
                self.say(f"  {number:,} {_WORDS.get(word, word)}" + (f": {shown}" if shown else ""))
        if answers := row.results.get("answers"):
            self.say(
                f"  {answers['obeyed']:,} obeyed, {answers['stopped']:,} stopped hard, "
                f"{answers['ended']:,} had ended before, {answers['running']:,} still run"
            )
        if row.error:
            self.say(f"  {row.error}")
        if row.status == Operation.Status.PAUSED:
            self.say(f"  go on with: manage.py {self.name} --go-on {row.pk}")


#: What an answer means to a person.
_WORDS = {
    "held": "not taken, since another job holds their unique key",
    "missing": "not there",
    "corrupt": "can't be read",
    "later": "moved meanwhile",
    **{f"wrong:{state}": f"not taken, they are {state}" for state in ("delayed", "ready", "pending", "done")},
    "wrong:dead": "not taken, they are dead",
    "wrong:discarded": "not taken, they are discarded",
}


def _rate(text: str) -> float:
    """Jobs a second of 20, 20/s, 600/m. Raises Refused."""
    number, _, unit = text.partition("/")
    try:
        return float(number) / {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}[unit.strip().lower()]
    except (ValueError, KeyError):
        raise Refused(f"--rate must be jobs a second such as 20/s, got {text!r:.60}") from None


def _report(row: Operation) -> dict[str, Any]:
    fields = ("verb", "queue", "status", "total", "done", "skipped", "results", "reason", "error")
    return {"operation": row.pk, **{name: getattr(row, name) for name in fields}}
