# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What breaks on a GPU node is named by the validation, with its remedy."""
from __future__ import annotations

from laboratory import Fleet, Played

from gpulab import silicon


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
