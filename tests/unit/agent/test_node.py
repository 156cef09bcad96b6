# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a host has to say on its Node: from its summary, its boot and the Node, without a server."""
from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import pytest
from documentation import example
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.agent import telling
from ansible_collections.gpuops.nvidia.plugins.module_utils.agent.node import (
    HEARTBEAT_SECONDS,
    Report,
    last_claim,
    next_claim,
    report_of,
    status_patch,
    status_without,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.budget import NodeReading, node_state
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.claims import cordoned_by_others
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.custody import _of_others
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import (
    HEALTH_CORDON,
    HEALTH_FINDINGS,
    HEALTH_MANAGER,
    HOLD,
    cordoned_by,
    cordoned_by_its_host,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core import boot_record
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.times import written

NOW, STALE, BOOT = 1_000_000.0, 300.0, "this-boot"


def finding(key: str = "gpu GPU-0 xid 79", kind: str = "sick") -> Dict[str, Any]:
    return {"key": key, "kind": kind, "named": "GPU 0000:3b:00.0 (GPU-0)", "code": "xid 79",
            "text": "the GPU has fallen off the bus", "to_do": "reboot the node", "check": ""}


def summary(*findings: Dict[str, Any], looked: float = NOW, boot: str = BOOT, unknown: Sequence[str] = ()
            ) -> Dict[str, Any]:
    return {"schema": 1, "boot": boot, "looked": looked, "findings": list(findings),
            "unknown": [{"what": each, "text": "it cannot be read"} for each in unknown]}


def report(data: Any, of_boot: Optional[Dict[str, Any]] = None) -> Report:
    return report_of(data, BOOT, of_boot or {}, NOW, STALE)


def statuses(found: Report) -> List[str]:
    return [each.status for each in found.conditions.values()]


WELL, SICK = report(summary()), report(summary(finding()))
UNKNOWN = report(None)


def node(*conditions: Dict[str, Any], **more: Any) -> Dict[str, Any]:
    return {"metadata": {"name": "gpu-1", "uid": "u", "resourceVersion": "7",
                         "annotations": more.get("annotations", {}), "managedFields": more.get("fields", [])},
            "spec": {"unschedulable": True} if more.get("cordoned") else {}, "status": {"conditions": list(conditions)}}


def entry(manager: str, operation: str = "Apply", cordons: bool = True, *annotations: str) -> Dict[str, Any]:
    fields: Dict[str, Any] = {"f:spec": {"f:unschedulable": {}}} if cordons else {}
    if annotations:
        fields["f:metadata"] = {"f:annotations": {"f:" + key: {} for key in annotations}}
    return {"manager": manager, "operation": operation, "fieldsV1": fields}


def claimed(by: Report, cordoned: bool = True, **more: Any) -> Dict[str, Any]:
    """A node of which its host has said this."""
    said = next_claim(node(), by, True)
    assert said is not None
    annotations = dict(said.body["metadata"]["annotations"])
    return node(cordoned=cordoned or more.get("others"), annotations={**annotations, **more.get("annotations", {})},
                fields=[entry(HEALTH_MANAGER, "Apply", cordoned, *annotations), *more.get("others", [])])


# what is so

@pytest.mark.parametrize("data, wanted", [
    (summary(), ["False"] * 3), (summary(finding()), ["True", "False", "False"]),
    (summary(finding(kind="pending")), ["False", "True", "False"]),
    (summary(finding(kind="warning")), ["False", "False", "True"]),
    (summary(unknown=["nvml"]), ["Unknown"] * 3),
    (summary(finding(), unknown=["nvml"]), ["True", "Unknown", "Unknown"]),
    (summary(unknown=["kernel_log_gap"]), ["False"] * 3),
    ({"schema": 1}, ["Unknown"] * 3), (dict(summary(), findings=7), ["Unknown"] * 3),
    (dict(summary(), looked="x"), ["Unknown"] * 3), (dict(summary(), findings=[{}]), ["Unknown"] * 3),
    (None, ["Unknown"] * 3), ([], ["Unknown"] * 3), ({"schema": 2}, ["Unknown"] * 3),
    (summary(finding(), looked=NOW - STALE - 1), ["Unknown"] * 3), (summary(looked=NOW + 3600), ["Unknown"] * 3),
    (summary(finding(), boot="another"), ["Unknown"] * 3), (summary(looked=0), ["Unknown"] * 3)])
def test_a_condition_is_what_the_plugin_would_tell(data: Any, wanted: List[str]) -> None:
    assert statuses(report(data)) == wanted


def test_the_rule_of_the_page_taints_what_is_sick_or_unknown_and_nothing_that_is_well() -> None:
    """For node-readiness-controller v0.5.0, config/crd/bases: every condition has to have its required status."""
    rule = example("agent.md", "NodeReadinessRule")
    spec = rule["spec"]
    assert (rule["apiVersion"], rule["kind"]) == ("readiness.node.x-k8s.io/v1alpha1", "NodeReadinessRule")
    assert spec["enforcementMode"] == "continuous" and spec["nodeSelector"]["matchLabels"]
    assert spec["taint"]["key"].startswith("readiness.k8s.io/") and spec["taint"]["effect"] == "NoSchedule"
    assert "--status-taint=%s`" % spec["taint"]["key"] in (REPOSITORY / "docs" / "agent.md").read_text()

    def taints(found: Report) -> bool:
        return any(found.conditions[each["type"]].status != each["requiredStatus"] for each in spec["conditions"])

    assert [taints(found) for found in (WELL, SICK, UNKNOWN)] == [False, True, True]
    assert not taints(report(summary(finding(kind="pending"), finding("b", "warning"))))
    assert taints(report(summary(), {"state": boot_record.FAILED, "reason": "no driver"}))


def test_a_driver_that_wants_no_new_work_has_its_node_cordoned_and_nothing_else_that_is_pending_has() -> None:
    asked = dict(finding("gpu GPU-0: recovery_action", "pending"), code="recovery_action",
                 text="the driver asks for no new work, and then a reset (4)")
    found = report(summary(asked))
    assert statuses(found) == ["False", "True", "False"], "running work is not hurt"
    said = next_claim(node(), found, True)
    assert said is not None and said.body["spec"] == {"unschedulable": True}
    assert "no new work" in said.body["metadata"]["annotations"][HEALTH_CORDON]
    assert next_claim(claimed(found), WELL, True) is not None, "it ends when the driver asks for nothing any more"
    assert next_claim(node(), report(summary(*(
        dict(finding(kind="pending"), code=code) for code in ("remap_pending", "xid 63", "xid 94")))), True) is None
    both = report(summary(asked, finding()))
    assert both.why == both.conditions["GpuSick"].message
    working = report(summary(asked), {"state": boot_record.WORKING})
    assert statuses(working)[0] == "Unknown" and working.sick == found.sick


def test_what_is_unknown_has_a_reason_of_its_own() -> None:
    assert {each.reason for each in UNKNOWN.conditions.values()} == {"GpuHealthUnknown"}
    assert {each.reason for each in WELL.conditions.values()} == {
        "NoGpuIsSick", "NoGpuNeedsReset", "NoGpuIsWarnedOf"}


def test_a_boot_that_has_failed_is_told_with_its_reason() -> None:
    failed = {"state": "failed", "reason": "Found: GPU 3 is ill.\nDo: see to it."}
    found = report(None, failed)
    assert (found.conditions["GpuSick"].status, found.conditions["GpuSick"].reason) == ("True", "GpuHostNotValidated")
    assert found.conditions["GpuSick"].message == "the boot has failed: Found: GPU 3 is ill. Do: see to it."
    assert found.sick == {"boot this-boot"} and statuses(found)[1:] == ["Unknown", "Unknown"]
    both = report(summary(finding()), failed)
    assert "GPU 3 is ill" in both.why and "fallen off the bus" in both.why and len(both.sick) == 2


@pytest.mark.parametrize("state", ["validated", "no_gpus", "late"])
def test_a_boot_that_has_not_failed_says_nothing(state: str) -> None:
    assert report(summary(), {"state": state, "reason": ""}) == WELL


@pytest.mark.parametrize("unit, wanted", [
    ("activating", False), ("deactivating", True), ("failed", True), ("inactive", False)])
def test_a_boot_whose_time_was_over_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str, wanted: bool
) -> None:
    monkeypatch.setattr(Host, "unit", lambda _host, _name: {"ActiveState": unit})
    host = Host(str(tmp_path))
    boot_record.begin(host)
    assert ("its time may be over" in report_of(None, BOOT, telling._of_boot(host), NOW, STALE).why) is wanted


def test_of_two_who_tell_at_once_the_one_that_knows_more_has_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch, and a person or the boot's unit: what the first had read may be old by the time that it is said."""
    host = Host(str(tmp_path))
    asked, goes_on = threading.Event(), threading.Event()
    statuses: List[str] = []

    def say(_host: Host, _kubeconfig: str, _name: str, status: Any, _claim: Any) -> Dict[str, Any]:
        patch = status(node(), NOW)
        if not asked.is_set():
            asked.set()
            goes_on.wait(2)
        statuses.append(patch["status"]["conditions"][0]["status"])
        return {"changed": True, "node": "gpu-1", "cordoned": False, "server": "https://k"}

    monkeypatch.setattr(telling, "_said", say)
    monkeypatch.setattr(telling.time, "time", lambda: NOW)
    monkeypatch.setattr(Host, "boot", lambda _host: BOOT)
    host.write(telling.SUMMARY, json.dumps(summary()))
    with ThreadPoolExecutor() as threads:
        first = threads.submit(telling.tell, host, "/etc/k", STALE, True)
        assert asked.wait(2)
        host.write(telling.SUMMARY, json.dumps(summary(finding())))
        second = threads.submit(telling.tell, host, "/etc/k", STALE, True)
        time.sleep(0.1)
        goes_on.set()
        assert [each.result(5)["node"] for each in (first, second)] == ["gpu-1", "gpu-1"]
    assert statuses == ["False", "True"]


def test_who_cannot_lock_tells_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").write_text("no directory")
    monkeypatch.setattr(telling, "_said", lambda *_words: {
        "changed": True, "node": "gpu-1", "cordoned": False, "server": "https://k"})
    assert telling.tell(Host(str(tmp_path)), "/etc/k", STALE, True)["changed"]


# conditions

def said(found: Report, now: float = NOW) -> List[Dict[str, Any]]:
    patch = status_patch(node(), found, now)
    assert patch is not None
    return list(patch["status"]["conditions"])


def test_what_the_node_says_already_is_not_written_again_before_its_heartbeat_is_due() -> None:
    there = node(*said(WELL))
    assert status_patch(there, WELL, NOW + HEARTBEAT_SECONDS - 1) is None
    patch = status_patch(there, WELL, NOW + HEARTBEAT_SECONDS)
    assert patch is not None
    for each in patch["status"]["conditions"]:
        assert each["lastHeartbeatTime"] == written(NOW + HEARTBEAT_SECONDS)
        assert each["lastTransitionTime"] == written(NOW)


def test_a_clock_that_was_set_back_makes_no_condition_alive_for_ever() -> None:
    assert status_patch(node(*said(WELL, NOW + 9999)), WELL, NOW) is not None


def test_a_change_is_written_at_once_with_its_time() -> None:
    patch = status_patch(node(*said(WELL)), SICK, NOW + 1)
    assert patch is not None
    times = {each["type"]: each["lastTransitionTime"] for each in patch["status"]["conditions"]}
    assert times == {"GpuSick": written(NOW + 1), "GpuResetPending": written(NOW), "GpuWarning": written(NOW)}


def test_a_message_that_changes_is_written_and_is_no_transition() -> None:
    later = report(summary(finding(), finding("gpu GPU-1 xid 64")))
    patch = status_patch(node(*said(SICK)), later, NOW + 1)
    assert patch is not None and patch["status"]["conditions"][0]["lastTransitionTime"] == written(NOW)


def test_conditions_of_others_are_in_no_patch() -> None:
    ready = {"type": "Ready", "status": "True"}
    assert {each["type"] for each in said(WELL)} == {"GpuSick", "GpuResetPending", "GpuWarning"}
    assert status_without(node(ready)) is None
    patch = status_without(node(ready, *said(WELL)))
    assert patch is not None and [each["type"] for each in patch["status"]["conditions"]] == [
        "GpuSick", "GpuResetPending", "GpuWarning"]


# the cordon

def test_a_sick_node_is_cordoned_with_the_reason() -> None:
    found = next_claim(node(), SICK, True)
    assert found is not None and found.manager == HEALTH_MANAGER and found.body["spec"] == {"unschedulable": True}
    assert found.body["metadata"]["resourceVersion"] == "7" and found.body["metadata"]["uid"] == "u"
    assert "fallen off the bus" in found.body["metadata"]["annotations"][HEALTH_CORDON]
    assert json.loads(found.body["metadata"]["annotations"][HEALTH_FINDINGS]) == ["gpu GPU-0 xid 79"]


@pytest.mark.parametrize("found", [WELL, UNKNOWN, report(summary(finding(kind="pending")))])
def test_only_what_is_sick_begins_a_cordon(found: Report) -> None:
    assert next_claim(node(), found, True) is None


def test_a_host_that_may_not_cordon_does_not() -> None:
    assert next_claim(node(), SICK, False) is None


def test_what_is_said_is_not_said_again() -> None:
    assert next_claim(claimed(SICK), SICK, True) is None


def test_the_cordon_goes_when_the_host_is_known_to_be_well() -> None:
    found = next_claim(claimed(SICK), WELL, True)
    assert found is not None and "spec" not in found.body and not found.by_name
    assert found.manager == HEALTH_MANAGER and "annotations" not in found.body["metadata"]


@pytest.mark.parametrize("found", [UNKNOWN, report(summary(unknown=["state"]))])
def test_what_is_unknown_ends_no_cordon(found: Report) -> None:
    assert next_claim(claimed(SICK), found, True) is None


def test_a_cordon_goes_too_when_the_policy_says_so_whatever_is_sick() -> None:
    found = next_claim(claimed(SICK), SICK, False)
    assert found is not None and "spec" not in found.body


def test_a_hold_mark_keeps_it_cordoned() -> None:
    assert next_claim(claimed(SICK, annotations={HOLD: "Ann"}), WELL, True) is None


def test_who_uncordons_it_means_it() -> None:
    there = claimed(SICK, cordoned=False)
    assert next_claim(there, SICK, True) is None
    found = next_claim(there, WELL, True)
    assert found is not None and "annotations" not in found.body["metadata"]


def test_a_boot_that_is_not_over_neither_clears_nor_calls_well() -> None:
    """What the one before it has left stays until the host is validated."""
    failed = report(summary(), {"state": "failed", "reason": "it computes wrongly"})
    working = report(summary(), {"state": "working"})
    assert statuses(working)[0] == "Unknown" and not working.is_known and not working.sick
    assert next_claim(claimed(failed), working, True) is None
    assert next_claim(claimed(failed), report(summary(), {"state": "validated"}), True) is not None
    assert statuses(report(summary(finding()), {"state": "working"}))[0] == "True"


def test_another_boot_that_fails_cordons_what_was_uncordoned_after_the_first() -> None:
    first, second = (report_of(None, boot, {"state": "failed", "reason": "it computes wrongly"}, NOW, STALE)
                     for boot in ("one", "two"))
    found = next_claim(claimed(first, cordoned=False), second, True)
    assert found is not None and found.body["spec"] == {"unschedulable": True}


def test_what_was_uncordoned_is_not_forgotten_while_nothing_is_known() -> None:
    unknown = report(None, {"state": "failed", "reason": "x"})
    said = next_claim(claimed(SICK, cordoned=False), unknown, True)
    assert said is not None
    assert json.loads(said.body["metadata"]["annotations"][HEALTH_FINDINGS]) == sorted(SICK.sick | unknown.sick)


@pytest.mark.parametrize("step", [
    lambda there: next_claim(there, SICK, False), lambda there: next_claim(there, WELL, False), last_claim])
def test_a_cordon_that_is_to_stay_stays_whoever_tells_no_more(step: Any) -> None:
    assert step(claimed(SICK, annotations={HOLD: "I look at it"})) is None
    assert step(claimed(SICK)) is not None


def test_what_was_not_sick_by_then_cordons_it_again() -> None:
    both = report(summary(finding(), finding("gpu GPU-1 xid 64")))
    found = next_claim(claimed(SICK, cordoned=False), both, True)
    assert found is not None and found.body["spec"] == {"unschedulable": True}
    one_left = next_claim(claimed(both, cordoned=False), SICK, True)
    assert one_left is not None and "spec" not in one_left.body


@pytest.mark.parametrize("text", ["", "{", "7", "null"])
def test_findings_that_somebody_has_spoilt_are_none(text: str) -> None:
    found = next_claim(claimed(SICK, annotations={HEALTH_FINDINGS: text}), SICK, True)
    assert found is not None and found.body["spec"] == {"unschedulable": True}


def test_runs_of_the_controller_see_a_cordon_of_others_with_its_reason() -> None:
    there = claimed(SICK)
    assert cordoned_by_others(there) == (HEALTH_MANAGER,) and cordoned_by(there) is None
    assert "fallen off the bus" in cordoned_by_its_host(there)
    assert cordoned_by_its_host(node(cordoned=True, fields=[entry("kubectl-cordon", "Update")])) == ""
    assert cordoned_by_its_host(claimed(SICK, cordoned=False)) == ""
    state = node_state(there, NodeReading(marks=lambda _node: ()), ["gpu-1"])
    assert state is not None and state.cordoned_by.startswith("its own host (GPU 0000:3b:00.0")
    mending = NodeReading(mends=True)
    state = node_state(there, mending, ["gpu-1"])
    assert state is not None and state.cordoned_by == "", "a run that repairs is what it waits for"
    for words, told in (("Ann", "Ann"), ("", "no reason given")):
        held = claimed(SICK, annotations={HOLD: words})
        state = node_state(held, mending, ["gpu-1"])
        assert state is not None and not state.by_itself, "a person keeps it cordoned"
        assert state.cordoned_by == "somebody else (gpuops.nvidia.com/hold: %s)" % told
    there["metadata"]["managedFields"].append(entry("kubectl-cordon", "Update"))
    state = node_state(there, mending, ["gpu-1"])
    assert state is not None and state.cordoned_by, "a person has cordoned it as well"
    del there["metadata"]["managedFields"][-1]
    (note,) = _of_others(there)
    assert "cordoned by gpuops-health, and stays so: GPU 0000:3b:00.0" in note
