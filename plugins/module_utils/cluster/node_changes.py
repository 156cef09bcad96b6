# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Writing a policy to a Node, safely beside others who write to it."""
from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional

from ..core.errors import GpuOpsError
from .client import ApiError, Client
from .labels import NodeChange, NodePolicy, plan_node_change

# A node that has just joined is written to by its kubelet and half a dozen controllers at once: with a slow API server
# each look is followed by another's write
MOST_WRITES = 30
CONFLICT = 409


def read_node(cluster: Client, name: str, uid: str = "") -> Dict[str, Any]:
    """The Node object. uid: of the one that is meant; another that has come under its name is refused."""
    node = cluster.find(path_of(name))
    if node is None:
        raise GpuOpsError(
            "cluster.no_such_node",
            found="the cluster at %s has no node %s" % (cluster.url, name),
            wanted="the Node object of this host",
            remedy="join the host to the cluster first, or name its node (variable `gpu_cluster_node_name`)",
        )
    if uid and node["metadata"].get("uid") != uid:
        raise GpuOpsError(
            "cluster.node_replaced",
            found="node %s was made anew (UID %s) since this run saw it (UID %s)" % (
                name, node["metadata"].get("uid"), uid),
            wanted="the Node that was checked",
            remedy="run again: the new Node is planned for and checked from the beginning",
        )
    return node


def path_of(name: str) -> str:
    """Of a Node in the API."""
    return "/api/v1/nodes/" + name


def change_node(cluster: Client, name: str, policy: NodePolicy, dry_run: bool, uid: str = "",
                seen: Optional[Mapping[str, Any]] = None, proof: Callable[[], None] = lambda: None) -> Dict[str, Any]:
    """Bring one node to the policy and say what changed. uid: as of read_node().

    seen:  the node as just read.
    proof: raises where the node is not the caller's any more; asked for between each look of our own and its write,
           which is refused where another writer came after the look.
    """
    tried: Optional[NodeChange] = None
    for attempt in range(MOST_WRITES):
        node = seen if seen and not attempt else read_node(cluster, name, uid)
        if node is not seen:
            proof()
        change = plan_node_change(node, policy)
        if tried is not None and not change.patch and change.before == tried.after:
            # It was done, and the answer lost: the request that was sent again met the version that it had made
            change = tried
            break
        try:
            if change.patch:
                cluster.patch(path_of(name), change.patch, dry_run)
        except ApiError as error:
            if error.status != CONFLICT or attempt == MOST_WRITES - 1:
                raise
            tried = change
            continue
        break
    return {
        "changed": bool(change.patch),
        "node": change.after,
        "notes": list(change.notes),
        "diff": {"before": change.before, "after": change.after},
    }
