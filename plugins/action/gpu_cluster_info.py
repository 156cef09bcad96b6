# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

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


@dataclass(frozen=True)
class _Own:
    """What the hosts of one cluster say of themselves.

    names:  {host: its Node} of those of which nothing is wrong.
    wrong:  what is, and with which hosts.
    probed: the namespaces in which they have the validation run its pod.
    """

    names: Mapping[str, str]
    wrong: Sequence[Tuple[GpuOpsError, Sequence[str]]]
    probed: Sequence[str]


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

    # Of the cluster that is read; None where the task itself says what is wanted of it
    _wanted: Optional[_Own] = None

    def answer(self, task_vars: Mapping[str, Any]) -> Dict[str, Any]:
        if not boolean(self._task.args.get(EVERY_CLUSTER, False)):
            return super().answer(task_vars)
        variables = PlayVariables(task_vars, self._templar, self._task)
        told: List[Dict[str, Any]] = []
        of_hosts: Dict[str, Any] = {}
        refusals: List[Refusal] = []
        named_only = boolean(self._task.args.get(NAMED_ONLY, False))
        for cluster in clusters_of(variables, named_only):
            own = self._own(variables, cluster)
            for error, hosts in own.wrong:
                told.append({**dict(error.result(), failed=True), "others": [], "name": str(cluster),
                             "hosts": list(hosts)})
                refusals += error.refusals
            if not own.names:
                continue
            cluster = replace(cluster, hosts=tuple(own.names))
            found = self._read(cluster, own)
            del found["changed"]
            nodes = found.pop("of_nodes", {})
            told.append({"failed": False, "others": [], **found, "name": str(cluster), "hosts": list(cluster.hosts)})
            of_hosts.update((host, nodes.get(name, {})) for host, name in own.names.items())
            refusals += map(Refusal.from_dict, found.get("refusals", ()))
        result = {"changed": False, "clusters": told, "of_hosts": of_hosts}
        return {**result, **as_result(refusals), "failed": True} if refusals else result

    def _own(self, variables: PlayVariables, cluster: PlayCluster) -> _Own:
        """What one host says that cannot be worked out is no reason to leave the others undone."""
        names: Dict[str, str] = {}
        wrong: List[Tuple[GpuOpsError, Sequence[str]]] = []
        probed = set()
        given = self._task.args.get("pod_namespace")
        for group in variables.alike(cluster.hosts, [POD, POD_NAMESPACE]):
            try:
                place = str(given or variables.value(group[0], POD_NAMESPACE) or PROBES)
                if _is_on(variables.value(group[0], POD)):
                    probed.add(place)
            except GpuOpsError as error:
                wrong.append((error, group))
                continue
            for host in group:
                try:
                    names[host] = str(variables.value(host, NODE_NAME) or host)
                except GpuOpsError as error:
                    wrong.append((error, (host,)))
        of_node: Dict[str, List[str]] = {}
        for host, name in names.items():
            of_node.setdefault(name, []).append(host)
        wrong += [(_one_node(name, hosts), hosts) for name, hosts in of_node.items() if len(hosts) > 1]
        out = {host for _error, hosts in wrong for host in hosts}
        return _Own({host: names[host] for host in cluster.hosts if host in names and host not in out}, wrong,
                    sorted(probed))

    def _read(self, cluster: PlayCluster, own: _Own) -> Dict[str, Any]:
        """One cluster; what goes wrong with it does not keep the others back."""
        self._wanted = own
        try:
            if cluster.refusals:
                raise GpuOpsError.because(cluster.refusals)
            return self.ask({**self._task.args, **cluster.options})
        except GpuOpsError as error:
            return failed(error)

    def work(self, cluster: Client, options: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
        probed = self._wanted.probed if self._wanted else [options["pod_namespace"]]
        require(cluster, rights_of(options["rights"], probed))
        if options["rolled_out"]:
            wait_for_rollout(cluster, options["namespace"], options["rolled_out"], options["wait_timeout"])
        if options["expected_allocatable"]:
            wait_for_resources(cluster, options["expected_allocatable"], options["wait_timeout"])
        found = observe(cluster, options["label_selector"], options["namespace"], options["runtime_class"],
                        frozenset(self._wanted.names.values()) if self._wanted else None)
        return dict(found, changed=False)


def _one_node(name: str, hosts: Sequence[str]) -> GpuOpsError:
    return GpuOpsError(
        "cluster.one_node_of_several_hosts",
        found="%s are all the Node %s by their `%s`" % (", ".join(hosts), name, NODE_NAME),
        wanted="a Node of its own for each host",
        remedy="correct `%s`: what is found of one host would count for another" % NODE_NAME,
        option=NODE_NAME,
    )


def _is_on(said: Any) -> bool:
    return said is None or boolean(said, strict=False)
