# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Configurations of the device plugin, each on two boards at once: brought, validated, repeated, and all in use.

What a node offers is written out with each configuration, and said by the collection's own model of the plugin, from
the devices that the host has and the configuration that its plugin was given; the real plugin decides.
"""
from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Tuple

import gpu_pods
import yaml
from laboratory import Fleet

from gpulab.topology import Topology, parse

A30, H200 = "a30", "h200"
GPUS = {A30: 2, H200: 4}
HOSTS = tuple(GPUS)
NAMESPACE = "gpuops"
CONFIG_LABEL = "nvidia.com/device-plugin.config"
PLUGIN = "nvidia-device-plugin"
# The real GPUs of a node that shares them by MPS, as its daemon has set them
EXCLUSIVE, DEFAULT = "Exclusive_Process", "Default"
OFFER_SECONDS, PODS_SECONDS = 60, 120

Offer = Mapping[str, int]


def topology() -> Topology:
    """Two boards that can be divided: one whose MIG mode takes a reset, without NVLink switches, and one with them; an
    old containerd, and a new one."""
    return parse({"name": "matrix", "control_plane": True, "hosts": [
        {"name": A30, "board": "a30", "gpus": GPUS[A30]},
        {"name": H200, "board": "h200-sxm", "gpus": GPUS[H200], "containerd": "2.3"},
    ]}, __file__)


def each(a30: Any, h200: Any) -> str:
    """A variable that differs by host."""
    return "{{ %s[inventory_hostname] }}" % json.dumps({A30: a30, H200: h200})


def sliced(replicas: int, **more: Any) -> Dict[str, Any]:
    return {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": replicas}], **more}}


def by_mps(replicas: int) -> Dict[str, Any]:
    """MPS shares no MIG devices, so that NVIDIA's daemon ends where the strategy is the default, mixed."""
    return {"flags": {"migStrategy": "none"},
            "sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": replicas}]}}}


@dataclass(frozen=True)
class Case:
    """variables: of site. offers: {host: {resource without its prefix: count}}. mps: hosts that share by it, whose
    plugin gives a pod no more than one device."""

    title: str
    variables: Mapping[str, Any]
    offers: Mapping[str, Offer]
    mps: Tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


def gpus(times: int = 1, name: str = "gpu") -> Dict[str, Offer]:
    return {host: {name: count * times} for host, count in GPUS.items()}


CASES = (
    Case("no configuration", {}, gpus()),
    Case("sliced in four", {"device_plugin_config": {"sharing": sliced(4)}}, gpus(4)),
    Case("sliced in four and renamed", {"device_plugin_config": {"sharing": sliced(4, renameByDefault=True)}},
         gpus(4, "gpu.shared")),
    Case("shared by MPS", {"device_plugin_config": by_mps(2)}, gpus(2), mps=HOSTS),
    Case("divided, strategy single",
         {"mig_config": each("all-1g.6gb", "all-1g.18gb"),
          "device_plugin_config": {"flags": {"migStrategy": "single"}}},
         {A30: {"gpu": 4 * GPUS[A30]}, H200: {"gpu": 7 * GPUS[H200]}}),
    Case("divided, strategy mixed", {"mig_config": "all-balanced"},
         {A30: {"mig-1g.6gb": 2 * GPUS[A30], "mig-2g.12gb": GPUS[A30]},
          H200: {"mig-1g.18gb": 2 * GPUS[H200], "mig-2g.35gb": GPUS[H200], "mig-3g.71gb": GPUS[H200]}}),
    Case("two groups",
         {"device_plugin_configs": {"sliced": {"sharing": sliced(3)}, "mps": by_mps(2)},
          "device_plugin_config_name": each("sliced", "mps")},
         {A30: {"gpu": 3 * GPUS[A30]}, H200: {"gpu": 2 * GPUS[H200]}}, mps=(H200,),
         names={A30: "sliced", H200: "mps"}),
)


