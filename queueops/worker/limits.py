"""Soft time limits of plain handlers: an exception raised inside the thread that runs one."""

from __future__ import annotations

import ctypes
import heapq
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from queueops.errors import SoftTimeLimit


class _Watch:
    """One handler under a soft limit. The lock decides whether it ended or the exception was sent."""

    def __init__(self, thread_id: int, error: type[Exception]) -> None:
        self.thread_id = thread_id
        self.error = error
        self.lock = threading.Lock()
        self.is_over = False
        self.was_sent = False


class SoftLimits:
    """One thread, started at the first limit, that sends an exception to handlers that run too long.

    Python raises it between two bytecodes: not inside a C call (a socket read without a time-out of its own).
    For that there is the hard limit.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, _Watch]] = []
        self._count = itertools.count()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, limit_s: float, error: type[Exception] = SoftTimeLimit) -> Iterator[None]:
        """Limit the block, on this thread, to `limit_s` seconds; then `error` is raised in it."""
        watch = _Watch(threading.get_ident(), error)
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + limit_s, next(self._count), watch))
            if self._thread is None:
                self._thread = threading.Thread(target=self._send, name="soft-limits", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            yield
        finally:
            with watch.lock:
                watch.is_over = True
            if watch.was_sent:
                # Sent, and perhaps not raised yet: it must not hit what this thread does next.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(watch.thread_id), None)

    def _send(self) -> None:
        while True:
            with self._changed:
                while not self._due or (left := self._due[0][0] - time.monotonic()) > 0:
                    self._changed.wait(left if self._due else None)
                watch = heapq.heappop(self._due)[2]
            with watch.lock:
                if not watch.is_over:
                    watch.was_sent = True
                    exception = ctypes.py_object(watch.error)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(watch.thread_id), exception)
