"""Words between a supervisor, its zygote and its children: JSON datagrams over socket pairs."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass
from typing import Any

_MAX_BYTES = 200_000


@dataclass(frozen=True)
class Order:
    """What a process that the zygote forks shall be."""

    child: str  # its name
    role: str  # 'child', 'probation' or 'housekeeper'
    board: int  # index of its board
    slots: int
    queues: tuple[str, ...]
    supervisor: int  # process id
    executor: str = "threads"  # where handlers run, or 'celery'

    @property
    def is_probation(self) -> bool:
        """Whether it runs suspects, one at a time."""
        return self.role == "probation"

    def to_message(self) -> dict[str, Any]:
        """The order as what Control sends."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Order:
        """Read what to_message made."""
        return cls(**{**message, "queues": tuple(message["queues"])})


class Control:
    """One end of a socket pair. The other end's closing reads as None."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    @classmethod
    def pair(cls) -> tuple[Control, Control]:
        """Two ends; neither passes an exec."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    def fileno(self) -> int:
        """For select."""
        return self.socket.fileno()

    def send(self, message: dict[str, Any], *, passing: Control | None = None) -> bool:
        """Send one message, with a socket passed along; False when the other end is gone or stuck."""
        data = json.dumps(message).encode()
        try:
            if passing is None:
                self.socket.send(data, socket.MSG_DONTWAIT)
            else:
                socket.send_fds(self.socket, [data], [passing.fileno()])
        except OSError:
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when the other end is gone. Blocks."""
        try:
            data = self.socket.recv(_MAX_BYTES)
        except ConnectionError:
            return None
        return json.loads(data) if data else None

    def receive_passed(self) -> tuple[dict[str, Any], Control | None] | None:
        """The next message and the socket that came along, if any; None when the other end is gone."""
        data, fds, _, _ = socket.recv_fds(self.socket, _MAX_BYTES, 1)
        if not data:
            return None
        return json.loads(data), Control(socket.socket(fileno=fds[0])) if fds else None

    def close(self) -> None:
        """Close this end."""
        self.socket.close()
