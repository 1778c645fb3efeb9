"""`make demo` and `make run`: start everything, say where it is, and end everything on Ctrl-C."""

import argparse
import fcntl
import os
import socket
import sys
import time
from pathlib import Path
from typing import IO
from urllib.error import URLError
from urllib.request import urlopen

import django
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import RedisError

try:
    from dashboard import settings as site
except ImproperlyConfigured as error:
    sys.exit(f"QueueOps is not configured: {error}")

from dashboard.demo import prepare
from dashboard.demo.supervise import Child, Ended, RedisChild, Supervisor
from queueops.connection import Connection, masked
from queueops.errors import QueueOpsError
from queueops.local_redis import LocalServer, NoServer, find_binary, free_port

PORT = 8000  # when it is free and no other was asked for
READY_S = 60.0
GRACE_S = 5  # for running jobs, when Ctrl-C ends the workers

STARTED = time.monotonic()


def main() -> int:
    options = _options()
    site.VAR_DIR.mkdir(mode=0o700, exist_ok=True)
    lock = _lock()
    if lock is None:
        say(f"Stopped: already running from this folder: {(site.VAR_DIR / 'running').read_text().strip()}")
        return 1
    supervisor = Supervisor(say)
    try:
        _run(supervisor, options, lock)
    except Ended:
        say("")
        say("Stopping workers, web and Redis")
        return 0
    except (NoServer, ChildProcessError, OSError) as error:
        say(f"Stopped: {error}")
        return 1
    finally:
        supervisor.stop()
        (site.VAR_DIR / "redis-url").unlink(missing_ok=True)
    return 1


def say(line: str) -> None:
    print(line, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dashboard.demo", description=__doc__)
    parser.add_argument("--no-sample", action="store_true", help="only web and workers")
    parser.add_argument("--port", type=int, help=f"of the web server; else {PORT}, or a free one")
    parser.add_argument("--processes", type=int, default=2, help="worker processes")
    return parser.parse_args()


def _lock() -> IO[str] | None:
    """Make sure that only one of us runs in this checkout. Ends with the process, however that ends."""
    lock = open(site.VAR_DIR / "running", "a+")  # noqa: SIM115  (held open until the process ends)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _run(supervisor: Supervisor, options: argparse.Namespace, lock: IO[str]) -> None:
    port = _web_port(options.port)
    url = f"http://127.0.0.1:{port}/"
    lock.truncate(0)
    lock.write(f"process {os.getpid()}, {url}\n")
    lock.flush()
    redis_url = _start_redis(supervisor)
    env = site.environment(
        DJANGO_SETTINGS_MODULE="dashboard.settings",
        REDIS_URL=redis_url,
        SECRET_KEY=site.SECRET_KEY,
        PYTHONUNBUFFERED="1",
    )
    if not options.no_sample:
        env |= _start_api(supervisor, env)
    logs = site.VAR_DIR / "log"
    python = sys.executable
    if prepare.has_static():
        supervisor.start(_web(port, env, logs))  # it starts while the database is looked at
        login = _prepare()
    else:
        login = _prepare()
        prepare.collect_static()
        say("Static files: collected")
        supervisor.start(_web(port, env, logs))
    if not supervisor.wait(lambda: _answers(f"{url}readyz"), READY_S):
        raise ChildProcessError(f"the web server does not answer at {url}; its log is {logs / 'web.log'}")
    workers = [python, str(site.BASE_DIR / "manage.py"), "runworkers"]
    workers += ["--processes", str(options.processes), "--grace", str(GRACE_S)]
    supervisor.start(Child("workers", workers, env, logs / "workers.log", grace_s=GRACE_S + 5))
    if not options.no_sample:
        supervisor.start(
            Child("traffic", [python, "-m", "dashboard.demo.traffic"], env, logs / "traffic.log")
        )
    seconds = time.monotonic() - STARTED
    say(f"Ready after {seconds:.1f} s. Logs are in {os.path.relpath(logs)}; Ctrl-C stops everything")
    say("")
    say(f"  {url}")
    say(f"  log in as {login[0]} with {login[1]}" if login else "  log in with your own account")
    say("")
    supervisor.wait()


def _start_redis(supervisor: Supervisor) -> str:
    """Return the URL of the Redis to use; start one unless REDIS_URL names it."""
    if site.GIVEN_REDIS_URL:
        shown = masked(site.GIVEN_REDIS_URL)
        try:
            version = Connection(site.GIVEN_REDIS_URL).major
        except RedisError as error:
            raise NoServer(f"no Redis at {shown}: {error}. Start it, or unset REDIS_URL") from error
        except QueueOpsError as error:
            raise NoServer(str(error)) from error
        say(f"Redis: {shown}, from REDIS_URL, version {version}")
        return site.GIVEN_REDIS_URL
    binary = find_binary()
    server = LocalServer(site.VAR_DIR / binary.data_name, binary=binary)
    supervisor.start(RedisChild(server))
    (site.VAR_DIR / "redis-url").write_text(server.url + "\n")  # for manage.py in another terminal
    where = os.path.relpath(server.data_dir)
    say(f"Redis: {binary.kind} {binary.version} on port {server.port}, append-only file in {where}")
    return server.url


def _web(port: int, env: dict[str, str], logs: Path) -> Child:
    command = [sys.executable, "-m", "uvicorn", "dashboard.asgi:application", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--lifespan", "off", "--no-access-log", "--no-server-header"]
    command += ["--ws-max-size", "4096", "--timeout-graceful-shutdown", "2"]
    return Child("web", command, env, logs / "web.log")


def _prepare() -> tuple[str, str] | None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    django.setup()
    engine = site.DATABASES["default"]["ENGINE"].rpartition(".")[2]
    say(f"Database: {engine}, {'brought up to date' if prepare.migrate() else 'up to date'}")
    return prepare.login()


def _start_api(supervisor: Supervisor, env: dict[str, str]) -> dict[str, str]:
    """Start the API that the sample's jobs call; return what its handlers need to know."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "dashboard.demo.flaky_api:app", "--host", "127.0.0.1"]
    command += [
        "--port",
        str(port),
        "--lifespan",
        "off",
        "--no-access-log",
        "--timeout-graceful-shutdown",
        "1",
    ]
    supervisor.start(Child("api", command, env, site.VAR_DIR / "log" / "api.log"))
    say(f"Sample: a flaky API on port {port}, and jobs that call it")
    handlers = [env.get("QUEUEOPS_HANDLERS", ""), "dashboard.demo.tasks"]
    return {
        "DEMO_API_URL": f"http://127.0.0.1:{port}",
        "QUEUEOPS_HANDLERS": ",".join(filter(None, handlers)),
        "QUEUEOPS_WEBHOOK_ALLOW_PRIVATE": "1",  # the API is on loopback
    }


def _web_port(wanted: int | None) -> int:
    """Return the port for the web server. Raises OSError when the one asked for is taken."""
    for port in [wanted] if wanted else [PORT, free_port()]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                if wanted:
                    raise OSError(f"port {port} is in use: choose another with PORT=… make demo") from None
    raise OSError("no free port")


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=3) as response:  # noqa: S310  (our own http:// address)
            return bool(response.status == 200)
    except (URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(main())
