# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What breaks on a GPU node is named by the validation, with its remedy."""
from __future__ import annotations

import json
from typing import Any, Dict

import pytest
from laboratory import Fleet, Played

from gpulab import silicon

# Of the device plugin: what it gives to containers that ask for one of its devices
SPEC = "/var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json"


def test_a_lost_gpu_fails_the_validation_by_name(demo: Fleet, installed: Played) -> None:
    address = demo.say("h100", "sh", "-c", "ls /proc/driver/nvidia/gpus | sed -n 4p")
    directory = demo.lab.host("h100").silicon
    silicon.inject_fault(directory, "lost", 3)
    try:
        played = demo.run("gpuops.nvidia.validate")
        assert played.code != 0
        result = played.results("h100", "gpu_validation")[0]
        assert result["failed"]
        failed = [check for check in result["checks"] if check["status"] == "failed"]
        assert any(address.lower()[-10:] in check["evidence"].lower() for check in failed), failed
        assert all(check["remedy"] for check in failed)
        assert result["remedy"] in result["msg"]
        assert not played.results("a100", "gpu_validation")[0].get("failed")
    finally:
        silicon.clear_faults(directory)
    # Until it is restarted, NVIDIA's device plugin offers none of a node's GPUs once one was lost.
    played = demo.run("gpuops.nvidia.validate", gpu_hosts="h100", gpu_validation_timeout=5)
    assert "device plugin" in played.of_many("gpu_validation")["h100"]["remedy"]
    demo.lab.kubectl(["delete", "pod", "-n", "gpuops", "-l", "app.kubernetes.io/name=nvidia-device-plugin",
                      "--field-selector", "spec.nodeName=h100"])
    demo.play("gpuops.nvidia.validate")


def computed(fleet: Fleet, **variables: Any) -> Dict[str, str]:
    """What came of computing in a pod on h100."""
    played = fleet.run("gpuops.nvidia.validate", "--tags", "components", gpu_hosts="h100", **variables)
    checks = {check["name"]: check for check in played.of_many("gpu_validation")["h100"]["checks"]}
    assert checks["pod"]["status"] == "passed" and played.code == (checks["pod_compute"]["status"] == "failed") * 2
    return dict(checks["pod_compute"])


def without(text: str, word: str) -> str:
    """A CDI spec that mounts no file, and names no node, whose path has the word in it."""
    spec = json.loads(text)
    for edits in (each.get("containerEdits") or {} for each in (spec, *spec["devices"])):
        for kind, path in (("mounts", "containerPath"), ("deviceNodes", "path")):
            if edits.get(kind):
                edits[kind] = [each for each in edits[kind] if word not in each[path]]
    assert spec != json.loads(text)
    return json.dumps(spec)


def test_a_container_computes_with_what_the_runtime_gives_it(demo: Fleet, installed: Played) -> None:
    check = computed(demo)
    assert check["status"] == "passed" and check["evidence"].startswith("132 multiprocessors compute"), check


@pytest.mark.parametrize("word, told, remedy", [
    pytest.param("libcuda.so", "libcuda.so.1: cannot open shared object file", "update-ldcache",
                 marks=pytest.mark.variation),
    pytest.param("libnvidia-ptxjitcompiler", "CUDA_ERROR_JIT_COMPILER_NOT_FOUND (221)",
                 "libnvidia-ptxjitcompiler.so.1", marks=pytest.mark.variation),
    ("/dev/nvidia-uvm", "CUDA_ERROR_UNKNOWN (999); the container has no /dev/nvidia-uvm", "/dev/nvidia-uvm"),
])
def test_what_a_container_lacks_is_named_by_the_pod_that_computes_in_it(
    demo: Fleet, installed: Played, word: str, told: str, remedy: str
) -> None:
    """The host has all of it, and computes; what its containers get is another file's business."""
    before = demo.say("h100", "cat", SPEC)
    write = ["sh", "-c", "cat > %s.new && mv %s.new %s" % (SPEC, SPEC, SPEC)]
    demo.lab.host("h100").ssh(write, feed=without(before, word))
    try:
        check = computed(demo)
        assert check["status"] == "failed" and told in check["evidence"] and remedy in check["remedy"], check
    finally:
        demo.lab.host("h100").ssh(write, feed=before)
    assert computed(demo)["status"] == "passed"


def test_an_image_without_python_fails_nothing_and_says_so(demo: Fleet, installed: Played) -> None:
    check = computed(demo, gpu_validation_pod_image="docker.io/library/gpulab-tools:1")
    assert check["status"] == "skipped" and "it has no python3" in check["evidence"], check
