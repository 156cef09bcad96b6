# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What ansible-playbook shows of a step that takes long, and that nothing depends on whether it can.

Module, engine and action plugin are the real ones; the capability is one of two steps, of which the second lasts until
a test lets it end. A host is a directory of this machine: the shell that Ansible runs there sees it as /run, /var/lib
and /var/cache.
"""
from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence

import pytest
from controller import Controller
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.progress import PATH
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.waiting import wait_for

LIMIT_SECONDS = 120
# In place of the main function of a module
MAIN = '''
from __future__ import annotations
from dataclasses import asdict, dataclass
from ..core.capability import Capability
from ..core.facts import HostFacts
from ..core.module import run_writer
from ..core.plan import Plan, Step
from ..core.waiting import wait_for
from ..nouveau.policy import ARGUMENTS

FIRST, SECOND = "/run/first", "/run/second"

@dataclass(frozen=True)
class Seen:
    first: bool
    second: bool
    def to_dict(self):
        return asdict(self)

def observe(host, journal, policy, facts):
    return Seen(host.exists(FIRST), host.exists(SECOND))

def plan(seen, policy, facts):
    steps = [] if seen.first else [Step("nouveau", "quick.write", FIRST, "It is not there.")]
    if not seen.second:
        steps.append(Step("nouveau", "slow.write", SECOND, "It is not there."))
    return Plan(steps=tuple(steps))

def quick(host, journal, step):
    host.write(step.subject, "")

def slow(host, journal, step):
    host.write("/var/lib/dkms/nvidia/580.178.04/build/make.log",
               "DKMS make.log for nvidia-580.178.04 for kernel 6.1.0-56-amd64 (x86_64)\\\\n")
    host.write("/run/waits", "")
    wait_for(lambda: host.exists("/run/go"), bool, 120, 0.1)
    quick(host, journal, step)

def main():
    run_writer(Capability("nouveau", ARGUMENTS, dict, observe, plan, {"quick.write": quick, "slow.write": slow}),
               lambda host, capability: HostFacts(hostname="host"))
'''
# Where a question for the progress is noted, what comes of it, and the way into the host's directories
SHELL = """#!/bin/sh
case "$2" in *gpuops-progress*) echo >>'%s'; %s;; esac
exec %s sh -c '%s && exec sh "$@"' sh "$@"
"""
TASK = {"gpuops.nvidia.nouveau": {"progress_interval": 1}}


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection with that capability behind one of its modules."""
    root = tmp_path_factory.mktemp("progress")
    home = root / "ansible_collections" / "gpuops" / "nvidia"
    shutil.copytree(REPOSITORY / "plugins", home / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("meta", "roles", "galaxy.yml"):
        (home / name).symlink_to(REPOSITORY / name)
    (home / "plugins/module_utils/mains/nouveau.py").write_text(MAIN.replace("\\\\n", "\\n"))
    return root


class Hosts:
    """Directories that the shells of hosts see as their own, and a play on them that is at work."""

    def __init__(self, controller: Controller, collections: Path) -> None:
        self.controller, self.collections = controller, collections
        self.directory = controller.directory / "hosts"
        self.shells = controller.directory / "shells"
        self.shells.mkdir()
        self.lines: List[str] = []
        self.more = threading.Condition()

    def root(self, host: str) -> Path:
        return self.directory / host

    def add(self, host: str, when_asked: str = "") -> None:
        """when_asked: what the host's shell does with a question for the progress, before it answers."""
        private = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        if subprocess.run([*private, "mount", "-t", "tmpfs", "tmpfs", "/run"], check=False).returncode:
            pytest.skip("needs a mount namespace of its own")
        mounts = []
        for name in ("run", "var/lib", "var/cache"):
            (self.root(host) / name).mkdir(parents=True)
            mounts.append("mount --bind '%s' '/%s'" % (self.root(host) / name, name))
        shell = self.shells / host
        shell.write_text(SHELL % (self.root(host) / "asked", when_asked or ":", " ".join(private),
                                  " && ".join(mounts).replace("'", "'\\''")))
        shell.chmod(0o755)

    def asked(self, host: str) -> bool:
        return (self.root(host) / "asked").exists()

    def go(self, host: str) -> None:
        (self.root(host) / "run/go").write_text("")

    def start(
        self, hosts: Sequence[str], *options: str, task: Mapping[str, Any] = TASK, strategy: str = "linear",
        environment: Optional[Mapping[str, str]] = None, **variables: Any
    ) -> "subprocess.Popen[str]":
        path = self.controller.directory / "play.json"
        path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "strategy": strategy, "tasks": [task]}]))
        process = self.controller.start(
            str(path), *options, hosts=hosts, variables={
                "ansible_shell_executable": "%s/{{ inventory_hostname }}" % self.shells, **variables},
            environment={"ANSIBLE_COLLECTIONS_PATH": str(self.collections), **(environment or {})})
        threading.Thread(target=self._read, args=(process.stderr,), daemon=True).start()
        return process

    def _read(self, stderr: Any) -> None:
        for line in stderr:
            with self.more:
                self.lines.append(line.rstrip("\n"))
                self.more.notify_all()

    def told(self, words: str) -> str:
        """A line of the standard error with these words, once it is there."""
        with self.more:
            assert self.more.wait_for(lambda: any(words in line for line in self.lines), LIMIT_SECONDS), self.lines
            return next(line for line in self.lines if words in line)

    def ended(self, process: "subprocess.Popen[str]") -> str:
        """The standard output, once the play is over."""
        assert process.stdout is not None
        limit = threading.Timer(LIMIT_SECONDS, process.kill)
        limit.start()
        stdout = process.stdout.read()
        process.wait()
        limit.cancel()
        assert process.returncode != -signal.SIGKILL, "it did not end by itself"
        return stdout


