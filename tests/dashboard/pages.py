"""What tests of pages share: people, jobs of every state, and reads of HTML."""

from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser
from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from redis import Redis

from queueops.job import NewJob
from queueops.mirror import catch_up
from queueops.payload import encode_spec
from queueops.store import Outcome, Store
from tests.factories import Child

Q = "mail"
_pids = itertools.count(1)  # a name used again would be answered with its last batch


def person(group: str | None = None, *rights: str, name: str = "") -> Client:
    """A browser of somebody in a group, or with single rights."""
    user, made = User.objects.get_or_create(username=name or f"{group or 'nobody'}-{'-'.join(rights)}")
    if made:
        if group:
            user.groups.add(Group.objects.get(name=group))
        for right in rights:
            user.user_permissions.add(
                Permission.objects.get(codename=right, content_type__app_label="queueops")
            )
    client = Client()
    client.force_login(user)
    return client


def spec(
    handler: str = "mail.send", *args: object, tags: dict[str, str] | None = None, **kwargs: Any
) -> bytes:
    return encode_spec(handler, list(args), kwargs, tags=tags, max_bytes=10_000_000)


def enqueue(
    store: Store, *ids: str, queue: str = Q, data: bytes | None = None, delay_ms: int | None = None
) -> list[str]:
    run_at = None if delay_ms is None else f"+{delay_ms}"
    jobs = [NewJob(job_id, data or spec(order=i), run_at_ms=run_at) for i, job_id in enumerate(ids)]
    store.enqueue(queue, jobs, actor="tests")
    return list(ids)


def kill(
    store: Store,
    *ids: str,
    queue: str = Q,
    cause: str = "boom",
    message: str = "it failed",
    data: bytes | None = None,
) -> list[str]:
    """Let jobs die of a cause."""
    enqueue(store, *ids, queue=queue, data=data)
    child = Child(store, f"graves:{next(_pids)}:aa/1", queue).register()
    left = set(ids)
    while left:
        jobs = child.take(100)
        assert jobs, "another job stands before them"
        child.settle(
            *[
                Outcome.bury(
                    job,
                    cause=cause,
                    cause_text=f"{cause}: {message}",
                    error=json.dumps(
                        {
                            "error": "Boom",
                            "message": message,
                            "traceback": "Traceback\n  boom.py",
                            "cause": cause,
                        }
                    ),
                    policy="default@1",
                    ran_ms=7,
                )
                for job in jobs
            ]
        )
        left -= {job.id for job in jobs}
    return list(ids)


def run(store: Store, *ids: str, queue: str = Q, data: bytes | None = None) -> list[str]:
    """Jobs that a child holds."""
    enqueue(store, *ids, queue=queue, data=data)
    Child(store, "host:8:run/1", queue).register().take(len(ids))
    return list(ids)


def record(store: Store, queue: str = Q) -> None:
    """Have the mirror write down all that happened."""
    catch_up(store, queue)


def streamed(answer: Any) -> str:
    """The whole text of a download."""
    return b"".join(answer.streaming_content).decode()


def rows(html: str) -> list[str]:
    """Ids of the jobs in a list, in its order."""
    return re.findall(r'data-job="([^"]+)"', html)


def dead(redis: Redis, queue: str = Q) -> int:
    return int(redis.zcard(f"queueops:{{{queue}}}:dead"))


class Elements(HTMLParser):
    """The elements and attributes of a page, for what must not be among them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data
