# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A component of the cluster as a value, and its objects: data made of options by pure functions."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Tuple

from .common import SHARED_ARGUMENTS, Object, Parameters


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


def objects(component: Component, parameters: Parameters) -> Tuple[Object, ...]:
    """The component's objects, labelled, patched, in the order in which they are applied."""
    raise NotImplementedError


def images(component: Component, parameters: Parameters) -> Tuple[str, ...]:
    """Every image reference of the component's objects and Jobs, each once, in order."""
    raise NotImplementedError
