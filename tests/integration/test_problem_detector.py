# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who tells the cluster of a host's GPUs: the real node-problem-detector on the host, and the host by itself.

What the detector makes of our plugin is tested without a host (tests/unit/cluster/test_problem_detector.py); here it is
what comes of a fault.

One of the hosts that site has installed, and its Node. The detector has the kubelet's credential and nothing else. The
kernel's log is a file, since that of the machine is no host's own: the faults are those of the simulated silicon.
"""
from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

import pytest
from laboratory import Fleet, Played

from ansible_collections.gpuops.nvidia.plugins.module_utils.agent import detector
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import HEALTH_CORDON
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.waiting import wait_for
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.problems import CONDITIONS, PLUGIN
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.state import CONDITIONS as TOLD
from gpulab import silicon
from gpulab.parts.registry import workshop

HOST, GPUS = "h100", 8
AGENT = [{"ansible.builtin.include_role": {"name": "gpuops.nvidia.node_agent"}}]
KUBECONFIG = "/etc/kubernetes/kubelet.conf"
# What a boot takes away: program, log, and the units of systemd-run
PROGRAM, LOG = "/run/node-problem-detector", "/run/kernel-log"
DETECTOR, LOOKS = "node-problem-detector-of-a-test", "looks-of-a-test"
LOOK_SECONDS, STALE_SECONDS = 3, 30
# Within which a fault is seen, and its end
SEEN_SECONDS, GONE_SECONDS = 30, 60
BOOT_SECONDS = 600


class Bed:
    """The host with the agent, a detector and looks at its health, and its Node."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.lab = fleet, fleet.lab
        self.silicon = self.lab.host(HOST).silicon

    def say(self, *argv: str) -> str:
        return self.fleet.say(HOST, *argv)

    def root(self, path: str) -> Path:
        return Path("/proc/%d/root%s" % (self.lab.host(HOST).init_pid or 0, path))

    def agent(self, **variables: Any) -> None:
        played = self.fleet.tasks(HOST, AGENT, node_agent_state="present", node_agent_health={
            "stale_seconds": STALE_SECONDS, "round_seconds": LOOK_SECONDS, "nvml_seconds": LOOK_SECONDS}, **variables)
        assert played.code == 0, played.failures()

    def has_a_log(self) -> None:
        self.root(LOG).write_text("6,1,1000,-;a laboratory\n")
        self.say("mount", "--bind", LOG, "/dev/kmsg")

    def logs(self, message: str) -> None:
        """The kernel does, now."""
        log = self.root(LOG)
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        with log.open("a") as opened:
            opened.write("4,%d,%d,-;%s\n" % (len(log.read_text().splitlines()) + 1, uptime * 1e6, message))

    # What runs

    def run(self, unit: str, *argv: str) -> None:
        self.lab.ssh(HOST, ["systemd-run", "--collect", "--unit", unit, *argv])

    def stop(self, *units: str) -> None:
        self.say("systemctl", "stop", *units)

    def looks(self) -> None:
        self.run(LOOKS, "sh", "-c", "while :; do /usr/local/sbin/gpuops health; sleep %d; done" % LOOK_SECONDS)

    def detects(self) -> None:
        configurations = [path for path in detector.FILES if path != PLUGIN]
        shutil.copyfile(workshop().build("node-problem-detector") / "bin" / "node-problem-detector", self.root(PROGRAM))
        self.root(PROGRAM).chmod(0o755)
        self.run(DETECTOR, PROGRAM, "--logtostderr", "--port=0", "--prometheus-port=0", "--hostname-override=" + HOST,
                 "--apiserver-override=https://cluster?inClusterConfig=false&auth=" + KUBECONFIG,
                 "--config.custom-plugin-monitor=" + ",".join(configurations))

    # What is told

    def told(self) -> Dict[str, Dict[str, Any]]:
        return {each["type"]: each for each in self.fleet.node(HOST)["status"]["conditions"]
                if each["type"] in CONDITIONS}

    def statuses(self) -> Dict[str, str]:
        return {name: each["status"] for name, each in self.told().items()}

    def await_told(self, seconds: float, **wanted: str) -> Dict[str, Dict[str, Any]]:
        """The conditions, once these have these statuses."""
        return self.await_so(self.told, lambda told: all(
            told.get(name, {}).get("status") == status for name, status in wanted.items()), seconds)

    def await_so(self, ask: Callable[[], Any], judge: Callable[[Any], bool], seconds: float) -> Any:
        seen, is_so = wait_for(ask, judge, seconds, 0.5)
        assert is_so, (seen, self.say("cat", TOLD), self.say("journalctl", "-b", "--lines", "40", "-u", DETECTOR,
                                                            "-u", LOOKS))
        return seen

    @property
    def is_cordoned(self) -> bool:
        return bool(self.fleet.node(HOST)["spec"].get("unschedulable"))

    def why(self) -> str:
        return str((self.fleet.node(HOST)["metadata"].get("annotations") or {}).get(HEALTH_CORDON, ""))

    def forgotten(self) -> None:
        """A Node as if nobody had told of its GPUs; a detector leaves its conditions there for ever."""
        gone = [{"type": name, "$patch": "delete"} for name in self.told()]
        self.lab.kubectl(["patch", "node", HOST, "--subresource", "status", "--patch",
                          json.dumps({"status": {"conditions": gone}})])


