# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A component of the cluster as a value, and its objects: data made of options by pure functions."""
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from ...core.errors import GpuOpsError
from .common import COMPONENT, SHARED_ARGUMENTS, Object, Parameters
from .merging import completed, effective
from .patching import patched

# What others need comes first: types before their objects, accounts and configurations before the pods that use them.
# A kind that is not named here is a custom one, or stands alone.
ORDER = {kind: place for place, kind in enumerate((
    "Namespace", "CustomResourceDefinition", "RuntimeClass", "ServiceAccount", "ClusterRole", "ClusterRoleBinding",
    "Role", "RoleBinding", "ResourceQuota", "ConfigMap", "Service", "NetworkPolicy", "Deployment", "DaemonSet"))}


def _nothing(_parameters: Parameters) -> List[Object]:
    return []


@dataclass(frozen=True)
class Component:
    """What is brought to a cluster as one thing.

    name:           'device_plugin': its module, its role, and the capability of its steps.
    title:          what it is called in sentences.
    apps:           values of the label app.kubernetes.io/name by which objects of older releases are found.
    arguments:      the specification of the options that are its own, as Ansible has it; SHARED_ARGUMENTS beside.
    make:           its objects, of complete parameters. Pure.
    before_removal: Jobs that run once its workloads are gone and before the rest goes.
    provided_by:    (kind, name) of objects which, made by others, say that others provide this component.
    """

    name: str
    title: str
    apps: Tuple[str, ...]
    arguments: Mapping[str, Any]
    make: Callable[[Parameters], List[Object]]
    before_removal: Callable[[Parameters], List[Object]] = _nothing
    provided_by: Tuple[Tuple[str, str], ...] = ()


def argument_spec(component: Component) -> Dict[str, Any]:
    """Every option of a component, as Ansible has it."""
    return {**SHARED_ARGUMENTS, **component.arguments}


def complete(component: Component, parameters: Parameters) -> Dict[str, Any]:
    """Every option's value: mappings merged into their defaults, the others as given or by default; data of its own.

    What null removes from a default stays as null, so that completed parameters may be completed again.
    """
    whole: Dict[str, Any] = _plain(completed(argument_spec(component), parameters))
    return whole


def settled(component: Component, parameters: Parameters) -> Dict[str, Any]:
    """Complete parameters as objects are made of them: what null removes from a default is gone."""
    return effective(argument_spec(component), complete(component, parameters))


def objects(component: Component, parameters: Parameters) -> Tuple[Object, ...]:
    """The component's objects, labelled, patched, in the order in which they are applied.

    parameters: checked options, completed or not. Whether the component is wanted (`state`) changes
    nothing here. Raises GpuOpsError where options contradict each other.
    """
    whole = settled(component, parameters)
    made = _labelled(component, component.make(whole))
    _refuse_one_name_for_two(made)
    return tuple(sorted(patched(made, whole["patches"]), key=lambda each: ORDER.get(each["kind"], len(ORDER))))


def removal_jobs(component: Component, parameters: Parameters) -> Tuple[Object, ...]:
    """The Jobs that run once its workloads are gone, labelled."""
    return tuple(_labelled(component, component.before_removal(settled(component, parameters))))


def images(component: Component, parameters: Parameters) -> Tuple[str, ...]:
    """Every image reference of the component's objects and Jobs, each once, in order."""
    found = {container["image"] for each in (*objects(component, parameters), *removal_jobs(component, parameters))
             for container in containers_of(each)}
    return tuple(sorted(found))


def containers_of(each: Object) -> List[Dict[str, Any]]:
    """The containers of a workload's pods; none of what is no workload."""
    template = (each.get("spec") or {}).get("template") or {}
    pod = template.get("spec") or {}
    return [*(pod.get("initContainers") or ()), *(pod.get("containers") or ())]


def _plain(data: Any) -> Any:
    """A copy of which no part is shared: YAML would write a reference for it. Ansible's texts lose their tags."""
    return json.loads(json.dumps(data, default=str))


def _labelled(component: Component, made: Sequence[Object]) -> List[Object]:
    copies: List[Object] = _plain(made)
    for each in copies:
        each["metadata"]["labels"][COMPONENT] = component.name
    return copies


def _refuse_one_name_for_two(made: Sequence[Object]) -> None:
    names = [(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in made]
    twice = sorted({"%s %s" % (kind, name) for kind, place, name in names if names.count((kind, place, name)) > 1})
    if twice:
        raise GpuOpsError(
            "cluster.one_name_for_two_objects", found="two objects would be %s" % " and ".join(twice),
            wanted="names of groups that, put behind the component's name, are no name of it already",
            remedy="rename the group")
