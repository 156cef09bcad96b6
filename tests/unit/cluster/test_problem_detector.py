# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The real node-problem-detector with our configurations and plugin, and a real API server that is told by it.

Every version of the Node is seen, so that what it says for a moment is seen too.
"""
from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List

import pytest
from real_api import RealApi, node, watched

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.waiting import wait_for
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.problems import (
    CONDITIONS,
    conditions_text,
    configurations,
    plugin_text,
)
from gpulab.parts.registry import workshop
from gpulab.processes import Daemon

# Its build is one of minutes; what it asks of our plugin is shown without it (unit/health/test_problems.py)
pytestmark = pytest.mark.variation
BOOT = Host().boot()
SICK = {"key": "gpu GPU-0 xid 79", "kind": "sick", "named": "GPU 0000:3b:00.0 (GPU-0)", "code": "xid 79",
        "text": "the GPU has fallen off the bus", "to_do": "reboot the node", "check": ""}
NUMBERS = itertools.count(1)
# Its interval, its own second, and a machine that is busy
SECONDS = 40.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApi]:
    found = RealApi(tmp_path_factory.mktemp("server"), nodes=True)
    try:
        found.start()
        yield found
    finally:
        found.stop()


class Bed:
    """A node, and a detector on it with its kubelet's credential."""

    def __init__(self, server: RealApi, directory: Path) -> None:
        self.server, self.client, self.directory = server, server.client(), directory
        self.name = "gpu-%d" % next(NUMBERS)
        self.path = "/api/v1/nodes/" + self.name
        self.client.create("/api/v1/nodes", node(self.name))
        self.conditions, self.plugin = directory / "conditions", directory / "plugin"
        self.has_a_plugin()
        self.detector = Daemon("node-problem-detector", directory)

    def has_a_plugin(self, first: str = "") -> None:
        """first: what it does before anything else."""
        new = self.directory / "new"
        new.write_text(plugin_text(str(self.conditions)).replace("wanted=", first + "\nwanted=", 1))
        new.chmod(0o755)
        new.replace(self.plugin)

    def tells(self, *findings: Dict[str, Any], stale: int = 3600) -> None:
        summary = {"findings": findings, "unknown": [], "looked": 1.0}
        new = self.directory / "new"
        new.write_text(conditions_text(summary, BOOT, time.clock_gettime(time.CLOCK_BOOTTIME), stale))
        new.replace(self.conditions)

    def start(self) -> None:
        paths = []
        for name, configuration in configurations(str(self.plugin)).items():
            paths.append(self.directory / (name + ".json"))
            paths[-1].write_text(json.dumps(configuration))
        self.detector.start([
            workshop().build("node-problem-detector") / "bin" / "node-problem-detector", "--logtostderr", "--port=0",
            "--prometheus-port=0", "--hostname-override=" + self.name,
            "--apiserver-override=https://cluster?inClusterConfig=false&auth=%s" % self.server.kubelet(self.name),
            *("--config.custom-plugin-monitor=%s" % path for path in paths)])

    def told(self) -> Dict[str, Dict[str, Any]]:
        return in_version(self.client.get(self.path))

    def await_told(self, **wanted: str) -> Dict[str, Dict[str, Any]]:
        def is_so(told: Dict[str, Dict[str, Any]]) -> bool:
            return all(told.get(name, {}).get("status") == status for name, status in wanted.items())

        seen, found = wait_for(self.told, is_so, SECONDS, 0.5)
        assert found, (seen, self.detector.log_tail())
        return seen


def in_version(found: Dict[str, Any]) -> Dict[str, Dict[str, Any]]:
    return {each["type"]: each for each in found["status"].get("conditions") or () if each["type"] in CONDITIONS}


def said(versions: Iterable[Dict[str, Any]], name: str) -> List[str]:
    """The statuses that a condition had, one after the other."""
    found = [in_version(each)[name]["status"] for each in versions if name in in_version(each)]
    return [status for status, _same in itertools.groupby(found)]


