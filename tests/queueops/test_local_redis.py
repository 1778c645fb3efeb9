"""The server that demo, tests and drills start for themselves."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from queueops.connection import Connection
from queueops.local_redis import Binary, Kind, LocalServer, NoServer, find_binary
from tests.dashboard.conftest import wait_for

KINDS: list[Kind] = ["redis", "valkey"]


def binary_or_skip(kind: Kind) -> Binary:
    try:
        return find_binary(kind)
    except NoServer as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("kind", KINDS)
def test_data_outlive_a_kill_and_the_port_stays(tmp_path: Path, kind: Kind) -> None:
    with LocalServer(tmp_path, binary=binary_or_skip(kind), options={"appendfsync": "always"}) as server:
        url = server.url
        server.client().set("a", 1)
        server.kill()
        assert not is_listening(server.port)
        server.start()

        assert server.client().get("a") == b"1"
        assert server.url == url
    assert not is_listening(server.port)


@pytest.mark.parametrize("kind", KINDS)
def test_cluster_of_one_node_serves_every_slot(tmp_path: Path, kind: Kind) -> None:
    with LocalServer(tmp_path, binary=binary_or_skip(kind), cluster=True) as server:
        connection = Connection(server.url)

        assert connection.is_cluster
        for queue in ("a", "b", "c"):
            connection.client.set(f"{{{queue}}}", queue)
        assert connection.client.get("{c}") == b"c"


def test_unix_socket_alone_opens_no_port(tmp_path: Path) -> None:
    with LocalServer(tmp_path / "data", port=None, unix_socket=tmp_path / "s") as server:
        assert Connection(server.url).client.ping()
        assert server.client().config_get("port") == {"port": "0"}


def test_second_server_on_one_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queueops.local_redis.STOP_S", 0.2)
    with LocalServer(tmp_path), pytest.raises(NoServer, match="another server is using"):
        LocalServer(tmp_path).start()


def test_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(NoServer, match="Bad directive"):
        LocalServer(tmp_path, options={"no-such-option": "1"}).start()
    with LocalServer(tmp_path) as server:  # the folder is free again
        assert server.client().ping()


def test_missing_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("queueops.local_redis._embedded_valkey", lambda: None)

    with pytest.raises(NoServer, match="apt-get install redis-server"):
        find_binary()


def test_data_folder_is_named_after_kind_and_version() -> None:
    assert Binary("valkey", "8.1.8", Path("x")).data_name == "valkey-8.1"


def test_server_dies_with_whoever_started_it(tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from queueops.local_redis import LocalServer
server = LocalServer(Path({str(tmp_path)!r})).start()
print(server.port, server.process.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        port, pid = map(int, starter.stdout.readline().split())
        assert is_listening(port)
        starter.send_signal(signal.SIGKILL)

    wait_for(lambda: not is_listening(port))
    wait_for(lambda: not os.path.exists(f"/proc/{pid}") or is_zombie(pid))


def is_listening(port: int | None) -> bool:
    try:
        with redis.Redis(port=port or 0, socket_timeout=1) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_start_is_quick(tmp_path: Path) -> None:
    started = time.monotonic()
    with LocalServer(tmp_path):
        assert time.monotonic() - started < 5


def test_server_that_somebody_else_killed_starts_again_at_once(tmp_path: Path) -> None:
    with LocalServer(tmp_path, options={"appendfsync": "always"}) as server:
        server.client().set("a", 1)
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        started = time.monotonic()

        server.start()

        assert time.monotonic() - started < 5
        assert server.client().get("a") == b"1"
