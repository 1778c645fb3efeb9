"""A Redis client for the configured URL: one server, Sentinel, or Cluster; and scripts on it.

`Connection` is what the engine uses. It speaks bytes (a payload that is not UTF-8 must not break
a reply) and re-sends scripts that the server forgot.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.cluster import RedisCluster
from redis.exceptions import NoScriptError, RedisClusterException, RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel

from queueops.conf import config
from queueops.errors import ConfigError, StoreFull, StoreUnavailable, WrongKeyType
from queueops.scripts import Script

#: The oldest server that has what we use (XPENDING IDLE, LPOS, ZRANGE BYSCORE).
OLDEST = (6, 2)
_SOCKET_TIMEOUT_S = 10.0
#: All that redis-py raises: what a Cluster client says of its nodes has a base of its own.
ERRORS = (RedisError, RedisClusterException)
#: What a server says that is there and can't be used now.
_UNUSABLE = {"READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "MISCONF", "NOREPLICAS", "NOPERM"}
_CODE = re.compile(r"(?:^|: )-?([A-Z]{3,}) ")

Call = tuple[Script, str, list[object]]


def masked(url: str) -> str:
    """The URL with its password hidden, for messages."""
    parts = urlsplit(url)
    if not parts.password:
        return url
    host = parts.netloc.rsplit("@", 1)[1]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}"))


def _code(error: Exception) -> str:
    """The server's word for what is wrong, as OOM.

    redis-py cuts it off the text of the errors that it knows; before Redis 7 it stands inside the
    text of a script's error.
    """
    told = getattr(error, "status_code", None)
    if told and told != "ERR":
        return str(told)
    found = _CODE.search(str(error))
    return found[1] if found else ""


class _Cluster(RedisCluster):
    """A Cluster client whose complaints about its nodes are connection errors, as everywhere else.

    redis-py gives them a base of their own, which no `except RedisError` catches.
    """

    def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except RedisClusterException as error:
            raise redis.ConnectionError(str(error)) from error


def _client(
    url: str, *, block_s: float | None, timeout_s: float = _SOCKET_TIMEOUT_S, retries: int = 3
) -> redis.Redis:
    """A client of the kind that the URL's scheme names.

    `block_s` makes a client for blocking commands: its socket waits longer than they do, and
    nothing is re-sent behind the caller's back.
    """
    # No retry on a time-out of ours is unsafe: every script may run twice (G6).
    options: dict[str, Any] = {"protocol": 2, "socket_connect_timeout": 5, "health_check_interval": 0}
    if block_s is None:
        backoff = ExponentialWithJitterBackoff(base=0.02, cap=0.5)
        options |= {"socket_timeout": timeout_s, "retry": Retry(backoff, retries)}
    else:
        options |= {
            "socket_timeout": block_s + 10,
            "retry": Retry(backoff=ExponentialWithJitterBackoff(), retries=0),
        }
    scheme = urlsplit(url).scheme
    try:
        if scheme == "redis+cluster":
            options.pop("retry")
            plain = "redis" + url.removeprefix("redis+cluster")
            return cast("redis.Redis", _Cluster.from_url(plain, **options))
        if scheme == "sentinel":
            return _sentinel_client(url, options)
        return redis.Redis.from_url(url, **options)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"REDIS_URL {masked(url)}: {error}") from error
    except ERRORS as error:
        raise StoreUnavailable(f"no Redis at {masked(url)}: {error}") from error


def _sentinel_client(url: str, options: dict[str, Any]) -> redis.Redis:
    """`sentinel://[user:password@]host:port[,host:port]/<service>[/<db>][?sentinel_password=...]`."""
    parts = urlsplit(url)
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ConfigError(f"REDIS_URL {masked(url)}: name the service, as in sentinel://host:26379/mymaster")
    hosts = []
    for host in parts.netloc.rsplit("@", 1)[-1].split(","):
        name, _, port = host.partition(":")
        hosts.append((name, int(port or 26379)))
    sentinel_options = {
        k.removeprefix("sentinel_"): v for k, v in parse_qsl(parts.query) if k.startswith("sentinel_")
    }
    sentinel = Sentinel(hosts, sentinel_kwargs={"socket_timeout": 5, **sentinel_options})
    login = {"username": parts.username or None, "password": parts.password or None, "db": int(db or 0)}
    return cast("redis.Redis", sentinel.master_for(service, **options, **login))


class Connection:
    """A server and the scripts on it. Safe to share between threads, and to use after a fork.

    `timeout_s` and `retries` say how long a caller waits for an answer: less where it tries again itself.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        client: redis.Redis | None = None,
        timeout_s: float = _SOCKET_TIMEOUT_S,
        retries: int = 3,
    ) -> None:
        self.url = url or config().redis_url
        self._patience: dict[str, Any] = {"timeout_s": timeout_s, "retries": retries}
        self._given = client
        self._clients: dict[int, redis.Redis] = {}  # by process
        self._own = threading.local()
        self._lock = threading.Lock()
        self._major = 0

    @property
    def client(self) -> redis.Redis:
        """The client of this process: sockets are never shared over a fork."""
        if self._given is not None:
            return self._given
        client = self._clients.get(os.getpid())
        if client is None:
            with self._lock:
                client = self._clients.setdefault(
                    os.getpid(), _client(self.url, block_s=None, **self._patience)
                )
        return client

    def blocking_client(self, block_s: float) -> redis.Redis:
        """A fresh client for commands that block up to `block_s` seconds; close it yourself."""
        return _client(self.url, block_s=block_s)

    @property
    def is_cluster(self) -> bool:
        """Whether keys of two queues can't be named in one command."""
        return isinstance(self.client, RedisCluster)

    @property
    def major(self) -> int:
        """The server's major version as Redis counts it. Raises ConfigError below 6.2."""
        if not self._major:
            info = self.client.info("server")
            if "redis_version" not in info:  # a Cluster answers node by node
                info = next(iter(info.values()))
            version = str(info["redis_version"])
            numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
            if numbers < OLDEST:
                raise ConfigError(f"Redis {version} at {masked(self.url)} is too old: 6.2 or newer is needed")
            self._major = numbers[0]
        return self._major

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Let commands on `client` raise errors of ours."""
        try:
            yield
        except ERRORS as error:
            raise self.translated(error) from error

    def run(self, script: Script, queue: str, rest: Sequence[object] = (), **named: object) -> Any:
        """Run one script. Raises StoreUnavailable, StoreFull or WrongKeyType."""
        try:
            arguments = script.arguments(queue, rest, **named)
            try:
                return self._evalsha(script.sha(self.major), arguments)
            except NoScriptError:
                return self.client.execute_command("EVAL", script.source(self.major), *arguments)
        except ERRORS as error:
            raise self.translated(error) from error

    def _evalsha(self, sha: str, arguments: list[object]) -> Any:
        """EVALSHA on this thread's own socket, which takes half the time of the pooled path.

        After a lost connection the pooled path sends it again: a script may run twice.
        """
        if self._given is not None or isinstance(self.client, RedisCluster):
            return self.client.execute_command("EVALSHA", sha, *arguments)
        own = self._own
        if getattr(own, "pid", 0) != os.getpid():
            # Not the pool's `make_connection`: it counts what it made and ends at 100, threads come and go.
            pool = self.client.connection_pool
            own.pid, own.socket = os.getpid(), pool.connection_class(**pool.connection_kwargs)
        try:
            own.socket.send_packed_command(own.socket.pack_command("EVALSHA", sha, *arguments))
            return own.socket.read_response()
        except ResponseError as error:
            if _code(error) != "READONLY":
                raise
            own.socket.disconnect()  # a replica now, which did nothing: a new socket leads to the primary
            self.client.connection_pool.disconnect(inuse_connections=False)
            return self.client.execute_command("EVALSHA", sha, *arguments)
        except (RedisError, OSError):
            own.socket.disconnect()
            return self.client.execute_command("EVALSHA", sha, *arguments)
        except BaseException:
            own.socket.disconnect()  # an unread answer must not meet the next command
            raise

    def run_many(self, calls: Sequence[Call]) -> list[Any]:
        """Run several scripts in one round trip; an answer may be an exception of ours.

        A script that the server forgot is loaded and sent again alone: in a pipeline the other
        half has been applied.
        """
        try:
            pipe = self.client.pipeline(transaction=False)
            for script, _, arguments in calls:
                pipe.execute_command("EVALSHA", script.sha(self.major), *arguments)
            answers = pipe.execute(raise_on_error=False)
            for i, answer in enumerate(answers):
                if isinstance(answer, NoScriptError):
                    script, _, arguments = calls[i]
                    answers[i] = self.client.execute_command("EVAL", script.source(self.major), *arguments)
        except ERRORS as error:
            raise self.translated(error) from error
        return [self.translated(a) if isinstance(a, ERRORS) else a for a in answers]

    def translated(self, error: Exception) -> Exception:
        """The error as a person should read it."""
        text, code = str(error), _code(error)
        if code == "READONLY" and not self.is_cluster:
            # A replica now: idle sockets to it would go on refusing, new ones ask where the primary is.
            self.client.connection_pool.disconnect(inuse_connections=False)
        if code == "OOM":
            return StoreFull(f"Redis at {masked(self.url)} is at its maxmemory and takes nothing in")
        if text.startswith("QUEUEOPS-WRONGTYPE "):
            return WrongKeyType(text.removeprefix("QUEUEOPS-WRONGTYPE "))
        if "WRONGTYPE" in text:
            place = masked(self.url)
            return WrongKeyType(f"a key at {place} holds another type than ours: `manage.py doctor` names it")
        if isinstance(error, ResponseError) and code not in _UNUSABLE:
            return error  # a bug of ours
        return StoreUnavailable(f"no Redis at {masked(self.url)}: {text or type(error).__name__}")


_shared: dict[str, Connection] = {}


def connection() -> Connection:
    """The connection to the configured server, shared by the process."""
    url = config().redis_url
    found = _shared.get(url)
    if found is None:
        found = _shared.setdefault(url, Connection(url))
    return found
