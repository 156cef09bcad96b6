# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Two small components with everything that the engine must handle, and the run of a cluster with them."""
from __future__ import annotations

from typing import Any, Dict, List, Sequence

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.carrying_out import apply
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.common import (
    Object,
    Parameters,
    cluster_object,
    namespaced,
    selector,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.model import Component, complete
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.observation import (
    Live,
    ServerDryRun,
    observe,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.planner import plan_component
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan

RULES = "nodefeaturerules.nfd.k8s-sigs.io"


def daemon_set(name: str, parameters: Parameters, **container: Any) -> Object:
    return namespaced("apps/v1", "DaemonSet", name, name, parameters, spec={
        "selector": {"matchLabels": selector(name)},
        "template": {"metadata": {"labels": selector(name)}, "spec": {
            "runtimeClassName": parameters["runtime_class"],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "containers": [{"name": name, "image": "plugin:1", "env": [{"name": "A", "value": "1"}], **container}]}},
    })


def plugin_objects(parameters: Parameters) -> List[Object]:
    made = [namespaced("v1", "ConfigMap", "plugin", "plugin", parameters, data=dict(parameters["data"])),
            daemon_set("plugin", parameters, **parameters["container"])]
    if parameters["monitored"]:
        made.append(namespaced("monitoring.coreos.com/v1", "ServiceMonitor", "plugin", "plugin", parameters, spec={}))
    return made


def discovery_objects(parameters: Parameters) -> List[Object]:
    account = namespaced("v1", "ServiceAccount", "finder", "finder", parameters)
    return [
        cluster_object("apiextensions.k8s.io/v1", "CustomResourceDefinition", RULES, "finder", spec={
            "group": "nfd.k8s-sigs.io", "scope": "Cluster",
            "names": {"kind": "NodeFeatureRule", "plural": "nodefeaturerules"},
            "versions": [{"name": "v1alpha1", "served": True, "storage": True}]}),
        account,
        cluster_object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "gpuops-finder", "finder",
                       roleRef={"kind": "ClusterRole", "name": parameters["cluster_role"]}, subjects=[]),
        daemon_set("finder", parameters),
        cluster_object("nfd.k8s-sigs.io/v1alpha1", "NodeFeatureRule", "gpuops-gds", "finder", spec={"rules": []}),
    ]


def discovery_jobs(parameters: Parameters) -> List[Object]:
    return [namespaced("batch/v1", "Job", "prune", "finder", parameters, spec={
        "template": {"spec": {"serviceAccountName": "finder", "containers": [{"name": "prune", "image": "x:1"}]}}})]


PLUGIN = Component(
    "plugin", "the plugin", ("plugin", "plugin-of-old"),
    {"data": {"type": "dict", "default": {"config.yaml": "a: 1\n"}}, "container": {"type": "dict", "default": {}},
     "monitored": {"type": "bool", "default": False}}, plugin_objects)
FINDER = Component(
    "finder", "the finder", ("finder",), {"cluster_role": {"type": "str", "default": "finder"}}, discovery_objects,
    discovery_jobs, (("CustomResourceDefinition", RULES),))
COMPONENTS = (FINDER, PLUGIN)


def plans(client: Client, components: Sequence[Component] = COMPONENTS, **options: Any) -> List[Plan]:
    """The plan of each component, none carried out. options: those of every component."""
    return _go(client, components, False, options)


def run(client: Client, components: Sequence[Component] = COMPONENTS, **options: Any) -> List[Plan]:
    """Plan each component and carry its plan out before the next is planned, as site does it."""
    return _go(client, components, True, options)


def removed(client: Client, components: Sequence[Component] = COMPONENTS, **options: Any) -> List[Plan]:
    return run(client, tuple(reversed(components)), state="absent", **options)


def look(client: Client, components: Sequence[Component] = COMPONENTS, **options: Any) -> Live:
    return observe(client, components, _parameters(components, options))


def _parameters(components: Sequence[Component], options: Dict[str, Any]) -> Dict[str, Dict[str, Any]]:
    known = {component.name: {"state": 0, "namespace": 0, "runtime_class": 0, "runtime_handler": 0, "adopt": 0,
                                 "runtime_class_scheduling": 0,
                                 "patches": 0, **component.arguments} for component in components}
    return {component.name: complete(component, {
        name: value for name, value in options.items() if name in known[component.name]}) for component in components}


def _go(client: Client, components: Sequence[Component], carry_out: bool, options: Dict[str, Any]) -> List[Plan]:
    parameters = _parameters(components, options)
    live = observe(client, components, parameters)
    made = []
    for component in components:
        plan = plan_component(component, parameters[component.name], live, ServerDryRun(client))
        made.append(plan)
        if carry_out:
            apply(client, plan, 5, sleep=lambda seconds: None)
        live = live.after(plan)
    return made


def told(made: Sequence[Plan]) -> List[str]:
    """'action subject' of every step."""
    return ["%s %s" % (step.action, step.subject) for plan in made for step in plan.steps]


def codes(made: Sequence[Plan]) -> List[str]:
    return [refusal.code for plan in made for refusal in plan.refusals]
