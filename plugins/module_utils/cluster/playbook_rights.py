# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What each playbook asks a cluster for, as the rules of the least roles that it can work with. Pure.

What is about nodes and pods is said here; what is about components follows from their objects.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Collection, Dict, List, Mapping, Sequence, Tuple

from .components.common import SHARED_ARGUMENTS, Parameters
from .components.model import Component, complete
from .components.registry import BY_DEFAULT, COMPONENTS
from .components.rights import to_bring, to_read, to_remove
from .custody.leases import GROUP as LEASES
from .custody.marks import MEDIK8S_NAMESPACE
from .custody.surroundings import MACHINES
from .rights import Rule, beyond, merged

# Of the pod that the validation runs: where gpu_validation runs it by default
PROBES = "default"
_RUNTIME_CLASS = str(SHARED_ARGUMENTS["runtime_class"]["default"])

INVENTORY = (Rule(("list",), "", "nodes", "find the GPU nodes"),)
OTHER_MANAGERS = (
    Rule(("list",), "", "nodes", "find the GPU nodes and who manages them"),
    Rule(("list",), "nvidia.com", "clusterpolicies", "leave alone what the NVIDIA GPU Operator manages"),
)
OTHER_OFFERS = (
    Rule(("list",), "apps", "daemonsets", "tell our device plugin from another"),
    Rule(("list",), "resource.k8s.io", "resourceslices", "see GPUs that a DRA driver offers"),
)
_NODES = (Rule(("get", "patch"), "", "nodes", "cordon a node, label it and give it back"),)
_PODS = (
    Rule(("get", "list"), "", "pods", "find the pods that have GPUs of a node, and see them gone"),
    Rule(("create",), "", "pods/eviction", "have them leave, as far as disruption budgets allow"),
    Rule(("list",), "policy", "poddisruptionbudgets", "tell before the first eviction what budgets let go"),
    Rule(("list",), "apps", "daemonsets", "tell pods that come again at once from those that never do"),
    Rule(("list",), "", "namespaces", "leave the pods of a namespace that is being deleted to it"),
    Rule(("get",), "resource.k8s.io", "resourceclaims", "see which pods have GPUs by claims"),
)
# Of what nodes and rollouts are known by
_NAMESPACE = str(SHARED_ARGUMENTS["namespace"]["default"])
# Who has a node: see custody/
_CUSTODY = (
    Rule(("get", "create", "patch", "delete"), LEASES, "leases", "say which run has a node, and follow it", (),
         _NAMESPACE),
    Rule(("list",), "apps", "daemonsets", "leave alone what kured has locked"),
    Rule(("list",), "maintenance.nvidia.com", "nodemaintenances", "leave alone what NVIDIA's maintenance operator has"),
    Rule(("list",), "nodemaintenance.medik8s.io", "nodemaintenances", "leave alone what an operator of medik8s has"),
    Rule(("get", "patch"), MACHINES, "machines",
         "keep a node that is being changed from being replaced, and leave alone one that is"),
)
# Of programs beside us whose namespace is there only where they are: who takes nodes asks for it, and goes on without
# an answer where that is refused. {program: rules}
BESIDE: Mapping[str, Tuple[Rule, ...]] = {
    "medik8s": (Rule(("get",), LEASES, "leases", "leave alone what an operator of medik8s has", (),
                     MEDIK8S_NAMESPACE),),
}
# Which no role has, as it asks no disruption budget
DELETES_PODS = Rule(("delete",), "", "pods", "take pods away without a question to their disruption budgets")
# Of options of a drain. {variable: rules beyond the roles of who takes nodes}
OF_DRAINS: Mapping[str, Tuple[Rule, ...]] = {"node_maintenance_disable_eviction": (DELETES_PODS,)}
TAKE_NODES = ("site", "uninstall")
_PROBE = (
    Rule(("get",), "", "nodes", "see what a node offers"),
    Rule(("list",), "", "pods", "see which GPUs of a node are free"),
    Rule(("get",), "node.k8s.io", "runtimeclasses", "run a probe as other pods with GPUs run", (_RUNTIME_CLASS,)),
)
_PROBE_POD = Rule(("get", "create", "delete"), "", "pods", "run a pod that gets a GPU, and take it away", (), PROBES)
PROBE = "probe"
RECORD = "gpuops-rollout"
_PLANS_ROLLOUT = (
    Rule(("list",), "", "nodes", "see which nodes are out of service"),
    Rule(("list",), "", "pods", "see which jobs a change ends"),
    Rule(("get",), "", "configmaps", "know who changes nodes", (RECORD,), _NAMESPACE),
)
_BUDGET = (
    Rule(("list",), "", "nodes", "see which nodes are out of service"),
    Rule(("list",), LEASES, "leases", "see which runs are at work yet", (), _NAMESPACE),
    Rule(("get", "create", "patch"), "", "configmaps", "share one budget with all controllers", (RECORD,), _NAMESPACE),
)
# What somebody may ask about before he begins. {word: rules}
ACTS: Mapping[str, Tuple[Rule, ...]] = {
    "nodes": _NODES,
    "pods": _PODS,
    "custody": _CUSTODY,
    "rollout": _BUDGET,
    # Nothing else depends on whether the RuntimeClass is seen, and it may have another name
    PROBE: (*(rule for rule in _PROBE if not rule.names), _PROBE_POD),
}
SAVED_PLANS = (Rule(("get",), "", "namespaces", "know the cluster of a saved plan again", ("kube-system",)),)
ROLLOUT = (Rule(("list",), "", "nodes", "tell nodes that are not ready from pods that do not start"),)


