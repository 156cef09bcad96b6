# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Alerts and dashboard as data: what holds of them whatever the options are."""
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, List, Set

import pytest
import yaml
from alert_samples import CASES
from documentation import REPOSITORY
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.dcgm_exporter import METRICS
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.gpu_monitoring import xids
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.gpu_monitoring.alerts import ALERTS
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.gpu_monitoring.component import (
    DASHBOARD_FILE,
    GPU_MONITORING,
    RULES_FILE,
    files,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.gpu_monitoring.policy import THRESHOLDS
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.kinds import BY_NAME
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.model import objects
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.monitoring_files import wanted_files
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.text_files import carry_out, changes

EXPORTED = {metric["field"] for metric in METRICS if metric["type"] != "label"}
# Of kube-state-metrics those that its documentation calls stable, and the annotations
OF_NODES = {"kube_node_labels", "kube_node_annotations", "kube_node_spec_unschedulable", "kube_node_status_capacity",
            "kube_node_status_allocatable"}
SERIES = re.compile(r"\b(?:DCGM|kube|ALERTS|up)\w*(?=[{ )\[]|$)")
NAMES = [alert.name for alert in ALERTS]

labels = st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in ("severity", "node", "alertname")), st.text(max_size=8), max_size=3)
options = st.fixed_dictionaries({}, optional={
    "thresholds": st.dictionaries(st.sampled_from(sorted(THRESHOLDS)), st.floats(0, 1e6)),
    "disabled": st.lists(st.sampled_from(NAMES), unique=True),
    "overrides": st.dictionaries(st.sampled_from(NAMES), st.fixed_dictionaries({}, optional={
        "for": st.sampled_from(["0", "90s", "1h30m"]), "severity": st.sampled_from(["critical", "warning", "info"])})),
    "extra_labels": labels,
    "runbook_url": st.sampled_from(["", "https://wiki.example/gpus"]),
    "cluster_label": st.sampled_from(["cluster", "k8s_cluster"]),
    "workload_label_prefix": st.sampled_from(["", "exported_"]),
    "exporter_job": st.sampled_from([".*dcgm.*", 'a"b\\.c']),
})


def made(**parameters: Any) -> Dict[str, Dict[str, Any]]:
    """{alert: its rule} as Prometheus reads the file."""
    document = yaml.safe_load(files(parameters)[RULES_FILE])
    return {rule["alert"]: rule for group in document["groups"] for rule in group["rules"]}


def board(**parameters: Any) -> Dict[str, Any]:
    found: Dict[str, Any] = json.loads(files(parameters)[DASHBOARD_FILE])
    return found


