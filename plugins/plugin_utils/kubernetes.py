# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What controller-side plugins need of a cluster: the facts of its nodes, read with the options of a plugin."""
from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

from ..module_utils.cluster.client import Client, Connection
from ..module_utils.cluster.nodes import node_facts, skew_finding, usual_drivers
from ..module_utils.cluster.observation import NODES, UNREAD

__all__ = ["access_from_plugin", "gpu_node_facts"]


class _Seen(NamedTuple):
    """What is kept of a node. facts: None where they were not asked for."""

    product: Optional[str]
    driver_version: Optional[str]
    facts: Optional[Dict[str, Any]]


def access_from_plugin(get_option: Callable[[str], Any]) -> Connection:
    """Connection settings from a plugin whose options are named as those of kubernetes.core."""
    return Connection.from_options({name: get_option(name) for name in Connection.__dataclass_fields__})


def gpu_node_facts(
    access: Connection, label_selector: Optional[str] = None, include_all: bool = False,
    pick: Callable[[Mapping[str, Any]], bool] = lambda facts: True,
) -> List[Dict[str, Any]]:
    """Facts of the GPU nodes (or of all nodes), ordered by name, by one list of which no more is kept.

    pick: whether the facts of a node are wanted. Those that are not count all the same where nodes are compared.
    """

    def keep(node: Mapping[str, Any]) -> Optional[_Seen]:
        facts = node_facts(node)
        if not (include_all or facts["present"]):
            return None
        return _Seen(_shared(facts["product"]), _shared(facts["driver_version"]), facts if pick(facts) else None)

    seen = Client(access).items(NODES, keep=keep, leave_out=UNREAD, labelSelector=label_selector)
    usual = usual_drivers((each.product, each.driver_version) for each in seen)
    found = [each.facts for each in seen if each.facts is not None]
    for facts in found:
        finding = skew_finding(facts, usual)
        if finding is not None:
            facts["findings"].append(finding.to_dict())
    return sorted(found, key=lambda each: str(each["name"]))


def _shared(text: Optional[str]) -> Optional[str]:
    """The same text in memory for each node that says it."""
    return sys.intern(text) if text else text
