# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What controller-side plugins need of a cluster: its nodes, read with the options of a plugin."""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

from ..module_utils.cluster.client import Client, Connection, describe
from ..module_utils.cluster.nodes import node_facts, skew_findings

__all__ = ["access_from_plugin", "describe", "gpu_node_facts", "read_nodes"]

NODES = "/api/v1/nodes"


def access_from_plugin(get_option: Callable[[str], Any]) -> Connection:
    """Connection settings from a plugin whose options are named as those of kubernetes.core."""
    return Connection.from_options({name: get_option(name) for name in Connection.__dataclass_fields__})


def read_nodes(access: Connection, label_selector: Optional[str] = None) -> List[Dict[str, Any]]:
    """The Node objects of a cluster, without the image lists that nobody asks for."""
    nodes = Client(access).items(NODES, labelSelector=label_selector)
    for node in nodes:
        (node.get("status") or {}).pop("images", None)
        (node.get("metadata") or {}).pop("managedFields", None)
    return nodes


def gpu_node_facts(nodes: List[Dict[str, Any]], include_all: bool = False) -> List[Dict[str, Any]]:
    """Facts of the GPU nodes (or of all nodes), ordered by name, with the findings that only a comparison shows."""
    facts = [node_facts(node) for node in nodes]
    facts = [each for each in facts if include_all or each["present"]]
    for name, finding in skew_findings(facts).items():
        next(each for each in facts if each["name"] == name)["findings"].append(finding)
    return sorted(facts, key=lambda each: str(each["name"]))
