"""The ground of a benchmark: a private server, workers, the files that jobs count themselves in, figures."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis

from queueops.local_redis import LocalServer, find_binary

ROOT = Path(__file__).resolve().parent.parent
#: About 200 bytes of JSON, as in a webhook.
PAYLOAD = {
    "customer": "c-000001", "event": "invoice.paid", "amount": "129.90", "currency": "EUR",
    "url": "https://hooks.partner.example/v2/invoices/0000000001", "note": "x" * 48,
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """One line of the result. `ratio` is to the bare client of the same run; `bar` is what it must hold."""

    name: str
    value: float
    unit: str
    ratio: float | None = None
    bar: str = ""

    def line(self) -> str:
        """The figure as one line of a table."""
        ratio = f"{self.ratio:8.2f}" if self.ratio is not None else " " * 8
        return f"  {self.name:<46} {self.value:>12,.1f} {self.unit:<10} {ratio}  {self.bar}"


@dataclass
class Run:
    """One run: the server, the folder, the figures so far, and the bare rates they are compared with."""

    server: LocalServer
    folder: Path
    scale: float = 1.0  # 1.0 is the full size
    figures: list[Figure] = field(default_factory=list)
    bare: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, value: float, unit: str, *, bare: str = "", bar: str = "") -> None:
        """Record and print a figure; `bare` names the bare rate it is compared with."""
        ratio = value / self.bare[bare] if bare in self.bare else None
        figure = Figure(name, value, unit, ratio, bar)
        self.figures.append(figure)
        print(figure.line(), flush=True)

    def n(self, full: int) -> int:
        """A number of jobs, scaled."""
        return max(200, int(full * self.scale))

    @property
    def client(self) -> redis.Redis:
        """A plain client of the run's server."""
        return self.server.client()

    def flush(self) -> None:
        """Forget everything: the server's data and the files of counts."""
        self.client.flushall()
        for name in ("done", "late", "slots", "starts", "pid"):
            (self.folder / name).unlink(missing_ok=True)

    def noted(self, name: str) -> list[float]:
        """The numbers that jobs noted in a file."""
        try:
            data = (self.folder / name).read_bytes()
        except FileNotFoundError:
            return []
        return [value for (value,) in struct.iter_unpack("<d", data[: len(data) // 8 * 8])]

    def count(self, name: str) -> int:
        """How many numbers jobs noted, by the size of the file."""
        try:
            return (self.folder / name).stat().st_size // 8
        except FileNotFoundError:
            return 0

    @contextmanager
    def workers(
        self, *arguments: str, count: int = 1, housekeeping: bool = False, **environment: str
    ) -> Iterator[list[subprocess.Popen[bytes]]]:
        """`count` trees of `manage.py runworkers` with these arguments; stopped at the end."""
        command = [sys.executable, str(ROOT / "manage.py"), "runworkers", *arguments]
        command += [] if housekeeping else ["--no-housekeeping"]
        log = (self.folder / "workers.log").open("ab")
        processes = [
            subprocess.Popen(
                command, env={**os.environ, **environment}, stdout=log, stderr=log, start_new_session=True
            )
            for _ in range(count)
        ]
        try:
            yield processes
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    kill_tree(process.pid)
                    process.wait()
            log.close()

    def wait_ready(self, processes: int, *, within_s: float = 30) -> None:
        """Wait until so many children are registered on the queue."""
        key = "queueops:{default}:children"
        wait_until(lambda: int(self.client.zcard(key)) >= processes, within_s, "the workers did not register")


def wait_until(condition: Callable[[], bool], within_s: float, what: str) -> None:
    """Wait for a condition. Raises TimeoutError saying `what`."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.005)


def tree_of(pid: int) -> list[int]:
    """A process and all its descendants."""
    import psutil

    process = psutil.Process(pid)
    return [pid, *(child.pid for child in process.children(recursive=True))]


def kill_tree(pid: int) -> None:
    """Kill −9 a process and all its descendants, as a lost host would."""
    for member in tree_of(pid):
        try:
            os.kill(member, signal.SIGKILL)
        except ProcessLookupError:
            continue


def quantile(values: Sequence[float], q: float) -> float:
    """The `q` quantile of values by rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def median_of(rounds: int, measure: Callable[[], float]) -> float:
    """The median of a few rounds."""
    return statistics.median(measure() for _ in range(rounds))


@contextmanager
def open_run(*, kind: str | None = None, scale: float = 1.0) -> Iterator[Run]:
    """A run with a private server without persistence and a migrated SQLite, in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="queueops-bench-"))
    binary = find_binary(kind)  # type: ignore[arg-type]
    server = LocalServer(folder / "redis", binary=binary, options={"appendonly": "no", "save": ""})
    try:
        server.start()
        os.environ.update(
            ENV_FILE=os.devnull,
            DJANGO_SETTINGS_MODULE="dashboard.settings",
            SECRET_KEY="only-for-benchmarks",
            REDIS_URL=server.url,
            DATABASE_URL=f"sqlite:///{folder}/db.sqlite3",
            STATIC_MANIFEST="0",
            QUEUEOPS_HANDLERS="bench.handlers",
            BENCH_DIR=str(folder),
        )
        subprocess.run([sys.executable, str(ROOT / "manage.py"), "migrate", "-v0"], check=True)
        import django

        django.setup()
        yield Run(server, folder, scale)
    except BaseException:
        log = folder / "workers.log"
        print(log.read_text()[-4000:] if log.exists() else "no worker ran", file=sys.stderr)
        raise
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def machine() -> str:
    """What this ran on, in one line."""
    with Path("/proc/cpuinfo").open() as info:
        model = next(
            (line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "unknown"
        )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, Python {sys.version.split()[0]}"


def versions() -> str:
    """The versions that matter, in one line."""
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("redis", "hiredis", "django", "celery"))


def as_json(figures: Sequence[Figure]) -> str:
    """The figures as JSON."""
    return json.dumps([figure.__dict__ for figure in figures], indent=1)
