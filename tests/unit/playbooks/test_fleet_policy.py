# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a fleet's policy says, as one run of site keeps all of it: windows, cliques host by host, opt-outs, marks."""
from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

from canned import Hosts
from cluster_objects import pod
from sites import CHANGE, Site, names

OF_CLIQUE = {**CHANGE, "change": {**CHANGE["change"], "clique": "c.1"}}
SCALE_DOWN, DISRUPT = "cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt"
REMEDIATE = "cluster.x-k8s.io/skip-remediation"
MACHINE = "/apis/cluster.x-k8s.io/v1beta2/namespaces/machines/machines/m-4"
KURED = "weave.works/kured-reboot-in-progress"
NODES = "/api/v1/nodes/"


def windows() -> List[Dict[str, Any]]:
    """For a group of hosts each: one that is always open, one that opens the day after tomorrow, and one that closes in
    some minutes."""
    now = datetime.now(timezone.utc)
    later, opened = (now + timedelta(days=2)).strftime("%a").lower(), now - timedelta(hours=1)
    days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    return [{"days": days, "start": "00:00", "duration": "24h", "zone": "UTC", "groups": ["day"]},
            {"days": later, "start": "12:00", "duration": "4h", "zone": "UTC", "groups": ["night"]},
            {"days": opened.strftime("%a").lower(), "start": opened.strftime("%H:%M"), "duration": "1h20m",
             "zone": "UTC", "groups": ["evening"]}]


def told_of_cordons(hosts: Hosts) -> List[Tuple[str, bool, Mapping[str, Any]]]:
    """(node, whether it is cordoned from then on, the annotations said with it) of each write about that."""
    found = []
    for each in hosts.api.state.requests:
        if each.method == "PATCH" and each.path.startswith(NODES) and each.query.get("dryRun") != "All" \
                and each.query.get("fieldManager", "").startswith("gpuops-custody-"):
            cordons = (each.body.get("spec") or {}).get("unschedulable") is True
            found.append((each.path[len(NODES):], cordons, each.body["metadata"].get("annotations") or {}))
    return found


def at_once(said: Sequence[Tuple[str, bool, Mapping[str, Any]]], of: Set[str]) -> int:
    """How many of these nodes were out of service at the same time at most."""
    out: Set[str] = set()
    most = 0
    for name, cordons, _annotations in said:
        out = out | {name} if cordons else out - {name}
        most = max(most, len(out & of))
    return most


def test_each_host_is_changed_as_its_policy_says(in_words: Hosts) -> None:
    """Two of a clique that is changed host by host, one whose window is closed and one whose closes too soon, one that
    machine managers watch and on which a pod has a GPU that only its host has seen, and one that kured reboots."""
    site = Site(in_words, names(6), gpu_5={"annotations": {KURED: "2026-07-01T12:00:00Z"}}, gpu_4={
        "labels": {"karpenter.sh/nodepool": "gpus"},
        "annotations": {"cluster.x-k8s.io/machine": "m-4", "cluster.x-k8s.io/cluster-namespace": "machines"}})
    state = in_words.api.state
    state.objects[MACHINE] = {
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": "m-4", "namespace": "machines", "uid": "m", "resourceVersion": "1"}, "spec": {}}
    state.pods = [pod("by-runtime-class", gpus=0, node_name="gpu-4"), pod("idle", gpus=0, node_name="gpu-4")]
    done = site.run(
        {"gpu-1": {"gpu_plan": OF_CLIQUE}, "gpu-2": {"gpu_plan": OF_CLIQUE}, "gpu-3": {"gpu_plan": CHANGE},
         "gpu-4": {"gpu_plan": {**CHANGE, "holders": ["team/by-runtime-class"]}}, "gpu-5": {"gpu_plan": CHANGE},
         "gpu-6": {"gpu_plan": CHANGE}},
        groups={"day": ["gpu-1", "gpu-2", "gpu-4", "gpu-5"], "night": ["gpu-3"], "evening": ["gpu-6"]},
        gpu_rollout_limit=6, gpu_rollout_expected_duration="1h",
        gpu_rollout_timeout=120, gpu_rollout_canaries="none", gpu_rollout_unit_modes={"c.1": "rolling"},
        gpu_rollout_windows=windows())
    assert done.returncode == 2 and site.changed() == ["gpu-1", "gpu-2", "gpu-4"], done.stdout
    (failed,) = re.findall("^fatal: .+", done.stdout, re.MULTILINE)
    assert "gpu-5" in failed and "kured" in failed and "[rollout.managed_by_others]" in failed, failed
    too_late, closed = sorted(re.findall('"msg": "Left to a later run: (.+)"', done.stdout))
    assert re.match("it is expected to last until .* and the window closes at ", too_late), too_late
    assert re.match("no window is open; the next opens at .* 12:00 UTC", closed), closed
    assert [each["metadata"]["name"] for each in state.pods] == ["idle"]
    said = told_of_cordons(in_words)
    assert at_once(said, {"gpu-1", "gpu-2"}) == 1
    first = {name: annotations for name, cordons, annotations in reversed(said) if cordons}
    assert first.keys() == {"gpu-1", "gpu-2", "gpu-4"} and all(each[SCALE_DOWN] == "true" for each in first.values())
    assert [name for name, annotations in first.items() if DISRUPT in annotations] == ["gpu-4"]
    machine = [REMEDIATE in (each.body["metadata"].get("annotations") or {}) for each in state.requests
               if (each.method, each.path) == ("PATCH", MACHINE)]
    assert machine[0] and REMEDIATE not in state.objects[MACHINE]["metadata"].get("annotations", {})
    kept = [each["metadata"]["annotations"].keys() & {SCALE_DOWN, DISRUPT} for each in state.nodes]
    assert site.cordoned() == [] and kept == [set()] * 6
