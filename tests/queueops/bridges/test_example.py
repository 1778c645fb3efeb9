"""The example of docs/celery.md: a stock Celery app, and the same app with QueueOps."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.queueops.bridges.ground import Ground, eventually, start

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "celery_to_queueops"


def test_the_change_is_small() -> None:
    before, after = (
        {f.relative_to(EXAMPLE / v): f.read_text() for f in (EXAMPLE / v).rglob("*.py")}
        for v in ("before", "after")
    )

    assert before.keys() == after.keys()
    changed = [
        line
        for name in before
        for line in difflib.unified_diff(before[name].splitlines(), after[name].splitlines(), n=0)
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]
    assert 0 < len(changed) < 15


@pytest.mark.parametrize(
    ("version", "worker"),
    [
        ("before", ["-m", "celery", "-A", "shop", "worker", "-c", "1", "--loglevel", "INFO"]),
        ("after", ["manage.py", "runworkers", "--processes", "1"]),
    ],
)
def test_the_shop_works(ground: Ground, tmp_path: Path, version: str, worker: list[str]) -> None:
    folder = EXAMPLE / version
    socket = ground.server.unix_socket
    # Another database of the server for each: they are two sites.
    url = f"redis+socket://{socket}?virtual_host=5" if version == "before" else f"unix://{socket}?db=6"
    env = {name: value for name, value in os.environ.items() if not name.startswith("QUEUEOPS_")}
    env |= {
        "REDIS_URL": url,
        "SHOP_DB": str(tmp_path / "shop.sqlite3"),
        "DJANGO_SETTINGS_MODULE": "shop.settings",
    }
    env["PYTHONPATH"] = os.pathsep.join([str(folder), os.getcwd()])
    python = [sys.executable, "-W", "ignore"]
    migrated = subprocess.run(
        [*python, str(folder / "manage.py"), "migrate", "-v", "0"],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (migrated.returncode, migrated.stderr) == (0, "")  # the checks find nothing to warn of either
    command = [str(folder / each) if each == "manage.py" else each for each in worker]
    running = start(tmp_path / "worker.log", env, *command)
    try:
        eventually(
            lambda: " ready." in running.log or "processes of" in running.log,
            what=lambda: running.log,
            within=60,
        )
        found = subprocess.run(
            [*python, str(folder / "call.py")], env=env, capture_output=True, text=True, check=False
        )
    finally:
        running.stop()

    assert found.returncode == 0, found.stderr + running.log
    assert found.stderr == ""
    assert found.stdout.splitlines() == ["order-7: 1250 cents, try 2", "dear Ada"]
