# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Alerts and dashboard in a real Prometheus that scrapes pages in the exporter's own format.

A cluster of four nodes: one is well, one has every fault that a page can show, one has instances of MIG and the newer
name of the node's label, one has GPUs and no exporter.
"""
from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest
from exporter_page import Gpu, exporter, kube_state

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.gpu_monitoring.alerts import ALERTS
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.gpu_monitoring.component import (
    DASHBOARD_FILE,
    GPU_MONITORING,
    files,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.gpu_monitoring.policy import settings_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.gpu_monitoring.rules import (
    ALERT_NAMES,
    rules,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.model import complete

LONGEST = 90
# They say that something is not there, which only the absence of all would bring about
OF_ABSENCE = {"GpuMetricsAbsent"}
TRAINING = ("team", "train-0", "main")
IDLE = {"DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0, "DCGM_FI_DEV_GPU_UTIL": 0}
BLANK = 9223372036854775794


def pages(round_: int) -> Dict[str, str]:
    """{node: its page} of the n-th scrape. Counters of broken GPUs count, and one GPU goes."""
    broken = [
        Gpu(0, {"DCGM_FI_DEV_GPU_TEMP": 91, "DCGM_FI_DEV_MEMORY_TEMP": 99}, TRAINING,
            events={"hw_thermal": 5, "hw_slowdown": 5}),
        Gpu(1, {"DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": round_, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 400 * round_,
                "DCGM_FI_DEV_ROW_REMAP_FAILURE": 1, "DCGM_FI_DEV_ROW_REMAP_PENDING": 1,
                "DCGM_FI_DEV_FB_FREE": 100, "DCGM_FI_DEV_FB_USED": 80981}, TRAINING, xids={48: 1, 63: 2, 94: 1}),
        Gpu(2, {**IDLE, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 7 * round_,
                "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": round_,
                "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 50 * round_, "DCGM_FI_DEV_FABRIC_MANAGER_STATUS": 4},
            ("team", "notebook", "main"), events={"hw_power_brake": 2}, xids={79: 1, 31: 1}),
        Gpu(3, {"DCGM_FI_DEV_MEMORY_TEMP": BLANK}, ("team", "pod-%d" % (round_ % 5), "main"),
            events={"hw_slowdown": 1}, xids={13: 1}),
    ]
    if round_ < 3:
        broken.append(Gpu(4))
    divided = [Gpu(0, {}, TRAINING, ("1g.10gb", "7")), Gpu(0, dict(IDLE), (), ("1g.10gb", "8")),
               Gpu(0, {"DCGM_FI_DEV_FB_USED": 9000, "DCGM_FI_DEV_FB_FREE": 30000}, (), ("3g.40gb", "2"))]
    return {"well": exporter("well", [Gpu(number, {}, TRAINING) for number in range(8)]),
            "broken": exporter("broken", broken), "divided": exporter("divided", divided, "hostname")}


def cluster() -> str:
    """What kube-state-metrics tells: the broken node is labelled with 5 GPUs, and one node has no exporter."""
    series: List[Any] = []
    for node, gpus, resource, held in (("well", 8, "gpu", 0), ("broken", 5, "gpu", 2), ("divided", 1, "mig_1g_10gb", 0),
                                       ("mute", 8, "gpu", 0)):
        for state, count in (("capacity", gpus), ("allocatable", gpus - held)):
            series.append(("kube_node_status_" + state,
                           {"node": node, "resource": "nvidia_com_" + resource, "unit": "integer"}, count))
        series.append(("kube_node_labels", {
            "node": node, "label_nvidia_com_gpu_count": str(gpus),
            "label_nvidia_com_mig_config_state": "failed" if node == "broken" else "success",
            "label_nvidia_com_mig_config": "all-1g.10gb"}, 1))
        series.append(("kube_node_spec_unschedulable", {"node": node}, int(node == "broken")))
    series.append(("kube_node_annotations", {
        "node": "broken", "annotation_gpuops_nvidia_com_cordon_reason": "validation: a GPU is gone"}, 1))
    return kube_state(series)


class Pages(BaseHTTPRequestHandler):
    """Serves /NODE, each scrape the next of its rounds, and /cluster."""

    rounds: Dict[str, int] = {}

    def do_GET(self) -> None:  # noqa: N802
        node = self.path.strip("/")
        if node == "dead":
            self.send_error(500)
            return
        number = self.rounds[node] = self.rounds.get(node, 0) + 1
        text = cluster() if node == "cluster" else pages(number)[node]
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_words: Any) -> None:
        """Nothing."""


class Prometheus:
    """A running one, and what it answers."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, path: str, **words: str) -> Any:
        query = "?" + urllib.parse.urlencode(words) if words else ""
        with urllib.request.urlopen("http://%s/api/v1/%s%s" % (self.address, path, query), timeout=10) as answer:
            told = json.load(answer)
        assert told["status"] == "success", told
        return told["data"]

    def query(self, expression: str) -> List[Dict[str, Any]]:
        found: List[Dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found

    def value(self, expression: str) -> float:
        (one,) = self.query(expression)
        return float(one["value"][1])

    def firing(self) -> Dict[str, List[Dict[str, Any]]]:
        found: Dict[str, List[Dict[str, Any]]] = {}
        for alert in self.ask("alerts")["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert)
        return found


def until(what: Callable[[], bool]) -> bool:
    """Wait for it; whether it came."""
    ends = time.monotonic() + LONGEST
    while time.monotonic() < ends:
        try:
            if what():
                return True
        except (OSError, AssertionError):
            pass
        time.sleep(0.5)
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def at_once() -> Dict[str, Any]:
    """The rules with nothing to wait for; expressions are as users get them."""
    parameters = complete(GPU_MONITORING, {"overrides": {alert.name: {"for": "0s"} for alert in ALERTS}})
    made = rules(settings_of(parameters, ALERT_NAMES))
    for group in made["groups"]:
        group.pop("interval", None)
    return made


@pytest.fixture(scope="module")
def prometheus(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has scraped the three nodes and evaluated the rules some times."""
    place = tmp_path_factory.mktemp("prometheus")
    Pages.rounds = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    target = "127.0.0.1:%d" % server.server_address[1]
    (place / "rules.json").write_text(json.dumps(at_once()))
    (place / "prometheus.json").write_text(json.dumps({
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
        "rule_files": ["rules.json"],
        "scrape_configs": [
            # As a ServiceMonitor would have it: each target has namespace and pod of the exporter
            *({"job_name": "nvidia-dcgm-exporter-" + node, "metrics_path": "/" + node,
               "static_configs": [{"targets": [target], "labels": {"namespace": "gpuops", "pod": "exporter-" + node}}]}
              for node in ("well", "broken", "divided", "dead")),
            {"job_name": "kube-state-metrics", "honor_labels": True, "metrics_path": "/cluster",
             "static_configs": [{"targets": [target]}]},
        ],
    }))
    address = "127.0.0.1:%d" % free_port()
    with (place / "log").open("w") as log:
        process = subprocess.Popen(
            [str(programs / "prometheus"), "--config.file=prometheus.json", "--storage.tsdb.path=data",
             "--web.listen-address=" + address], cwd=place, stdout=log, stderr=subprocess.STDOUT)
    found = Prometheus(address)
    try:
        assert until(lambda: Pages.rounds.get("broken", 0) > 10 and bool(found.firing().get("GpuLost"))), (
            (place / "log").read_text()[-3000:])
        yield found
    finally:
        process.terminate()
        process.wait(30)
        server.shutdown()


def test_every_alert_fires_of_a_page_with_every_fault(prometheus: Prometheus) -> None:
    wanted = {alert.name for alert in ALERTS} - OF_ABSENCE
    assert until(lambda: set(prometheus.firing()) >= wanted), wanted - set(prometheus.firing())


def test_none_is_about_the_node_that_is_well(prometheus: Prometheus) -> None:
    nodes = {alert["labels"].get("node") for alerts in prometheus.firing().values() for alert in alerts}
    assert "broken" in nodes and "well" not in nodes
    assert {node for node in nodes if node and not node.startswith("127.0.0.1:")} == {"broken", "mute"}


def test_what_an_alert_says_is_whole(prometheus: Prometheus) -> None:
    for alerts in prometheus.firing().values():
        for alert in alerts:
            for name, text in alert["annotations"].items():
                assert not re.search(r"<no value>|<error|\{\{|  |^ | $|\(\)|of  |of has", text), (name, text)
            assert re.search(r"To do: .+\.$", alert["annotations"]["description"])


def test_it_says_where_and_what(prometheus: Prometheus) -> None:
    said = {(alert["labels"]["alertname"], alert["labels"].get("xid", "")): alert["annotations"]
            for alerts in prometheus.firing().values() for alert in alerts}
    assert said["GpuHot", ""]["summary"] == "GPU 0 of broken has 91 degrees"
    assert said["GpuLost", ""]["summary"] == "GPU 4 of broken (GPU-broken-4) is gone"
    assert said["GpuFabricNotReady", ""]["summary"] == "GPU 2 of broken is not in its NVLink fabric: it failed"
    assert said["GpuNodeFailed", ""]["summary"] == "broken is out of service: validation: a GPU is gone"
    assert said["GpuHeldBack", ""]["summary"] == "broken holds back 2 of its nvidia_com_gpu"
    assert said["GpuXidCritical", "79"]["summary"] == "GPU 2 of broken: Xid 79"
    assert " The GPU has fallen off the bus. To do: drain the node and reboot it, " in (
        said["GpuXidCritical", "79"]["description"])
    assert " A contained memory error: " in said["GpuXidWarning", "94"]["description"]
    assert said["GpuHot", ""]["runbook_url"].endswith("/docs/monitoring.md#gpuhot")


# What Grafana would put into the queries, with one node chosen and with all
ALL = {"cluster": ".*", "node": ".*", "gpu": ".*"}
ONE = {"cluster": ".*", "node": "(divided)", "gpu": "(0)"}


def filled(expression: str, chosen: Dict[str, str]) -> str:
    for name, value in {**chosen, "__rate_interval": "10s"}.items():
        expression = expression.replace("$" + name, value)
    # What is left is a group of a regular expression, which is no variable of Grafana's
    assert "$" not in expression.replace("$1", "")
    return expression


def panels() -> Dict[str, List[str]]:
    """{title: queries} of the dashboard."""
    dashboard = json.loads(files({})[DASHBOARD_FILE])
    return {panel["title"]: [target["expr"] for target in panel["targets"]]
            for panel in dashboard["panels"] if panel["type"] != "row"}


@pytest.mark.parametrize("title", panels())
def test_a_panel_shows_something(title: str, prometheus: Prometheus) -> None:
    for expression in panels()[title]:
        query = filled(expression, ALL)
        assert until(lambda query=query: bool(prometheus.query(query))), expression


@pytest.mark.parametrize("title", panels())
def test_a_panel_shows_of_one_node_what_is_of_it(title: str, prometheus: Prometheus) -> None:
    for expression in panels()[title]:
        for series in prometheus.query(filled(expression, ONE)):
            labels = series["metric"]
            assert labels.get("hostname", "divided") == "divided" and "Hostname" not in labels
            assert labels.get("gpu", "0") == "0"


def test_no_panel_shows_a_value_that_there_is_not(prometheus: Prometheus) -> None:
    for expressions in panels().values():
        for expression in expressions:
            assert all(float(series["value"][1]) < 1e15 for series in prometheus.query(filled(expression, ALL)))


def test_the_numbers_at_the_top_are_those_of_the_cluster(prometheus: Prometheus) -> None:
    def shown(title: str) -> float:
        return prometheus.value(filled(panels()[title][0], ALL))

    for title, number in (("GPUs", 8 + 4 + 1), ("Nodes", 3), ("In use by pods", 8 + 4 + 1), ("In use and idle", 1),
                          ("Xids, last hour", 3)):
        assert until(lambda title=title, number=number: shown(title) == number), (title, shown(title))


def test_the_variables_offer_what_there_is(prometheus: Prometheus) -> None:
    dashboard = json.loads(files({})[DASHBOARD_FILE])
    variables = {each["name"]: each for each in dashboard["templating"]["list"]}
    query = re.fullmatch(r"query_result\((.*)\)", variables["node"]["query"]["query"])
    assert query is not None
    # Grafana matches the regular expression with each series as text
    shown = ["{%s}" % ",".join('%s="%s"' % pair for pair in series["metric"].items())
             for series in prometheus.query(filled(query.group(1), ALL))]
    pattern = variables["node"]["regex"].strip("/")
    assert sorted(re.search(pattern, text).group(1) for text in shown) == (  # type: ignore[union-attr]
        ["broken", "divided", "well"])
    for name, expected in (("gpu", {str(number) for number in range(8)}), ("cluster", set())):
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variables[name]["query"]["query"])
        assert asked is not None
        assert set(prometheus.ask("label/%s/values" % asked.group(2), **{
            "match[]": filled(asked.group(1), ALL)})) == expected
