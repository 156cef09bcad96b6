# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ansible-playbook as a user runs it: in a directory of theirs, with an inventory, on this very machine.

Only modules that read are run here; what changes hosts has hosts of its own (tests/integration).
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import ready_ansible
from workspace import REPOSITORY, collections_root

Result = Dict[str, Any]
# What the playbooks ask more than once
VARIABLES = REPOSITORY / "playbooks" / "roles" / "gpu" / "vars" / "main.yml"
LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}


class Controller:
    """A directory to start ansible-playbook in, and what it was told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # The same for all tests of a worker, as what is at the ready was started with it
        self.home = directory.parent / "home"
        self.home.mkdir(exist_ok=True)
        self.here = directory / "here"
        self.here.mkdir()
        self.told = ""

    def play(
        self, playbook: str, *options: str, hosts: Sequence[str] = ("host-1",),
        variables: Optional[Mapping[str, Any]] = None, environment: Optional[Mapping[str, str]] = None,
        groups: Optional[Mapping[str, Sequence[str]]] = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a playbook; variables are those of the group 'all', as an inventory has them."""
        process = self.start(playbook, *options, hosts=hosts, variables=variables, environment=environment,
                             groups=groups)
        try:
            stdout, stderr = process.communicate(timeout=300)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def start(
        self, playbook: str, *options: str, hosts: Sequence[str] = ("host-1",),
        variables: Optional[Mapping[str, Any]] = None, environment: Optional[Mapping[str, str]] = None,
        groups: Optional[Mapping[str, Sequence[str]]] = None,
    ) -> ready_ansible.Run:
        """The same, at work."""
        children = {name: {"hosts": dict.fromkeys(members, {})} for name, members in (groups or {}).items()}
        inventory = self.directory / "inventory.json"
        inventory.write_text(json.dumps({"all": {
            "hosts": {name: {} for name in hosts}, "vars": {**LOCAL, **(variables or {})}, "children": children}}))
        return ready_ansible.start(
            [sys.executable, "--inventory", str(inventory), playbook, *options],
            {"PATH": os.environ["PATH"], "HOME": str(self.home), "ANSIBLE_HOME": str(self.home / "ansible"),
             "ANSIBLE_COLLECTIONS_PATH": str(collections_root()), "ANSIBLE_LOCALHOST_WARNING": "false",
             "ANSIBLE_DEPRECATION_WARNINGS": "false", "ANSIBLE_NOCOLOR": "true", "LC_ALL": "C.UTF-8",
             **(environment or {})},
            self.here, subprocess.PIPE, subprocess.PIPE)

    def tasks(self, tasks: Sequence[Mapping[str, Any]], *options: str, **given: Any) -> List[List[Result]]:
        """[the results of a task, host after host] of a play of these tasks, whatever comes of it."""
        path = self.directory / "play.json"
        path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": list(tasks)}]))
        environment = {"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", **given.pop("environment", {})}
        done = self.play(str(path), *options, environment=environment, **given)
        report = json.loads(done.stdout)
        return [list(task["hosts"].values()) for play in report["plays"] for task in play["tasks"]]

    def payloads(self, task: Mapping[str, Any], **play: Any) -> List[bytes]:
        """What came to the host as a module, for a task that may fail there."""
        remote = self.directory / "remote"
        path = self.directory / "play.json"
        path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, **play,
                                     "tasks": [{**task, "ignore_errors": True}]}]))
        done = self.play(str(path), "-vvv", environment={
            "ANSIBLE_KEEP_REMOTE_FILES": "true", "ANSIBLE_REMOTE_TEMP": str(remote)})
        self.told = done.stdout
        return [found.read_bytes() for found in remote.rglob("AnsiballZ*") if found.is_file()]
