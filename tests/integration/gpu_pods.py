# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pods that ask for devices, say what they see and stay; and what the kubelet gave them."""
from __future__ import annotations

import json
import time
from typing import Any, Dict, List

from laboratory import Fleet

IMAGE = "docker.io/library/gpulab-tools:1"
LOOK = "ls /dev | grep '^nvidia' | tr '\\n' ' '; nvidia-smi -L"
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"


def pod(name: str, host: str, count: int, resource: str = "nvidia.com/gpu") -> Dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "runtimeClassName": "nvidia", "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"kubernetes.io/hostname": host},
            "containers": [{
                "name": "main", "image": IMAGE, "command": ["sh", "-c", LOOK + "; sleep 3600"],
                "resources": {"limits": {resource: str(count)}} if count else {}}],
        },
    }


def deployment(template: Dict[str, Any]) -> Dict[str, Any]:
    """One pod like this, which comes again after an eviction."""
    metadata = {"labels": template["metadata"]["labels"]}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": template["metadata"]["name"]}, "spec": {
        "replicas": 1, "selector": {"matchLabels": metadata["labels"]},
        "template": {"metadata": metadata, "spec": template["spec"]}}}


def run(fleet: Fleet, objects: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The pods of these objects, running."""
    fleet.lab.kubectl(["apply", "-f", "-"], feed=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    found = []
    for each in objects:
        label = "app=" + each["metadata"]["name"]
        fleet.lab.kubectl(["wait", "--for=create", "--timeout=30s", "pod", "-l", label])
        fleet.lab.kubectl(["wait", "--for=condition=Ready", "--timeout=90s", "pod", "-l", label])
        found += json.loads(fleet.lab.kubectl(["get", "pod", "-l", label, "-o", "json"]).stdout)["items"]
    return found


def seen(fleet: Fleet, name: str) -> str:
    deadline = time.monotonic() + 20
    while "GPU " not in (text := fleet.lab.kubectl(["logs", name]).stdout) and time.monotonic() < deadline:
        time.sleep(0.5)
    return text


def allocated(fleet: Fleet, host: str, uid: str) -> List[str]:
    """UUIDs that the kubelet has given to a pod."""
    entries = json.loads(fleet.say(host, "cat", CHECKPOINT))["Data"]["PodDeviceEntries"]
    return [device for entry in entries if entry["PodUID"] == uid
            for group in entry["DeviceIDs"].values() for device in group]


def devices(text: str) -> List[str]:
    return sorted(word for word in text.splitlines()[0].split() if word[6:].isdigit())


def minors(fleet: Fleet, host: str) -> Dict[str, str]:
    """{UUID: device node} as the driver has them."""
    script = "sed -n 's/^GPU UUID: *//p;s/^Device Minor: */nvidia/p' /proc/driver/nvidia/gpus/*/information"
    words = fleet.say(host, "sh", "-c", script).split()
    return dict(zip(words[::2], words[1::2]))
