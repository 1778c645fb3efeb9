"""A proxy in front of a Redis server that loses what a network loses.

with Proxy(server_address, folder) as proxy:
    store = Store(Connection(proxy.url))
    proxy.lose_replies(1)      # the next script runs, and its answer never arrives
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

#: Where a server listens: the path of a Unix socket, or host and port.
Address = Path | tuple[str, int]


class Proxy:
    """Forward one client-side Unix socket to a server; every fault is asked for, none is random."""

    def __init__(self, server: Address, folder: Path) -> None:
        self.server = server
        self.path = folder / "proxy.sock"
        self.lost = 0  #: replies thrown away so far
        self.last_lost = b""  #: how the last of them began
        self.refused = 0  #: requests cut off so far
        self._when = b""
        self._to_lose = 0
        self._to_refuse = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._closed = False

    @property
    def url(self) -> str:
        return f"unix://{self.path}?db=0"

    def lose_replies(self, count: int, *, when: bytes = b"EVAL") -> None:
        """The server gets the next `count` requests that hold `when`; their answers never arrive."""
        with self._lock:
            self._to_lose, self._when = count, when

    def refuse_requests(self, count: int, *, when: bytes = b"EVAL") -> None:
        """The connection ends before the server gets the next `count` requests that hold `when`."""
        with self._lock:
            self._to_refuse, self._when = count, when

    def move(self, server: Address) -> None:
        """New connections go to another server, as after a fail-over; open ones stay where they are."""
        self.server = server

    def cut(self) -> None:
        """End every connection that is open now."""
        for end in list(self._open):
            _shut(end)

    def __enter__(self) -> Self:
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        _shut(self._listener)
        self._listener.close()
        self.cut()
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="proxy connection", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        family = socket.AF_UNIX if isinstance(self.server, Path) else socket.AF_INET
        server = socket.socket(family)
        self._open |= {client, server}
        try:
            server.connect(str(self.server) if isinstance(self.server, Path) else self.server)
            self._pump(client, server)
        except OSError:
            pass  # one end is gone: so is the connection
        finally:
            self._open -= {client, server}
            client.close()
            server.close()

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        doomed = False
        while True:
            readable, _, _ = select.select([client, server], [], [])
            if client in readable:
                data = client.recv(262_144)
                if not data or self._takes("_to_refuse", data):
                    return
                doomed = doomed or self._takes("_to_lose", data)
                server.sendall(data)
            elif server in readable:
                data = server.recv(262_144)
                if not data or doomed:
                    self.last_lost = data[:100]
                    return
                client.sendall(data)

    def _takes(self, fault: str, data: bytes) -> bool:
        with self._lock:
            left: int = getattr(self, fault)
            if not left or self._when not in data:
                return False
            setattr(self, fault, left - 1)
            if fault == "_to_lose":
                self.lost += 1
            else:
                self.refused += 1
            return True


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
