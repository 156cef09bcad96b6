# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the tests on laboratory hosts share: playbooks of the checkout, journals, and fingerprints of file trees."""
from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import cores
import ready_ansible
import warm_ansible
import yaml
from documentation import returned, undocumented
from workspace import REPOSITORY, apart, cache_root, collections_root, venv, work_root

from gpulab.lab import Lab

DEMO_HOSTS = ("a100", "h100")
STATE = "/var/lib/gpuops"
SOURCES = "/etc/apt/sources.list.d/%s.sources"
JOURNAL = STATE + "/journal.jsonl"
# What check mode promises not to touch: configuration, programs, kernel modules, and the package manager's state.
SYSTEM = ("/etc", "/usr", "/boot", "/var/lib/apt", "/var/lib/dpkg", "/var/cache/apt")
# What programs of the distribution keep for themselves whenever any package comes or goes.
OTHERS_OWN = re.compile(
    "|".join((
        r"/var/lib/apt/lists/.*",  # indices, refreshed by an update
        r"/var/lib/apt/(periodic|extended_states).*",
        r"/var/lib/dpkg/(status|diversions|statoverride|available)(-old)?",  # package lists are compared by themselves
        r"/var/lib/dpkg/(lock.*|triggers/.*|info/format)",
        r"/var/cache/apt/(srcpkgcache|pkgcache)\.bin",
        r"/var/cache/apt/archives(/partial|/lock|/[^/]+\.deb)?",  # what apt fetched, until `apt-get clean`
        r"/etc/(passwd|group|shadow|gshadow)-",  # backups of the user database
        r"/etc/ld\.so\.cache",
        r".*/__pycache__(/.*)?",
    )))
# Programs of the distribution write these anew at each run, with times or in no particular order.
UNSTEADY = re.compile(r"|".join((
    r"/var/lib/apt/.*", r"/var/cache/apt/.*", r"/var/lib/dpkg/(lock.*|triggers/.*|.*-old|status)",
    r"/etc/(passwd|group|shadow|gshadow)-", r".*/__pycache__(/.*)?")))
# DKMS signs each build with a key that it has made on the host: no two are alike.
BUILT = re.compile(r"/usr/lib/modules/[^/]+/updates/dkms/[^/]+\.ko")

_FINGERPRINT = """
import hashlib, json, os, stat, sys
found = {}
for top in sys.argv[1:]:
    for directory, directories, files in os.walk(top):
        for name in directories + files:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            seen = "%o %d:%d " % (status.st_mode, status.st_uid, status.st_gid)
            if stat.S_ISLNK(status.st_mode):
                seen += os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                digest = hashlib.sha256()
                with open(path, "rb") as handle:
                    for block in iter(lambda: handle.read(1 << 20), b""):
                        digest.update(block)
                seen += digest.hexdigest()
            found[path] = seen
json.dump(found, sys.stdout)
"""

Step = Dict[str, Any]
Tree = Dict[str, str]
# {path: (before, after)}
Differences = Dict[str, Tuple[Optional[str], Optional[str]]]


def new_lab(name: str) -> Lab:
    """A laboratory of a test's own, none of an earlier run."""
    lab = Lab(apart(name))
    lab.down()
    return lab


@dataclass(frozen=True)
class Controller:
    """Where playbooks run, and as whom they log in to hosts; who is not root becomes root by sudo.

    collections:  a directory with the collections that ours needs.
    at_the_ready: its ansible-playbook has its imports behind it, see ready_ansible.
    """

    programs: Path
    collections: Path
    user: str = "root"
    pipelining: bool = True
    at_the_ready: bool = False


def developer() -> Controller:
    """The development environment, logged in as root. It finds the collections that ours depends on and no others:
    a hundred of them cost every start of a playbook a quarter of a second."""
    directory = work_root() / "dependencies"
    cores.link_collections(directory)
    return Controller(venv(), directory, at_the_ready=True)


def release(name: str, user: str, pipelining: bool) -> Controller:
    """An environment with this ansible-core and no more than hosts outside of a cluster need: no kubernetes.core."""
    python = cores.python_for(name)
    assert python, "this machine has no Python for ansible-core %s" % name
    directory = cache_root() / "controllers"

    def command(argv: Sequence[Union[str, Path]]) -> None:
        subprocess.run([str(word) for word in argv], check=True)

    cores.link_collections(directory, ("ansible/posix",))
    environment = cores.environment(directory, name, python, cores.CONTROLLER, command)
    return Controller(environment, directory, user, pipelining)


