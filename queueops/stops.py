"""What the store answers a supervisor that renews: which of its jobs are to be stopped hard, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

_FIELDS = 5  # of a stop in a renewal's answer


@dataclass(frozen=True)
class Stop:
    """A person asked this delivery to stop; what still runs at `at_ms` (Unix ms) is stopped hard."""

    queue: str
    job_id: str
    delivery: int
    child: str
    at_ms: int
    by: str = ""  # whose wish it is, by name


class Renewed(NamedTuple):
    """The answer to a renewal: the settings version, the server's time in µs, what is to be stopped."""

    version: int
    server_us: int
    stops: list[Stop]

    @classmethod
    def parse(cls, queue: str, answer: list[Any]) -> Renewed:
        """Read what lua/renew.lua answers."""
        version, server_us, *flat = answer
        return cls(
            int(version),
            int(server_us),
            [
                Stop(queue, _text(i), int(delivery), _text(child), int(float(at_ms)), _text(by))
                for i, delivery, child, at_ms, by in zip(*[iter(flat)] * _FIELDS, strict=True)
            ],
        )


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
