# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is read of IMEX, what is done for it, and which hosts are in one clique."""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import gpu_hosts
import pytest
from ansible.errors import AnsibleFilterError
from imex_world import World

from ansible_collections.gpuops.nvidia.plugins.filter.imex_nodes import imex_nodes
from ansible_collections.gpuops.nvidia.plugins.module_utils.core import daemons
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.approval import differences
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandFailed, CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlGpu, NvmlReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.imex import executors, observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.imex.catalogue import CHANNEL0, NODES_FILE, UNIT
from ansible_collections.gpuops.nvidia.plugins.module_utils.imex.policy import ARGUMENTS, Policy, policy_of

VERSION = "580.178.04"
RUNNING = "LoadState=loaded\nActiveState=active\nSubState=running\nActiveEnterTimestampMonotonic=7\n"
CLUSTER = "a1b2c3d4-0000-4000-8000-72727272000a"


class Programs(Host):
    """A scratch root, and programs that answer: {words of a command, joined: (exit code, output)}."""

    def __init__(self, root: Path, answers: Mapping[str, Tuple[int, str]]) -> None:
        super().__init__(str(root))
        self.answers = {"systemctl show": (0, RUNNING), "systemctl is-enabled": (0, "enabled\n"), **answers}
        self.asked: List[str] = []

    def boot(self) -> str:
        return "boot"

    def run(self, argv: Sequence[str], check: bool = True, **_options: Any) -> CommandResult:
        words = " ".join(argv)
        self.asked.append(words)
        code, out = next((answer for begin, answer in self.answers.items() if begin in words), (0, ""))
        if check and code:
            raise CommandFailed("host.command_failed", words, "", "", stderr=out, rc=code)
        return CommandResult(tuple(argv), code, out, "")


def step(action: str, subject: str = UNIT, **parameters: Any) -> Step:
    return Step("imex", action, subject, "", parameters=parameters)


