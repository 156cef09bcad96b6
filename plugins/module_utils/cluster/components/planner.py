# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From what a cluster has to what a component makes: create, change, adopt, replace, prune, remove, or refuse. Pure."""
from __future__ import annotations

from typing import Protocol

from ...core.plan import Plan
from .model import Component, Object, Parameters
from .observation import Live


class DryRun(Protocol):
    """Answers what the server would make of an object."""

    def apply(self, wanted: Object) -> Object:
        """The object as it would be after a server-side apply. Raises ApiError where the server refuses it."""


def plan_component(component: Component, parameters: Parameters, live: Live, dry_run: DryRun) -> Plan:
    """The plan of one component on one cluster; parameters are complete,  says which way.

    Steps have the component's name as capability and 'Kind namespace/name' as subject. plan.host is '': the caller
    names the cluster (dataclasses.replace). Plan the components in order with one observation:

        live = observe(client, components, parameters)
        for component in components:
            plan = plan_component(component, parameters[component.name], live, ServerDryRun(client))
            live = live.after(plan)

    Refusals are in plan.refusals; an ApiError of a dry run that is no refusal of ours is raised.
    """
    raise NotImplementedError
