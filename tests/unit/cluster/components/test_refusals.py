# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What contradicts itself is refused before anything is made, and the refusal names the option."""
from __future__ import annotations

import re
from typing import Any, Dict

import pytest
from component_options import MPS, SLICED

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components import dcgm_fields, model
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.gpu_monitoring.component import files
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.registry import COMPONENTS
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError

TEMPERATURE = {"field": "DCGM_FI_DEV_GPU_TEMP", "type": "gauge", "help": "temperature"}


@pytest.mark.parametrize("name, parameters, code, option", [
    ("device_plugin", {"env": {"MIG_STRATEGY": "single"}}, "cluster.two_places_of_a_setting", "env"),
    ("device_plugin", {"config": {"sharing": MPS["sharing"]}}, "cluster.device_plugin_config_malformed", ""),
    ("device_plugin", {"config": {"flags": {"migStratgy": "none"}}}, "cluster.device_plugin_config_malformed", ""),
    ("device_plugin", {"config": SLICED, "configs": {"a": MPS}}, "cluster.device_plugin_config_malformed", ""),
    ("device_plugin", {"pod_labels": {"app.kubernetes.io/name": "mine"}}, "cluster.pod_metadata_of_ours", "pod_labels"),
    ("device_plugin", {"pod_annotations": {"gpuops.nvidia.com/config-checksum": "0"}}, "cluster.pod_metadata_of_ours",
     "pod_annotations"),
    *(("device_plugin", {"namespace_quotas": quotas}, "cluster.namespace_quota_malformed", "namespace_quotas")
      for quotas in ({"a": 8}, {"a": {}}, {"a": {"cpu": 8}}, {"a": {"nvidia.com/gpu": "0.5"}}, {"A b": {
          "nvidia.com/gpu": 8}}, {"a": {"nvidia.com/gpu": True}}, {"a": {"requests.nvidia.com/gpu": 1}})),
    ("device_plugin", {"image": {"digest": "sha256:abc"}}, "cluster.image_malformed", "image"),
    ("device_plugin", {"image": {"tag": ""}}, "cluster.image_malformed", "image"),
    ("device_plugin", {"registry": "https://mirror.example"}, "cluster.registry_malformed", "registry"),
    ("device_plugin", {"startup_taint": "not-ready=:NoSchedule"}, "cluster.startup_taint_malformed", "startup_taint"),
    ("gpu_feature_discovery", {"config": {"sharing": MPS["sharing"]}}, "cluster.device_plugin_config_malformed", ""),
    ("dcgm_exporter", {"env": {"DCGM_EXPORTER_LISTEN": ":1"}}, "cluster.option_in_environment", "env"),
    ("dcgm_exporter", {"tls_secret": "a", "web_config_secret": "b"}, "cluster.two_web_configurations", "tls_secret"),
    ("dcgm_exporter", {"metrics": [{**TEMPERATURE, "help": "hot, or not"}]}, "cluster.comma_in_help_of_metric",
     "metrics"),
    ("dcgm_exporter", {"metrics": [TEMPERATURE, TEMPERATURE]}, "cluster.metric_malformed", "metrics"),
    ("dcgm_exporter", {"metrics": [{**TEMPERATURE, "field": "DCGM_FI_DEV_GPU_TMP"}]}, "cluster.metric_unknown",
     "metrics"),
    ("dcgm_exporter", {"metric_sets": {"a": [{**TEMPERATURE, "field": "DCGM_EXP_XID_COUNT"}]}},
     "cluster.metric_unknown", "metric_sets"),
    ("dcgm_exporter", {"metrics": []}, "cluster.metric_malformed", "metrics"),
    ("dcgm_exporter", {"metric_sets": {"a": [{**TEMPERATURE, "type": "histogram"}]}}, "cluster.metric_malformed",
     "metric_sets"),
    ("dcgm_exporter", {"metric_sets": {"a": ["DCGM_FI_DEV_GPU_TEMP"]}}, "cluster.metric_malformed", "metric_sets"),
    ("dcgm_exporter", {"metric_sets": {"a": [{**TEMPERATURE, "field": "gpu temp"}]}}, "cluster.metric_malformed",
     "metric_sets"),
    ("dcgm_exporter", {"metrics": [{**TEMPERATURE, "help": "two\nlines"}]}, "cluster.metric_malformed", "metrics"),
    ("dcgm_exporter", {"metrics": [{**TEMPERATURE, "help": 'of the "hot spot"'}]}, "cluster.metric_malformed",
     "metrics"),
])
def test_contradictions_are_refused(name: str, parameters: Dict[str, Any], code: str, option: str) -> None:
    with pytest.raises(GpuOpsError) as refused:
        model.objects(COMPONENTS[name], parameters)
    assert (refused.value.code, refused.value.refusals[0].option) == (code, option)


