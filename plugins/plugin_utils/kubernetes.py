# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What controller-side plugins need of a cluster: the facts of its nodes, read with the options of a plugin."""
from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

from ..module_utils.cluster.client import Client, Connection
from ..module_utils.cluster.nodes import node_facts, usual_drivers
from ..module_utils.cluster.observation import NODES, UNREAD

__all__ = ["Picked", "access_from_plugin", "gpu_node_facts"]


class _Seen(NamedTuple):
    """What is kept of a node. facts: None where they were not asked for."""

    product: Optional[str]
    driver_version: Optional[str]
    facts: Optional[Dict[str, Any]]


def access_from_plugin(get_option: Callable[[str], Any]) -> Connection:
    """Connection settings from a plugin whose options are named as those of kubernetes.core."""
    return Connection.from_options({name: get_option(name) for name in Connection.__dataclass_fields__})


class Picked(NamedTuple):
    """The facts of nodes, before they are compared with what is usual among all that were looked at (usual_drivers)."""

    nodes: List[Dict[str, Any]]
    usual: Dict[str, str]


def gpu_node_facts(
    access: Connection, label_selector: Optional[str] = None, include_all: bool = False,
    pick: Callable[[Mapping[str, Any]], bool] = lambda facts: True, forget: Callable[[], None] = lambda: None,
) -> Picked:
    """Facts of the GPU nodes (or of all nodes), by one list of which no more is kept.

    pick: whether the facts of a node are wanted. Those that are not count all the same where nodes are compared.
    forget: called where all nodes come anew, as the API server has forgotten its list.
    """

    def keep(node: Mapping[str, Any]) -> Optional[_Seen]:
        facts = node_facts(node)
        if not (include_all or facts["present"]):
            return None
        return _Seen(_shared(facts["product"]), _shared(facts["driver_version"]), facts if pick(facts) else None)

    seen = Client(access).items(NODES, keep=keep, leave_out=UNREAD, forget=forget, labelSelector=label_selector)
    return Picked([each.facts for each in seen if each.facts is not None],
                  usual_drivers((each.product, each.driver_version) for each in seen))


def _shared(text: Optional[str]) -> Optional[str]:
    """The same text in memory for each node that says it."""
    return sys.intern(text) if text else text
