#!/usr/bin/env python3
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a large cluster costs the controller: the cluster's part of site, an earlier commit of it, lists of all nodes.

Brings up a real API server with as many Node objects as asked for, and runs all ways in turn. See README.md.
"""
from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple
from urllib.parse import parse_qs, urlsplit

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests" / "gates"), str(REPOSITORY / "tests" / "lab")]

import measuring  # noqa: E402
from converged_host import content, worktree  # noqa: E402
from workspace import apart, collections_root  # noqa: E402

from gpulab.lab import Lab  # noqa: E402
from gpulab.topology import parse  # noqa: E402

sys.path.insert(0, str(collections_root()))

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection  # noqa: E402
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.on_cluster import (  # noqa: E402
    ADMITS_PLUGIN,
    Probe,
    state_of,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.role_variables import defaults  # noqa: E402

NOW, BEFORE, KUBECTL = "site", "site before", "kubectl"
ADMINISTRATOR = "gpulab-admin"
NODES = "/api/v1/nodes"
# One in so many nodes has GPUs
GPU_NODES_OF = 5
GPUS = 8
# Of a node that has run for a while: kubelets report at most 50 images
IMAGES = 50
# Those that need no node to be rolled out
BROUGHT = ["gpu_feature_discovery", "device_plugin", "dcgm_exporter"]
PROBE_IMAGE = defaults("gpu_validation")["gpu_validation_pod_image"]
COMPUTE = defaults("gpu_validation")["gpu_validation_compute"]
# What is promised
PEAK_MIB, CPU_SECONDS_A_HOST, FULL_LISTS = 300.0, 0.05, 1
MEASURED = {"seconds": "the wall time", "cpu_seconds": "the processor time", "peak_mib": "the memory"}

# What the playbooks ask more than once, where each release has it
ASKED = {
    NOW: """pre_tasks:
    - ansible.builtin.import_role:
        name: {tree}/playbooks/roles/gpu""",
    BEFORE: """vars_files: ["{tree}/playbooks/vars/site.yml"]""",
}
# The cluster's part of site; its hosts are not asked for anything
PLAY = """
- hosts: all
  gather_facts: false
  {asked}
  tasks:
"""
GROUPED = """
    - ansible.builtin.import_tasks: "{tree}/playbooks/tasks/group.yml"
      vars:
        gpu_group: %s
        gpu_grouped: "{{{{ %s }}}}"
"""
COMPONENTS = PLAY + """
    - ansible.builtin.import_role:
        name: gpuops.nvidia.node_maintenance
        tasks_from: read
        rolespec_validate: false
      vars:
        gpu_clusters_are_named: true
        node_maintenance_rights: [nodes, pods, custody, rollout, probe]
""" + GROUPED % ("in_question", "gpu_hosts_in_question") + PLAY + """
    - ansible.builtin.import_tasks: "{tree}/playbooks/tasks/bring.yml"
""" + GROUPED % ("not_brought", "gpu_hosts_not_brought") + GROUPED % ("with_features", "gpu_hosts_with_features")
NODES_OF_HOSTS = PLAY + """
    - gpuops.nvidia.gpu_node_custody:
        hosts: "{{{{ gpu_hosts_still_converged }}}}"
        state: returned
        startup_taint: ""
      register: gpu_nodes_offered
      changed_when: gpu_nodes_offered.changed
      run_once: true
""" + GROUPED % ("to_tell", "gpu_hosts_to_tell_of_offers") + PLAY + """
    - ansible.builtin.import_tasks: "{tree}/playbooks/tasks/validate_clusters.yml"
      vars:
        gpu_hosts_asked: "{{{{ gpu_hosts_in_clusters }}}}"
        gpu_hosts_to_conclude: "{{{{ gpu_hosts_with_startup_taint }}}}"
        gpu_validation_expected_gpus: "{{{{ gpu_planned.gpus }}}}"
        gpu_validation_proof: "{{{{ gpu_proof }}}}"
        gpu_validation_pod_trusted_for: 86400
- hosts: "{{{{ ['in_question', 'not_brought', 'gpuops_run_offer_to_conclude'] | select('in', groups) | join(':')
             | default('!all', true) }}}}"
  gather_facts: false
  tasks:
    - ansible.builtin.fail:
        msg: "This node is not well: {{{{ group_names | join(', ') }}}}."
"""
# As site had them when each host labelled its own Node
BEFORE_THAT = PLAY + """
    - ansible.builtin.import_tasks: "{tree}/playbooks/tasks/cluster.yml"

    - ansible.builtin.include_role:
        name: gpuops.nvidia.node_maintenance
        tasks_from: "{{{{ item }}}}"
      loop: [label, uncordon]
