# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A pod gets the GPU that it asked for, that one, and no other."""
from __future__ import annotations

import json
import time
from typing import Any, Dict, List

import pytest
from laboratory import DEMO_HOSTS, Fleet, Played

IMAGE = "docker.io/library/gpulab-tools:1"
LOOK = "ls /dev | grep '^nvidia' | tr '\\n' ' '; nvidia-smi -L"
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"


def pod(name: str, host: str, gpus: int) -> Dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "runtimeClassName": "nvidia", "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"kubernetes.io/hostname": host},
            "containers": [{
                "name": "main", "image": IMAGE, "command": ["sh", "-c", LOOK + "; sleep 600"],
                "resources": {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}}],
        },
    }


def run_pods(fleet: Fleet, pods: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The pods, running; each has printed what it sees."""
    fleet.lab.kubectl(["apply", "-f", "-"], feed=json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
    names = [pod["metadata"]["name"] for pod in pods]
    fleet.lab.kubectl(["wait", "--for=condition=Ready", "--timeout=90s", "pod", *names])
    return [json.loads(fleet.lab.kubectl(["get", "pod", name, "-o", "json"]).stdout) for name in names]


def seen(fleet: Fleet, name: str) -> str:
    deadline = time.monotonic() + 20
    while "GPU " not in (text := fleet.lab.kubectl(["logs", name]).stdout) and time.monotonic() < deadline:
        time.sleep(0.5)
    return text


def devices(text: str) -> List[str]:
    return sorted(word for word in text.splitlines()[0].split() if word[6:].isdigit())


def allocated(fleet: Fleet, host: str, uid: str) -> List[str]:
    """UUIDs that the kubelet has given to a pod."""
    entries = json.loads(fleet.say(host, "cat", CHECKPOINT))["Data"]["PodDeviceEntries"]
    return [device for entry in entries if entry["PodUID"] == uid
            for group in entry["DeviceIDs"].values() for device in group]


def minors(fleet: Fleet, host: str) -> Dict[str, str]:
    """{UUID: device node} as the driver has them."""
    script = "sed -n 's/^GPU UUID: *//p;s/^Device Minor: */nvidia/p' /proc/driver/nvidia/gpus/*/information"
    words = fleet.say(host, "sh", "-c", script).split()
    return dict(zip(words[::2], words[1::2]))


@pytest.mark.parametrize(("host", "generation"), [("a100", " 1.6."), ("h100", " v2.3.")])
def test_each_host_has_another_containerd(demo: Fleet, host: str, generation: str) -> None:
    assert generation in demo.say(host, "containerd", "--version")


@pytest.mark.parametrize("host", DEMO_HOSTS)
def test_pods_see_their_own_gpu(demo: Fleet, installed: Played, host: str) -> None:
    names = ["one", "two", "four"]
    try:
        pods = run_pods(demo, [pod(name, host, gpus) for name, gpus in zip(names, (1, 1, 4))])
        nodes = minors(demo, host)
        assert len(nodes) == 8
        held: List[str] = []
        for name, gpus, each in zip(names, (1, 1, 4), pods):
            text = seen(demo, name)
            given = allocated(demo, host, each["metadata"]["uid"])
            assert len(given) == gpus
            assert devices(text) == sorted(nodes[uuid] for uuid in given)
            assert {uuid for uuid in nodes if uuid in text} == set(given)
            held += given
        assert len(set(held)) == 6
    finally:
        demo.lab.kubectl(["delete", "pod", "--ignore-not-found", "--now", *names])


def test_a_pod_that_asks_for_none_sees_none(demo: Fleet, installed: Played) -> None:
    try:
        run_pods(demo, [pod("none", "a100", 0)])
        text = demo.lab.kubectl(["exec", "none", "--", "sh", "-c", "ls /dev"]).stdout
        assert "nvidia" not in text
    finally:
        demo.lab.kubectl(["delete", "pod", "--ignore-not-found", "--now", "none"])
