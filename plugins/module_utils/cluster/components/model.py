# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a component of the cluster is: a value made of pure functions."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Tuple

Object = Dict[str, Any]
Parameters = Mapping[str, Any]


def _nothing(parameters: Parameters) -> List[Object]:
    return []


@dataclass(frozen=True)
class Component:
    """One thing that gpuops brings into a cluster. See the page of the package for its fields."""

    name: str
    title: str
    apps: Tuple[str, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[[Parameters], List[Object]] = _nothing
    before_removal: Callable[[Parameters], List[Object]] = _nothing
    provided_by: Tuple[Tuple[str, str], ...] = ()


def objects(component: Component, parameters: Parameters) -> Tuple[Object, ...]:
    """The component's objects in the order in which they are applied."""
    return tuple(component.make(parameters))