@pytest.fixture(autouse=True)
def rack(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = (NvmlGpu(0, fabric_state="completed", fabric_cluster=CLUSTER, fabric_clique=2),)
    monkeypatch.setattr(nvml, "_readings", {(VERSION, VERSION): NvmlReading(VERSION, gpus=gpus)})


def test_the_daemon_its_files_and_its_channels_are_read(tmp_path: Path) -> None:
    host = Programs(tmp_path, {"nvidia-imex --version": (0, "IMEX version is: %s\n" % VERSION),
                               "nvidia-imex-ctl -q": (0, "READY\n")})
    host.write("/usr/bin/nvidia-imex", "", 0o755)
    host.write(NODES_FILE, "10.0.0.1\n")
    host.write("/proc/devices", "Character devices:\n234 nvidia-caps-imex-channels\n")
    host.write("/proc/driver/nvidia/params", "ImexChannelCount: 2048\nCreateImexChannel0: 0\n")
    facts = gpu_hosts.facts(gpu_hosts.GB200, imex=True, driver_loaded=VERSION, driver_userspace=VERSION)
    seen = observation.observe(host, Journal(host), Policy(nodes=("10.0.0.1",)), facts)
    assert seen.daemon == daemons.Daemon(VERSION, True, True, False, True, "boot 7")
    assert (seen.ready, seen.nodes, seen.channels, seen.channel0) == ("READY", "10.0.0.1\n", "2048", False)
    assert seen.cliques == (CLUSTER + ".2",)


def test_a_host_of_no_rack_is_asked_nothing(tmp_path: Path) -> None:
    host = Programs(tmp_path, {})
    facts = gpu_hosts.facts(gpu_hosts.A100)
    assert observation.observe(host, Journal(host), Policy(), facts) == observation.Observation()
    assert host.asked == []


@pytest.mark.parametrize("out, ready", [
    ("READY\n", "READY"), ("NOT READY\n", "NOT READY"), ("", "no answer"), ("a\nb\n", "a; b")])
def test_only_ready_is_ready(tmp_path: Path, out: str, ready: str) -> None:
    assert observation.readiness(Programs(tmp_path, {"nvidia-imex-ctl": (0, out)})) == ready


def test_a_daemon_that_is_not_ready_is_told(tmp_path: Path) -> None:
    host = Programs(tmp_path, {"nvidia-imex-ctl": (1, "INITIALIZING\n")})
    with pytest.raises(GpuOpsError) as caught:
        executors.wait(host, Journal(host), step("imex.wait", limit=0.1))
    assert caught.value.code == "imex.not_ready" and "INITIALIZING" in caught.value.found


def test_a_channel_is_made_with_the_major_of_the_loaded_driver(tmp_path: Path) -> None:
    host = Programs(tmp_path, {})
    with pytest.raises(GpuOpsError, match="imex.no_channels"):
        executors.create_channel(host, Journal(host), step("channel.create", CHANNEL0))
    host.write("/proc/devices", "234 nvidia-caps-imex-channels\n")
    executors.create_channel(host, Journal(host), step("channel.create", CHANNEL0))
    assert host.asked == ["mknod --mode=0666 %s c 234 0" % CHANNEL0]


def test_how_a_unit_was_before_it_was_masked_is_remembered(tmp_path: Path) -> None:
    host = Programs(tmp_path, {})
    executors.mask(host, Journal(host), step("service.mask"))
    host.answers["systemctl is-enabled"] = (1, "masked\n")
    executors.mask(host, Journal(host), step("service.mask"))
    assert Journal(host).recall("imex") == {"masked": "enabled"}
    executors.unmask(host, Journal(host), step("service.unmask"))
    assert Journal(host).recall("imex") == {}


def test_what_we_disabled_is_not_ours_when_it_is_enabled_again(tmp_path: Path) -> None:
    host = Programs(tmp_path, {})
    executors.disable(host, Journal(host), step("service.disable"))
    assert Journal(host).recall("imex") == {"disabled": True}
    executors.enable(host, Journal(host), step("service.enable"))
    assert Journal(host).recall("imex") == {}
    executors.enable(host, Journal(host), step("service.enable"))
    executors.disable(host, Journal(host), step("service.disable"))
    assert Journal(host).recall("imex") == {}


def test_a_service_that_does_not_start_is_told_with_its_log(tmp_path: Path) -> None:
    host = Programs(tmp_path, {"systemctl start": (1, ""), "journalctl": (0, "no local address\n")})
    with pytest.raises(GpuOpsError) as caught:
        executors.start(host, Journal(host), step("service.start"))
    assert caught.value.code == "imex.not_started" and "no local address" in caught.value.found


@pytest.mark.parametrize("nodes, wrong", [
    (["10.0.0.1", "10.0.0.1"], "10.0.0.1"), (["10.0.0.1 10.0.0.2"], "10.0.0.1 10.0.0.2"), ([""], "''"), (["#"], "#")])
def test_nodes_are_addresses_each_once(nodes: List[str], wrong: str) -> None:
    given = {name: option.get("default") for name, option in ARGUMENTS.items()}
    with pytest.raises(GpuOpsError) as caught:
        policy_of(dict(given, nodes=nodes))
    assert caught.value.code == "imex.nodes_malformed" and wrong in caught.value.found
    assert policy_of(dict(given, nodes=["10.0.0.1", "fd00::1", "gb200-a.rack"])).nodes == (
        "10.0.0.1", "fd00::1", "gb200-a.rack")


class TestCliques:
    @staticmethod
    def inventory(**cliques: Any) -> Dict[str, Any]:
        return {name: {"ansible_host": "10.0.0." + name[-1], "ansible_facts": {} if clique is None else {
            "gpuops": {"fabric_cliques": clique, "gpu_count": 4, "driver_loaded": VERSION}}}
            for name, clique in cliques.items()}

    def test_every_host_of_a_clique_gets_the_same_list(self) -> None:
        variables = self.inventory(n3=["a.1"], n1=["a.1"], n2=["a.2"], n4=["b.1"], n5=[])
        lists = {name: imex_nodes(list(variables), variables, name) for name in variables}
        assert lists == {"n1": ["10.0.0.1", "10.0.0.3"], "n3": ["10.0.0.1", "10.0.0.3"], "n2": ["10.0.0.2"],
                         "n4": ["10.0.0.4"], "n5": []}

    def test_an_address_is_that_of_the_network_that_is_named(self) -> None:
        variables = self.inventory(n1=["a.1"], n2=["a.1"])
        variables["n1"]["rail"] = "192.168.0.1"
        assert imex_nodes(["n1", "n2"], variables, "n1", address="rail") == ["192.168.0.1", "n2"]

    def test_a_host_that_was_not_observed_is_no_host_to_leave_out(self) -> None:
        variables = self.inventory(n1=["a.1"], n2=None)
        with pytest.raises(AnsibleFilterError, match="n2.*gpu_info"):
            imex_nodes(["n1", "n2"], variables, "n1")
        assert imex_nodes(["n1", "n2"], variables, "n2") == []

    def test_while_a_driver_is_not_loaded_nobody_gets_a_list_that_lacks_its_host(self) -> None:
        variables = self.inventory(n1=["a.1"], n2=[])
        known = variables["n2"]["ansible_facts"]["gpuops"]
        known["driver_loaded"] = ""
        assert imex_nodes(["n1", "n2"], variables, "n1") == []
        known["gpu_count"] = 0
        assert imex_nodes(["n1", "n2"], variables, "n1") == ["10.0.0.1"]

    def test_a_host_in_several_cliques_is_told(self) -> None:
        variables = self.inventory(n1=["a.1", "a.2"])
        with pytest.raises(AnsibleFilterError, match="several cliques"):
            imex_nodes(["n1"], variables, "n1")


def test_a_daemon_that_begins_with_its_host_is_waited_for_as_approved() -> None:
    there = World()
    there.facts = there.facts.but(imex=True)
    there.say_installed("580.178.04")
    given = {name: option.get("default") for name, option in ARGUMENTS.items()}
    policy = policy_of({**given, "nodes": ["10.0.0.1", "10.0.0.2"]})
    there.apply(there.plan(policy))
    approved = there.plan(policy)
    there.boot()
    there.say_broken()
    assert there.plan(policy).steps and differences(there.plan(policy), approved) == ()