def rights_of(acts: Collection[str], probes: Collection[str] = (PROBES,)) -> List[Rule]:
    """The rules of these acts. probes: the namespaces of the validation's pods; where there are none, none is run."""
    rules = [rule for act in acts if act != PROBE or probes for rule in ACTS[act]]
    return [each for rule in rules for each in (
        [replace(rule, place=place) for place in probes] if rule.place == PROBES else [rule])]


def probe_rights(probes: str) -> List[Rule]:
    """What the pod of a validation needs."""
    return [replace(_PROBE_POD, place=probes)]


def _pods_of(components: Sequence[Component], parameters: Mapping[str, Parameters]) -> List[Rule]:
    places = dict.fromkeys(str(parameters[component.name]["namespace"]) for component in components)
    return [Rule(("list",), "", "pods", "say why pods of the components do not start", (), place) for place in places]


def _plan(components: Sequence[Component], parameters: Mapping[str, Parameters]) -> List[Rule]:
    return [*OTHER_MANAGERS, *OTHER_OFFERS, *SAVED_PLANS, *_PLANS_ROLLOUT, *to_read(components, parameters)]


def _stage(_components: Sequence[Component], _parameters: Mapping[str, Parameters]) -> List[Rule]:
    return [*OTHER_MANAGERS, *OTHER_OFFERS]


def _site(components: Sequence[Component], parameters: Mapping[str, Parameters]) -> List[Rule]:
    return [*_plan(components, parameters), *_NODES, *_CUSTODY, *_PODS, *_BUDGET, *_validate(components, parameters),
            *ROLLOUT, *_pods_of(components, parameters), *to_bring(components, parameters)]


def _validate(_components: Sequence[Component], _parameters: Mapping[str, Parameters]) -> List[Rule]:
    return [*_PROBE, _PROBE_POD]


def _uninstall(components: Sequence[Component], parameters: Mapping[str, Parameters]) -> List[Rule]:
    gone = {name: {**options, "state": "absent"} for name, options in parameters.items()}
    return [*OTHER_MANAGERS, *OTHER_OFFERS, *to_read(components, gone), *_NODES, *_CUSTODY, *_PODS,
            *to_remove(components, parameters)]


def _inventory(_components: Sequence[Component], _parameters: Mapping[str, Parameters]) -> List[Rule]:
    return list(INVENTORY)


PLAYBOOKS: Mapping[str, Callable[[Sequence[Component], Mapping[str, Parameters]], List[Rule]]] = {
    "inventory": _inventory, "plan": _plan, "stage": _stage, "validate": _validate, "site": _site,
    "uninstall": _uninstall}


def rules_of(playbook: str, options: Mapping[str, Parameters], more: Collection[str] = ()) -> List[Rule]:
    """The rules that a playbook needs. options: {component: those that are not its default}.

    more: components beside those that are brought by default.
    """
    components = [component for name, component in COMPONENTS.items() if name in BY_DEFAULT or name in more]
    parameters = {component.name: complete(component, options.get(component.name, {})) for component in components}
    return merged(PLAYBOOKS[playbook](components, parameters))


def variations() -> Dict[Tuple[str, str], Dict[str, Any]]:
    """Each option of a component whose values can be told from its specification, with options to try it by.

    {(component, option): options}; a part of a mapping is named 'option.part', and a component that is not brought by
    default is itself an option, ''.
    """
    found: Dict[Tuple[str, str], Dict[str, Any]] = {}
    for component in COMPONENTS.values():
        if component.name not in BY_DEFAULT:
            found[component.name, ""] = {}
        for name, spec in component.arguments.items():
            for part, inside in (spec.get("options") or {}).items() if spec["type"] == "dict" else ():
                for value in _others(inside):
                    found[component.name, "%s.%s" % (name, part)] = {name: {part: value}}
            for value in _others(spec):
                found[component.name, name] = {name: value}
    return found


def _others(spec: Mapping[str, Any]) -> List[Any]:
    """Values beside the default that stand for all others."""
    kind, default, choices = spec["type"], spec.get("default"), spec.get("choices")
    if kind == "bool":
        return [not default]
    if kind == "int":
        return [int(default or 0) + 1]
    if kind == "list" and choices and not default:
        return [list(choices)]
    if kind == "str" and choices:
        return [choice for choice in choices if choice != default]
    return []


def extras() -> Dict[Tuple[str, str], Dict[str, List[Rule]]]:
    """{(component, option): {playbook: what it needs beyond its role where the option is set}}; none that need no more.

    Of a component that is not brought by default, beyond what that needs.
    """
    found: Dict[Tuple[str, str], Dict[str, List[Rule]]] = {}
    usual: Dict[Tuple[str, ...], List[Rule]] = {}
    for (component, option), options in variations().items():
        besides = [component] if option and component not in BY_DEFAULT else []
        for playbook in PLAYBOOKS:
            known = (playbook, *besides)
            usual[known] = usual.get(known) or rules_of(playbook, {}, besides)
            more = merged(beyond(rules_of(playbook, {component: options}, [component]), usual[known]))
            if more:
                found.setdefault((component, option), {})[playbook] = more
    return found
