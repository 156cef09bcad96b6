# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a process with a GPU to the pod that leaves: what the host tells of its pods, and what the API calls them."""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List

from cluster_api import Api
from cluster_objects import node, pod

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.carrying_out import drain_node
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.policy import policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.holders import CHECKPOINT, pods_seen

STATIC = "0123456789abcdef0123456789abcdef"
# The kubelet names their cgroups, and its directories, by the pods' UIDs
OPEN, MAPPED, GIVEN, WITHOUT = ("%08d-0000-4000-8000-000000000000" % number for number in range(1, 5))
SLICE = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod%s.slice/cri-containerd-1.scope\n"


def process(root: Path, pid: int, uid: str, opened: str = "", mapped: str = "") -> None:
    directory = root / "proc" / str(pid)
    (directory / "fd").mkdir(parents=True)
    (directory / "comm").write_text("app\n")
    (directory / "cgroup").write_text(SLICE % uid.replace("-", "_"))
    (directory / "maps").write_text("7f00-7f01 rw-s 00000000 00:05 1  %s\n" % mapped if mapped else "")
    if opened:
        os.symlink(opened, directory / "fd" / "3")


def uid(value: str, name: str, **more: Any) -> Dict[str, Any]:
    """A pod that asks for no GPU."""
    found = pod(name, gpus=0, **more)
    found["metadata"]["uid"] = value
    return found


def names(found: List[Dict[str, Any]]) -> List[str]:
    return sorted(each["name"] for each in found)


def test_pods_that_only_their_host_has_seen_leave_and_a_static_one_is_told(tmp_path: Path, api: Api) -> None:
    """By a RuntimeClass, a hostPath or a device plugin of another name: one has a GPU open, one has it mapped, one was
    given it. The API knows a static pod by another UID; one without a directory of logs the host knows by UID alone."""
    process(tmp_path, 7, OPEN, opened="/dev/nvidia0")
    process(tmp_path, 8, MAPPED, mapped="/dev/nvidia-uvm")
    process(tmp_path, 9, STATIC, opened="/dev/nvidiactl")
    process(tmp_path, 10, GIVEN)
    process(tmp_path, 11, WITHOUT, opened="/dev/null")
    (tmp_path / "var/log/pods" / ("team_with-a-log_%s" % OPEN)).mkdir(parents=True)
    host = Host(str(tmp_path))
    host.write(CHECKPOINT, json.dumps({"Data": {"PodDeviceEntries": [{
        "PodUID": GIVEN, "ContainerName": "c", "ResourceName": "nvidia.com/renamed", "DeviceIDs": {"0": ["GPU-1"]}}]}}))
    api.state.nodes = [node("gpu-1")]
    api.state.pods = [
        uid(OPEN, "with-a-log"), uid(MAPPED, "mapped"), uid(GIVEN, "given"), uid(WITHOUT, "without"),
        uid("9", "static", owner="Node", annotations={
            "kubernetes.io/config.mirror": STATIC, "kubernetes.io/config.hash": STATIC})]
    client = Client(Connection(kubeconfig=str(api.kubeconfig)))
    done = drain_node(client, "gpu-1", policy_of({"holders": pods_seen(host)}), False)
    assert names(done["evicted"]) == ["given", "mapped", "with-a-log"] and names(done["stayed"]) == ["static"]
    assert sorted(each["metadata"]["name"] for each in api.state.pods) == ["static", "without"]
