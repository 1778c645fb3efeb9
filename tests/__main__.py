"""`make test`: the whole suite, then the engine's part on the other servers and the other Django line.

Arguments go to pytest, and then only the first run is made. The last lines say what was run, what was not
and why, and how many tests passed in all.
"""

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from queueops.local_redis import NoServer, find_binary, tied_to_parent
from tests import postgres

ROOT = Path(__file__).parent.parent
REPORTS = ROOT / "var" / "test"
#: What does not depend on the web site: the part that is run again elsewhere.
ENGINE = ("tests/queueops/test_*.py",)
#: Processes that share a run, each with a server and a database file of its own.
PARALLEL = ("-n", "4", "--dist", "loadfile")
#: What `make chaos` runs.
CHAOS = ("--ignore=tests/invariants/test_soak.py", "--ignore=tests/invariants/test_schedulers.py")
#: What writes and reads the database: run again on PostgreSQL.
RECORD = ("tests/queueops/record",)
FIRST_OF_6 = (3, 12)  # the first Python for which the requirements take Django 6


@dataclass
class Leg:
    """One run of pytest."""

    name: str
    python: str
    arguments: list[str]  # of pytest
    before: list[str] = field(default_factory=list)  # a command that runs pytest with something around it
    env: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    unsteady: int = 0
    seconds: float = 0.0
    exit_code: int = 0

    def run(self) -> None:
        """Run it, its output going where ours goes."""
        REPORTS.mkdir(parents=True, exist_ok=True)
        report = REPORTS / (re.sub(r"[^a-z0-9]+", "-", self.name.lower()) + ".xml")
        report.unlink(missing_ok=True)
        print(f"\n=== {self.name}", flush=True)
        started = time.monotonic()
        cache = f"cache_dir={report.with_suffix('')}"
        command = [*self.before, self.python, "-m", "pytest", "-o", cache, f"--junitxml={report}"]
        env = {**os.environ, **self.env}

        def pytest(*more: str) -> int:
            whole = tied_to_parent([*command, *self.arguments, *more])
            return subprocess.run(whole, cwd=ROOT, env=env, check=False).returncode

        self.exit_code = pytest()
        self.counts = _counted(report)
        failed = self.counts.get("failed", 0)
        if self.exit_code == 1 and failed:
            # What a busy machine made late passes alone. What fails again is a fault; either is told of.
            print(f"\n=== {self.name}: the {failed} that failed, once more and alone", flush=True)
            self.exit_code = pytest("--last-failed", "-n", "0", "-p", "no:randomly")
            again = _counted(report)
            self.unsteady = failed - again.get("failed", failed)
            self.counts["passed"] += self.unsteady
            self.counts["failed"] -= self.unsteady
        self.seconds = time.monotonic() - started
        if self.exit_code == 0 and not self.counts.get("passed"):
            self.exit_code = 5  # a run that tested nothing is no success

    @property
    def line(self) -> str:
        told = ", ".join(f"{number} {what}" for what, number in self.counts.items() if number)
        verdict = "" if self.exit_code == 0 else f" (pytest ended with {self.exit_code})"
        unsteady = f", {self.unsteady} of them only when run again" if self.unsteady else ""
        return f"  {self.name}: {told or 'no result'}{unsteady} in {self.seconds:.0f} s{verdict}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test ARGS=…", description=__doc__)
    _, given = parser.parse_known_args()
    not_run: list[str] = []
    legs: list[Leg] = []
    first = Leg(f"everything, {_line_of(sys.version_info[:2])}", sys.executable, given or [*PARALLEL, *CHAOS])
    for leg in itertools.chain(
        [first], () if given else _engine_legs(not_run)
    ):  # a leg at a time: set-up too
        leg.run()
        legs.append(leg)
    not_run += _missing_tools()
    _sum_up(legs, not_run)
    return max(min(leg.exit_code, 1) for leg in legs)


