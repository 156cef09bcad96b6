# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping

from ..module_utils.cluster.client import Client
from ..module_utils.cluster.components.registry import COMPONENTS
from ..module_utils.cluster.labels import NodePolicy
from ..module_utils.cluster.node_changes import change_node
from ..module_utils.cluster.placement import admits
from ..module_utils.core.errors import GpuOpsError
from ..plugin_utils.cluster_action import FROM_VARIABLES, ClusterAction, checked
from ..plugin_utils.clusters import PlayVariables
from ..plugin_utils.component_variables import pods_on_nodes
from ..plugin_utils.many_hosts import HOSTS, Clients, for_hosts
from ..plugin_utils.node_labels import label_texts
from ..plugin_utils.role_variables import Source

ROLE = "node_maintenance"
NODE_NAME = "node_maintenance_node_name"
# Options of many hosts, each of which has its own; the rest is what a task is for, and said by it
OF_HOST = ("labels", "choices", "purge_labels", "keep_labels", "take_over")
# Of those on nodes it is told whether this one admits them; the rest is the policy
ADMITTED = "components"


class ActionModule(ClusterAction):
    """Changes a Node, or those of many hosts."""

    ARGUMENTS: ClassVar[Mapping[str, Any]] = {
        "name": {"type": "str"},
        HOSTS: {"type": "list", "elements": "str"},
        "labels": {"type": "dict", "default": {}},
        "choices": {"type": "dict", "default": {}},
        "unset_labels": {"type": "list", "elements": "str", "default": []},
        "purge_labels": {"type": "bool", "default": False},
        "keep_labels": {"type": "list", "elements": "str", "default": []},
        "take_over": {"type": "bool", "default": False},
        "features": {"type": "dict"},
        "startup_taint": {"type": "str", "default": ""},
        "tainted": {"type": "bool"},
        ADMITTED: {"type": "list", "elements": "str", "choices": list(COMPONENTS), "default": []},
    }

    # Of the task's host
    _variables: Mapping[str, Any] = {}

    def answer(self, task_vars: Mapping[str, Any]) -> Dict[str, Any]:
        self._variables = task_vars
        given = {name: value for name, value in self._task.args.items() if name != FROM_VARIABLES}
        task = checked(given, self.ARGUMENTS, self._name())
        hosts = task[HOSTS]
        if (hosts is None) == (given.get("name") is None) or (hosts is not None and given.get(ADMITTED)):
            raise GpuOpsError(
                "cluster.one_node_or_hosts",
                found=", ".join("`%s`" % name for name in ("name", HOSTS, ADMITTED) if given.get(name)) or "nothing",
                wanted="`name`, for one Node, or `hosts`, without `components`, for those of many hosts",
                remedy="set one of the two",
            )
        if hosts is None:
            return super().answer(task_vars)
        del given[HOSTS]
        # A variable that a task has no use for may be one that the host cannot work out now
        wanted = (*OF_HOST, *([] if task["tainted"] is None else ["startup_taint"]))
        source = Source("", ROLE, ROLE + "_", {name: self.ARGUMENTS[name] for name in wanted if name not in given})
        names = [ROLE + "_" + name for name in source.options]
        variables, clients = PlayVariables(task_vars, self._templar, self._task), Clients()
        result = for_hosts(
            variables, hosts, ROLE, names,
            lambda host: {**variables.of_role(host, ROLE, {ROLE: source}, names).options(ROLE), **given},
            NODE_NAME, lambda options, node: self.ask({**options, "name": node}, clients))
        told = result["of_hosts"].items()
        result["warnings"] = [note for _host, each in told for note in each.pop("warnings", ())]
        result["diff"] = [{"before_header": host, "after_header": host, **each.pop("diff")}
                          for host, each in told if "diff" in each]
        return result

    def work(self, cluster: Client, options: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
        texts = label_texts(options["labels"], options["choices"])
        wanted = {name: options[name] for name in NodePolicy.__dataclass_fields__ if name in options}
        wanted.update(labels=texts.there, unset_labels=[*options["unset_labels"], *texts.gone])
        told = change_node(cluster, options["name"], NodePolicy(**wanted), check_mode)
        if options[ADMITTED]:
            node = {"metadata": {"name": options["name"], "labels": told["node"]["labels"]}}
            told["admitted"] = [name for name in options[ADMITTED] if any(
                admits(node, pod) for pod in pods_on_nodes(name, self._variables, self._templar))]
        return told
