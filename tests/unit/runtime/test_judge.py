# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is read, planned and judged of every runtime, in that order: reading asks no program, planning reads nothing,
and what the program judges is what the plan writes."""
from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Dict, List, Tuple

import pytest
from made_edits import make

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan, digest
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import model, planner, policy
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.containerd import k0s
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.known import BACKENDS
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.capability import CAPABILITY

# Copies what it is given to read, and says of it what the runtime's own program would
PROGRAM = """#!%(python)s
import json, os, shutil, sys, tomlkit
def read(path):
    number = len(os.listdir("%(record)s"))
    shutil.copyfile(path, "%(record)s/%%d" %% number)
    with open(path) as handle:
        return handle.read()
def merge(total, more):
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(total.get(key), dict):
            merge(total[key], value)
        else:
            total[key] = value
    return total
def toml(path):
    data = tomlkit.parse(read(path)).unwrap()
    for name in data.pop("imports", []):
        merge(data, toml(name))
    return data
words = sys.argv[1:]
if "--validate" in words:
    text = read(words[words.index("--config-file") + 1])
    sys.exit("refused" if "refused" in text else 0)
if words[-1] == "dump":
    print(tomlkit.dumps(toml(words[1])))
elif words[-1] == "config":
    data = toml(words[1])
    for top, _directories, names in os.walk(words[3]):
        for name in sorted(names):
            merge(data, toml(os.path.join(top, name)))
    print(tomlkit.dumps(data))
