"""The zygote: a process that has loaded everything and runs nothing, from which children are forked.

It has no threads, no Redis and no database connection, so a fork of it is clean and quick. A child is
forked twice, so that it becomes the supervisor's own (which is a subreaper): it outlives the zygote,
and its end is told to the supervisor with its exit status.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from django.db import connections

from queueops.errors import QueueOpsError
from queueops.handlers import get_handler, handler_names
from queueops.policies import RetryPolicy
from queueops.worker.control import Control, Order

logger = logging.getLogger("queueops.worker")

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_libc = ctypes.CDLL(None, use_errno=True)

#: How long a fork or the loading of the handlers may take before the zygote counts as stuck. Seconds.
FORK_S, LOAD_S = 30.0, 120.0

Start = Callable[[Order, Control], NoReturn]


def become_subreaper(on: bool) -> None:
    """Make this process the parent of orphans among its descendants, or stop it."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def name_process(role: str) -> None:
    """Say in `ps -o comm` and `top` what this process is; 15 characters are kept."""
    _libc.prctl(_PR_SET_NAME, f"qo-{role}".encode(), 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies; at once when it is dead already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Zygote:
    """The supervisor's side: the process, and forks of it on demand."""

    def __init__(self, start: Start, inherited: Callable[[], None]) -> None:
        """`start` is what a child runs; `inherited` closes what the supervisor has open."""
        here, there = Control.pair()
        self.control = here
        parent = os.getpid()
        connections.close_all()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                here.close()
                inherited()
                _run_zygote(there, parent, start)
                code = 0
            except BaseException:
                logger.exception("the zygote ends: an error that was not foreseen")
            finally:
                os._exit(code)
        there.close()
        self.pidfd = os.pidfd_open(self.pid)

    def wait_until_loaded(self) -> str | None:
        """Wait for the handlers to be loaded; what is wrong with them, or None."""
        message = self._answer(LOAD_S)
        return "its process ended" if message is None else message.get("error")

    def fork(self, order: Order, control: Control) -> int | None:
        """Fork one child, which gets `control`; its process id, or None when the zygote is gone."""
        if not self.control.send(order.to_message(), passing=control):
            return None
        message = self._answer(FORK_S)
        return None if message is None else int(message["pid"])

    def declared_policy(self, handler: str) -> str | RetryPolicy | None:
        """The policy that a handler's code declares; None also when the zygote is gone."""
        if not self.control.send({"handler": handler}):
            return None
        told = (self._answer(FORK_S) or {}).get("policy")
        return RetryPolicy.from_json(told) if isinstance(told, dict) else told

    def _answer(self, timeout: float) -> dict[str, Any] | None:
        if not select.select([self.control], [], [], timeout)[0]:
            return None
        return self.control.receive()

    def end(self) -> None:
        """Kill it; its children stay."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.reap()

    def reap(self) -> None:
        """Take its exit status and close what belonged to it."""
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass
        os.close(self.pidfd)
        self.control.close()


def _run_zygote(control: Control, parent: int, start: Start) -> None:
    die_with_parent(parent)
    name_process("zygote")
    signal.set_wakeup_fd(-1)
    # The supervisor says when to stop; a terminal's Ctrl-C reaches every process of the group.
    # Not SIG_IGN, which programs that handlers start would inherit.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave_it_to_the_supervisor)
    try:
        for name in handler_names():  # loads them all
            get_handler(name)  # and does here what a library does at a task's first use
    except QueueOpsError as error:
        control.send({"error": str(error)})
        return
    connections.close_all()
    if (threads := threading.active_count()) > 1:
        names = ", ".join(thread.name for thread in threading.enumerate()[1:])
        logger.warning(
            "loading the handlers started %d threads (%s): children will not have them", threads - 1, names
        )
    gc.collect()
    gc.freeze()  # so that a collection in a child does not copy every page
    control.send({"loaded": True})
    while (received := control.receive_passed()) is not None:
        message, passed = received
        if passed is None:
            control.send({"policy": _declared_policy(message["handler"])})
            continue
        pid = _fork_twice(Order.from_message(message), control, passed, start)
        passed.close()
        control.send({"pid": pid})


def _leave_it_to_the_supervisor(_number: int, _frame: FrameType | None) -> None:
    pass


def _declared_policy(name: str) -> str | dict[str, Any] | None:
    handler = get_handler(name)
    policy = None if handler is None else handler.policy
    return json.loads(policy.to_json()) if isinstance(policy, RetryPolicy) else policy


def _fork_twice(order: Order, own: Control, control: Control, start: Start) -> int:
    reading, writing = os.pipe()
    middle = os.fork()
    if middle == 0:
        child = os.fork()
        if child:
            os.write(writing, str(child).encode())
            os._exit(0)
        try:
            os.close(reading)
            os.close(writing)
            own.close()
            deadline = time.monotonic() + FORK_S
            while os.getppid() != order.supervisor and time.monotonic() < deadline:
                time.sleep(0.0001)  # the process between has not ended yet
            die_with_parent(order.supervisor)
            name_process(order.child.rpartition("/")[2])
            start(order, control)
        finally:
            os._exit(1)
    os.close(writing)
    pid = int(os.read(reading, 20))
    os.close(reading)
    os.waitpid(middle, 0)
    return pid
