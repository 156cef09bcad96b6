# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Groups of nodes, each with a setting of its own, told apart by a label of the Node. Pure.

A node whose label names a group is that group's; every other node has the base's setting. So each group has its own
workload, and no node has two.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Tuple

from ...core.errors import GpuOpsError

# With what stands before it, a name of an object and the value of a label, of which both have 63 characters at most
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?")


@dataclass(frozen=True)
class Group:
    """Nodes with one setting.

    name:   of the group; '' for the base.
    label:  of Nodes, whose value is the group's name.
    others: for the base, the names of all groups; a node that one of them names is not the base's.
    value:  the setting.
    """

    name: str
    label: str
    others: Tuple[str, ...]
    value: Any

    def everywhere(self) -> Group:
        """The base where its pods run on the nodes of groups, too."""
        return replace(self, others=())

    def called(self, name: str) -> str:
        """The group's own object of that name."""
        return "%s-%s" % (name, self.name) if self.name else name

    def placement(self, parameters: Mapping[str, Any]) -> Dict[str, Any]:
        """Where its pods go, as pod_spec() takes it."""
        return {"node_selector": self.node_selector(parameters["node_selector"]),
                "affinity": self.affinity(parameters["affinity"])}

    def node_selector(self, given: Mapping[str, str]) -> Dict[str, str]:
        return {**given, self.label: self.name} if self.name else dict(given)

    def affinity(self, given: Mapping[str, Any]) -> Dict[str, Any]:
        """The base's pods keep off the nodes of groups. Terms are alternatives, so each of them has to say it."""
        if not self.others:
            return dict(given)
        apart = {"key": self.label, "operator": "NotIn", "values": list(self.others)}
        nodes = given.get("nodeAffinity") or {}
        required = nodes.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
        terms = [{**term, "matchExpressions": [*(term.get("matchExpressions") or ()), apart]}
                 for term in required.get("nodeSelectorTerms") or [{}]]
        return {**given, "nodeAffinity": {
            **nodes, "requiredDuringSchedulingIgnoredDuringExecution": {**required, "nodeSelectorTerms": terms}}}


def groups_of(option: str, label: str, base: Any, named: Mapping[str, Any], node_selector: Mapping[str, str]
              ) -> List[Group]:
    """The base and then each group by name.

    option: which the groups are given by. named: {group: its setting}.
    Raises GpuOpsError for names that cannot be those of objects, and where all nodes are chosen by the label already.
    """
    for name in sorted(named):
        if not _NAME.fullmatch(name):
            raise GpuOpsError(
                "cluster.group_name_malformed", found="`%s` names a group %r" % (option, name),
                wanted="names of at most 30 small letters, digits and hyphens inside, as objects and labels have them",
                remedy="rename it in `%s` and in the label %s of its nodes" % (option, label), option=option)
    if named and label in node_selector:
        raise GpuOpsError(
            "cluster.group_label_in_node_selector",
            found="`node_selector` has %s, by which `%s` tells groups of nodes apart" % (label, option),
            wanted="one of the two", remedy="take it out of `node_selector`", option="node_selector")
    names = tuple(sorted(named))
    return [Group("", label, names, base), *(Group(name, label, (), named[name]) for name in names)]
