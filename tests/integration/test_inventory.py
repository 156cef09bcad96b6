# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The inventory plugin against a real API server: nodes as hosts, groups from real labels, cache, and clear errors."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, Optional

import pytest
from laboratory import new_lab
from workspace import collections_root

from gpulab.lab import Lab
from gpulab.topology import parse

TOPOLOGY = parse({"name": "inventory", "control_plane": True, "hosts": [
    {"name": "l40s", "board": "l40s", "gpus": 2}, {"name": "cpu"}]}, __file__)
# What GPU feature discovery and the cloud provider publish on such a node
LABELS = {
    "nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": "2", "nvidia.com/gpu.product": "NVIDIA-L40S",
    "nvidia.com/gpu.family": "ada-lovelace", "nvidia.com/mig.strategy": "single",
    "nvidia.com/cuda.driver-version.full": "580.178.04", "topology.kubernetes.io/zone": "hall-2",
}


class Inventory:
    """ansible-inventory on a file of ours."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        self.lab = lab
        self.directory = directory

    def run(self, kubeconfig: Optional[Path] = None, **options: Any) -> "subprocess.CompletedProcess[str]":
        path = self.directory / "lab.gpu_nodes.yml"
        path.write_text(json.dumps(
            {"plugin": "gpuops.nvidia.gpu_nodes", "kubeconfig": str(kubeconfig or self.lab.kubeconfig), **options}))
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.directory), "ANSIBLE_HOME": str(self.directory / "ansible"),
            "ANSIBLE_COLLECTIONS_PATH": str(collections_root()), "ANSIBLE_INVENTORY_UNPARSED_FAILED": "true",
            "ANSIBLE_DEPRECATION_WARNINGS": "false", "LC_ALL": "C.UTF-8",
        }
        return subprocess.run(
            [sys.executable, "-m", "ansible.cli.inventory", "--inventory", str(path), "--list"], env=environment,
            cwd=self.directory, capture_output=True, text=True, timeout=120, check=False)

    def read(self, **options: Any) -> Dict[str, Any]:
        done = self.run(**options)
        assert done.returncode == 0, done.stderr
        # ansible-core 2.19 marks what came from outside as never to be templated.
        return dict(json.loads(done.stdout, object_hook=lambda value: value.get("__ansible_unsafe", value)))


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = new_lab("inventory")
    lab.up(TOPOLOGY)
    lab.kubectl(["label", "node", "l40s", *("%s=%s" % pair for pair in LABELS.items())])
    yield lab
    lab.down()


@pytest.fixture
def inventory(lab: Lab, tmp_path: Path) -> Inventory:
    return Inventory(lab, tmp_path)


def test_gpu_nodes_are_hosts_with_their_address(lab: Lab, inventory: Inventory) -> None:
    found = inventory.read()
    hosts = found["_meta"]["hostvars"]
    assert list(hosts) == ["l40s"]
    host = hosts["l40s"]
    assert host["ansible_host"] == lab.host("l40s").address
    assert (host["k8s_gpu_product"], host["k8s_gpu_driver_version"]) == ("NVIDIA-L40S", "580.178.04")
    assert host["k8s_gpu_ready"] is True
    for group in ("gpu_nodes", "gpu_product_nvidia_l40s", "gpu_family_ada_lovelace", "gpu_driver_580"):
        assert found[group]["hosts"] == ["l40s"], group


def test_groups_and_variables_of_the_users_own(inventory: Inventory) -> None:
    found = inventory.read(
        include_all=True, compose={"ansible_user": "'root'"}, groups={"small": "k8s_gpu_product == 'NVIDIA-L40S'"},
        keyed_groups=[{"key": "k8s_gpu_labels['topology.kubernetes.io/zone'] | default('nowhere')", "prefix": "zone"}])
    assert sorted(found["_meta"]["hostvars"]) == ["cpu", "l40s"]
    assert found["_meta"]["hostvars"]["cpu"]["ansible_user"] == "root"
    assert (found["small"]["hosts"], found["zone_hall_2"]["hosts"]) == (["l40s"], ["l40s"])
    assert found["zone_nowhere"]["hosts"] == ["cpu"]
    assert found["gpu_nodes"]["hosts"] == ["l40s"]


def test_a_cordoned_node_is_in_a_group(lab: Lab, inventory: Inventory) -> None:
    lab.kubectl(["cordon", "l40s"])
    try:
        assert inventory.read()["gpu_cordoned"]["hosts"] == ["l40s"]
    finally:
        lab.kubectl(["uncordon", "l40s"])


def test_the_cache_answers_for_the_cluster(lab: Lab, inventory: Inventory) -> None:
    cache = {"cache": True, "cache_plugin": "ansible.builtin.jsonfile",
             "cache_connection": str(inventory.directory / "c")}
    assert "gpu_cordoned" not in inventory.read(**cache)
    lab.kubectl(["cordon", "l40s"])
    try:
        assert "gpu_cordoned" not in inventory.read(**cache)
        assert "gpu_cordoned" in inventory.read()
    finally:
        lab.kubectl(["uncordon", "l40s"])


def test_who_may_only_list_nodes_gets_an_inventory(lab: Lab, inventory: Inventory) -> None:
    lab.kubectl(["create", "serviceaccount", "lister"])
    lab.kubectl(["create", "clusterrole", "lister", "--verb=list", "--resource=nodes"])
    token = lab.kubectl(["create", "token", "lister"]).stdout.strip()
    server = lab.kubectl(["config", "view", "--minify", "--output", "jsonpath={.clusters[0].cluster.server}"]).stdout
    access = {"host": server, "api_key": token, "validate_certs": False}
    done = inventory.run(**access)
    assert done.returncode != 0
    told = " ".join(done.stderr.split())
    assert "403" in told and "Do: " in told and "nodes" in told
    lab.kubectl(["create", "clusterrolebinding", "lister", "--clusterrole=lister", "--serviceaccount=default:lister"])
    assert list(inventory.read(**access)["_meta"]["hostvars"]) == ["l40s"]


def test_an_api_server_that_does_not_answer_is_an_error(lab: Lab, inventory: Inventory) -> None:
    wrong = inventory.directory / "wrong-port"
    wrong.write_text(lab.kubeconfig.read_text().replace(":6443", ":6499"))
    done = inventory.run(kubeconfig=wrong)
    told = " ".join(done.stderr.split())
    assert done.returncode != 0
    for words in ("Found: the Kubernetes API server", ":6499", str(wrong), "does not answer", "Wanted:", "Do: check"):
        assert words in told, told
    assert "Traceback" not in told


def test_a_kubeconfig_that_is_not_there_is_an_error(inventory: Inventory) -> None:
    done = inventory.run(kubeconfig=inventory.directory / "nowhere")
    told = " ".join(done.stderr.split())
    assert done.returncode != 0 and "there is no file %s" % (inventory.directory / "nowhere") in told