def test_a_metric_that_the_exporter_does_not_know_is_refused_with_the_nearest_that_it_knows() -> None:
    metrics = [TEMPERATURE, {**TEMPERATURE, "field": "DCGM_FI_DEV_GPU_TMP"},
               {**TEMPERATURE, "field": "DCGM_EXP_XID_ERROR_COUNT"}, {**TEMPERATURE, "field": "QQQ"}]
    with pytest.raises(GpuOpsError) as refused:
        model.objects(COMPONENTS["dcgm_exporter"], {"metrics": metrics})
    refusal = refused.value.refusals[0]
    assert refusal.found.endswith(": DCGM_FI_DEV_GPU_TMP, DCGM_EXP_XID_ERROR_COUNT, QQQ")
    assert "DCGM 4.5.3" in refusal.wanted
    assert refusal.remedy.startswith(
        "write DCGM_FI_DEV_GPU_TEMP for DCGM_FI_DEV_GPU_TMP, DCGM_EXP_XID_ERRORS_COUNT for DCGM_EXP_XID_ERROR_COUNT, "
        "or set `allow_unknown_metrics`")
    assert model.objects(COMPONENTS["dcgm_exporter"], {"metrics": metrics, "allow_unknown_metrics": True})


def test_the_table_of_fields_is_of_the_default_image_and_has_every_metric_that_is_used() -> None:
    exporter = COMPONENTS["dcgm_exporter"].arguments
    assert exporter["image"]["default"]["tag"].startswith(dcgm_fields.RELEASE + "-")
    assert {metric["field"] for metric in exporter["metrics"]["default"]} <= dcgm_fields.KNOWN
    written = "\n".join(files({}).values())
    used = set(re.findall(r"\bDCGM_[A-Z]+_[A-Z0-9_]+\b", written))
    assert len(used) > 20 and used <= dcgm_fields.KNOWN
    assert {"DCGM_FI_DEV_NVLINK_THROUGHPUT_L17", "DCGM_FI_PROF_NVLINK_L0_RX_BYTES", "DCGM_FI_DEV_CPU_AFFINITY_3",
            "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DRIVER_VERSION"} <= dcgm_fields.KNOWN
    assert not {"DCGM_FI_DEV_NVLINK_THROUGHPUT_L18", "DCGM_FI_UNKNOWN"} & dcgm_fields.KNOWN
    assert not [name for name in dcgm_fields.KNOWN if not re.fullmatch(r"DCGM_[A-Z0-9_]+", name)]


def test_a_user_s_patch_is_merged_into_its_object_alone() -> None:
    plugin = COMPONENTS["device_plugin"]
    patch = {"spec": {"revisionHistoryLimit": 2, "updateStrategy": None, "template": {"spec": {"hostNetwork": True}}}}
    before = model.objects(plugin, {})
    after = model.objects(plugin, {"patches": [
        {"kind": "DaemonSet", "name": "nvidia-device-plugin", "patch": patch}]})
    assert before[:-1] == after[:-1]
    spec = after[-1]["spec"]
    assert spec["revisionHistoryLimit"] == 2 and "updateStrategy" not in spec
    assert spec["template"]["spec"] == {**before[-1]["spec"]["template"]["spec"], "hostNetwork": True}


def test_later_patches_see_what_earlier_ones_made() -> None:
    made = model.objects(COMPONENTS["device_plugin"], {"patches": [
        {"kind": "ConfigMap", "name": "nvidia-device-plugin", "patch": {"data": {"a": "1", "b": "1"}}},
        {"kind": "ConfigMap", "name": "nvidia-device-plugin", "patch": {"data": {"a": None, "config.yaml": None}}}]})
    assert [each["data"] for each in made if each["kind"] == "ConfigMap"] == [{"b": "1"}]


@pytest.mark.parametrize("kind, name", [("DaemonSet", "nvidia-device-plugn"), ("Deployment", "nvidia-device-plugin")])
def test_a_patch_that_meets_no_object_is_refused(kind: str, name: str) -> None:
    with pytest.raises(GpuOpsError) as refused:
        model.objects(COMPONENTS["device_plugin"], {"patches": [{"kind": kind, "name": name, "patch": {}}]})
    assert refused.value.code == "cluster.patch_without_object"
    assert "DaemonSet nvidia-device-plugin" in refused.value.found


@pytest.mark.parametrize("patch", [
    {"metadata": {"name": "other"}}, {"metadata": {"namespace": "other"}}, {"kind": "Deployment"}, {"metadata": None},
    {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}}, {"metadata": {"labels": None}},
])
def test_a_patch_makes_no_other_object_of_one(patch: Dict[str, Any]) -> None:
    with pytest.raises(GpuOpsError) as refused:
        model.objects(COMPONENTS["device_plugin"], {"patches": [
            {"kind": "DaemonSet", "name": "nvidia-device-plugin", "patch": patch}]})
    assert refused.value.code == "cluster.patch_of_identity"
