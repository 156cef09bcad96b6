# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a cluster has of our components, read by few requests: one list of each kind, and what is in the way by name."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import FrozenSet, Mapping, Sequence, Tuple

from ...core.plan import Plan
from ..client import Client
from .kinds import Key
from .model import Component, Object, Parameters


@dataclass(frozen=True)
class Live:
    """What is there. Of plan_component() it is all that is known of the cluster.

    objects:   what gpuops has made, of whichever component, and what others have made under a name that is wanted.
    absent:    kinds that the API does not have.
    wanted:    keys of shared objects (Namespace, RuntimeClass) that a component which is asked for wants.
    observed:  names of the components that were asked about.
    contents:  {namespace of ours that may go: 'Kind name' of each thing of others in it}.
    instances: {CRD of ours that may go: names of its objects that are not ours}.
    """

    objects: Mapping[Key, Object] = field(default_factory=dict)
    absent: FrozenSet[str] = frozenset()
    wanted: FrozenSet[Key] = frozenset()
    observed: FrozenSet[str] = frozenset()
    contents: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    instances: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)

    def after(self, plan: Plan) -> Live:
        """As it will be once the plan is done: what the next component of the same cluster is planned with."""
        raise NotImplementedError


def observe(client: Client, components: Sequence[Component], parameters: Mapping[str, Parameters]) -> Live:
    """Look at a cluster once, for all of these components.

    parameters: {name of a component: its complete parameters}, state included. Reads only. A kind that may not be
    listed is an error (cluster.right_missing) that names verb and resource.
    """
    raise NotImplementedError


class ServerDryRun:
    """planner.DryRun by server-side apply with dryRun=All: nothing is written."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def apply(self, wanted: Object) -> Object:
        raise NotImplementedError
