"""Which retry policy a failed job follows: the job's own, its handler's, its queue's, the default."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from queueops import keys
from queueops.conf import config
from queueops.connection import Connection
from queueops.errors import PolicyError
from queueops.policies import DEFAULT_POLICY, RetryPolicy

logger = logging.getLogger("queueops.worker")


class Rules:
    """The published policies of one Redis, read again when a queue's settings have a new version."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._policies: dict[str, RetryPolicy] = {}
        self._by_queue: dict[str, str] = {}
        self._complained: set[str] = set()
        self._found: dict[tuple[str, str], RetryPolicy] = {}  # for jobs that ask for none of their own

    def load(self, queue: str) -> None:
        """Read the queue's default policy and all policies. Raises RedisError."""
        client: Any = self._connection.client
        named = client.hget(keys.queue_key(queue, "settings"), "policy")
        if named:
            self._by_queue[queue] = named.decode(errors="replace")
        else:
            self._by_queue.pop(queue, None)
        self.load_policies()

    def load_policies(self) -> None:
        """Read all policies. Raises RedisError."""
        client: Any = self._connection.client
        found: dict[str, RetryPolicy] = {}
        for name, given in config().policies.items():
            self._add(found, name, {"name": name, **given} if isinstance(given, Mapping) else given)
        for raw_name, raw in client.hgetall(keys.POLICIES).items():
            self._add(found, raw_name.decode(errors="replace"), raw)
        self._policies = found
        self._found = {}

    def named(self, name: str) -> RetryPolicy | None:
        """The policy of this name, the default one without being told of it."""
        return self._policies.get(name) or (DEFAULT_POLICY if name == DEFAULT_POLICY.name else None)

    def _add(self, found: dict[str, RetryPolicy], name: str, given: Any) -> None:
        try:
            found[name] = given if isinstance(given, RetryPolicy) else RetryPolicy.from_json(given)
        except PolicyError as error:
            self._complain(name, f"the policy {name} can't be used: {error}")

    def policy(
        self, queue: str, handler: str, asked: str | RetryPolicy | None, declared: Any = None
    ) -> RetryPolicy:
        """The policy of one job: `asked` is the job's own, `declared` what its handler's code says."""
        if asked is not None:
            return asked if isinstance(asked, RetryPolicy) else self._choose(queue, handler, asked, declared)
        found = self._found.get((queue, handler))
        if found is None:
            found = self._found[queue, handler] = self._choose(queue, handler, None, declared)
        return found

    def _choose(self, queue: str, handler: str, asked: str | None, declared: Any) -> RetryPolicy:
        conf = config()
        choices = (
            asked,
            conf.policy_by_handler.get(handler),
            declared,
            self._by_queue.get(queue),
            conf.policy_by_queue.get(queue),
            "default",
        )
        for choice in choices:
            if isinstance(choice, RetryPolicy):
                return choice
            if not choice:
                continue
            if (found := self._policies.get(choice)) is not None:
                return found
            if choice != "default":
                self._complain(
                    choice,
                    f"no policy is named {choice} (for {handler} in {queue}); the next one in line is used",
                )
        return DEFAULT_POLICY

    def _complain(self, name: str, text: str) -> None:
        if name not in self._complained:
            self._complained.add(name)
            logger.warning("%s", text)


def policy_now(connection: Connection, name: str) -> RetryPolicy:
    """The policy of this name as it is published now. Raises ValueError when there is none."""
    rules = Rules(connection)
    rules.load_policies()
    found = rules.named(name)
    if found is None:
        raise ValueError(f"no retry policy is named {name!r:.60}")
    return found
