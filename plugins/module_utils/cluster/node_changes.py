# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Writing a policy to a Node, safely beside others who write to it."""
from __future__ import annotations

from typing import Any, Dict, Optional

from ..core.errors import GpuOpsError
from .client import ApiError, Client
from .labels import NodeChange, NodePolicy, plan_node_change

ATTEMPTS = 5
CONFLICT = 409


def change_node(cluster: Client, name: str, policy: NodePolicy, dry_run: bool) -> Dict[str, Any]:
    """Bring one node to the policy and say what changed."""
    path = "/api/v1/nodes/" + name
    tried: Optional[NodeChange] = None
    for attempt in range(ATTEMPTS):
        node = cluster.find(path)
        if node is None:
            raise GpuOpsError(
                "cluster.no_such_node",
                found="the cluster at %s has no node %s" % (cluster.url, name),
                wanted="the Node object of this host",
                remedy="join the host to the cluster first, or name its node (variable `gpu_cluster_node_name`)",
            )
        change = plan_node_change(node, policy)
        if tried is not None and not change.patch and change.before == tried.after:
            # It was done, and the answer lost: the request that was sent again met the version that it had made
            change = tried
            break
        try:
            if change.patch:
                cluster.patch(path, change.patch, dry_run)
        except ApiError as error:
            if error.status != CONFLICT or attempt == ATTEMPTS - 1:
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
