# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Dict, FrozenSet, List, Mapping, Optional, Sequence

from ansible.module_utils.parsing.convert_bool import boolean

from ..module_utils.cluster.client import Client
from ..module_utils.cluster.observation import observe, wait_for_resources, wait_for_rollout
from ..module_utils.cluster.playbook_rights import ACTS, PROBES, rights_of
from ..module_utils.cluster.rights import require
from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.refusal import Refusal, as_result
from ..plugin_utils.cluster_action import ClusterAction
from ..plugin_utils.clusters import NODE_NAME, PlayCluster, PlayVariables, clusters_of
from ..plugin_utils.many_hosts import failed

EVERY_CLUSTER = "every_cluster"
NAMED_ONLY = "named_only"
# Whether a host has the validation run a pod, as it does where nothing is said, and where
POD = "gpu_validation_pod"
POD_NAMESPACE = "gpu_validation_pod_namespace"


class ActionModule(ClusterAction):
    """Reads the cluster."""

    ARGUMENTS: ClassVar[Mapping[str, Any]] = {
        "label_selector": {"type": "str", "default": ""},
        "namespace": {"type": "str", "default": ""},
        "runtime_class": {"type": "str", "default": ""},
        "expected_allocatable": {"type": "dict", "default": {}},
        "rolled_out": {"type": "list", "elements": "str", "default": []},
        "wait_timeout": {"type": "int", "default": 120},
        EVERY_CLUSTER: {"type": "bool", "default": False},
        NAMED_ONLY: {"type": "bool", "default": False},
        "rights": {"type": "list", "elements": "str", "choices": list(ACTS), "default": []},
        "pod_namespace": {"type": "str", "default": PROBES},
    }

    # The nodes whose facts are wanted, where that is not all of them
    _only: Optional[FrozenSet[str]] = None
    # The namespaces in which the hosts of this cluster have the validation run its pod; None where the task says it
    _probed: Optional[Sequence[str]] = None

    def answer(self, task_vars: Mapping[str, Any]) -> Dict[str, Any]:
        if not boolean(self._task.args.get(EVERY_CLUSTER, False)):
            return super().answer(task_vars)
        variables = PlayVariables(task_vars, self._templar)
        told: List[Dict[str, Any]] = []
        of_hosts: Dict[str, Any] = {}
        refusals: List[Refusal] = []
        named_only = boolean(self._task.args.get(NAMED_ONLY, False))
        for cluster in clusters_of(variables, named_only):
            names: Dict[str, str] = {}
            for host in cluster.hosts:
                try:
                    names[host] = str(variables.value(host, NODE_NAME) or host)
                except GpuOpsError as error:
                    told.append({**dict(error.result(), failed=True), "others": [], "name": str(cluster),
                                 "hosts": [host]})
                    refusals += error.refusals
            if not names:
                continue
            cluster = replace(cluster, hosts=tuple(names))
            self._probed = self._places_of_probes(variables, cluster)
            found = self._read(cluster, frozenset(names.values()))
            del found["changed"]
            nodes = found.pop("of_nodes", {})
            told.append({"failed": False, "others": [], **found, "name": str(cluster), "hosts": list(cluster.hosts)})
            of_hosts.update((host, nodes.get(name, {})) for host, name in names.items())
            refusals += map(Refusal.from_dict, found.get("refusals", ()))
        result = {"changed": False, "clusters": told, "of_hosts": of_hosts}
        return {**result, **as_result(refusals), "failed": True} if refusals else result

    def _places_of_probes(self, variables: PlayVariables, cluster: PlayCluster) -> List[str]:
        said = [hosts[0] for hosts in variables.alike(cluster.hosts, [POD, POD_NAMESPACE])]
        given = self._task.args.get("pod_namespace")
        return sorted({str(given or variables.value(host, POD_NAMESPACE) or PROBES) for host in said
                       if _is_on(variables.value(host, POD))})

    def _read(self, cluster: PlayCluster, nodes: FrozenSet[str]) -> Dict[str, Any]:
        """One cluster; what goes wrong with it does not keep the others back."""
        self._only = nodes
        try:
            if cluster.refusals:
                raise GpuOpsError.because(cluster.refusals)
            return self.ask({**self._task.args, **cluster.options})
        except GpuOpsError as error:
            return failed(error)

    def work(self, cluster: Client, options: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
        probed = [options["pod_namespace"]] if self._probed is None else self._probed
        require(cluster, rights_of(options["rights"], probed))
        if options["rolled_out"]:
            wait_for_rollout(cluster, options["namespace"], options["rolled_out"], options["wait_timeout"])
        if options["expected_allocatable"]:
            wait_for_resources(cluster, options["expected_allocatable"], options["wait_timeout"])
        found = observe(cluster, options["label_selector"], options["namespace"], options["runtime_class"],
                        self._only)
        return dict(found, changed=False)


def _is_on(said: Any) -> bool:
    return said is None or boolean(said, strict=False)
