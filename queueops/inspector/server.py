"""What the Redis server is, and what about it endangers jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from queueops.inspector.reads import number
from queueops.inspector.workers import Workers

#: Above this share of maxmemory, enqueue will soon be refused.
_NEARLY_FULL = 0.9


@dataclass(frozen=True)
class ServerFacts:
    """One server (of a Cluster: one node). Bytes, seconds."""

    version: str
    uptime_s: int
    used_memory: int
    max_memory: int  # 0: no limit
    eviction_policy: str
    has_aof: bool
    #: None where the server does not let us ask.
    has_snapshots: bool | None
    clients: int
    #: Sentences for a person, worst first.
    warnings: tuple[str, ...]


class Server(Workers):
    """Facts about the server."""

    def server(self) -> ServerFacts:
        """What the server says of itself; of a Cluster the node with most warnings."""
        client = self.connection.client
        try:
            told: dict[str, Any] = client.info()
            snapshots = self._snapshots()
        except RedisError as error:
            raise self.connection.translated(error) from error
        infos = (
            [told] if "redis_version" in told else [node for node in told.values() if isinstance(node, dict)]
        )
        return max((_facts(info, snapshots) for info in infos), key=lambda facts: len(facts.warnings))

    def _snapshots(self) -> bool | None:
        try:
            told: Any = self.connection.client.config_get("save")
        except RedisError:  # a hosted server hides CONFIG
            return None
        if "save" not in told:  # a Cluster answers node by node
            told = next((node for node in told.values() if isinstance(node, Mapping)), {})
        return bool(told.get("save")) if "save" in told else None


def _facts(info: Mapping[str, Any], snapshots: bool | None) -> ServerFacts:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    used, most = number(info.get("used_memory")), number(info.get("maxmemory"))
    has_aof = bool(number(info.get("aof_enabled")))
    warnings = []
    if policy != "noeviction":
        warnings.append(f"maxmemory-policy is {policy}: Redis may delete jobs; set it to noeviction")
    if not has_aof and snapshots is False:
        warnings.append("no persistence: a restart of Redis loses every job; turn appendonly on")
    elif not has_aof:
        warnings.append("no append-only file: a crash of Redis loses what came since its last snapshot")
    if info.get("aof_last_write_status", "ok") != "ok":
        warnings.append("the append-only file can't be written: look at the server's disk and log")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        warnings.append("the last snapshot failed: look at the server's disk and log")
    if most and used > _NEARLY_FULL * most:
        warnings.append(f"memory is {100 * used / most:.0f} % full: at 100 % no job can be enqueued")
    return ServerFacts(
        version=str(info.get("valkey_version") or info.get("redis_version", "")),
        uptime_s=number(info.get("uptime_in_seconds")),
        used_memory=used,
        max_memory=most,
        eviction_policy=policy,
        has_aof=has_aof,
        has_snapshots=snapshots,
        clients=number(info.get("connected_clients")),
        warnings=tuple(warnings),
    )