def _engine_legs(not_run: list[str]) -> Iterator[Leg]:
    files = sorted(str(path.relative_to(ROOT)) for pattern in ENGINE for path in ROOT.glob(pattern))
    paths = [*PARALLEL, *files]
    on_redis = ["--on-redis", *paths]  # what meets no server of the run's is the same on each
    if postgres.find_binaries() is None:
        not_run.append("the record on PostgreSQL: run 'apt-get install postgresql' as root")
    else:
        around = [sys.executable, "-m", "tests.postgres"]
        yield Leg("record, PostgreSQL", sys.executable, [*PARALLEL, *RECORD], around)
    first = find_binary().kind
    for kind in ("redis", "valkey"):
        try:
            binary = find_binary(kind)
        except NoServer as error:
            not_run.append(f"the engine on {kind}: {error}")
            continue
        if kind != first:
            yield Leg(f"engine, {kind} {binary.version}", sys.executable, on_redis, env={"TEST_REDIS": kind})
    cluster = {"TEST_REDIS": f"{first}-cluster"}
    yield Leg("engine, one-node Cluster", sys.executable, on_redis, env=cluster)
    other = _other_python()
    if other is None:
        wanted = "3.11" if sys.version_info >= FIRST_OF_6 else "3.12 or later"
        not_run.append(f"the engine on the other Django line: no Python {wanted} on PATH or in pyenv")
        return
    python, version = other
    made = subprocess.run([python, "-m", "dashboard.demo.setup", "--dev"], cwd=ROOT, check=False)
    asked = [python, "-m", "dashboard.demo.setup", "--print-venv"]
    venv = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    if made.returncode or not venv:
        not_run.append(f"the engine on the other Django line: no environment could be made for {python}")
        return
    yield Leg(f"engine, {_line_of(version)}", str(ROOT / venv / "bin" / "python"), paths)


def _line_of(version: tuple[int, ...]) -> str:
    return f"{'Django 6' if version >= FIRST_OF_6 else 'Django 5.2'} on Python {version[0]}.{version[1]}"


def _other_python() -> tuple[str, tuple[int, int]] | None:
    """Return an interpreter for which the requirements take the other Django, and its version."""
    wanted = [(3, 11)] if sys.version_info >= FIRST_OF_6 else [(3, minor) for minor in (14, 13, 12)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in wanted:
        name = f"python{version[0]}.{version[1]}"
        in_pyenv = sorted(map(str, pyenv.glob(f"{version[0]}.{version[1]}.*/bin/{name}")))
        for candidate in filter(None, [shutil.which(name), *in_pyenv]):
            if _works(candidate, version):
                return candidate, version
    return None


def _works(python: str, version: tuple[int, int]) -> bool:
    """Tell whether it runs (a pyenv shim may be of a version not chosen) and can make environments."""
    program = f"import sys, venv, ssl, sqlite3; sys.exit(sys.version_info[:2] != {version})"
    try:
        done = subprocess.run([python, "-c", program], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _missing_tools() -> list[str]:
    tools = {"chromium": "the pages in a browser", "faketime": "schedulers whose clocks differ"}
    return [
        f"{what}: run 'apt-get install {tool}' as root"
        for tool, what in tools.items()
        if shutil.which(tool) is None
    ]


def _counted(report: Path) -> dict[str, int]:
    """Read passed, failed and skipped from pytest's report."""
    if not report.exists():
        return {}
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    names = ("tests", "failures", "errors", "skipped")
    total, failures, errors, skipped = (int(suite.get(name, 0)) for name in names)
    return {"passed": total - failures - errors - skipped, "failed": failures + errors, "skipped": skipped}


def _sum_up(legs: list[Leg], not_run: list[str]) -> None:
    print("\n=== In all", flush=True)
    for leg in legs:
        print(leg.line)
    for what in not_run:
        print(f"  not run: {what}")
    totals = {name: sum(leg.counts.get(name, 0) for leg in legs) for name in ("passed", "failed", "skipped")}
    totals["failed"] += sum(leg.exit_code != 0 and not leg.counts.get("failed") for leg in legs)
    print(f"{totals['passed']} passed, {totals['failed']} failed, {totals['skipped']} skipped")


if __name__ == "__main__":
    sys.exit(main())
