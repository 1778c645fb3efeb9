"""The processes of a worker as its supervisor holds them: forked from the zygote, watched, reaped."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import time
from dataclasses import dataclass, field

from queueops.errors import ConfigError
from queueops.policies import RetryPolicy
from queueops.worker.board import Board, Memory, Running
from queueops.worker.control import Control, Order
from queueops.worker.zygote import Start, Zygote

logger = logging.getLogger("queueops.worker")

#: A process that lives shorter than this is one more turn of a crash loop. Seconds.
SHORT_LIFE_S = 5.0
#: So many short lives in a row are followed by no pause: a poison job is rescued so often.
FREE_DEATHS = 4
#: So many names fit into one message.
QUEUES_A_MESSAGE = 1000
FIRST_PAUSE_S, LAST_PAUSE_S = 0.25, 15.0


@dataclass
class Process:
    """One living child."""

    name: str
    role: str
    pid: int
    pidfd: int
    control: Control
    board_index: int
    board: Board
    born: float
    #: Its queues in the order it was told them: a board names a queue by its place here.
    queues: list[str]
    #: Told to finish because a job in it must be ended: killed at this time at the latest, monotonic.
    kill_at: float = 0.0
    is_ending: bool = False
    is_killed: bool = False
    pinged: float = 0.0
    nudged: float = 0.0  # the alarm or flight for which its clock was taken

    def fileno(self) -> int:
        """The pidfd: readable when it has ended."""
        return self.pidfd

    def queue_of(self, running: Running) -> str | None:
        """The name of the queue of a job on its board."""
        return self.queues[running.queue] if running.queue < len(self.queues) else None

    def tell_queues(self, queues: list[str]) -> None:
        """Tell it queues that it shall serve too."""
        for first in range(0, len(queues), QUEUES_A_MESSAGE):
            self.control.send({"queues": queues[first : first + QUEUES_A_MESSAGE]})

    def is_stuck(self, now: float) -> bool:
        """Whether it has not answered its last ping within a second."""
        return self.board.last_turn() < self.pinged < now - 1.0

    def kill(self) -> None:
        """End it at once; its jobs are not to blame."""
        self.is_killed = True
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass


@dataclass
class Post:
    """A place to be filled: when one dies, another is forked, later each time it dies young."""

    role: str
    name: str | None  # None: numbered anew for each process
    holder: Process | None = None
    fork_at: float = 0.0
    deaths: int = 0

    def vacated(self, lived_s: float, now: float) -> None:
        """Plan the successor."""
        self.holder = None
        self.deaths = self.deaths + 1 if lived_s < SHORT_LIFE_S else 0
        over = self.deaths - FREE_DEATHS
        self.fork_at = now if over <= 0 else now + min(LAST_PAUSE_S, FIRST_PAUSE_S * 2 ** (over - 1))


@dataclass
class Ended:
    """A process that is gone: what it was and how it ended."""

    process: Process
    why: str  # "SIGKILL", "exit 3", "exit 0"
    is_clean: bool


def how_it_ended(status: int) -> tuple[str, bool]:
    """A wait status in words, and whether it was a clean exit."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return signal.Signals(number).name, False
        except ValueError:
            return f"signal {number}", False
    code = os.waitstatus_to_exitcode(status)
    return f"exit {code}", code == 0


@dataclass
class Nursery:
    """Forks and reaps. Names are never used twice, but for the probation child's and the housekeeper's."""

    worker: str
    slots: int
    memory: Memory
    start: Start
    posts: list[Post]
    executor: str = "threads"
    zygote: Zygote | None = None
    _free_boards: list[int] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self._free_boards = list(range(len(self.posts)))

    @property
    def living(self) -> list[Process]:
        """Every process that runs, the housekeeper too."""
        return [post.holder for post in self.posts if post.holder is not None]

    def awaken(self, supervisor_fds: list[int]) -> None:
        """Start the zygote. Raises ConfigError when the handlers can't be loaded."""

        def close_inherited() -> None:
            for fd in supervisor_fds:
                os.close(fd)
            for process in self.living:
                process.control.close()
                os.close(process.pidfd)

        self.zygote = Zygote(self.start, close_inherited)
        if error := self.zygote.wait_until_loaded():
            self.zygote.end()
            self.zygote = None
            raise ConfigError(error)

    def declared_policy(self, handler: str) -> str | RetryPolicy | None:
        """The policy that a handler's code declares, as the zygote knows it."""
        return None if self.zygote is None else self.zygote.declared_policy(handler)

    def next_name(self, post: Post) -> str:
        """The name of the post's next process."""
        return f"{self.worker}/{post.name or next(self._numbers)}"

    def fork(self, post: Post, name: str, queues: list[str]) -> Process | None:
        """Fill a post; None when the zygote has gone."""
        if self.zygote is None:
            return None
        index = self._free_boards.pop()
        board = self.memory.board(index)
        board.clear()
        here, there = Control.pair()
        order = Order(name, post.role, index, self.slots, tuple(queues), os.getpid(), self.executor)
        pid = self.zygote.fork(order, there)
        there.close()
        if pid is None:
            here.close()
            self._free_boards.append(index)
            return None
        born = time.monotonic()
        post.holder = Process(
            name, post.role, pid, os.pidfd_open(pid), here, index, board, born, list(queues)
        )
        post.holder.tell_queues(queues[QUEUES_A_MESSAGE:])
        return post.holder

    def reap(self, process: Process) -> Ended | None:
        """Take the status of a process that ended; None when it still lives. Its board stays readable
        until the next fork."""
        found, status = os.waitpid(process.pid, os.WNOHANG)
        if not found:
            return None
        why, is_clean = how_it_ended(status)
        os.close(process.pidfd)
        process.control.close()
        self._free_boards.append(process.board_index)
        now = time.monotonic()
        for post in self.posts:
            if post.holder is process:
                post.vacated(now - process.born, now)
        return Ended(process, why, is_clean)

    def reap_strangers(self) -> None:
        """Take the status of orphans that fell to this subreaper: what handlers had started."""
        own = {process.pid for process in self.living}
        if self.zygote is not None:
            own.add(self.zygote.pid)
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if info is None or info.si_pid in own:
                return  # an own one is first in line: it is reaped by its pidfd, the rest next time
            os.waitpid(info.si_pid, 0)
