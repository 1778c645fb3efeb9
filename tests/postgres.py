"""A PostgreSQL of the run's own: a fresh cluster in a temporary folder, on a Unix socket.

`python -m tests.postgres COMMAND…` runs a command with TEST_DATABASE_URL naming it, and takes it down:

    python -m tests.postgres python -m pytest tests/queueops/record
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

#: Where Debian keeps the binaries of its versions; the newest is taken, 15 being Debian 12's.
_DEBIAN = Path("/usr/lib/postgresql")
MISSING = (
    "PostgreSQL tests did not run: no initdb on PATH or under /usr/lib/postgresql (apt install postgresql)"
)


def find_binaries() -> Path | None:
    """The folder with initdb and postgres, or None."""
    if (found := shutil.which("initdb")) is not None:
        return Path(found).resolve().parent
    versions = sorted(_DEBIAN.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]), reverse=True)
    preferred = [path for path in versions if path.parts[-3] == "15"]
    return next((path.parent for path in (*preferred, *versions)), None)


class LocalPostgres:
    """A server that lives as long as the `with` block. Raises OSError where there are no binaries.

    PostgreSQL refuses to run as root: then it runs as `postgres` or `nobody`.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._durable = durable
        binaries = find_binaries()
        if binaries is None:
            raise FileNotFoundError(MISSING)
        self._binaries = binaries
        self._folder = Path(tempfile.mkdtemp(prefix="queueops-pg-"))  # short: a socket's path is bounded
        self._process: subprocess.Popen[bytes] | None = None
        self._account = _account() if os.geteuid() == 0 else None

    @property
    def url(self) -> str:
        """What DATABASE_URL takes."""
        return f"postgres://queueops@/queueops?host={quote(str(self._folder))}"

    def __enter__(self) -> LocalPostgres:
        if self._account is not None:
            os.chown(self._folder, self._account.pw_uid, self._account.pw_gid)
        data = self._folder / "data"
        self._run("initdb", "--pgdata", str(data), "--username=queueops", "--auth=trust", "--encoding=UTF8",
                  "--no-sync", "--locale=C.UTF-8")  # fmt: skip
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._folder),
            # A test's database need not survive the machine; one that is measured must.
            "fsync": "on" if self._durable else "off",
            "max_connections": "200",
        }
        arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        command = [*self._as_account(), str(self._binaries / "postgres"), "-D", str(data), *arguments]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            self._run("pg_isready", "--host", str(self._folder), "--timeout=20", retries=100)
            self._run("createdb", "--host", str(self._folder), "--username=queueops", "queueops")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()  # postgres: smart shutdown would wait for clients
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.send_signal(3)  # SIGQUIT: at once
                self._process.wait(10)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _as_account(self) -> list[str]:
        if self._account is None:
            return []
        return [
            "setpriv",
            f"--reuid={self._account.pw_uid}",
            f"--regid={self._account.pw_gid}",
            "--clear-groups",
        ]

    def _run(self, program: str, *arguments: str, retries: int = 0) -> None:
        command = [*self._as_account(), str(self._binaries / program), *arguments]
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        for left in range(retries, -1, -1):
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            if done.returncode == 0:
                return
            if left:
                time.sleep(0.1)
        raise OSError(f"{program} failed: {(done.stderr or done.stdout).strip()[-500:]}")


def _account() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise OSError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


def main() -> int:
    """Run the command of the arguments with a server; its exit status, or 0 where there is none."""
    try:
        server = LocalPostgres()
    except FileNotFoundError as error:
        sys.stdout.write(f"{error}\n")
        return 0
    with server:
        environment = {**os.environ, "TEST_DATABASE_URL": server.url}
        return subprocess.run(sys.argv[1:], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
