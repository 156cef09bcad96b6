# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA's chart and our components in turn on the same node: what it offers, how it is labelled, what pods get.

The cases are those of tests/lab/charts/cases.yml that say what they offer. The chart is installed by Helm, looked at
and removed; ours come by their roles, are looked at, and go.
"""
from __future__ import annotations

import contextlib
import json
import re
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Tuple

import gpu_pods
from laboratory import Fleet

from gpulab import charts
from gpulab.charts import Case
from gpulab.processes import LabError
from gpulab.topology import Topology, parse

HOST = "node"
GPUS = 2
RELEASE = "upstream"
NAMESPACE = "upstream"
PREFIX = "nvidia.com/"
COMPONENTS = ("node_feature_discovery", "gpu_feature_discovery", "device_plugin")
# The nodes of a laboratory have NVIDIA's runtime, and not as the default one. The directory is the plugin's default,
# and is mounted so: the files of /proc that tell MIG devices are simulated, and found below it.
OF_THE_LABORATORY = {"runtimeClassName": "nvidia", "nvidiaDriverRoot": "/"}
# What the chart takes for granted of its nodes: its plugin is unprivileged, and tells pods their GPUs by a variable
AS_THE_CHART_WANTS: Dict[str, Any] = {
    "container_toolkit_accept_envvar_when_unprivileged": True,
    "container_toolkit_settings": {"accept-nvidia-visible-devices-as-volume-mounts": True},
}
RUNTIME_CLASS = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"},
                 "handler": "nvidia"}
SECONDS = 180
STEADY_SECONDS = 4
LAST_LINES = 8
# Labels that a moment, and not the node, decides; and what a site of ours gives the Node
UNSTEADY = ("gfd.timestamp",)
NOT_OF_THESE = ("gpu.deploy.", "gpu.present", "mig.config", "device-plugin.config")

Labels = Dict[str, str]


def topology() -> Topology:
    return parse({"name": "charts", "control_plane": True, "hosts": [
        {"name": HOST, "board": "a100-80gb-sxm", "gpus": GPUS, "containerd": "2.3"}]}, __file__)


def cases() -> List[Case]:
    return [case for case in charts.cases() if case.offers is not None]


@dataclass(frozen=True)
class Seen:
    """offers: {resource: count}. pods: {what a pod asks for: what it got}, without which of equal devices it was."""

    offers: Mapping[str, int]
    labels: Labels
    pods: Mapping[str, str]


class Bed:
    """A node with the driver and the runtime, and nothing in its cluster yet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def prepare(self) -> None:
        self.fleet.play("gpuops.nvidia.site", **AS_THE_CHART_WANTS)
        self.ours_go()

    def compare(self, case: Case) -> List[str]:
        """Both in turn; tells what was the same. Raises AssertionError where something was not."""
        with_labels = list((case.nodes or {"": {}}).values())[-1]
        try:
            self.divide(case.mig)
            self.label(with_labels)
            theirs = self.look_at_chart(case)
            ours = self.look_at_ours(case)
        finally:
            self.label(dict.fromkeys(with_labels))
            if case.mig:
                self.divide("")
        assert theirs == ours, "\n".join(_apart(theirs, ours))
        return ["%s: %s, %d labels, %s" % (case.name, json.dumps(theirs.offers), len(theirs.labels),
                                           "; ".join(sorted(theirs.pods)) or "no pod")]

    def divide(self, config: str) -> None:
        """Divide the GPUs and say so in the CDI specification, by which NVIDIA's runtime finds what a pod is given."""
        options = {"mig_config": config} if config else {"mig_state": "absent"}
        self.include({"name": "gpuops.nvidia.mig"}, {"name": "gpuops.nvidia.container_runtime", "tasks_from": "cdi"},
                     **options)

    def label(self, labels: Mapping[str, Any]) -> None:
        words = ["%s=%s" % pair if pair[1] is not None else pair[0] + "-" for pair in labels.items()]
        if words:
            self.fleet.lab.kubectl(["label", "--overwrite", "node", HOST, *words])

    def play(self, *roles: str, **variables: Any) -> None:
        self.include(*({"name": role} for role in roles), **variables)

    def include(self, *roles: Mapping[str, str], **variables: Any) -> None:
        tasks = [{"ansible.builtin.include_role": dict(role)} for role in roles]
        played = self.fleet.tasks("all", tasks, **variables)
        assert played.code == 0, played.failures()

    # One of them, from its coming to its going

    def look_at_chart(self, case: Case) -> Seen:
        self.apply([RUNTIME_CLASS])
        values = self.fleet.scratch / "values.json"
        values.write_text(json.dumps({**OF_THE_LABORATORY, **case.values}))
        self.helm("upgrade", "--install", RELEASE, str(charts.directory(case.chart)), "--create-namespace",
                  "--values", str(values))
        try:
            return self.look(case, "the chart")
        finally:
            self.helm("uninstall", RELEASE, "--wait", "--timeout", "3m")
            self.delete("namespace", NAMESPACE)
            self.delete("runtimeclass", "nvidia")
            definitions = self.fleet.lab.kubectl(["get", "crd", "-o", "name"]).stdout.split()
            for name in definitions:
                if name.endswith("nfd.k8s-sigs.io"):
                    self.delete(*name.split("/"))
            self.is_bare()

    def look_at_ours(self, case: Case) -> Seen:
        self.play(*("gpuops.nvidia." + name for name in self.components(case)), **case.variables)
        try:
            return self.look(case, "ours")
        finally:
            self.ours_go()
            self.is_bare()

    def ours_go(self) -> None:
        everything = (*COMPONENTS, "dcgm_exporter")
        self.play(*("gpuops.nvidia." + name for name in reversed(everything)),
                  **{name + "_state": "absent" for name in everything})

    def components(self, case: Case) -> Tuple[str, ...]:
        """Those that the chart brings with these values, whatever of them is compared as objects."""
        return COMPONENTS if self.discovers(case) else COMPONENTS[2:]

    def discovers(self, case: Case) -> bool:
        return bool((case.values.get("gfd") or {}).get("enabled"))

    def helm(self, *words: str) -> None:
        charts.helm(*words, "--namespace", NAMESPACE, environment={"KUBECONFIG": str(self.fleet.lab.kubeconfig)})

    def apply(self, objects: List[Dict[str, Any]]) -> None:
        self.fleet.lab.kubectl(["apply", "-f", "-"],
                               feed=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def delete(self, *words: str) -> None:
        self.fleet.lab.kubectl(["delete", "--ignore-not-found", "--timeout=90s", *words])

    # What is there

    def look(self, case: Case, whose: str) -> Seen:
        wanted = dict(case.offers or {})
        self.wait("%s to offer %s" % (whose, wanted), lambda: self.offers() == wanted, self.offers)
        if self.discovers(case):
            self.wait("%s to label the node" % whose, lambda: "gpu.count" in self.labels(), self.labels)
        labels = self.labels()
        deadline = time.monotonic() + STEADY_SECONDS
        while time.monotonic() < deadline:
            time.sleep(1)
            if self.labels() != labels:
                labels, deadline = self.labels(), time.monotonic() + STEADY_SECONDS
        return Seen(self.offers(), labels, dict(self.pods(wanted)))

    def offers(self) -> Dict[str, int]:
        """The kubelet keeps what is offered no more as nothing."""
        told = self.fleet.node(HOST)["status"]["allocatable"]
        return {name: int(count) for name, count in told.items() if name.startswith(PREFIX) and int(count)}

    def labels(self) -> Labels:
        told = self.fleet.node(HOST)["metadata"]["labels"]
        own = {name[len(PREFIX):]: value for name, value in told.items() if name.startswith(PREFIX)}
        return {name: value for name, value in own.items()
                if name not in UNSTEADY and not name.startswith(NOT_OF_THESE)}

    def pods(self, offers: Mapping[str, int]) -> Iterator[Tuple[str, str]]:
        for resource in sorted(offers):
            pod = gpu_pods.pod("asks", HOST, 1, resource)
            pod["spec"]["containers"][0]["command"] = ["sh", "-c", "%s; env | grep -E 'NVIDIA|CUDA' | sort; sleep 3600"
                                                       % gpu_pods.LOOK]
            try:
                gpu_pods.run(self.fleet, [pod])
                yield "one %s" % resource, _same_for_any(gpu_pods.seen(self.fleet, "asks"))
            except LabError as error:
                events = self.fleet.lab.kubectl(["events", "--for", "pod/asks"]).stdout
                raise AssertionError("%s\n%s\n%s" % (error, events, self.trouble())) from error
            finally:
                self.fleet.lab.kubectl(["delete", "pod", "--ignore-not-found", "--now", "--wait", "asks"])

    def is_bare(self) -> None:
        """So that what is seen next is not what the one before has left."""
        self.wait("the node to offer nothing and to lose its labels", lambda: not self.offers() and not self.labels(),
                  lambda: (self.offers(), self.labels()))

    def wait(self, what: str, judge: Callable[[], bool], told: Callable[[], Any]) -> None:
        deadline = time.monotonic() + SECONDS
        while not judge():
            assert time.monotonic() < deadline, "waited %d s for %s, found %s\n%s" % (
                SECONDS, what, told(), self.trouble())
            time.sleep(1)

    def trouble(self) -> str:
        """Pods, and the end of what containers that are not ready have said."""
        lines = [self.fleet.lab.kubectl(["get", "pods", "-A"]).stdout]
        for pod in json.loads(self.fleet.lab.kubectl(["get", "pods", "-A", "-o", "json"]).stdout)["items"]:
            for status in pod["status"].get("containerStatuses", ()):
                if not status["ready"]:
                    words = ["-n", pod["metadata"]["namespace"], pod["metadata"]["name"], "-c", status["name"]]
                    with contextlib.suppress(LabError):
                        said = self.fleet.lab.kubectl(["logs", "--tail=%d" % LAST_LINES, *words]).stdout
                        lines.append("%s %s:\n%s" % (pod["metadata"]["name"], status["name"], said))
        return "\n".join(lines)


def _same_for_any(text: str) -> str:
    """What a pod has seen, whichever of the equal devices it got."""
    text = re.sub(r"(GPU|MIG)-[0-9a-f-]{36}", r"\1-ID", text)
    text = re.sub(r"\bnvidia\d+\b", "nvidiaN", text)
    text = re.sub(r"nvidia-cap\d+", "nvidia-capN", text)
    return re.sub(r"(GPU|Device) +\d+:", r"\1 N:", text)


def _apart(theirs: Seen, ours: Seen) -> Iterator[str]:
    for name in ("offers", "labels", "pods"):
        of_chart, of_ours = getattr(theirs, name), getattr(ours, name)
        for key in sorted({*of_chart, *of_ours}):
            if of_chart.get(key) != of_ours.get(key):
                yield "%s %s: with the chart %r, with ours %r" % (name, key, of_chart.get(key), of_ours.get(key))
