"""The drill: held for real, and strict enough to see a lost, a doubled and a strange effect."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from queueops import drill
from queueops.drill import Drill, DrillFailed, crew
from queueops.drill.ledger import Ledger
from queueops.drill.trees import Tree


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("kill", "workers", "executor"),
    [("worker", 3, "threads"), ("redis", 2, "threads"), ("worker", 2, "celery"), ("redis", 2, "celery")],
)
def test_the_drill_proves_that_nothing_is_lost_and_nothing_doubled(
    kill: str, workers: int, executor: str
) -> None:
    out = StringIO()
    words = ["--workers", str(workers), "--jobs", "60", "--kill", kill, "--executor", executor, "--json"]
    call_command("drill", *words, stdout=out)

    report: dict[str, Any] = json.loads(out.getvalue())

    assert report["ok"] is True
    assert {check["name"]: check["is_well"] for check in report["checks"]} == {
        "every job is done": True,
        "each took effect": True,
        "none took effect twice": True,
        "the account is right": True,
        "the doctor finds nothing": True,
        "the others stopped when asked": True,
    }
    assert report["held"] > 0, "something was running when it was struck"
    assert report["started"] > 60, "and it ran again"
    assert report["folder"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workers", "1"], "--workers must be 2 to 32"),
        (["--workers", "0", "--kill", "redis"], "--workers must be 1 to 32"),
        (["--jobs", "3"], "--jobs must be 10 to 100,000"),
    ],
)
def test_what_can_not_be_drilled_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(CommandError, match=said) as refusal:
        call_command("drill", *words)
    assert refusal.value.returncode == 2


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(tmp_path / "ledger.sqlite3")) as made:
        made.create()
        yield made


def wrong(ledger: Ledger, amounts: dict[str, int]) -> set[str]:
    return {check.name for check in drill._money(ledger.books(), amounts) if not check.is_well}


def test_the_books_show_what_is_amiss(ledger: Ledger) -> None:
    amounts = {"a": 5, "b": 7}
    assert wrong(ledger, amounts) == {"each took effect", "the account is right"}

    assert ledger.charge("a", "a", 1, 5)
    assert ledger.charge("b", "b", 1, 7)
    assert not ledger.charge("b", "b", 2, 7), "the same key charges once"
    assert wrong(ledger, amounts) == set()
    assert ledger.books().repeated == 1

    ledger.charge("b:e1", "b", 3, 7)
    assert wrong(ledger, amounts) == {"none took effect twice", "the account is right"}
    ledger.charge("c", "c", 1, 0)
    assert "none took effect twice" in wrong(ledger, amounts)


def test_the_ledger_charges_once_whoever_asks_at_the_same_time(ledger: Ledger) -> None:
    answers: list[bool] = []

    def ask() -> None:
        answers.extend(ledger.charge(f"k{i}", f"k{i}", 1, 10) for i in range(20))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(answers) == 20
    assert ledger.books().balance == 200


@pytest.mark.timeout(60)
def test_workers_that_do_not_start_end_the_drill_with_their_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "_SETTINGS", "raise RuntimeError('no settings: {redis}')\n")
    held = Drill(tmp_path, workers=2, jobs=10, kill="worker", say=lambda text: None)
    with pytest.raises(DrillFailed, match=r"worker-\d did not start: see .*worker-\d.log"):
        held.run()
    assert "no settings" in (tmp_path / "worker-1.log").read_text()


def test_kill_ends_the_whole_tree(tmp_path: Path) -> None:
    sleep = "import time; time.sleep(60)"
    script = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleep!r}]); {sleep}"
    process = subprocess.Popen([sys.executable, "-c", script])
    tree = Tree.__new__(Tree)
    tree.process = process
    while len(tree.pids()) < 2:
        threading.Event().wait(0.01)
    pids = tree.pids()

    assert tree.kill() == 2

    deadline = time.monotonic() + 10
    while not all(map(_has_ended, pids[1:])):  # a signal is on its way when `kill` returns
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _has_ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state.rpartition(")")[2].split()[0] == "Z"
