"""The environment as an operator sets it, read in a process of its own."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
READ = """
import json
from dashboard import settings as s
names = "REDIS_URL QUEUEOPS DEBUG ALLOWED_HOSTS SESSION_COOKIE_SECURE SECRET_KEY_IS_LOCAL".split()
read = {name: getattr(s, name) for name in names}
read |= {"db": s.DATABASES["default"], "hosts": s.channel_hosts()}
print(json.dumps(read, default=str))
"""


def ended(command: list[str], tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A finished process with nothing in its environment but `env`."""
    given = {"PATH": os.environ["PATH"], "VAR_DIR": str(tmp_path / "var"), "ENV_FILE": os.devnull, **env}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def settings_with(tmp_path: Path, **env: str) -> dict[str, object]:
    done = ended(["-c", READ], tmp_path, **env)
    assert done.returncode == 0, done.stderr
    read: dict[str, object] = json.loads(done.stdout)
    return read


@pytest.mark.parametrize(
    "command",
    [
        ["manage.py", "check"],
        ["manage.py", "migrate"],
        ["-m", "dashboard.demo"],
        ["-c", "import dashboard.asgi"],
    ],
)
def test_deploying_without_secret_key_is_refused_with_one_line(tmp_path: Path, command: list[str]) -> None:
    done = ended(command, tmp_path, DEBUG="0")

    assert done.returncode != 0
    assert done.stderr.strip().count("\n") == 0
    assert "SECRET_KEY" in done.stderr


def test_serving_without_secret_key_is_refused_even_where_nothing_is_set(tmp_path: Path) -> None:
    done = ended(["-c", "import dashboard.asgi"], tmp_path)

    assert done.returncode != 0
    assert done.stderr.strip().count("\n") == 0
    assert "SECRET_KEY" in done.stderr


def test_commands_where_nothing_is_set_use_a_key_of_this_checkout(tmp_path: Path) -> None:
    first = settings_with(tmp_path)
    key = tmp_path / "var" / "secret-key"

    assert first["SECRET_KEY_IS_LOCAL"] is True
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(key.read_text()) >= 50
    made = key.read_text()
    settings_with(tmp_path)
    assert key.read_text() == made


def test_defaults_are_sqlite_in_var_with_wal_and_immediate_transactions(tmp_path: Path) -> None:
    database = settings_with(tmp_path)["db"]

    assert isinstance(database, dict)
    assert database["NAME"] == str(tmp_path / "var" / "db.sqlite3")
    assert database["OPTIONS"]["transaction_mode"] == "IMMEDIATE"
    assert database["OPTIONS"]["timeout"] >= 20
    assert "journal_mode=WAL" in database["OPTIONS"]["init_command"]


def test_postgresql_comes_by_database_url(tmp_path: Path) -> None:
    database = settings_with(tmp_path, DATABASE_URL="postgres://me:word@db.example:5433/jobs")["db"]

    assert isinstance(database, dict)
    assert database["ENGINE"] == "django.db.backends.postgresql"
    assert (database["HOST"], database["PORT"], database["NAME"]) == ("db.example", 5433, "jobs")


def test_engine_settings_are_every_queueops_variable(tmp_path: Path) -> None:
    read = settings_with(
        tmp_path,
        REDIS_URL="redis://r.example/3",
        QUEUEOPS_LEASE_S="12",
        QUEUEOPS_HANDLERS="shop.jobs,shop.more",
    )

    assert read["QUEUEOPS"] == {
        "LEASE_S": "12",
        "HANDLERS": "shop.jobs,shop.more",
        "REDIS_URL": "redis://r.example/3",
    }


def test_env_file_is_read_and_the_environment_wins(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("DEBUG=1\nREDIS_URL=redis://file.example/0\nALLOWED_HOSTS=a.example,b.example\n")

    read = settings_with(tmp_path, ENV_FILE=str(file), REDIS_URL="redis://env.example/0")

    assert read["DEBUG"] is True
    assert read["REDIS_URL"] == "redis://env.example/0"
    assert read["ALLOWED_HOSTS"] == ["a.example", "b.example"]


def test_cookies_are_for_https_once_all_origins_are(tmp_path: Path) -> None:
    assert settings_with(tmp_path)["SESSION_COOKIE_SECURE"] is False
    assert settings_with(tmp_path, CSRF_TRUSTED_ORIGINS="https://a.example")["SESSION_COOKIE_SECURE"] is True


def test_redis_of_a_running_demo_is_found(tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "redis-url").write_text("redis://127.0.0.1:7777/0\n")

    assert settings_with(tmp_path)["REDIS_URL"] == "redis://127.0.0.1:7777/0"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"REDIS_URL": "redis://r.example/0"}, {"address": "redis://r.example/0"}),
        (
            {"REDIS_URL": "redis://r.example/0", "CHANNELS_REDIS_URL": "redis://c.example/1"},
            {"address": "redis://c.example/1"},
        ),
        ({"REDIS_URL": "redis+cluster://u:p@n1.example:7000"}, {"address": "redis://u:p@n1.example:7000"}),
        (
            {"REDIS_URL": "sentinel://:word@s1.example,s2.example:26380/main/2"},
            {
                "sentinels": [["s1.example", 26379], ["s2.example", 26380]],
                "master_name": "main",
                "db": 2,
                "password": "word",
            },
        ),
    ],
)
def test_channels_use_the_engines_redis_unless_told_otherwise(
    tmp_path: Path, env: dict[str, str], expected: dict[str, object]
) -> None:
    hosts = settings_with(tmp_path, **env)["hosts"]

    assert hosts == [{**expected, "socket_timeout": None, "socket_connect_timeout": 5}]


def test_a_database_url_that_is_none_is_refused_with_one_line_and_without_repeating_it(
    tmp_path: Path,
) -> None:
    done = ended(["manage.py", "check"], tmp_path, DATABASE_URL="secret@db.example.com/queueops")

    assert done.returncode != 0
    assert done.stderr.strip() == (
        "QueueOps is not configured: DATABASE_URL must be a URL as postgres://user:password@host:5432/database"
    )


def test_an_empty_variable_is_as_none(tmp_path: Path) -> None:
    empty = {"DATABASE_URL": "", "REDIS_URL": "", "SECRET_KEY": "", "CHANNELS_REDIS_URL": ""}

    assert settings_with(tmp_path, **empty) == settings_with(tmp_path)


def test_every_variable_that_an_operator_may_set_is_in_the_example() -> None:
    read = set(re.findall(r'env\.\w+\("([A-Z_]+)"', (ROOT / "dashboard/settings.py").read_text()))
    told = set(re.findall(r"^#([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))

    assert read - told == {"ENV_FILE", "DEMO_API_URL"}  # of tests and of the demo


def test_web_process_leaves_what_it_starts_with_out_of_full_collections(tmp_path: Path) -> None:
    said = "import gc, dashboard.asgi; print(gc.get_freeze_count(), *gc.get_threshold())"
    done = ended(["-c", said], tmp_path, DEBUG="1")
    assert done.returncode == 0, done.stderr

    frozen, young, _, full = map(int, done.stdout.split())

    assert frozen > 50_000
    assert young * full > 700 * 10 * 10, "full ones are rarer than by default"