@pytest.fixture
def hosts(controller: Controller, collections: Path) -> Iterator[Hosts]:
    made = Hosts(controller, collections)
    yield made
    for path in made.directory.iterdir():
        made.go(path.name)


def at(host: str) -> str:
    return "%s: step 2 of 2, slow.write /run/second, for " % host


BUILDS = ": building nvidia-580.178.04 for kernel 6.1.0-56-amd64"


def test_a_step_that_takes_long_is_told_with_its_number_its_time_and_what_it_builds(hosts: Hosts) -> None:
    hosts.add("gpu-1")
    process = hosts.start(["gpu-1"])
    # Before it has begun to build, the step is told without
    line = hosts.told(BUILDS)
    assert line.startswith(at("gpu-1")) and line.endswith(" s" + BUILDS) and "\x1b" not in line
    assert (hosts.root("gpu-1") / PATH.lstrip("/")).exists()
    hosts.go("gpu-1")
    stdout = hosts.ended(process)
    assert process.returncode == 0 and "changed=1" in stdout, stdout
    assert at("gpu-1") not in stdout
    assert not (hosts.root("gpu-1") / PATH.lstrip("/")).exists()


def test_of_a_task_that_is_quick_nothing_is_told_or_asked(hosts: Hosts) -> None:
    hosts.add("gpu-1")
    hosts.go("gpu-1")
    process = hosts.start(["gpu-1"], task={"gpuops.nvidia.nouveau": {"progress_interval": 600}})
    assert "changed=1" in hosts.ended(process)
    assert not hosts.asked("gpu-1") and not [line for line in hosts.lines if "step" in line]


@pytest.mark.parametrize("how", ["no line is wanted", "check mode", "no_log", "the output is data"])
def test_nobody_is_asked_where_nothing_is_to_be_shown(hosts: Hosts, how: str) -> None:
    hosts.add("gpu-1")
    task = dict(TASK, **({"no_log": True} if how == "no_log" else {}))
    environment = {"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"} if how == "the output is data" else {}
    if how == "no line is wanted":
        task = {"gpuops.nvidia.nouveau": {"progress_interval": 0}}
    process = hosts.start(["gpu-1"], *(["--check"] if how == "check mode" else []), task=task, environment=environment)
    if how != "check mode":
        # Longer than the interval, so that a question would have been asked
        waits = hosts.root("gpu-1") / "run/waits"
        assert eventually(waits.exists)
        threading.Event().wait(2.5)
        hosts.go("gpu-1")
    stdout = hosts.ended(process)
    assert process.returncode == 0, stdout
    assert not hosts.asked("gpu-1") and not [line for line in hosts.lines if "step" in line]
    if how == "the output is data":
        assert json.loads(stdout)["stats"]["gpu-1"]["changed"] == 1


@pytest.mark.variation
@pytest.mark.parametrize("when_asked", ["exit 1", "kill -9 $$", "while [ ! -e %s ]; do sleep 0.1; done",
                                        "head -c 3000000 /dev/urandom; exit 0"])
def test_a_second_connection_that_fails_or_hangs_harms_nothing(hosts: Hosts, when_asked: str) -> None:
    over = hosts.controller.directory / "over"
    hosts.add("gpu-1", when_asked.replace("%s", str(over)))
    process = hosts.start(["gpu-1"])
    assert eventually(lambda: hosts.asked("gpu-1"))
    hosts.go("gpu-1")
    try:
        stdout = hosts.ended(process)
    finally:
        over.write_text("")
    assert process.returncode == 0 and "changed=1" in stdout, stdout
    assert not [line for line in hosts.lines if "step" in line]


def test_each_of_many_hosts_is_told_of_by_its_name(hosts: Hosts) -> None:
    names = ["gpu-1", "gpu-2", "gpu-3"]
    for name in names:
        hosts.add(name)
    process = hosts.start(names, "--forks", "3", strategy="free")
    for name in names:
        hosts.told(at(name))
        hosts.go(name)
    assert hosts.ended(process).count("changed=1") == 3


def test_an_interrupted_play_ends_and_the_host_goes_on(hosts: Hosts) -> None:
    hosts.add("gpu-1")
    process = hosts.start(["gpu-1"])
    hosts.told(at("gpu-1"))
    # A worker that is killed while it sends a line keeps the lock of Ansible's queue, and the play waits for it without
    # end (ansible-core, strategy's cleanup()): this one has come, and the next is a second away
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    hosts.ended(process)
    assert process.returncode != 0
    hosts.go("gpu-1")


@pytest.mark.variation
def test_a_task_that_ran_into_its_time_limit_has_said_what_the_host_was_at(hosts: Hosts) -> None:
    hosts.add("gpu-1")
    process = hosts.start(["gpu-1"], task=dict(TASK, timeout=15))
    line = hosts.told("seen last")
    assert line.startswith(at("gpu-1")) and line.endswith(BUILDS + " (seen last; the task was interrupted)")
    assert "failed=1" in hosts.ended(process)


@pytest.mark.parametrize("given", ["soon", -1, "1.5"])
def test_an_interval_that_is_none_is_refused_before_the_host_is_asked(controller: Controller, given: Any) -> None:
    [[told]] = controller.tasks([{"gpuops.nvidia.nouveau": {"progress_interval": given}}],
                                variables={"ansible_connection": "ssh", "ansible_host": "192.0.2.1"},
                                environment={"ANSIBLE_TIMEOUT": "1"})
    assert told["failed"] and told["code"] == "variables.no_interval" and str(given) in told["msg"]


def eventually(judge: Callable[[], bool]) -> bool:
    return bool(wait_for(judge, bool, LIMIT_SECONDS, 0.1)[1])
