# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The inventory plugin as a user meets it: ansible-inventory, a file, and a server that answers over HTTP."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest
from cluster_api import TOKEN, Answer, Api
from cluster_objects import h100_labels, h100_node, node
from workspace import collections_root

LIST = "/api/v1/nodes"


class Inventory:
    """A configuration file and the command line that reads it."""

    def __init__(self, directory: Path, api: Api) -> None:
        self.directory = directory
        self.api = api

    def run(
        self, options: Optional[Dict[str, Any]] = None, flags: Optional[List[str]] = None,
        environment: Optional[Dict[str, str]] = None, name: str = "test.gpu_nodes.yml",
    ) -> "subprocess.CompletedProcess[str]":
        given = {"plugin": "gpuops.nvidia.gpu_nodes", "kubeconfig": str(self.api.kubeconfig), **(options or {})}
        path = self.directory / name
        path.write_text(json.dumps({key: value for key, value in given.items() if value is not None}))
        return subprocess.run(
            [sys.executable, "-m", "ansible.cli.inventory", "-i", str(path), "--list", *(flags or [])],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.directory),
                "ANSIBLE_HOME": str(self.directory / "ansible"),
                "ANSIBLE_COLLECTIONS_PATH": str(collections_root()),
                "ANSIBLE_INVENTORY_UNPARSED_FAILED": "true",
                "ANSIBLE_DEPRECATION_WARNINGS": "false",
                **(environment or {}),
            },
            cwd=self.directory, capture_output=True, text=True, timeout=120, check=False,
        )

    def read(self, *arguments: Any, **options: Any) -> Dict[str, Any]:
        result = self.run(*arguments, **options)
        assert result.returncode == 0, result.stderr
        # ansible-core 2.19 marks what came from outside as never to be templated.
        return json.loads(result.stdout, object_hook=lambda value: value.get("__ansible_unsafe", value))


@pytest.fixture
def inventory(tmp_path: Path, api: Api) -> Inventory:
    mig = h100_labels(mig__strategy="mixed", gpu__clique="b3d2.1", gpu__product="NVIDIA-GB200", gpu__count="7")
    api.state.nodes = [
        h100_node("gpu-1"),
        h100_node("gpu-2", labels=mig, capacity={"nvidia.com/gpu": "7", "nvidia.com/mig-1g.10gb": "7"},
                  unschedulable=True),
        h100_node("gpu-3", allocatable={"nvidia.com/gpu": "7"}, ready=False),
        node("cpu-1"),
    ]
    return Inventory(tmp_path, api)


def members(inventory: Dict[str, Any], group: str) -> List[str]:
    return sorted(inventory.get(group, {}).get("hosts", []))


def test_gpu_nodes_become_hosts_with_variables_and_groups(inventory: Inventory) -> None:
    found = inventory.read()
    host = found["_meta"]["hostvars"]["gpu-1"]
    assert sorted(found["_meta"]["hostvars"]) == ["gpu-1", "gpu-2", "gpu-3"]
    assert host["ansible_host"].startswith("192.0.2.")
    assert host["k8s_gpu_product"] == "NVIDIA-H100-80GB-HBM3" and host["k8s_gpu_allocatable"] == {"nvidia.com/gpu": 8}
    groups = {
        "gpu_nodes": ["gpu-1", "gpu-2", "gpu-3"],
        "gpu_product_nvidia_h100_80gb_hbm3": ["gpu-1", "gpu-3"],
        "gpu_family_hopper": ["gpu-1", "gpu-2", "gpu-3"],
        "gpu_mig_mixed": ["gpu-2"],
        "gpu_mig_none": ["gpu-1", "gpu-3"],
        "gpu_sharing_none": ["gpu-1", "gpu-2", "gpu-3"],
        "gpu_driver_580": ["gpu-1", "gpu-2", "gpu-3"],
        "gpu_clique_b3d2_1": ["gpu-2"],
        "gpu_not_ready": ["gpu-3"],
        "gpu_cordoned": ["gpu-2"],
        "gpu_degraded": ["gpu-3"],
    }
    assert {name: members(found, name) for name in groups} == groups
    assert inventory.api.count("GET", LIST) == 1


def test_all_nodes_when_asked(inventory: Inventory) -> None:
    found = inventory.read({"include_all": True})
    assert "cpu-1" in found["_meta"]["hostvars"] and "cpu-1" not in members(found, "gpu_nodes")


def test_the_selector_is_the_servers_work(inventory: Inventory) -> None:
    found = inventory.read({"label_selector": "nvidia.com/gpu.product=NVIDIA-GB200"})
    assert list(found["_meta"]["hostvars"]) == ["gpu-2"]


def test_names_and_addresses_by_preference(inventory: Inventory) -> None:
    inventory.api.state.nodes[0]["metadata"]["annotations"]["example.com/fqdn"] = "gpu-1.example.com"
    found = inventory.read({
        "hostnames": ["annotation:example.com/fqdn", "InternalIP"], "address_types": ["ExternalIP", "Hostname"],
        "hostvars_prefix": "node_", "group_prefix": "k8s_",
    })
    assert "gpu-1.example.com" in members(found, "k8s_nodes")
    assert found["_meta"]["hostvars"]["gpu-1.example.com"]["ansible_host"] == "gpu-1"
    assert found["_meta"]["hostvars"]["gpu-1.example.com"]["node_name"] == "gpu-1"