class Fleet:
    """A running laboratory, and playbooks run on its hosts."""

    def __init__(self, lab: Lab, scratch: Path, controller: Optional[Controller] = None,
                 accounts: Optional[Mapping[str, Path]] = None) -> None:
        """accounts: {playbook of the collection: the kubeconfig that it is run with}; others have the laboratory's."""
        self.lab = lab
        self.accounts = accounts or {}
        self.scratch = scratch
        self.controller = controller or developer()
        self.runs = 0

    # On the controller

    def command(self, playbook: str, *options: str, **variables: Any) -> List[str]:
        """ansible-playbook with the laboratory's policy; variables beat it."""
        policy = yaml.safe_load((REPOSITORY / "tests" / "lab" / "policy.yml").read_text())
        if not self.lab.topology.control_plane:
            del policy["gpu_cluster_kubeconfig"]
        elif playbook.rpartition(".")[2] in self.accounts:
            policy["gpu_cluster_kubeconfig"] = str(self.accounts[playbook.rpartition(".")[2]])
        return [str(self.controller.programs / "bin" / "ansible-playbook"), "--inventory", str(self._inventory()),
                playbook, "--extra-vars", json.dumps(dict(policy, **variables)), *options]

    def _inventory(self) -> Path:
        """The laboratory's inventory, with the controller's user in it as users have it: a variable of all hosts."""
        if self.controller.user == "root":
            return self.lab.inventory
        inventory = json.loads(self.lab.inventory.read_text())
        inventory["all"]["vars"].update(ansible_user=self.controller.user, ansible_become=True)
        path = self.scratch / "inventory.json"
        path.write_text(json.dumps(inventory))
        return path

    def environment(self, results: Path, calls: Path) -> Dict[str, str]:
        return dict(os.environ, ANSIBLE_COLLECTIONS_PATH="%s:%s" % (collections_root(), self.controller.collections),
                    ANSIBLE_CALLBACK_PLUGINS=str(REPOSITORY / "tests" / "lab" / "callback_plugins"),
                    ANSIBLE_CALLBACKS_ENABLED="remote_calls", REMOTE_CALLS_FILE=str(calls),
                    ANSIBLE_STDOUT_CALLBACK="ansible.posix.json", ANSIBLE_JSON_INDENT="0",
                    ANSIBLE_LOCALHOST_WARNING="false", ANSIBLE_NOCOLOR="true",
                    ANSIBLE_HOME=str(self.scratch / "ansible"), ANSIBLE_PIPELINING=str(self.controller.pipelining))

    def start(self, playbook: str, *options: str, **variables: Any) -> Running:
        self.runs += 1
        results, calls = self.scratch / ("%d.json" % self.runs), self.scratch / ("%d.calls" % self.runs)
        command, environment = self.command(playbook, *options, **variables), self.environment(results, calls)
        with results.open("wb") as output:
            if self.controller.at_the_ready:
                return Running(ready_ansible.start(command, environment, self.scratch, output, subprocess.STDOUT),
                               results, calls)
            return Running(subprocess.Popen(command, cwd=self.scratch, stdout=output, stderr=subprocess.STDOUT,
                                            env=environment), results, calls)

    def run(self, playbook: str, *options: str, **variables: Any) -> Played:
        """A playbook, whatever comes of it: its result is in the answer."""
        return self.start(playbook, *options, **variables).wait()

    def play(self, playbook: str, *options: str, **variables: Any) -> Played:
        """A playbook that must end well."""
        played = self.run(playbook, *options, **variables)
        assert played.code == 0, "%s failed:\n%s" % (playbook, played.failures())
        return played

    def tasks(self, hosts: str, tasks: Sequence[Mapping[str, Any]], *options: str, **variables: Any) -> Played:
        """A play of these tasks, whatever comes of it."""
        return self.start_tasks(hosts, tasks, *options, **variables).wait()

    def start_tasks(self, hosts: str, tasks: Sequence[Mapping[str, Any]], *options: str, **variables: Any) -> Running:
        path = self.scratch / "play.json"
        path.write_text(json.dumps([{"hosts": hosts, "gather_facts": False, "tasks": list(tasks)}]))
        return self.start(str(path), *options, **variables)

    def free(self, node: str) -> None:
        """Say that somebody has looked at a node whose change has failed."""
        done = self.tasks("localhost", [{"gpuops.nvidia.gpu_rollout": {
            "state": "ended", "name": node, "outcome": "freed", "kubeconfig": str(self.lab.kubeconfig)}}])
        assert done.code == 0, done.failures()

    # On a host

    def offer(self, host: str, name: str, served: str, suite: str, component: str) -> None:
        """One more source of packages, as Debian's own are configured. served: as of Lab.serve()."""
        words = ('sed "s,^URIs:.*,URIs: http://packages.gpulab:8480/%s,; s/^Suites:.*/Suites: %s/; s/^Components:.*/'
                 'Components: %s/" %s > %s; apt-get -qq update')
        self.lab.ssh(host, ["sh", "-c", words % (served, suite, component, SOURCES % "debian", SOURCES % name)])

    def withdraw(self, host: str, name: str) -> None:
        self.lab.ssh(host, ["sh", "-c", "rm -f %s; apt-get -qq update" % (SOURCES % name)])

    def say(self, host: str, *argv: str) -> str:
        return str(self.lab.ssh(host, list(argv), check=False).stdout).strip()

    def gpuops(self, host: str, *words: str) -> Tuple[int, Dict[str, Any]]:
        """What the command on the host comes to: its exit code, and what a module returns."""
        done = self.lab.ssh(host, ["gpuops", *words, "--json"], check=False)
        assert done.stdout, done.stderr
        return done.returncode, dict(json.loads(done.stdout))

    def events(self, host: str) -> List[Dict[str, Any]]:
        """The journal of a host, oldest first."""
        return [json.loads(line) for line in self.say(host, "cat", JOURNAL).splitlines()]

    def kept(self, host: str) -> Dict[str, Any]:
        """What an uninstall stands on, as the host's record has it: original files, packages and steps left open."""
        names = self.say(host, "ls", STATE).split()
        if "state.json" in names:
            state = json.loads(self.say(host, "cat", STATE + "/state.json"))
            return {name: state[name] for name in ("open", "originals", "packages")}
        return {name: json.loads(self.say(host, "cat", "%s/%s.json" % (STATE, name)))
                if name + ".json" in names else {} for name in ("originals", "packages")}

    def fingerprint(self, host: str, *directories: str) -> Tree:
        """{path: type, mode, owner and content} of everything below directories.

        It is looked at once the host has started: units that start write files of their own.
        """
        self.lab.ssh(host, ["systemctl", "is-system-running", "--wait"], check=False)
        done = self.lab.host(host).ssh(["python3", "-", *(directories or SYSTEM)], feed=_FINGERPRINT)
        return dict(json.loads(done.stdout))

    def node(self, name: str) -> Dict[str, Any]:
        """The Node object."""
        return dict(json.loads(self.lab.kubectl(["get", "node", name, "-o", "json"]).stdout))

    def packages(self, host: str) -> Dict[str, str]:
        """{package: version and status}, as dpkg has them; a removed package whose configuration stays is one."""
        lines = self.say(host, "dpkg-query", "-W", "-f", "${binary:Package} ${Version} ${Status}\n").splitlines()
        return {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in lines}


