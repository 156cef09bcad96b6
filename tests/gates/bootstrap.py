# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make the development environment: a virtual environment with exactly the packages of requirements-dev.txt.

It lies in ``venv-DIGEST`` of the cache, the digest being that of the list, and ``venv`` links to it, so changing the
list makes a new environment and going back finds the old one. Runs under any Python 3.8 without other packages.
"""
from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import List, Optional

from workspace import REPOSITORY, cache_root, venv

REQUIREMENTS = REPOSITORY / "requirements-dev.txt"
OLDEST, NEWEST = (3, 11), (3, 13)
READY = ".ready"


def main() -> int:
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    target = cache_root() / ("venv-%s" % digest)
    cache_root().mkdir(parents=True, exist_ok=True)
    if not (target / READY).is_file() and not _adopt(target):
        _make(target)
    _link(target)
    return 0


def _adopt(target: Path) -> bool:
    """Take an environment at ``venv`` that already holds the whole list, however it was made."""
    existing = venv()
    if existing.is_symlink() or not existing.is_dir() or target.exists():
        return False
    frozen = subprocess.run([str(existing / "bin" / "python"), "-m", "pip", "freeze"], check=False,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    if not set(pins()) <= {line.strip().lower() for line in frozen.splitlines()}:
        return False
    existing.rename(target)
    _link(target)
    (target / READY).touch()
    return True


def _make(target: Path) -> None:
    python = find_python()
    shutil.rmtree(target, ignore_errors=True)
    print("making %s with %s" % (target, python), flush=True)
    subprocess.run([python, "-m", "venv", str(target)], check=True)
    _install(target)
    (target / READY).touch()


def _install(target: Path) -> None:
    argv = [str(target / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check",
            "--requirement", str(REQUIREMENTS)]
    log = target.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        stop = threading.Event()
        narrator = threading.Thread(target=_narrate, args=(log, stop), daemon=True)
        narrator.start()
        code = process.wait()
        stop.set()
        narrator.join()
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise SystemExit("pip could not install requirements-dev.txt (%s):\n%s" % (log, tail))
    log.unlink()


def _narrate(log: Path, stop: threading.Event) -> None:
    started, wanted = time.monotonic(), len(pins())
    while not stop.wait(10):
        text = log.read_text(errors="replace")
        step = "installing them" if "Installing collected" in text else "reading package %d" % text.count("Collecting ")
        print("  %d packages: %s (%.0f s)" % (wanted, step, time.monotonic() - started), flush=True)


def _link(target: Path) -> None:
    link = venv()
    if link.is_symlink() and os.readlink(link) == target.name:
        return
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    fresh = link.with_name("venv.new-%d" % os.getpid())
    fresh.symlink_to(target.name)
    fresh.replace(link)


def pins() -> List[str]:
    lines = (line.strip() for line in REQUIREMENTS.read_text().splitlines())
    return [line.lower() for line in lines if line and not line.startswith("#")]


def find_python() -> str:
    """The running Python if the packages support it, else the newest that the machine has and they support."""
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return sys.executable
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        path = interpreter(minor)
        if path:
            return path
    raise SystemExit("No Python from %d.%d to %d.%d was found; this one is %d.%d. Install one, for example the Debian "
                     "package python3.11 or newer." % (*OLDEST, *NEWEST, *sys.version_info[:2]))


def interpreter(minor: int) -> Optional[str]:
    """A working Python 3.MINOR: one of pyenv's versions, since its programs on PATH may be shims, else one on PATH."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [str(path) for path in sorted(pyenv.glob("3.%d.*/bin/python3.%d" % (minor, minor)), reverse=True)]
    on_path = shutil.which("python3.%d" % minor)
    return next((path for path in [*candidates, *([on_path] if on_path else [])] if _runs(path)), None)


def _runs(path: str) -> bool:
    """Whether it can make virtual environments; a pyenv shim of a version that is not switched on cannot."""
    return subprocess.run([path, "-c", "import venv, ensurepip"], check=False, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
