# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and check mode on bare hosts: they say what would be done, and do nothing of it."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

import accounts
import pytest
from laboratory import Fleet, Tree, different

DRIVER = "580.178.04"
CUDA = "http://packages.gpulab:8480/cuda/repos/debian12/x86_64"
TOOLKIT = "http://packages.gpulab:8480/libnvidia-container"


def steps(plan: Mapping[str, Any], action: str = "") -> List[Dict[str, Any]]:
    return [step for step in plan["steps"] if step["action"].startswith(action)]


def assert_untouched(fleet: Fleet, trees: Mapping[str, Tree]) -> None:
    for host, tree in trees.items():
        assert different(tree, fleet.fingerprint(host)) == {}
        assert fleet.events(host) == []
        assert fleet.say(host, "ls", "-A", "/var/lib/gpuops") == ""


def test_the_plan_of_a_bare_host_names_everything(demo: Fleet, bare: Any) -> None:
    for plan in bare.plans.values():
        assert plan["refusals"] == []
        assert plan["disruption"] == "runtime_restart"
        driver, toolkit = steps(plan, "packages.install")
        versions = driver["change"]["after"]
        assert versions["nvidia-driver-cuda"] == versions["nvidia-kernel-open-dkms"] == DRIVER + "-1"
        assert versions["nvidia-fabricmanager"] == DRIVER + "-1"
        assert set(toolkit["change"]["before"].values()) == {None}
        written = {step["subject"]: step["change"] for step in steps(plan, "file.write")}
        assert {"/etc/modprobe.d/gpuops-nouveau.conf", "/etc/apt/sources.list.d/gpuops-nvidia-driver.sources",
                "/etc/apt/sources.list.d/gpuops-nvidia-container-toolkit.sources",
                "/etc/nvidia-container-runtime/config.toml"} <= set(written)
        assert all(change["before"] is None and change["after"] for change in written.values())
        assert [step["change"]["after"] for step in steps(plan, "cdi.generate")] == [
            {"driver": DRIVER, "gpus": 8, "fresh": True}]
        changes = [step["change"] for step in steps(plan, "runtime_config")]
        # containerd 2.x gets a file of ours, and a line in the root file that imports it
        assert len(changes) == (1 if plan["host"] == "a100" else 2)
        assert "nvidia-container-runtime" in changes[0]["after"]
        assert not any(change["before"] for change in changes)
    assert_untouched(demo, bare.trees)


def test_site_in_check_mode_goes_through_and_changes_nothing(demo: Fleet, bare: Any) -> None:
    checked = demo.play("gpuops.nvidia.site", "--check", "--diff")
    for host, plan in bare.plans.items():
        foretold = [step for module in ("nouveau", "gpu_driver", "container_toolkit", "gpu_driver_activation",
                                        "fabric_manager", "imex", "container_runtime", "cdi_spec")
                    for result in checked.results(host, module)[-1:] for step in result["plan"]["steps"]]
        by_id = {step["id"]: step for step in foretold}
        assert by_id == {step["id"]: step for step in plan["steps"]}
    assert_untouched(demo, bare.trees)
    for host, node in bare.nodes.items():
        assert demo.node(host)["metadata"]["labels"] == node["metadata"]["labels"]
        assert demo.node(host)["spec"] == node["spec"]
    assert demo.lab.kubectl(["get", "namespaces,runtimeclasses,crd,serviceaccounts,daemonsets", "--all-namespaces",
                             "-l", "app.kubernetes.io/managed-by=gpuops", "-o", "name"]).stdout == ""