@dataclass(frozen=True)
class Running:
    """A playbook that runs."""

    process: Union["subprocess.Popen[bytes]", ready_ansible.Run, warm_ansible.Run]
    results: Path
    calls: Path

    def wait(self) -> Played:
        code = self.process.wait()
        calls = json.loads(self.calls.read_text()) if self.calls.exists() else {}
        played = Played(code, self.results.read_text(), calls)
        undocumented = played.undocumented()
        assert undocumented == [], undocumented
        return played


@dataclass(frozen=True)
class Played:
    """A playbook's end. calls: {host: modules that were called there}."""

    code: int
    output: str
    calls: Mapping[str, List[str]]

    @property
    def report(self) -> Dict[str, Any]:
        start = self.output.find("\n{") + 1 if not self.output.startswith("{") else 0
        report, _ = json.JSONDecoder().raw_decode(self.output[start:])
        return dict(report)

    @property
    def changed(self) -> Dict[str, int]:
        return {host: stats["changed"] for host, stats in self.report["stats"].items()}

    def results(self, host: str, module: str = "") -> List[Dict[str, Any]]:
        """Results on a host in order, of one module or of all; what was skipped has none."""
        results = [task["hosts"][host] for play in self.report["plays"] for task in play["tasks"]
                   if host in task["hosts"]]
        return [result for result in results
                if result.get("action", "").endswith(module) and not result.get("skipped")]

    def result(self, host: str, module: str) -> Dict[str, Any]:
        (result,) = self.results(host, module)
        return result

    def of_many(self, module: str) -> Dict[str, Dict[str, Any]]:
        """{host: what became of it} of the tasks that did it for many hosts, the later ones' last."""
        found: Dict[str, Dict[str, Any]] = {}
        for host in self.report["stats"]:
            for result in self.results(host, module):
                found.update(result.get("of_hosts") or {})
        return found

    def changes(self) -> List[Tuple[str, str]]:
        """(host, task) of what changed."""
        return [(host, task["task"]["name"]) for play in self.report["plays"] for task in play["tasks"]
                for host, result in task["hosts"].items() if result.get("changed")]

    def undocumented(self) -> List[Tuple[str, str]]:
        """(module, key) of what our modules returned and do not document; of a run that was cut off, nothing.

        For a module that was killed Ansible answers by itself, with what the module had said until then.
        """
        try:
            plays = self.report["plays"]
        except ValueError:
            return []
        found = [(result["action"].rsplit(".", 1)[-1], each) for play in plays for task in play["tasks"]
                 for result in task["hosts"].values() if result.get("action", "").startswith("gpuops.nvidia.")
                 for each in result.get("results", [result]) if not {"module_stdout", "unreachable"} & set(each)]
        return sorted({(name, key) for name, result in found for key in undocumented(result, returned(name))})

    def failures(self) -> str:
        try:
            plays = self.report["plays"]
        except ValueError:
            return self.output[-3000:]
        return "\n".join("%s, %s: %s" % (host, task["task"]["name"], result.get("msg", result))
                         for play in plays for task in play["tasks"] for host, result in task["hosts"].items()
                         if result.get("failed") or result.get("unreachable"))


