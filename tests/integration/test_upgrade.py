# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A driver upgrade and the way back, on a node of a running cluster: exactly what the plan said."""
from __future__ import annotations

import gpu_pods
import pytest
from laboratory import Fleet, Played, assert_journal_is_plan

OLD, NEW = "580.178.04", "595.91.07"


@pytest.mark.parametrize("version", [NEW, OLD])
def test_another_driver_is_exactly_the_plan(demo: Fleet, installed: Played, version: str) -> None:
    options = {"gpu_hosts": "h100", "gpu_driver_version": version}
    gpu_pods.run(demo, [gpu_pods.deployment(gpu_pods.pod("work", "h100", 1))])
    plan = demo.play("gpuops.nvidia.plan", **options).result("h100", "gpu_plan")["plan"]
    assert plan["disruption"] == "driver_reload"
    before = len(demo.events("h100"))
    boot = demo.lab.host("h100").boot_id()
    demo.play("gpuops.nvidia.site", **options)
    assert_journal_is_plan(demo.events("h100")[before:], plan)
    assert demo.lab.host("h100").boot_id() == boot
    assert demo.say("h100", "cat", "/sys/module/nvidia/version") == version
    assert version in demo.say("h100", "cat", "/var/run/cdi/nvidia.yaml")
    node = demo.node("h100")
    assert "unschedulable" not in node["spec"]
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert demo.play("gpuops.nvidia.plan", **options).result("h100", "gpu_plan")["plan"]["steps"] == []