class Bed:
    """Two nodes, on which cases follow each other in any order."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def try_out(self, case: Case) -> List[str]:
        """Brings the configuration, and takes back what it has divided; tells what it has seen."""
        told = list(self._brought(case))
        if "mig_config" in case.variables:
            self.site(mig_state="absent")
        return told

    def _brought(self, case: Case) -> Iterator[str]:
        first = self.site(**case.variables)
        yield "%s: %d changes" % (case.title, len(first.changes()))
        self.offers(case)
        self.validates(case, in_use=False)
        yield "offered: %s" % json.dumps(case.offers, sort_keys=True)
        count = self.changes_nothing(case)
        yield "a second run leaves %d objects as they were" % count
        pods = self.take_all(case)
        self.changes_nothing(case)
        self.validates(case, in_use=True)
        yield "so it does with %d pods that have all devices" % len(pods)
        self.delete(pods)

    def site(self, **variables: Any) -> Any:
        return self.fleet.play("gpuops.nvidia.site", gpu_rollout_limit=len(HOSTS), **variables)

    # What is offered

    def offers(self, case: Case) -> None:
        from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.offer import offered

        for host in HOSTS:
            read = self.fleet.tasks(host, [{"gpuops.nvidia.gpu_info": {}}]).result(host, "gpu_info")
            said = offered(read["observation"]["devices"], self.configuration(case, host))
            assert said == {"nvidia.com/" + name: count for name, count in case.offers[host].items()}, (host, said)
            found = self.allocatable(host)
            assert found == case.offers[host], "%s offers %s" % (host, found)
            modes = self.compute_modes(host)
            assert modes == {EXCLUSIVE if host in case.mps else DEFAULT}, "%s: compute modes %s" % (host, modes)

    def configuration(self, case: Case, host: str) -> Dict[str, Any]:
        """What the plugin of the node was given."""
        name = case.names.get(host, "")
        label = self.fleet.node(host)["metadata"]["labels"].get(CONFIG_LABEL, "")
        assert label == name, "%s has the configuration %r" % (host, label)
        config_map = self.get("configmap", "-n", NAMESPACE, PLUGIN + ("-" + name if name else ""))
        return dict(yaml.safe_load(config_map["data"]["config.yaml"]))

    def allocatable(self, host: str) -> Dict[str, int]:
        """The kubelet keeps what is offered no more as nothing."""
        told = self.fleet.node(host)["status"]["allocatable"]
        return {name.split("/")[1]: int(count) for name, count in told.items()
                if name.startswith("nvidia.com/") and int(count)}

    def compute_modes(self, host: str) -> "set[str]":
        return set(self.fleet.say(host, "nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader").split())

    def validates(self, case: Case, in_use: bool) -> None:
        validated = self.fleet.play("gpuops.nvidia.validate", **case.variables).of_many("gpu_validation")
        for host in HOSTS:
            checks = {check["name"]: check for check in validated[host]["checks"]}
            assert checks["allocatable"]["status"] == "passed", checks["allocatable"]
            assert checks["pod"]["status"] == ("skipped" if in_use else "passed"), checks["pod"]
            told = "not probed: all %d in use by " % sum(case.offers[host].values())
            assert not in_use or checks["pod"]["evidence"].startswith(told), checks["pod"]

    # A run that has nothing to do

    def changes_nothing(self, case: Case) -> int:
        before = self.written()
        again = self.site(**case.variables)
        after = self.written()
        assert again.changes() == [], again.changes()
        assert again.calls == dict.fromkeys(HOSTS, ["gpu_plan"]), again.calls
        different = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        assert not different, "written by a run that had nothing to do: %s" % ", ".join(sorted(different))
        return len(before)

    def written(self) -> Dict[str, Any]:
        """{object: its version}: of everything that carries our label, and what others than the kubelet say of Nodes,
        whose heartbeat is a new version every few seconds."""
        kinds = self.fleet.lab.kubectl(["api-resources", "--verbs=list", "-o", "name"]).stdout.split()
        listed = self.get(",".join(kinds), "-A", "-l", "app.kubernetes.io/managed-by=gpuops")["items"]
        found = {"%s %s/%s" % (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]):
                 item["metadata"]["resourceVersion"] for item in listed}
        for host in HOSTS:
            node = self.fleet.node(host)
            found["Node " + host] = [node["metadata"]["labels"], node["metadata"]["annotations"], node["spec"]]
        return found

    def get(self, *words: str) -> Dict[str, Any]:
        return dict(json.loads(self.fleet.lab.kubectl(["get", *words, "-o", "json"]).stdout))

    # Pods that have all devices

    def take_all(self, case: Case) -> List[str]:
        pods = []
        for host in HOSTS:
            wanted = [dict(case.offers[host])]
            if host in case.mps:
                wanted = [{name: 1} for name, count in case.offers[host].items() for _ in range(count)]
            for number, limits in enumerate(wanted):
                pod = gpu_pods.pod("%s-%d" % (host, number), host, 0)
                pod["metadata"]["labels"]["app"] = "taker"
                pod["spec"]["containers"][0]["resources"] = {
                    "limits": {"nvidia.com/" + name: str(count) for name, count in limits.items()}}
                pods.append(pod)
        self.fleet.lab.kubectl(["apply", "-f", "-"],
                               feed=json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
        self.fleet.lab.kubectl(["wait", "--for=condition=Ready", "--timeout=%ds" % PODS_SECONDS, "pod", "-l",
                                "app=taker"])
        return [pod["metadata"]["name"] for pod in pods]

    def delete(self, pods: List[str]) -> None:
        """The kubelet counts a device as free once the pod's containers are gone, and so is the pod then."""
        self.fleet.lab.kubectl(["delete", "pod", "--now", "--ignore-not-found", *pods])
        deadline = time.monotonic() + PODS_SECONDS
        while self.get("pod", "-l", "app=taker")["items"]:
            assert time.monotonic() < deadline, "pods do not go"
            time.sleep(1)
