"""Make the virtual environment: the first step of every `make` target. Uses the standard library only.

`python3 -m dashboard.demo.setup [--dev]` makes it when it is missing and installs the locked requirements
when they changed, so a second run takes a moment. `--print-venv` names its folder.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from glob import glob
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent.parent
OLDEST = (3, 11)
RUNTIME, DEV = "requirements.txt", "requirements-dev.txt"
THIS_VERSION = "{}.{}".format(*sys.version_info)

#: What tests need from Debian: where it shows that it is there -> package, and what is not tested without it.
TEST_PACKAGES = {
    "redis-server": ("redis-server", "the engine on Debian's Redis 7"),
    "chromium": ("chromium", "the pages in a browser"),
    "faketime": ("faketime", "schedulers whose clocks differ"),
    "/usr/lib/postgresql/*/bin/initdb": ("postgresql", "the record on PostgreSQL"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dev", action="store_true", help="also what tests and linters need")
    parser.add_argument("--print-venv", action="store_true", help="print the folder's name and do nothing")
    options = parser.parse_args()
    venv = venv_dir()
    if options.print_venv:
        print(os.path.relpath(venv, ROOT))
        return
    if sys.version_info < OLDEST:
        fail(f"Python {THIS_VERSION} is too old: 3.11 or newer is needed, as in PYTHON=python3.12 make …")
    (ROOT / "var").mkdir(mode=0o700, exist_ok=True)
    with open(ROOT / "var" / "setup.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two makes at once: the second finds it done
        make_venv(venv)
        install(venv, DEV if options.dev else RUNTIME)
        if options.dev:
            install_test_packages()


def venv_dir() -> Path:
    """Return `.venv`, or a folder of its own when that one works and belongs to another Python version."""
    default = ROOT / ".venv"
    return default if venv_version(default) in (None, THIS_VERSION) else ROOT / f".venv-{THIS_VERSION}"


def venv_version(venv: Path) -> str | None:
    """Return the Python version, as 3.11, of a virtual environment that works; else None."""
    try:
        asked = [str(venv / "bin" / "python"), "-c", "import sys; print('{}.{}'.format(*sys.version_info))"]
        told = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip()


def make_venv(venv: Path) -> None:
    """Make the environment with pip in it, unless a working one of this version is there."""
    if venv_version(venv) == THIS_VERSION and stamp_path(venv).exists():
        return
    if venv_version(venv) != THIS_VERSION:
        shutil.rmtree(venv, ignore_errors=True)
        say(f"Making {venv.name} with Python {THIS_VERSION}")
        run(
            [sys.executable, "-m", "venv", "--without-pip", str(venv)],
            "the virtual environment can't be made",
        )
    if has_pip(venv):
        return
    # Debian splits ensurepip off into python3-venv; pip may still be there as python3-pip.
    if not quietly([str(venv / "bin" / "python"), "-m", "ensurepip", "--upgrade"]):
        pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python")]
        if not quietly([*pip, "install", "--disable-pip-version-check", "pip"]):
            package = f"python{THIS_VERSION}-venv"
            if not (is_root_on_debian() and apt_install([package])):
                fail(
                    f"this Python has no ensurepip: run 'apt-get install {package}' as root, then make again"
                )
            run([str(venv / "bin" / "python"), "-m", "ensurepip", "--upgrade"], "pip can't be put into it")


def has_pip(venv: Path) -> bool:
    return quietly([str(venv / "bin" / "python"), "-m", "pip", "--version"])


def install(venv: Path, requirements: str) -> None:
    """Install one of the two locked files, unless the stamp says that this has been done."""
    wanted = {name: hashlib.sha256((ROOT / name).read_bytes()).hexdigest() for name in (RUNTIME, DEV)}
    stamp = stamp_path(venv)
    done = json.loads(stamp.read_text()) if stamp.exists() else {}
    if done.get("hashes") == wanted and done.get("installed") in (requirements, DEV):
        return
    if done.get("installed") == DEV:
        requirements = DEV  # keep what was there in step
    say(f"Installing {requirements} into {venv.name} (once; a minute or two)")
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    stamp.unlink(missing_ok=True)
    run(
        [*pip, "install", "--quiet", "--require-hashes", "--prefer-binary", "-r", str(ROOT / requirements)],
        "pip can't install the requirements: is a package index reachable? Then run make again",
    )
    stamp.write_text(json.dumps({"hashes": wanted, "installed": requirements}))


def install_test_packages() -> None:
    """Install what tests need from Debian when this is root there; else say what to install."""
    missing = {package: loss for sign, (package, loss) in TEST_PACKAGES.items() if not is_there(sign)}
    if not missing:
        return
    if is_root_on_debian():
        say(f"Installing {' and '.join(missing)} from Debian (once)")
        if apt_install(list(missing)):
            return
    for package, loss in missing.items():
        say(f"Not there: {package}, so not tested: {loss}. Run 'apt-get install {package}' as root")


def is_there(sign: str) -> bool:
    """Tell whether a command is on PATH, or a file of that pattern exists."""
    return bool(glob(sign)) if sign.startswith("/") else shutil.which(sign) is not None


def is_root_on_debian() -> bool:
    return os.geteuid() == 0 and Path("/etc/debian_version").exists() and shutil.which("apt-get") is not None


def apt_install(packages: list[str]) -> bool:
    # RUNLEVEL=1 keeps a package from starting its service: ours are started by whoever needs them.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    if not quietly(["apt-get", "update"], env):
        say("apt-get update failed; trying with the lists that are here")
    return quietly(["apt-get", "install", "--yes", "--no-install-recommends", *packages], env)


def stamp_path(venv: Path) -> Path:
    return venv / "queueops-installed.json"


def quietly(command: list[str], env: dict[str, str] | None = None) -> bool:
    """Run a command, its output dropped; tell whether it succeeded."""
    return (
        subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False
        ).returncode
        == 0
    )


def run(command: list[str], trouble: str) -> None:
    """Run a command; when it fails, show its last lines and `trouble`, and end."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        print("\n".join(done.stdout.strip().splitlines()[-15:]), file=sys.stderr)
        fail(trouble)


def say(line: str) -> None:
    print(line, flush=True)


def fail(line: str) -> NoReturn:
    sys.exit(f"Stopped: {line}")


if __name__ == "__main__":
    main()
