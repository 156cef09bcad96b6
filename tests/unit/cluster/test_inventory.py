# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The inventory plugin as a user meets it: ansible-inventory, a file, and a server that answers over HTTP."""
from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

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
        what: Sequence[str] = ("--list",),
    ) -> "subprocess.CompletedProcess[str]":
        given = {"plugin": "gpuops.nvidia.gpu_nodes", "kubeconfig": str(self.api.kubeconfig), **(options or {})}
        path = self.directory / name
        path.write_text(json.dumps({key: value for key, value in given.items() if value is not None}))
        return subprocess.run(
            [sys.executable, "-m", "ansible.cli.inventory", "-i", str(path), *what, *(flags or [])],
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


def test_names_by_a_template(inventory: Inventory) -> None:
    found = inventory.read({"hostnames": ["{{ k8s_gpu_clique }}", "{{ k8s_gpu_nothing }}", "{{ k8s_gpu_name }}.a"]})
    assert sorted(found["_meta"]["hostvars"]) == ["b3d2.1", "gpu-1.a", "gpu-3.a"]


def test_a_template_of_a_name_that_fails_is_an_error_when_strict(inventory: Inventory) -> None:
    result = inventory.run({"hostnames": ["{{ k8s_gpu_nothing.x }}", "name"], "strict": True})
    assert result.returncode != 0 and "k8s_gpu_nothing" in result.stderr and "gpu-1" in result.stderr


@pytest.mark.parametrize("name", ["{{ lookup('pipe', 'date') }}", "-oProxyCommand=touch", "a b", "#jinja2:x"])
def test_what_a_node_says_is_neither_an_option_nor_a_template(inventory: Inventory, name: str) -> None:
    said = inventory.api.state.nodes[0]
    said["metadata"]["annotations"]["example.com/fqdn"] = name
    said["status"]["addresses"] = [{"type": "InternalIP", "address": name}, {"type": "ExternalIP", "address": "::1"}]
    found = inventory.read({"hostnames": ["annotation:example.com/fqdn", "InternalIP", "name"]})
    assert found["_meta"]["hostvars"]["gpu-1"]["ansible_host"] == "::1"
    assert found["_meta"]["hostvars"]["gpu-1"]["k8s_gpu_annotations"] == {"example.com/fqdn": name}


@pytest.mark.parametrize("preferred, name", [
    ("paris:{{ k8s_gpu_name }}", "gpu-1"), ("{{ k8s_gpu_name }}:22", "gpu-1"), ("ExternalIP", "2001:db8::7")])
def test_no_host_has_a_name_that_is_a_pattern_of_others(inventory: Inventory, preferred: str, name: str) -> None:
    """A play that is given it would be of those."""
    inventory.api.state.nodes = inventory.api.state.nodes[:1]
    inventory.api.state.nodes[0]["status"]["addresses"] = [{"type": "ExternalIP", "address": "2001:db8::7"}]
    assert list(inventory.read({"hostnames": [preferred, "name"]})["_meta"]["hostvars"]) == [name]


def test_texts_that_would_be_templates_are_marked_where_ansible_takes_all_texts_for_them() -> None:
    module = importlib.import_module("ansible_collections.gpuops.nvidia.plugins.inventory.gpu_nodes")
    value = {"a": ["{{ x }}", "plain", {"b": "{% x %}"}], "n": 1, "j": "#jinja2:x", "none": None}
    assert module.without_templates(value, lambda text: "!" + text) == {
        "a": ["!{{ x }}", "plain", {"b": "!{% x %}"}], "n": 1, "j": "!#jinja2:x", "none": None}


class TestSeveralFiles:
    def read(self, inventory: Inventory, *options: Dict[str, Any]) -> "subprocess.CompletedProcess[str]":
        more: List[str] = []
        for number, each in enumerate(options[1:]):
            path = inventory.directory / ("more-%d.gpu_nodes.yml" % number)
            path.write_text(json.dumps({
                "plugin": "gpuops.nvidia.gpu_nodes", "kubeconfig": str(inventory.api.kubeconfig), **each}))
            more += ["-i", str(path)]
        return inventory.run(options[0], more, {"ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true"})

    @pytest.fixture
    def other(self, tmp_path: Path, inventory: Inventory) -> Iterator[Api]:
        directory = tmp_path / "other"
        directory.mkdir()
        server = Api(directory)
        server.state.nodes = [h100_node("gpu-1"), h100_node("gpu-7")]
        server.state.nodes[0]["metadata"]["creationTimestamp"] = "2026-02-02T00:00:00Z"
        yield server
        server.close()

    def test_clusters_are_one_inventory_where_names_are_told_apart(self, inventory: Inventory, other: Api) -> None:
        result = self.read(inventory, {}, {"kubeconfig": str(other.kubeconfig), "hostnames": ["{{ k8s_gpu_name }}.b"]})
        assert result.returncode == 0, result.stderr
        hosts = json.loads(result.stdout)["gpu_nodes"]["hosts"]
        assert sorted(hosts) == ["gpu-1", "gpu-1.b", "gpu-2", "gpu-3", "gpu-7.b"]

    def test_two_nodes_are_never_one_host(self, inventory: Inventory, other: Api) -> None:
        result = self.read(inventory, {}, {"kubeconfig": str(other.kubeconfig)})
        assert result.returncode != 0 and "would be the host gpu-1, which node gpu-1" in _words(result.stderr)
        result = inventory.run({"hostnames": ["label:nvidia.com/gpu.family"]})
        assert result.returncode != 0 and "would be the host hopper, which node gpu-1" in _words(result.stderr)

    def test_one_node_of_two_files_is_one_host(self, inventory: Inventory) -> None:
        result = self.read(inventory, {}, {"label_selector": "nvidia.com/gpu.product=NVIDIA-GB200",
                                           "compose": {"second": "k8s_gpu_name"}})
        assert result.returncode == 0, result.stderr
        host = json.loads(result.stdout)["_meta"]["hostvars"]["gpu-2"]
        assert host["second"] in ("gpu-2", {"__ansible_unsafe": "gpu-2"}) and host["k8s_gpu_count"] == 7

    def test_what_another_file_says_of_a_host_stays(self, inventory: Inventory) -> None:
        static = inventory.directory / "static.yml"
        static.write_text(json.dumps({"all": {"hosts": {"gpu-1": {"rack": "r7", "ansible_host": "old"}}}}))
        found = inventory.read({}, ["-i", str(static)])
        assert found["_meta"]["hostvars"]["gpu-1"]["rack"] == "r7"
        assert found["_meta"]["hostvars"]["gpu-1"]["k8s_gpu_count"] == 8


def test_one_host_is_told_alone(inventory: Inventory) -> None:
    told = inventory.run(what=["--host", "gpu-1"])
    assert told.returncode == 0 and json.loads(told.stdout)["k8s_gpu_count"] == 8


class TestFilters:
    def test_nodes_are_picked_by_their_facts(self, inventory: Inventory) -> None:
        found = inventory.read({"filters": ["ready", "count == `8`", "!unschedulable"], "strict": True})
        assert list(found["_meta"]["hostvars"]) == ["gpu-1"]
        assert list(inventory.read({"filters": ["!present"], "include_all": True})["_meta"]["hostvars"]) == ["cpu-1"]

    def test_one_that_cannot_be_right_is_refused_before_the_cluster_is_asked(self, inventory: Inventory) -> None:
        result = inventory.run({"filters": ["ready", "count >="]})
        assert result.returncode != 0 and "filters[1], column 9" in _words(result.stderr)
        assert inventory.api.state.requests == []

    def test_one_that_does_not_fit_a_node_leaves_it_out_with_a_warning(self, inventory: Inventory) -> None:
        options = {"filters": ["starts_with(clique, 'b3')"]}
        result = inventory.run(options)
        assert result.returncode == 0 and "cannot be worked out for 2 nodes, the first of them gpu-1" in _words(
            result.stderr)
        assert list(json.loads(result.stdout)["_meta"]["hostvars"]) == ["gpu-2"]
        result = inventory.run({**options, "strict": True})
        assert result.returncode != 0 and "In function starts_with()" in _words(result.stderr)

    def test_the_usual_driver_is_that_of_all_nodes_and_not_of_those_picked(self, inventory: Inventory) -> None:
        odd = h100_labels(**{"cuda__driver-version__full": "595.91.07"})
        inventory.api.state.nodes = [h100_node("gpu-1"), h100_node("gpu-2"), h100_node("gpu-3", labels=odd)]
        found = inventory.read({"filters": ["driver_version == '595.91.07'"]})
        assert [each["code"] for each in found["_meta"]["hostvars"]["gpu-3"]["k8s_gpu_findings"]] == [
            "cluster.driver_skew"]

    def test_a_value_from_a_lookup(self, inventory: Inventory) -> None:
        found = inventory.read({"filters": ["name == '{{ lookup('ansible.builtin.env', 'NODE') }}'"]},
                               environment={"NODE": "gpu-2"})
        assert list(found["_meta"]["hostvars"]) == ["gpu-2"]

    def test_the_library_is_asked_for_only_where_it_is_needed(self, inventory: Inventory, tmp_path: Path) -> None:
        (tmp_path / "without").mkdir()
        (tmp_path / "without" / "jmespath.py").write_text("raise ImportError('no jmespath here')")
        without = {"PYTHONPATH": str(tmp_path / "without")}
        assert len(inventory.read(environment=without)["_meta"]["hostvars"]) == 3
        result = inventory.run({"filters": ["ready"]}, environment=without)
        assert result.returncode != 0 and "pip install jmespath" in _words(result.stderr)


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


def test_a_group_may_be_made_of_other_groups(inventory: Inventory) -> None:
    found = inventory.read({"groups": {"ours": "'gpu_nodes' in group_names", "x": "false"}, "include_all": True})
    assert members(found, "ours") == ["gpu-1", "gpu-2", "gpu-3"]


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

    def test_what_was_asked_of_another_cluster_is_not_found(self, inventory: Inventory) -> None:
        """The file is the same, and so is the kubeconfig's path; its current context is another."""
        options = self.options(inventory)
        inventory.read(options)
        there = json.loads(inventory.api.kubeconfig.read_text())
        there["clusters"][0]["cluster"]["server"] = inventory.api.url.replace("127.0.0.1", "localhost")
        inventory.api.kubeconfig.write_text(json.dumps(there))
        inventory.read(options)
        assert inventory.api.count("GET", LIST) == 2

    def test_filters_are_part_of_the_question(self, inventory: Inventory) -> None:
        options = self.options(inventory)
        inventory.read({**options, "filters": ["ready"]})
        assert len(inventory.read(options)["_meta"]["hostvars"]) == 3
        assert list(inventory.read({**options, "include_all": True})["_meta"]["hostvars"]).count("cpu-1") == 1
        assert inventory.api.count("GET", LIST) == 3

    def test_it_expires(self, inventory: Inventory) -> None:
        options = self.options(inventory)
        inventory.read(options)
        self.age(inventory, 3700)
        inventory.read(options)
        assert inventory.api.count("GET", LIST) == 2

    @staticmethod
    def age(inventory: Inventory, seconds: float, **changes: Any) -> None:
        """Make the only entry of the cache older, or change it."""
        (path,) = (inventory.directory / "cache").iterdir()
        there = json.loads(path.read_text())
        entry = json.loads(there["__payload__"]) if "__payload__" in there else there
        entry.update({"read": entry["read"] - seconds, **changes})
        path.write_text(json.dumps({"__payload__": json.dumps(entry)} if "__payload__" in there else entry))
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - seconds))

    @pytest.mark.parametrize("changes", [{"schema": 0}, {"question": "another"}, {"nodes": [], "schema": None}])
    def test_an_entry_of_another_release_or_question_is_read_anew(
            self, inventory: Inventory, changes: Dict[str, Any]) -> None:
        options = self.options(inventory)
        inventory.read(options)
        self.age(inventory, 0, **changes)
        assert len(inventory.read(options)["_meta"]["hostvars"]) == 3
        assert inventory.api.count("GET", LIST) == 2

    class TestWithoutAServer:
        """An old answer stands in for a server that does not answer, where that is allowed."""

        def options(self, inventory: Inventory, allowed: int) -> Dict[str, Any]:
            return {**TestCache().options(inventory), "cache_if_unreachable": allowed}

        def test_an_old_answer_stands_in_with_a_warning(self, inventory: Inventory) -> None:
            options = self.options(inventory, 86400)
            first = inventory.read(options)
            TestCache.age(inventory, 7200)
            inventory.api.close()
            for flags in ([], ["--flush-cache"]):
                result = inventory.run(options, flags)
                assert result.returncode == 0, result.stderr
                told = _words(result.stderr)
                assert "these are the nodes as they were 72" in told and inventory.api.url in told and "Do: " in told
                assert json.loads(
                    result.stdout, object_hook=lambda value: value.get("__ansible_unsafe", value)) == first

        @pytest.mark.parametrize("allowed, age", [(0, 7200), (3600, 7200), (7000, 7200)])
        def test_one_that_is_too_old_does_not(self, inventory: Inventory, allowed: int, age: int) -> None:
            options = self.options(inventory, allowed)
            inventory.read(options)
            TestCache.age(inventory, age)
            inventory.api.close()
            result = inventory.run(options)
            assert result.returncode != 0 and "does not answer" in _words(result.stderr)

        def test_a_server_that_answers_is_asked_all_the_same(self, inventory: Inventory) -> None:
            options = self.options(inventory, 86400)
            inventory.read(options)
            TestCache.age(inventory, 7200)
            inventory.api.state.nodes = [h100_node("gpu-9")]
            assert list(inventory.read(options)["_meta"]["hostvars"]) == ["gpu-9"]

        def test_who_is_refused_gets_no_old_answer(self, inventory: Inventory) -> None:
            options = self.options(inventory, 86400)
            inventory.read(options)
            TestCache.age(inventory, 7200)
            inventory.api.state.refuse = Answer(403, 'User "ann" cannot list resource "nodes"')
            result = inventory.run(options)
            assert result.returncode != 0 and 'User "ann" cannot list' in _words(result.stderr)

        def test_with_nothing_in_the_cache_it_is_an_error(self, inventory: Inventory) -> None:
            inventory.api.close()
            result = inventory.run(self.options(inventory, 86400))
            assert result.returncode != 0 and "does not answer" in _words(result.stderr)

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