@pytest.fixture(scope="module")
def bed(demo: Fleet, installed: Played) -> Iterator[Bed]:
    found = Bed(demo)
    found.agent(node_agent_problem_detector=True)
    found.has_a_log()
    yield found
    silicon.clear_faults(found.silicon)
    found.stop(DETECTOR, LOOKS)
    found.say("umount", "/dev/kmsg")
    assert demo.tasks(HOST, AGENT, node_agent_state="absent").code == 0
    found.forgotten()
    found.say("rm", "-f", PROGRAM, LOG)
    # Of the device plugin, which offers none of a node's GPUs once one was lost
    demo.lab.kubectl(["delete", "pod", "-n", "gpuops", "-l", "app.kubernetes.io/name=nvidia-device-plugin",
                      "--field-selector", "spec.nodeName=" + HOST])
    demo.play("gpuops.nvidia.validate")


@pytest.fixture
def detected(bed: Bed) -> Iterator[Bed]:
    """With a detector and looks that have told that the host is well."""
    for unit, begin in ((LOOKS, bed.looks), (DETECTOR, bed.detects)):
        if bed.say("systemctl", "is-active", unit) != "active":
            begin()
    bed.await_told(GONE_SECONDS, **dict.fromkeys(CONDITIONS, "False"))
    yield bed
    silicon.clear_faults(bed.silicon)


@pytest.mark.variation
def test_before_the_first_look_no_node_is_called_well(bed: Bed) -> None:
    bed.detects()
    seen: List[Mapping[str, str]] = []
    until = time.monotonic() + 25
    while time.monotonic() < until:
        seen.append(bed.statuses())
        time.sleep(0.3)
    assert seen[-1] == dict.fromkeys(CONDITIONS, "Unknown"), seen[-1]
    assert not any("False" in each.values() for each in seen)
    bed.looks()
    bed.await_told(SEEN_SECONDS, **dict.fromkeys(CONDITIONS, "False"))


@pytest.mark.variation
def test_a_fault_is_told_with_what_mends_it_and_taken_back_when_it_is_gone(detected: Bed) -> None:
    """One that the driver asks for ends when the driver says so."""
    silicon.inject_fault(detected.silicon, "recovery", 3)
    told = detected.await_told(SEEN_SECONDS, GpuSick="True")
    assert (told["GpuSick"]["reason"], told["GpuResetPending"]["status"]) == ("GpuIsSick", "False")
    assert "recovery_action" in told["GpuSick"]["message"] and "reset" in told["GpuSick"]["message"]
    assert not detected.is_cordoned
    silicon.clear_faults(detected.silicon)
    told = detected.await_told(GONE_SECONDS, GpuSick="False")
    assert told["GpuSick"]["message"] == "no GPU is sick"


@pytest.mark.variation
def test_what_the_driver_has_said_to_the_kernels_log_is_told_until_somebody_takes_it_back(detected: Bed) -> None:
    """It is not said again, and silence ends nothing. Of this number the driver's recovery action says nothing."""
    address = detected.say("nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader", "--id=3")[4:-2].lower()
    detected.logs("NVRM: Xid (PCI:%s): 119, pid=4242, name=python, Timeout after 6s of waiting for RPC response from "
                  "GPU3 GSP!" % address)
    told = detected.await_told(SEEN_SECONDS, GpuSick="True")
    assert "xid 119" in told["GpuSick"]["message"] and "reset" in told["GpuSick"]["message"]
    time.sleep(3 * LOOK_SECONDS)
    assert detected.statuses()["GpuSick"] == "True"
    [finding] = json.loads(detected.say("gpuops", "health", "--json"))["findings"]
    assert finding["code"] == "xid 119"
    detected.say("gpuops", "release", finding["key"])
    detected.await_told(GONE_SECONDS, GpuSick="False")


@pytest.mark.variation
def test_looks_that_have_ended_make_it_unknown_and_not_well(detected: Bed) -> None:
    detected.stop(LOOKS)
    told = detected.await_told(STALE_SECONDS + SEEN_SECONDS, **dict.fromkeys(CONDITIONS, "Unknown"))
    assert "stale" in told["GpuSick"]["message"]
    detected.looks()
    detected.await_told(SEEN_SECONDS, **dict.fromkeys(CONDITIONS, "False"))