def test_no_name_is_an_error(inventory: Inventory) -> None:
    result = inventory.run({"hostnames": ["label:missing"]})
    assert result.returncode != 0 and "end `hostnames` with `name`" in _words(result.stderr)


def test_composed_variables_and_groups(inventory: Inventory) -> None:
    found = inventory.read({
        "strict": True,
        "default_groups": False,
        "compose": {"gpus": "k8s_gpu_count", "ansible_user": "'root'"},
        "groups": {"healthy": "not k8s_gpu_findings"},
        "keyed_groups": [{"key": "k8s_gpu_kernel", "prefix": "kernel"}],
    })
    assert found["_meta"]["hostvars"]["gpu-1"]["gpus"] == 8
    assert members(found, "healthy") == ["gpu-1", "gpu-2"]
    assert members(found, "kernel_6_1_0_40_amd64") == ["gpu-1", "gpu-2", "gpu-3"]
    assert "gpu_nodes" not in found


def test_strict_names_a_mistake(inventory: Inventory) -> None:
    result = inventory.run({"strict": True, "compose": {"x": "k8s_gpu_nonsense.y"}})
    assert result.returncode != 0 and "k8s_gpu_nonsense" in result.stderr


class TestCache:
    def options(self, inventory: Inventory) -> Dict[str, Any]:
        return {"cache": True, "cache_plugin": "ansible.builtin.jsonfile",
                "cache_connection": str(inventory.directory / "cache"), "cache_timeout": 3600}

    def test_a_second_run_asks_nobody(self, inventory: Inventory) -> None:
        first = inventory.read(self.options(inventory))
        inventory.api.state.nodes = []
        assert inventory.read(self.options(inventory)) == first
        assert inventory.api.count("GET", LIST) == 1

    def test_flush_cache_reads_and_stores_again(self, inventory: Inventory) -> None:
        options = self.options(inventory)
        inventory.read(options)
        inventory.api.state.nodes = [h100_node("gpu-9")]
        assert members(inventory.read(options, ["--flush-cache"]), "gpu_nodes") == ["gpu-9"]
        inventory.api.state.nodes = []
        assert members(inventory.read(options), "gpu_nodes") == ["gpu-9"]
        assert inventory.api.count("GET", LIST) == 2

    def test_another_question_is_not_answered_from_the_cache(self, inventory: Inventory) -> None:
        options = self.options(inventory)
        inventory.read(options)
        inventory.read({**options, "label_selector": "nvidia.com/gpu.family=hopper"})
        assert inventory.api.count("GET", LIST) == 2

    def test_without_cache_nothing_is_stored(self, inventory: Inventory) -> None:
        inventory.read({**self.options(inventory), "cache": False})
        inventory.read({**self.options(inventory), "cache": False})
        assert inventory.api.count("GET", LIST) == 2 and not (inventory.directory / "cache").exists()


class TestAccess:
    def test_environment_of_kubernetes_core(self, inventory: Inventory) -> None:
        found = inventory.read({"kubeconfig": None}, environment={
            "K8S_AUTH_HOST": inventory.api.url, "K8S_AUTH_API_KEY": TOKEN})
        assert len(members(found, "gpu_nodes")) == 3

    def test_a_token_from_a_lookup(self, inventory: Inventory) -> None:
        found = inventory.read(
            {"kubeconfig": None, "host": inventory.api.url, "api_key": "{{ lookup('ansible.builtin.env', 'SECRET') }}"},
            environment={"SECRET": TOKEN})
        assert len(members(found, "gpu_nodes")) == 3

    def test_an_unreachable_server_is_named_with_its_kubeconfig(self, inventory: Inventory) -> None:
        inventory.api.close()
        result = inventory.run()
        assert result.returncode != 0
        assert inventory.api.url in _words(result.stderr) and str(inventory.api.kubeconfig) in _words(result.stderr)

    def test_a_wrong_kubeconfig_is_named(self, inventory: Inventory) -> None:
        result = inventory.run({"kubeconfig": "/nonexistent/kubeconfig"})
        assert result.returncode != 0
        assert "there is no file /nonexistent/kubeconfig" in _words(result.stderr)

    def test_a_missing_right_is_named(self, inventory: Inventory) -> None:
        inventory.api.state.refuse = Answer(403, 'User "ann" cannot list resource "nodes"')
        result = inventory.run()
        assert result.returncode != 0 and 'User "ann" cannot list resource "nodes"' in _words(result.stderr)


def test_other_files_are_left_to_other_plugins(inventory: Inventory) -> None:
    assert inventory.run(name="hosts.yml").returncode != 0
    assert inventory.api.state.requests == []


def _words(text: str) -> str:
    """Without the line breaks that Ansible wraps long messages with."""
    return " ".join(text.split())