"""


@dataclass(frozen=True)
class Way:
    """One way to ask the cluster. collections: directory of the collections that it finds."""

    command: Tuple[str, ...]
    collections: Path


class Bench:
    """A cluster with many nodes, and those ways to ask it that are compared."""

    def __init__(self, lab: Lab, directory: Path, nodes: int, hosts: int, before: str) -> None:
        self.lab, self.directory, self.nodes, self.hosts = lab, directory, nodes, hosts
        self.trees = {NOW: collections_root(), **({BEFORE: directory} if before else {})}

    # The cluster

    def bring(self) -> None:
        """Bring the components while there is no node: all of them are rolled out then."""
        self.run(self._play(NOW, COMPONENTS, ()))

    # Its ways

    def ways(self, hosts: int) -> Dict[str, Way]:
        """Each release labels nodes of its own. The components are those of one release, which alone counts them."""
        found = {NOW: self._play(NOW, COMPONENTS + NODES_OF_HOSTS, range(hosts))}
        if BEFORE in self.trees:
            found[BEFORE] = self._play(BEFORE, BEFORE_THAT, range(self.hosts, self.hosts + hosts))
        return found

    def _play(self, release: str, text: str, hosts: Sequence[int]) -> Way:
        collections, word = self.trees[release], "%s-%d" % (release.replace(" ", "-"), len(hosts))
        inventory, playbook = self.directory / (word + ".json"), self.directory / (word + ".yml")
        inventory.write_text(json.dumps({"all": {"hosts": {
            name(each * GPU_NODES_OF): self._host(name(each * GPU_NODES_OF)) for each in hosts} or {"localhost": {}},
            "vars": {"ansible_connection": "local"}}}))
        tree = content(collections)
        playbook.write_text("---" + text.format(tree=tree, asked=ASKED[release].format(tree=tree)))
        variables = json.dumps({"gpu_cluster_kubeconfig": str(self.lab.kubeconfig), "gpu_components": BROUGHT})
        return Way(("ansible-playbook", str(playbook), "--inventory", str(inventory), "--extra-vars", variables),
                   collections)

    def _host(self, node_name: str) -> Dict[str, Any]:
        """What its plan would have said: nothing is to be done, and a pod has proved its node."""
        proof = proved(str(self.lab.kubeconfig), node_name)
        return {"gpu_planned": {"converged": True, "validated": True, "gpus": GPUS, "devices": {}, "proof": proof}}

    def run(self, way: Way) -> Dict[str, Any]:
        """One run, with how often it has listed all nodes."""
        environment = measuring.environment(self.directory, "%s:%s" % (way.collections, collections_root()))
        plane = self.lab.control_plane
        assert plane is not None
        known = plane.audit_log.stat().st_size
        output = self.directory / "output"
        spent = measuring.spent(way.command, environment, self.directory, output)
        with plane.audit_log.open() as log:
            log.seek(known)
            lists = sum(map(is_full_list, map(json.loads, log)))
        return {**spent, "lists": lists, "changed": measuring.changes(output)}

    def compare(self, rounds: int) -> Dict[str, List[Dict[str, Any]]]:
        """All ways in turn; the first round, which labels the nodes, is not counted."""
        many, one = self.ways(self.hosts), self.ways(1)
        rivals = {KUBECTL: Way(tuple(self.lab.kubectl_command(["get", "nodes", "--output=json"])), collections_root())}
        runs: Dict[str, List[Dict[str, Any]]] = {way: [] for way in (*many, *rivals)}
        for number in range(rounds + 1):
            for way in runs:
                run = self.run(many.get(way) or rivals[way])
                if way in many and number:
                    alone = self.run(one[way])["cpu_seconds"]
                    run["cpu_seconds_a_host"] = round((run["cpu_seconds"] - alone) / (self.hosts - 1), 4)
                print("%s %-12s %7.2f s %7.2f s of processor %6.1f MiB, %d lists of all nodes, %d changes" % (
                    "warm-up" if number == 0 else "run %3d" % number, way, run["seconds"], run["cpu_seconds"],
                    run["peak_mib"], run["lists"], run["changed"]), flush=True)
                if number:
                    if run["changed"]:
                        raise SystemExit("%s changed %d things on a converged cluster" % (way, run["changed"]))
                    runs[way].append(run)
        return runs


def populate(lab: Lab, numbers: Sequence[int], make: Callable[[int], Dict[str, Any]]) -> None:
    """Make the nodes, of which nobody says that they are dead: what would is stopped."""
    plane = lab.control_plane
    assert plane is not None
    for daemon in ("kube-scheduler", "kube-controller-manager"):
        plane.daemons[daemon].stop()
    connections = [Client(Connection(kubeconfig=str(lab.kubeconfig))) for _each in range(8)]

    def create(number: int) -> None:
        connections[number % len(connections)].create(NODES, make(number))

    with ThreadPoolExecutor(len(connections)) as pool:
        for first in range(0, len(numbers), len(connections)):
            list(pool.map(create, numbers[first:first + len(connections)]))


def proved(kubeconfig: str, node_name: str) -> Dict[str, Any]:
    """What a host keeps of a pod that has just proved its node."""
    cluster = Client(Connection(kubeconfig=kubeconfig))
    asked = Probe(expected={"nvidia.com/gpu": GPUS}, divided=False, image=PROBE_IMAGE, namespace="default",
                  tolerations=[], runtime_class="nvidia", compute=COMPUTE)
    state = state_of(cluster.get("%s/%s" % (NODES, node_name)), [], asked,
                     cluster.find("/apis/node.k8s.io/v1/runtimeclasses/nvidia"))
    return {"of": state, "at": int(time.time()), "evidence": "", "changes": ""}


def name(number: int) -> str:
    return "node-%05d" % number


def node(number: int) -> Dict[str, Any]:
    """A Node as a kubelet and Node Feature Discovery keep it, of some 12 kB."""
    labels = {"feature.node.kubernetes.io/cpu-cpuid.FEATURE%d" % each: "true" for each in range(40)}
    resources = {"cpu": "64", "memory": "527000000Ki", "pods": "110", "ephemeral-storage": "1000Gi"}
    if number % GPU_NODES_OF == 0:
        labels.update({"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
                       "nvidia.com/gpu.count": str(GPUS), "nvidia.com/cuda.driver-version.full": "580.178.04"})
        # By us, as the client is: what a node offers while it has it not is offered by others
        labels[ADMITS_PLUGIN] = "true"
        resources["nvidia.com/gpu"] = str(GPUS)
    images = [{"names": ["registry.example/team/image-%d@sha256:%064d" % (each, each),
                         "registry.example/team/image-%d:1.%d" % (each, number)], "sizeBytes": 10 ** 8 + each}
              for each in range(IMAGES)]
    condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting",
                 "lastHeartbeatTime": "2026-01-01T00:05:00Z", "lastTransitionTime": "2026-01-01T00:00:10Z"}
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name(number), "labels": labels},
        "status": {"capacity": resources, "allocatable": resources, "images": images, "conditions": [condition],
                   "nodeInfo": dict.fromkeys((
                       "architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion",
                       "kubeletVersion", "machineID", "operatingSystem", "osImage", "systemUUID"), "")},
    }


def is_full_list(entry: Dict[str, Any]) -> bool:
    """Whether an entry of the audit log is the first page of a list of all nodes by the administrator."""
    parts = urlsplit(entry["requestURI"])
    asked = parse_qs(parts.query)
    return bool(entry["verb"] == "list" and parts.path == NODES and entry["user"]["username"] == ADMINISTRATOR
                and not {"continue", "fieldSelector", "labelSelector"}.intersection(asked))


def summary(runs: Dict[str, List[Dict[str, Any]]]) -> Dict[str, Dict[str, Any]]:
    """{way: medians, and how many times what site costs now}."""
    found = {}
    for way, each in runs.items():
        found[way] = {
            "lists": max(run["lists"] for run in each),
            **measuring.compared(runs[NOW], each, MEASURED),
        }
        if "cpu_seconds_a_host" in each[0]:
            found[way]["cpu_seconds_a_host"] = statistics.median(run["cpu_seconds_a_host"] for run in each)
    return found


def promises(found: Dict[str, Dict[str, Any]]) -> Dict[str, bool]:
    own = found[NOW]
    return {
        "at most %d full list of the nodes a run" % FULL_LISTS: own["lists"] <= FULL_LISTS,
        "at most %d MiB in one process" % PEAK_MIB: own["peak_mib"] <= PEAK_MIB,
        "at most %.2f s of processor for another converged host" % CPU_SECONDS_A_HOST:
            own["cpu_seconds_a_host"] <= CPU_SECONDS_A_HOST,
    }


def report(found: Dict[str, Dict[str, Any]]) -> Iterator[str]:
    for way, each in found.items():
        yield "%-12s %7.2f s %7.2f s of processor %7.1f MiB, %d lists of all nodes%s" % (
            way, each["seconds"], each["cpu_seconds"], each["peak_mib"], each["lists"],
            ", %.4f s of processor for another host" % each["cpu_seconds_a_host"]
            if "cpu_seconds_a_host" in each else "")
    for way, each in found.items():
        if way != NOW:
            yield "%s / %s: %s" % (way, NOW, ", ".join("%.2f times %s (%.2f to %.2f)" % (
                each["times_" + of][1], told, each["times_" + of][0], each["times_" + of][2])
                for of, told in MEASURED.items()))
    yield from measuring.verdicts(promises(found))


def main() -> None:
    told = measuring.arguments(
        __doc__, "measured runs of each", before="commit of the site to compare with too",
        nodes="how many nodes the cluster has (default: 15000)", hosts="how many hosts a run has (default: 40)")
    lab = Lab(apart("benchmark"))
    with tempfile.TemporaryDirectory(prefix="gpuops-benchmark-") as place, worktree(told.before or "", Path(place)):
        lab.up(parse({"name": "many-nodes", "control_plane": True, "hosts": []}, __file__))
        try:
            bench = Bench(lab, Path(place), int(told.nodes or 15000), int(told.hosts or 40), told.before or "")
            bench.bring()
            populate(lab, range(bench.nodes), node)
            load = os.getloadavg()[0]
            runs = bench.compare(told.runs)
        finally:
            if not told.keep:
                lab.down()
    found = summary(runs)
    measuring.conclude("many_nodes", load, "\n".join(report(found)), promises(found), nodes=bench.nodes,
                       hosts=bench.hosts, before=told.before, summary=found, runs=runs)


if __name__ == "__main__":
    main()