@pytest.mark.variation
def test_what_a_boot_mends_is_taken_back_once_the_gpus_have_computed(detected: Bed) -> None:
    silicon.inject_fault(detected.silicon, "lost", 3)
    told = detected.await_told(SEEN_SECONDS, GpuSick="True")
    assert "reboot" in told["GpuSick"]["message"]
    detected.lab.reboot(HOST)
    silicon.clear_faults(detected.silicon)
    detected.has_a_log()
    detected.detects()
    detected.looks()
    # What was found goes over the boot, and has not computed since
    detected.await_told(GONE_SECONDS, GpuSick="True", GpuWarning="False")
    detected.say("gpuops", "validate")
    detected.await_told(GONE_SECONDS, GpuSick="False")


# Without a detector


@pytest.fixture
def alone(bed: Bed) -> Iterator[Bed]:
    """A host that tells by itself, and cordons its node."""
    bed.stop(DETECTOR, LOOKS)
    bed.forgotten()
    bed.agent(node_agent_node_condition="cordon")
    yield bed
    silicon.clear_faults(bed.silicon)
    bed.agent(node_agent_problem_detector=True)
    assert bed.statuses() == {} and not bed.is_cordoned, "what was said is taken back"


def looked(bed: Bed) -> Dict[str, Any]:
    bed.say("gpuops", "health")
    done = bed.lab.ssh(HOST, ["gpuops", "node", "--json"], check=False)
    return dict(json.loads(done.stdout))


def test_a_host_tells_by_itself_and_cordons_its_node_while_it_is_sick(alone: Bed) -> None:
    assert looked(alone)["node"] == HOST
    assert alone.statuses() == dict.fromkeys(CONDITIONS, "False") and not alone.is_cordoned
    silicon.inject_fault(alone.silicon, "recovery", 3)
    assert looked(alone)["cordoned"]
    assert alone.statuses()["GpuSick"] == "True" and alone.is_cordoned and "recovery_action" in alone.why()
    assert looked(alone)["changed"] is False
    silicon.clear_faults(alone.silicon)
    assert looked(alone)["cordoned"] is False
    assert alone.statuses()["GpuSick"] == "False" and not alone.is_cordoned and not alone.why()


@pytest.mark.variation
def test_a_boot_that_fails_leaves_the_node_out_and_describe_says_why(alone: Bed) -> None:
    """The kubelet is held, and cannot tell."""
    policy = {"node_agent_node_condition": "cordon", "node_agent_boot": "hold"}
    alone.agent(gpu_validation_expected_gpus=GPUS + 1, **policy)
    alone.lab.reboot(HOST)
    told = alone.await_told(BOOT_SECONDS, GpuSick="True")
    assert told["GpuSick"]["reason"] == "GpuHostNotValidated" and str(GPUS + 1) in told["GpuSick"]["message"]
    assert alone.is_cordoned and alone.say("systemctl", "is-active", "kubelet") != "active"
    assert "GpuHostNotValidated" in alone.lab.kubectl(["describe", "node", HOST]).stdout
    alone.has_a_log()
    alone.agent(gpu_validation_expected_gpus=GPUS, **policy)
    comes_back(alone)


@pytest.mark.variation
def test_a_boot_without_a_driver_that_loads_leaves_the_node_out_and_describe_says_why(alone: Bed) -> None:
    """Its module is of another kernel."""
    alone.agent(gpu_validation_expected_gpus=GPUS, node_agent_node_condition="cordon", node_agent_boot="hold")
    module = alone.say("sh", "-c", "ls /usr/lib/modules/$(uname -r)/updates/dkms/nvidia.ko")
    alone.lab.ssh(HOST, ["sh", "-c", "cp -p %s /root/ && sed -i 's/vermagic=[0-9]*/vermagic=1/' %s" % (module, module)])
    alone.lab.reboot(HOST)
    # While it boots it is not validated either
    told = alone.await_so(alone.told, lambda told: "Exec format error" in told.get("GpuSick", {}).get("message", ""),
                          BOOT_SECONDS)
    assert (told["GpuSick"]["status"], told["GpuSick"]["reason"]) == ("True", "GpuHostNotValidated")
    assert "module nvidia" in told["GpuSick"]["message"]
    assert alone.is_cordoned and alone.say("systemctl", "is-active", "kubelet") != "active"
    assert told["GpuSick"]["message"] in alone.lab.kubectl(["describe", "node", HOST]).stdout
    alone.has_a_log()
    alone.lab.ssh(HOST, ["cp", "-p", "/root/nvidia.ko", module])
    comes_back(alone)


def comes_back(alone: Bed) -> None:
    """A person has mended it, and starts what was held."""
    alone.lab.ssh(HOST, ["systemctl", "start", "kubelet"])
    alone.await_told(GONE_SECONDS, GpuSick="False")
    assert not alone.is_cordoned and alone.say("systemctl", "is-active", "kubelet") == "active"
    ready: Optional[Dict[str, Any]] = alone.await_so(lambda: next(
        (each for each in alone.fleet.node(HOST)["status"]["conditions"] if each["type"] == "Ready"), None),
        lambda each: each is not None and each["status"] == "True", GONE_SECONDS)
    assert ready