MODULES: List[Tuple[str, Dict[str, Any]]] = [
    ("nouveau", {}),
    ("gpu_driver", {"version": DRIVER, "repository_url": CUDA, "repository_key": CUDA + "/gpulab.pub"}),
    ("gpu_driver", {"state": "staged", "version": DRIVER, "repository_url": CUDA,
                    "repository_key": CUDA + "/gpulab.pub"}),
    ("container_toolkit", {"repository_url": TOOLKIT + "/stable/deb/amd64", "repository_key": TOOLKIT + "/gpgkey"}),
    ("gpu_driver_activation", {}),
    ("fabric_manager", {}),
    ("imex", {}),
    ("vgpu_license", {}),
    ("container_runtime", {}),
    ("cdi_spec", {}),
    ("gpu_info", {}),
    ("gpu_plan", {"nouveau": {}, "activation": {}}),
]
# The activation waits for an installed driver, the fabric for a loaded one, the CDI specification for that and a
# toolkit; each says so. IMEX has no rack here, and the license no virtual GPU.
WAIT = ("gpu_info", "gpu_plan", "gpu_driver_activation", "fabric_manager", "imex", "vgpu_license", "cdi_spec")


def test_each_module_in_check_mode(demo: Fleet, bare: Any) -> None:
    played = demo.tasks("a100", [{"gpuops.nvidia." + module: options} for module, options in MODULES],
                        "--check", "--diff")
    assert played.code == 0, played.failures()
    assert [(module, played.results("a100", module)[0]["changed"]) for module, _options in MODULES] == [
        (module, module not in WAIT) for module, _options in MODULES]
    assert all(result["changed"] for result in played.results("a100", "gpu_driver"))
    assert_untouched(demo, {"a100": bare.trees["a100"]})


def test_the_validation_of_a_bare_host_is_a_verdict_and_no_change(demo: Fleet, bare: Any) -> None:
    played = demo.tasks("a100", [{"gpuops.nvidia.gpu_validation": {}}], "--check")
    result = played.result("a100", "gpu_validation")
    assert result["failed"]
    failed = [check for check in result["checks"] if check["status"] == "failed"]
    assert failed and all(check["evidence"] and check["remedy"] for check in failed)
    assert_untouched(demo, {"a100": bare.trees["a100"]})


def test_cluster_modules_in_check_mode(demo: Fleet, bare: Any) -> None:
    kubeconfig = str(demo.lab.kubeconfig)
    played = demo.tasks("localhost", [
        {"gpuops.nvidia.gpu_cluster_info": {"kubeconfig": kubeconfig}},
        {"gpuops.nvidia.gpu_pods": {"kubeconfig": kubeconfig, "node": "a100"}},
        {"gpuops.nvidia.gpu_pod_eviction": {"kubeconfig": kubeconfig, "node": "a100"}},
        {"gpuops.nvidia.gpu_node": {"kubeconfig": kubeconfig, "name": "a100",
                                    "labels": {"nvidia.com/gpu.present": "true"}}}], "--check",
        ansible_connection="local", ansible_python_interpreter="{{ ansible_playbook_python }}")
    assert played.code == 0, played.failures()
    assert played.result("localhost", "gpu_node")["changed"]
    assert demo.node("a100")["spec"] == bare.nodes["a100"]["spec"]


@pytest.mark.parametrize(("kind", "resource", "verb"), [
    pytest.param("ClusterRole", "pods/eviction", "create", marks=pytest.mark.variation),
    ("Role", "daemonsets", "create")])
def test_a_right_that_is_missing_is_named_before_anything_is_changed(
    demo: Fleet, bare: Any, kind: str, resource: str, verb: str
) -> None:
    user = "without-" + resource.replace("/", "-")
    roles = [{**role, "metadata": {**role["metadata"], "name": user}, "rules": [
        {**rule, "verbs": [each for each in rule["verbs"] if each != verb] or ["get"]}
        if role["kind"] == kind and resource in rule["resources"] else rule for rule in role["rules"]]}
        for role in accounts.roles_in("site.yaml")]
    accounts.create(demo.lab, [*roles, *(accounts.binding(role, user) for role in roles)])
    plane = demo.lab.control_plane
    assert plane
    played = demo.run("gpuops.nvidia.site", gpu_cluster_kubeconfig=str(plane.user(user)))
    assert played.code != 0
    assert "[cluster.rights_missing]" in played.failures() and verb in played.failures()
    assert resource in played.failures()
    assert accounts.writes(demo.lab, user) == []
    assert_untouched(demo, bare.trees)