def succeeded(played: Played) -> Played:
    assert played.code == 0, played.failures()
    return played


def rpm_packages(fleet: Fleet, host: str) -> Dict[str, str]:
    """{package: version} of what the host's rpm database has."""
    lines = fleet.say(host, "rpm", "-qa", "--qf", "%{NAME} %|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}\n").splitlines()
    return {line.split(" ")[0]: line.split(" ")[1] for line in lines}


def host_state(fleet: Fleet, host: str) -> Dict[str, Any]:
    """Everything that an install is for, and everything that an uninstall needs."""
    tree = {path: seen.split()[0] if BUILT.fullmatch(path) else seen
            for path, seen in fleet.fingerprint(host).items() if not UNSTEADY.fullmatch(path)}
    return {
        "tree": tree,
        "packages": fleet.packages(host),
        "modules": fleet.say(host, "sh", "-c", "head /sys/module/nvidia*/version"),
        "nodes": fleet.say(host, "sh", "-c", "stat -c '%A %U %T %n' /dev/nvidia*"),
        "services": fleet.say(host, "systemctl", "is-active", "nvidia-persistenced", "nvidia-fabricmanager",
                              "containerd", "nvidia-cdi-refresh.path"),
        "cdi": fleet.say(host, "cat", "/var/run/cdi/nvidia.yaml"),
        "runtime": fleet.say(host, "containerd", "config", "dump"),
        **fleet.kept(host),
    }


def different(before: Mapping[str, str], after: Mapping[str, str]) -> Differences:
    """{path: (before, after)} of what is not the same."""
    return {path: (before.get(path), after.get(path)) for path in sorted({*before, *after})
            if before.get(path) != after.get(path)}


def changed_by_us(before: Mapping[str, str], after: Mapping[str, str]) -> Differences:
    """What is not the same and is not the distribution's programs' own."""
    return {path: how for path, how in different(before, after).items() if not OTHERS_OWN.fullmatch(path)}


def assert_journal_is_plan(events: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]) -> None:
    """Each planned step is done once, or satisfied, as planned, and nothing is done beside it.

    What staging has done, the run that is held to the plan finds satisfied.
    """
    planned = {step["id"]: step for step in plan["steps"]}
    closed = [event["step"] for event in events if event["event"] in ("done", "satisfied")]
    done = [event["step"] for event in events if event["event"] == "done"]
    assert [event["step"]["id"] for event in events if event["event"] == "failed"] == []
    names = [step["id"] for step in closed]
    assert set(names) == set(planned), "not planned: %s; not done: %s; done: %s" % (
        sorted(set(names) - set(planned)), sorted(set(planned) - set(names)), names)
    for step in closed:
        promised = _promise(planned[step["id"]])
        assert _promise(step) == promised, "planned: %s; done: %s" % (promised, _promise(step))
    for capability in {step["capability"] for step in plan["steps"]}:
        order = [step["id"] for step in plan["steps"] if step["capability"] == capability]
        was = [step["id"] for step in done if step["capability"] == capability]
        assert was == [name for name in order if name in was]


def _promise(step: Step) -> Step:
    """What a plan promises of a step: all but the words of the reason and the open steps that it waits for."""
    return {name: value for name, value in step.items() if name not in ("why", "depends_on")}
