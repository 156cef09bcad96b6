# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The handler of GPU pods has one name: whoever says container_runtime_handler has said it everywhere."""
from __future__ import annotations

import json
from typing import Any, Dict

import pytest
from controller import Controller

NAMES = {
    "container_runtime": "container_runtime_handler",
    "device_plugin": "device_plugin_runtime_handler",
    "gpu_feature_discovery": "gpu_feature_discovery_runtime_handler",
    "dcgm_exporter": "dcgm_exporter_runtime_handler",
    "node_feature_discovery": "node_feature_discovery_runtime_handler",
    "gpu_validation": "gpu_validation_handler",
}
CLASSES = {
    "device_plugin": "device_plugin_runtime_class",
    "gpu_feature_discovery": "gpu_feature_discovery_runtime_class",
    "dcgm_exporter": "dcgm_exporter_runtime_class",
    "node_feature_discovery": "node_feature_discovery_runtime_class",
    "gpu_validation": "gpu_validation_runtime_class",
}


def told(controller: Controller, names: Dict[str, str], variables: Dict[str, str]) -> Dict[str, Any]:
    """{role: what its expression is inside the role}, with variables of an inventory."""
    play = controller.directory / "names.json"
    play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [
        task for role, expression in names.items() for task in (
            {"ansible.builtin.import_role": {"name": "gpuops.nvidia." + role}, "when": False},
            {"ansible.builtin.debug": {"msg": "%s={{ %s }}" % (role, expression)}})]}]))
    done = controller.play(str(play), variables=variables, environment={
        "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"})
    messages = [result["msg"] for play in json.loads(done.stdout)["plays"] for task in play["tasks"]
                for result in task["hosts"].values() if result["action"].endswith("debug") and "msg" in result]
    return dict(message.split("=") for message in messages)


@pytest.mark.parametrize("variables, handler, runtime_class", [
    ({}, "nvidia", "nvidia"),
    ({"container_runtime_handler": "nvidia-gpu"}, "nvidia-gpu", "nvidia-gpu"),
    ({"container_runtime_handler": "nvidia-gpu", "gpu_cluster_runtime_class": "gpu"}, "nvidia-gpu", "gpu"),
])
def test_everyone_follows_it(
    controller: Controller, variables: Dict[str, str], handler: str, runtime_class: str
) -> None:
    assert told(controller, NAMES, variables) == dict.fromkeys(NAMES, handler)
    assert told(controller, CLASSES, variables) == dict.fromkeys(CLASSES, runtime_class)
