# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A pod gets the GPU that it asked for, that one, and no other."""
from __future__ import annotations

from typing import List

import gpu_pods
import pytest
from laboratory import DEMO_HOSTS, Fleet, Played


@pytest.mark.parametrize(("host", "generation"), [("a100", " 1.6."), ("h100", " v2.3.")])
def test_each_host_has_another_containerd(demo: Fleet, host: str, generation: str) -> None:
    assert generation in demo.say(host, "containerd", "--version")


@pytest.mark.parametrize("host", DEMO_HOSTS)
def test_pods_see_their_own_gpu(demo: Fleet, installed: Played, host: str) -> None:
    names = ["one", "two", "four"]
    try:
        pods = gpu_pods.run(demo, [gpu_pods.pod(name, host, gpus) for name, gpus in zip(names, (1, 1, 4))])
        nodes = gpu_pods.minors(demo, host)
        assert len(nodes) == 8
        held: List[str] = []
        for name, gpus, each in zip(names, (1, 1, 4), pods):
            text = gpu_pods.seen(demo, name)
            given = gpu_pods.allocated(demo, host, each["metadata"]["uid"])
            assert len(given) == gpus
            assert gpu_pods.devices(text) == sorted(nodes[uuid] for uuid in given)
            assert {uuid for uuid in nodes if uuid in text} == set(given)
            held += given
        assert len(set(held)) == 6
    finally:
        demo.lab.kubectl(["delete", "pod", "--ignore-not-found", "--now", *names])


def test_a_pod_that_asks_for_none_sees_none(demo: Fleet, installed: Played) -> None:
    try:
        gpu_pods.run(demo, [gpu_pods.pod("none", "a100", 0)])
        text = demo.lab.kubectl(["exec", "none", "--", "sh", "-c", "ls /dev"]).stdout
        assert "nvidia" not in text
    finally:
        demo.lab.kubectl(["delete", "pod", "--ignore-not-found", "--now", "none"])