"""
RUNC = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n" \
       "runtime_type = 'io.containerd.runc.v2'\n"
IMPORTS = "imports = ['%s/*.toml']\n"
RENDERED = "/var/lib/rancher/k3s/agent/etc/containerd/"
SNAP = "/var/snap/microk8s/current/args/"
CRIO = "[crio.runtime.runtimes.runc]\nruntime_path = '/usr/bin/runc'\nmonitor_path = '/usr/bin/conmon'\n"

# (backend, distribution, root file, release, files)
RUNTIMES: Dict[str, Tuple[str, str, str, Tuple[int, int], Dict[str, str]]] = {
    "containerd": ("containerd", "", "/etc/containerd/config.toml", (2, 2), {
        "/etc/containerd/config.toml": IMPORTS % "/etc/containerd/conf.d" + RUNC}),
    "k3s": ("containerd", "k3s", RENDERED + "config.toml", (2, 2), {
        RENDERED + "config.toml": IMPORTS % (RENDERED + "config-v3.toml.d") + RUNC}),
    "k3s with a template": ("containerd", "k3s", RENDERED + "config.toml", (2, 0), {RENDERED + "config.toml": RUNC}),
    "k0s": ("containerd", "k0s", "/etc/k0s/containerd.toml", (2, 2), {
        "/etc/k0s/containerd.toml": k0s.MAGIC + "\n" + IMPORTS % k0s.DIRECTORY + RUNC}),
    "microk8s": ("containerd", "microk8s", SNAP + "containerd.toml", (2, 2), {
        SNAP + "containerd.toml": RUNC, SNAP + "containerd-template.toml": RUNC}),
    "crio": ("crio", "", "/etc/crio/crio.conf", (1, 34), {"/etc/crio/crio.conf": CRIO, "/usr/bin/conmon": ""}),
    "docker": ("docker", "", "/etc/docker/daemon.json", (27, 5), {"/etc/docker/daemon.json": '{"debug": true}'}),
}
# Of these the program reads what the distribution will have rendered from our file
RENDERING = ("k3s with a template", "microk8s")
WANTED = policy.policy_of({name: option.get("default") for name, option in policy.ARGUMENTS.items()})


class World:
    def __init__(self, top: Path, name: str) -> None:
        self.root, self.record = top / "root", top / "record"
        self.record.mkdir()
        program = top / "program"
        program.write_text(PROGRAM % {"python": sys.executable, "record": self.record})
        program.chmod(0o755)
        self.host = Host(str(self.root))
        backend, distribution, root, release, files = RUNTIMES[name]
        for path, text in files.items():
            self.host.write(path, text)
        self.backend = BACKENDS[backend]
        self.service = model.Service(
            backend=backend, distribution=distribution, unit="any.service", active=True, pid=7, started=1e12,
            binary=str(program), release=release, root=root, socket="/run/any.sock", arguments=(str(program),))

    def observe(self) -> model.Observation:
        return self.backend.observe(self.host, Journal(self.host), WANTED, self.service)

    def judge(self, observation: model.Observation, plan: Plan) -> List[Refusal]:
        return list(CAPABILITY.judge(self.host, observation, WANTED, plan))

    def was_read(self) -> List[str]:
        """Digests of the texts that the program has read."""
        return [digest(path.read_text()) for path in self.record.iterdir()]


def plan_of(observation: model.Observation) -> Plan:
    return planner.plan(observation, WANTED, HostFacts(toolkit="1.20.1"))


def written(plan: Plan) -> List[str]:
    return [step.parameters["after"] for step in plan.steps if step.action in (planner.WRITE, planner.EDIT)]


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return World(tmp_path, request.param)


every = pytest.mark.parametrize("world", list(RUNTIMES), indirect=True)


@every
def test_reading_asks_no_program_and_planning_reads_nothing(world: World) -> None:
    observation = world.observe()
    plan = plan_of(observation)
    assert written(plan)
    shutil.rmtree(world.root)
    assert plan_of(observation) == plan
    assert world.was_read() == []


@every
def test_what_is_judged_is_what_the_plan_writes(world: World, request: pytest.FixtureRequest) -> None:
    observation = world.observe()
    plan = plan_of(observation)
    assert world.judge(observation, plan) == []
    name = request.node.callspec.params["world"]
    judged = world.was_read()
    assert judged
    if name not in RENDERING:
        assert set(written(plan)) <= set(judged)


@every
def test_a_converged_runtime_is_not_judged(world: World) -> None:
    make(world.backend, world.host, world.backend.edits(world.service, world.observe().reading, WANTED))
    for path in (RENDERED + "config.toml", SNAP + "containerd.toml"):
        # what the start of the service renders
        for template in (RENDERED + "config-v3.toml.tmpl", SNAP + "containerd-template.toml"):
            if world.service.root == path and world.host.exists(template):
                text = world.host.read(template) or ""
                lines = [line for line in text.splitlines() if not line.startswith("{{")]
                world.host.write(path, (RUNC if "{{" in text else "") + "\n".join(lines) + "\n")
    observation = world.observe()
    plan = plan_of(observation)
    assert plan.steps == ()
    assert world.judge(observation, plan) == []
    assert world.was_read() == []


@pytest.mark.parametrize("world", ["docker"], indirect=True)
def test_what_the_program_says_is_the_plans_refusal(world: World) -> None:
    world.host.write(world.service.root, '{"debug": "refused"}')
    observation = world.observe()
    (refusal,) = world.judge(observation, plan_of(observation))
    assert (refusal.code, refusal.found) == (
        "runtime.docker_refuses", "dockerd refuses /etc/docker/daemon.json as it is: refused")


@pytest.mark.parametrize("world", ["crio"], indirect=True)
def test_a_plan_that_only_ends_a_record_is_not_judged(world: World) -> None:
    world.host.remove("/usr/bin/conmon")
    observation = world.observe()
    plan = plan_of(model.Observation(world.service, reading=observation.reading, as_before=("/etc/any",)))
    forgetting = Plan(steps=tuple(step for step in plan.steps if step.action == planner.FORGET))
    assert len(forgetting.steps) == 1
    assert world.judge(observation, forgetting) == []
    assert [refusal.code for refusal in world.judge(observation, plan)] == ["runtime.crio_would_not_start"]