@pytest.fixture
def bed(server: RealApi, tmp_path: Path) -> Iterator[Bed]:
    found = Bed(server, tmp_path)
    yield found
    found.detector.stop(2)


def test_no_node_is_called_well_before_it_was_looked_at(bed: Bed) -> None:
    with watched(bed.server, bed.path) as seen:
        bed.start()
        bed.await_told(**dict.fromkeys(CONDITIONS, "Unknown"))
        bed.tells()
        bed.await_told(**dict.fromkeys(CONDITIONS, "False"))
    assert {name: said(seen, name) for name in CONDITIONS} == dict.fromkeys(CONDITIONS, ["Unknown", "False"])


def test_a_finding_is_told_as_it_changes_and_taken_back(bed: Bed) -> None:
    bed.tells(SICK)
    bed.start()
    told = bed.await_told(GpuSick="True", GpuResetPending="False")
    assert (told["GpuSick"]["reason"], told["GpuResetPending"]["reason"]) == ("GpuIsSick", "NoGpuNeedsReset")
    assert told["GpuSick"]["message"] == (
        "GPU 0000:3b:00.0 (GPU-0): xid 79, the GPU has fallen off the bus -> reboot the node")
    bed.tells(dict(SICK, code="xid 64"))
    _seen, is_told = wait_for(lambda: "xid 64" in bed.told()["GpuSick"]["message"], bool, SECONDS, 0.5)
    assert is_told
    bed.tells()
    assert bed.await_told(GpuSick="False")["GpuSick"]["message"] == "no GPU is sick"


def test_each_change_of_a_condition_is_an_event_of_the_node(bed: Bed) -> None:
    def reasons() -> List[str]:
        return [each["reason"] for each in bed.client.get("/api/v1/namespaces/default/events")["items"]
                if (each["involvedObject"]["kind"], each["involvedObject"]["name"]) == ("Node", bed.name)]

    bed.tells()
    bed.start()
    bed.await_told(GpuSick="False")
    bed.tells(SICK)
    bed.await_told(GpuSick="True")
    seen, is_told = wait_for(reasons, lambda found: "GpuIsSick" in found, SECONDS, 0.5)
    assert is_told and seen.count("GpuIsSick") == 1, seen


def test_a_detector_that_begins_anew_on_a_sick_node_does_not_call_it_well(bed: Bed) -> None:
    """Not even where another condition is told before the one that counts."""
    bed.tells(SICK)
    bed.start()
    bed.await_told(GpuSick="True")
    bed.detector.stop(2)
    bed.has_a_plugin('[ "${1:-}" != GpuSick ] || sleep 1.5')
    with watched(bed.server, bed.path) as seen:
        before = bed.told()["GpuWarning"]["lastHeartbeatTime"]
        bed.start()
        _seen, is_told = wait_for(lambda: bed.told()["GpuWarning"]["lastHeartbeatTime"] != before, bool, SECONDS, 0.5)
        assert is_told
        time.sleep(5)
    assert said(seen, "GpuSick") == ["True"]


def test_a_file_that_is_too_old_is_unknown(bed: Bed) -> None:
    bed.tells(SICK, stale=15)
    bed.start()
    bed.await_told(GpuSick="True")
    told = bed.await_told(**dict.fromkeys(CONDITIONS, "Unknown"))
    assert "stale" in told["GpuSick"]["message"]
    # A trap of its own: whoever goes by the reason takes what is unknown for well
    assert {name: told[name]["reason"] for name in CONDITIONS} == {
        name: well for name, (_kind, _problem, well, _message) in CONDITIONS.items()}


def test_a_rule_that_hangs_holds_up_no_other(bed: Bed) -> None:
    bed.tells()
    bed.has_a_plugin('[ "${1:-}" != GpuWarning ] || sleep 1000')
    bed.start()
    told = bed.await_told(GpuSick="False", GpuWarning="Unknown")
    assert "Timeout" in told["GpuWarning"]["message"]
    bed.tells(SICK)
    bed.await_told(GpuSick="True", GpuWarning="Unknown")