def queries(dashboard: Dict[str, Any]) -> List[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


class TestAlerts:
    def test_they_ask_for_what_is_there(self) -> None:
        for name, rule in made().items():
            asked = set(SERIES.findall(rule["expr"]))
            assert asked and asked <= EXPORTED | OF_NODES | {"up"}, name

    def test_what_needs_metrics_of_nodes_says_so(self) -> None:
        rules = made()
        for alert in ALERTS:
            asked = set(SERIES.findall(rules[alert.name]["expr"]))
            assert bool(alert.needs) == bool(asked & OF_NODES), alert.name
            for metric, shown in (("kube_node_labels", "labels"), ("kube_node_annotations", "annotations")):
                assert (metric in asked) == alert.needs.endswith(shown + " of nodes"), alert.name

    def test_each_has_series_in_which_it_fires_and_series_in_which_it_does_not(self) -> None:
        for name in NAMES:
            cases = [case for case in CASES if case.alert == name]
            assert any(case.fires for case in cases), name
            assert any(len(case.fires) < len(case.series) for case in cases), name
        assert {case.alert for case in CASES} == set(NAMES)

    def test_one_that_waits_has_a_time_at_which_it_does_not_fire_yet(self) -> None:
        waiting = {alert.name for alert in ALERTS if alert.pending != "0m"}
        assert waiting - {case.alert for case in CASES if case.not_yet} <= {"GpuEccCorrectableRate"}

    def test_each_is_on_the_page_under_its_name(self) -> None:
        page = (REPOSITORY / "docs" / "monitoring.md").read_text()
        for name, rule in made().items():
            assert "\n#### %s\n" % name in page
            assert rule["annotations"]["runbook_url"].endswith("/docs/monitoring.md#" + name.lower())

    @pytest.mark.parametrize("threshold", THRESHOLDS)
    def test_a_threshold_changes_the_alerts_that_name_it_and_no_others(self, threshold: str) -> None:
        before, after = made(), made(thresholds={threshold: 4711.25})
        changed = {name for name in before if before[name] != after[name]}
        assert changed == {alert.name for alert in ALERTS if threshold in alert.thresholds} != set()
        assert all("4711.25" in after[name]["expr"] for name in changed)

    @given(drawn=options)
    def test_whatever_is_asked_for_the_rules_are_whole(self, drawn: Dict[str, Any]) -> None:
        rules = made(**drawn)
        assert list(rules) == [name for name in NAMES if name not in drawn.get("disabled", ())]
        overrides = drawn.get("overrides", {})
        for alert in ALERTS:
            if alert.name not in rules:
                continue
            rule, override = rules[alert.name], overrides.get(alert.name, {})
            assert rule["for"] == override.get("for", alert.pending)
            assert rule["labels"].pop("node")
            assert rule["labels"] == {"severity": override.get("severity", alert.severity),
                                      **drawn.get("extra_labels", {})}
            assert ("runbook_url" in rule["annotations"]) == bool(drawn.get("runbook_url", "x"))
            assert "%" not in rule["expr"] and rule["expr"].count("(") == rule["expr"].count(")")

    @given(drawn=options)
    def test_the_object_and_the_file_hold_the_same(self, drawn: Dict[str, Any]) -> None:
        (rule,) = objects(GPU_MONITORING, {**drawn, "dashboard": False})
        (config,) = objects(GPU_MONITORING, {**drawn, "dashboard": False, "rules": "config_map"})
        assert rule["spec"] == yaml.safe_load(files(drawn)[RULES_FILE])
        assert config["data"] == {RULES_FILE: files(drawn)[RULES_FILE]}


class TestXids:
    def test_each_is_in_one_table(self) -> None:
        listed = [*xids.codes(xids.CRITICAL), *xids.codes(xids.WARNING), *xids.APPLICATION]
        assert len(listed) == len(set(listed))

    def test_those_that_break_a_gpu_are_critical_and_contained_ones_are_not(self) -> None:
        assert {48, 62, 64, 74, 79, 95, 109, 119, 140} <= set(xids.codes(xids.CRITICAL))
        assert {63, 92, 94, 154} <= set(xids.codes(xids.WARNING))
        assert {13, 31, 43, 45, 68} <= set(xids.APPLICATION)


class TestDashboard:
    def test_it_asks_for_what_the_exporter_exports(self) -> None:
        asked = {name for query in queries(board()) for name in SERIES.findall(query)}
        assert asked <= EXPORTED | {"ALERTS"}
        # What is collected is shown, but for the reserved part of the memory and errors since the board was made
        assert EXPORTED - asked == {"DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL"}

    @given(drawn=options)
    def test_whatever_is_asked_for_panels_lie_side_by_side(self, drawn: Dict[str, Any]) -> None:
        panels = board(**drawn)["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        taken: Set[Any] = set()
        for panel in panels:
            place = panel["gridPos"]
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                     for y in range(place["y"], place["y"] + place["h"])}
            assert not cells & taken and all(0 <= x < 24 for x, _y in cells)
            taken |= cells
        for query in queries(board(**drawn)):
            assert not re.search(r"\[\[|\]\]|@|%s", query)
            assert query.count("(") == query.count(")") and query.count("{") == query.count("}")
            assert '%s=~"$cluster"' % drawn.get("cluster_label", "cluster") in query

    def test_it_has_panels_and_variables_that_grafana_draws_today(self) -> None:
        dashboard = board()
        assert {panel["type"] for panel in dashboard["panels"]} == {"row", "stat", "timeseries"}
        assert [each["name"] for each in dashboard["templating"]["list"]] == ["datasource", "cluster", "node", "gpu"]
        # packages/grafana-data/src/valueFormats/categories.ts of Grafana; another word would be shown as it stands
        units = {panel["fieldConfig"]["defaults"]["unit"] for panel in dashboard["panels"] if panel["type"] != "row"}
        assert units == {"Bps", "MBs", "celsius", "mbytes", "none", "percent", "percentunit", "rotmhz", "short", "watt",
                         "watth"}
        assert all(panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
                   for panel in dashboard["panels"] if panel["type"] != "row")


class TestObjects:
    def test_rules_come_in_the_form_that_is_wanted(self) -> None:
        kinds = {form: [(each["kind"], each["metadata"]["name"]) for each in objects(GPU_MONITORING, {"rules": form})]
                 for form in ("prometheus_rule", "config_map", "none")}
        shown = ("ConfigMap", "nvidia-gpu-dashboard")
        assert kinds == {"prometheus_rule": [shown, ("PrometheusRule", "nvidia-gpu-alerts")],
                         "config_map": [("ConfigMap", "nvidia-gpu-alerts"), shown], "none": [shown]}

    def test_others_find_them_and_we_do(self) -> None:
        made_objects = objects(GPU_MONITORING, {
            "rule_labels": {"release": "prometheus", "app.kubernetes.io/managed-by": "me"},
            "dashboard_labels": {"grafana_dashboard": None, "board": 1}, "dashboard_namespace": "grafana",
            "dashboard_annotations": {"grafana_folder": "GPUs"}})
        shown, rule = (each["metadata"] for each in made_objects)
        assert rule["labels"]["release"] == "prometheus" and rule["labels"]["app.kubernetes.io/managed-by"] == "gpuops"
        assert (shown["namespace"], rule["namespace"]) == ("grafana", "gpuops")
        assert shown["labels"]["board"] == "1" and "grafana_dashboard" not in shown["labels"]
        assert shown["annotations"] == {"grafana_folder": "GPUs"}

    def test_they_are_of_kinds_that_can_be_found_again(self) -> None:
        for form in ("prometheus_rule", "config_map"):
            for each in objects(GPU_MONITORING, {"rules": form}):
                assert BY_NAME[each["kind"]].api_version == each["apiVersion"]

    def test_the_sidecar_finds_the_dashboard_by_default(self) -> None:
        (shown, _rule) = objects(GPU_MONITORING, {})
        assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"

    def test_they_are_small_enough_for_the_api_server(self) -> None:
        assert all(len(json.dumps(each)) < 200_000 for each in objects(GPU_MONITORING, {}))


@pytest.mark.parametrize("parameters, told", [
    ({"thresholds": {"temperature": 80}}, "thresholds has temperature"),
    ({"thresholds": {"idle": "little"}}, "thresholds.idle is 'little', no number"),
    ({"thresholds": {"idle": True}}, "thresholds.idle is True"),
    ({"thresholds": {"idle": float("nan")}}, "thresholds.idle is nan"),
    ({"thresholds": {"idle": None}}, "thresholds.idle is null"),
    ({"disabled": ["GpuTired"]}, "disabled has GpuTired"),
    ({"overrides": {"GpuTired": {}}}, "overrides has GpuTired"),
    ({"overrides": {"GpuHot": {"pending": "1m"}}}, "overrides.GpuHot is"),
    ({"overrides": {"GpuHot": "1m"}}, "overrides.GpuHot is '1m'"),
    ({"overrides": {"GpuHot": {"for": "a while"}}}, "overrides.GpuHot.for is 'a while'"),
    ({"overrides": {"GpuHot": {"severity": "page"}}}, "overrides.GpuHot.severity is 'page'"),
    ({"extra_labels": {"a-b": "c"}}, "'a-b' is no name of a label"),
    ({"extra_labels": {"severity": "page"}}, "extra_labels has severity"),
    ({"cluster_label": ""}, "'' is no name of a label"),
    ({"workload_label_prefix": "exported-"}, "workload_label_prefix is 'exported-'"),
    ({"exporter_job": "(dcgm"}, "exporter_job is no regular expression"),
    ({"exporter_job": "(?!test).*dcgm.*"}, "exporter_job has (?!"),
    ({"exporter_job": r"(a|b)-dcgm-\1"}, r"exporter_job has \1"),
])
def test_what_prometheus_would_not_take_is_refused(parameters: Dict[str, Any], told: str) -> None:
    with pytest.raises(GpuOpsError) as refused:
        files(parameters)
    assert refused.value.code == "cluster.monitoring_malformed" and told in refused.value.found


def test_a_number_may_come_as_text() -> None:
    assert "> 80" in made(thresholds={"temperature_warning": "80"})["GpuHot"]["expr"]


class TestFiles:
    @staticmethod
    def wanted(directory: Path, absent: bool = False, **parameters: Any) -> Any:
        return wanted_files({"directory": str(directory), **parameters}, absent, {})

    def test_they_are_written_once_and_removed(self, tmp_path: Path) -> None:
        place = tmp_path / "new" / "monitoring"
        wanted = self.wanted(place)
        assert {Path(path).name for path in wanted} == {RULES_FILE, DASHBOARD_FILE}
        different = changes(wanted)
        assert [before for before, _after in different.values()] == [None, None]
        carry_out({path: after for path, (_before, after) in different.items()})
        assert changes(wanted) == {} and (place / RULES_FILE).stat().st_mode & 0o777 == 0o644
        gone = changes(self.wanted(place, absent=True))
        carry_out({path: after for path, (_before, after) in gone.items()})
        assert list(place.iterdir()) == [] and changes(self.wanted(place, absent=True)) == {}

    def test_only_what_is_different_changes(self, tmp_path: Path) -> None:
        carry_out(self.wanted(tmp_path))
        different = changes(self.wanted(tmp_path, disabled=["GpuHot"]))
        assert [Path(path).name for path in different] == [RULES_FILE]

    def test_two_clusters_may_not_want_two_texts_in_one_place(self, tmp_path: Path) -> None:
        of_others: Dict[str, Any] = {}
        wanted_files({"directory": str(tmp_path)}, False, of_others)
        wanted_files({"directory": str(tmp_path)}, False, of_others)
        with pytest.raises(GpuOpsError) as refused:
            wanted_files({"directory": str(tmp_path), "disabled": ["GpuHot"]}, False, of_others)
        assert refused.value.code == "cluster.one_directory_for_two_clusters"

    def test_a_place_that_is_none_is_refused_before_anything_is_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(GpuOpsError) as refused:
            changes(self.wanted(tmp_path / "file"))
        assert refused.value.code == "cluster.file_unusable"

    def test_no_directory_no_files(self) -> None:
        assert wanted_files({"directory": ""}, False, {}) == {}
