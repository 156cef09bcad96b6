# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The objects of the components as files: what a GitOps controller applies, and nobody has to be reached for."""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest
import yaml
from controller import Controller
from documentation import returned, undocumented

MODULE = "gpuops.nvidia.gpu_manifests"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return tmp_path / "made"


def written(controller: Controller, *options: str, variables: Any = None, hosts: Any = ("gpu-1",),
            **given: Any) -> Dict[str, Any]:
    ((told,),) = controller.tasks([{MODULE: {"from_variables": True, **given}, "run_once": True}], *options,
                                  hosts=hosts, variables=variables)
    assert list(undocumented(told, returned("gpu_manifests"))) == []
    return told


def documents(path: Path) -> Any:
    return list(yaml.safe_load_all(path.read_text()))


def test_every_object_is_in_a_file_that_the_kustomization_names(controller: Controller, made: Path) -> None:
    told = written(controller, variables={"gpu_manifests_dir": str(made), "gpu_cluster_namespace": "gpus",
                                          "gpu_cluster_registry": "mirror.example"})
    assert told["changed"] and sorted(told["clusters"][0]["files"]) == sorted(map(str, made.iterdir()))
    (kustomization,) = documents(made / "kustomization.yaml")
    assert kustomization["resources"] == ["shared.yaml", *(name + ".yaml" for name in (
        "node_feature_discovery", "gpu_feature_discovery", "device_plugin", "dcgm_exporter"))]
    found = [each for name in kustomization["resources"] for each in documents(made / name)]
    assert [(each["kind"], each["metadata"]["name"]) for each in found[:2]] == [
        ("Namespace", "gpus"), ("RuntimeClass", "nvidia")]
    assert {each["metadata"].get("namespace", "gpus") for each in found} == {"gpus"}
    assert told["images"] and all(image.startswith("mirror.example/") for image in told["images"])
    assert not written(controller, variables={"gpu_manifests_dir": str(made), "gpu_cluster_namespace": "gpus",
                                              "gpu_cluster_registry": "mirror.example"})["changed"]


def test_check_mode_shows_the_files_and_writes_none(controller: Controller, made: Path) -> None:
    told = written(controller, "--check", "--diff", directory=str(made))
    assert told["changed"] and not made.exists()
    assert any("kind: DaemonSet" in part["after"] for part in told["diff"])


def test_a_component_that_is_left_out_leaves_and_what_others_wrote_stays(
    controller: Controller, made: Path
) -> None:
    written(controller, directory=str(made))
    (made / "gpu_monitoring.yaml").write_text("# mine\n")
    told = written(controller, directory=str(made), components=["device_plugin"])
    assert told["changed"]
    assert sorted(path.name for path in made.iterdir()) == [
        "device_plugin.yaml", "gpu_monitoring.yaml", "kustomization.yaml", "shared.yaml"]
    assert (made / "gpu_monitoring.yaml").read_text() == "# mine\n"


def test_a_file_of_somebody_else_is_not_written_over(controller: Controller, made: Path) -> None:
    made.mkdir()
    (made / "kustomization.yaml").write_text("resources: [mine.yaml]\n")
    told = written(controller, directory=str(made))
    assert told["failed"] and told["code"] == "cluster.file_of_another" and "kustomization.yaml" in told["found"]
    assert [path.name for path in made.iterdir()] == ["kustomization.yaml"]
    assert (made / "kustomization.yaml").read_text() == "resources: [mine.yaml]\n"


def test_two_clusters_that_want_different_files_in_one_place_are_refused(
    controller: Controller, made: Path
) -> None:
    told = written(controller, hosts=("gpu-1", "gpu-2"), variables={
        "gpu_manifests_dir": str(made), "gpu_cluster_kubeconfig": "/{{ inventory_hostname }}",
        "gpu_cluster_namespace": "{{ inventory_hostname }}"})
    assert told["failed"] and told["code"] == "cluster.one_directory_for_two_clusters"


def test_the_playbook_names_the_images_where_nothing_is_to_be_written(controller: Controller) -> None:
    done = controller.play("gpuops.nvidia.manifests")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nvcr.io/nvidia/k8s-device-plugin:v0.19.3" in done.stdout
