# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The marks of every manager that we know, as they write them, and the Lease's clock."""
from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Sequence

import pytest
from cluster_objects import node
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody import leases, marks
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.run import MANAGER, Run, run_called
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import OUR_LABELS
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError

UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
SKIP = "nvidia.com/gpu-driver-upgrade.skip"
MIG_STATE = "nvidia.com/mig.config.state"
MCO = "machineconfiguration.openshift.io/"
FLUO = "flatcar-linux-update.v1.flatcar-linux.net/"
KURED = "weave.works/kured-node-lock"
REBOOTS = "weave.works/kured-reboot-in-progress"
IN_PLACE = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress"
# 2027-01-15T08:00:00Z
NOW = 1800000000.0


def who(**given_node: Any) -> List[str]:
    return [mark.who for mark in marks.on_node(node(**given_node))]


@pytest.mark.parametrize("labels, annotations, taint, name", [
    ({UPGRADE: "upgrade-required"}, {}, "", "NVIDIA"),
    ({UPGRADE: "upgrade-failed"}, {}, "", "NVIDIA"),
    ({"nvidia.com/ofed-driver-upgrade-state": "drain-required"}, {}, "", "NVIDIA"),
    ({UPGRADE: "drain-required", SKIP: "true"}, {}, "", "NVIDIA"),
    ({UPGRADE: "upgrade-required", SKIP: "false"}, {}, "", "NVIDIA"),
    ({"nvidia.com/ofed-driver-upgrade-state": "upgrade-required", SKIP: "true"}, {}, "", "NVIDIA"),
    ({MIG_STATE: "pending"}, {}, "", "NVIDIA's MIG manager"),
    ({MIG_STATE: "rebooting"}, {OUR_LABELS: json.dumps({MIG_STATE: "pending"})}, "", "NVIDIA's MIG manager"),
    ({MIG_STATE: "pending"}, {OUR_LABELS: "no JSON"}, "", "NVIDIA's MIG manager"),
    ({}, {FLUO + "reboot-in-progress": "true"}, "", "Flatcar"),
    ({}, {FLUO + "reboot-ok": "true"}, "", "Flatcar"),
    ({FLUO + "before-reboot": "true"}, {}, "", "Flatcar"),
    ({}, {"container-linux-update.v1.coreos.com/reboot-ok": "true"}, "", "Flatcar"),
    ({}, {MCO + "state": "Working"}, "", "OpenShift"),
    ({}, {MCO + "state": "Done", MCO + "currentConfig": "a", MCO + "desiredConfig": "b"}, "", "OpenShift"),
    ({}, {MCO + "state": "Done", MCO + "desiredDrain": "drain-a"}, "", "OpenShift"),
    ({}, {MCO + "state": "Done", MCO + "desiredDrain": "drain-a", MCO + "lastAppliedDrain": "drain-a"}, "",
     "OpenShift"),
    ({}, {MCO + "state": "Done", MCO + "desiredDrain": "uncordon-b", MCO + "lastAppliedDrain": "drain-b"}, "",
     "OpenShift"),
    ({}, {MCO + "state": "Done", MCO + "currentImage": "a", MCO + "desiredImage": "b"}, "", "OpenShift"),
    ({}, {MCO + "desiredImage": "b"}, "", "OpenShift"), ({}, {MCO + "currentImage": "a"}, "", "OpenShift"),
    ({}, {}, "ToBeDeletedByClusterAutoscaler", "autoscaler"),
    ({}, {}, "karpenter.sh/disrupted", "Karpenter"),
    ({}, {}, "karpenter.sh/disruption", "Karpenter"),
    ({}, {}, "remediation.medik8s.io/self-node-remediation", "medik8s"),
    ({}, {}, "medik8s.io/remediation", "self node remediation"),
    ({}, {}, "remediation.medik8s.io/fence-agents-remediation", "fence agents"),
    ({}, {}, "medik8s.io/fence-agents-remediation", "fence agents"),
])
def test_who_is_at_work_is_named(
    labels: Dict[str, str], annotations: Dict[str, str], taint: str, name: str
) -> None:
    taints = [{"key": taint, "effect": "NoSchedule"}] if taint else []
    found, = who(labels=labels, annotations=annotations, taints=taints)
    assert name in found


@pytest.mark.parametrize("labels, annotations, taint", [
    ({UPGRADE: "upgrade-done"}, {}, ""), ({UPGRADE: ""}, {}, ""),
    ({SKIP: "true"}, {}, ""), ({UPGRADE: "upgrade-required", SKIP: "true"}, {}, ""),
    ({"nvidia.com/ofed-driver-upgrade-state": "upgrade-required", "nvidia.com/ofed-driver-upgrade.skip": "true"}, {},
     ""),
    ({}, {"nvidia.com/gpu-driver-upgrade-enabled": "true"}, ""),
    ({MIG_STATE: "success"}, {}, ""), ({MIG_STATE: "failed"}, {}, ""),
    ({MIG_STATE: "pending"}, {OUR_LABELS: json.dumps({MIG_STATE: "pending"})}, ""),
    ({}, {FLUO + "reboot-needed": "true", FLUO + "reboot-in-progress": "false"}, ""),
    ({}, {MCO + "state": "Done", MCO + "currentConfig": "a", MCO + "desiredConfig": "a",
          MCO + "desiredDrain": "uncordon-a", MCO + "lastAppliedDrain": "uncordon-a"}, ""),
    ({}, {MCO + "state": "Done", MCO + "currentImage": "a", MCO + "desiredImage": "a"}, ""),
    ({}, {}, "DeletionCandidateOfClusterAutoscaler"), ({}, {}, "nvidia.com/gpu"),
])
def test_who_is_done_is_not(labels: Dict[str, str], annotations: Dict[str, str], taint: str) -> None:
    taints = [{"key": taint, "effect": "NoSchedule"}] if taint else []
    assert who(labels=labels, annotations=annotations, taints=taints) == []


def test_a_node_that_is_being_deleted_is_nobodys() -> None:
    leaving = node()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert "deleting" in marks.on_node(leaving)[0].who


@pytest.mark.parametrize("lock, is_locked", [
    ({"nodeID": "gpu-1", "TTL": 0}, True), ({"nodeID": "gpu-2"}, False),
    ({"maxOwners": 2, "locks": [{"nodeID": "gpu-2"}, {"nodeID": "gpu-1"}]}, True),
    ({"maxOwners": 2, "locks": []}, False), ("no JSON", False), ([1], False), ({"locks": 1}, False)])
def test_kureds_lock_is_read_in_both_of_its_forms(lock: Any, is_locked: bool) -> None:
    written = lock if isinstance(lock, str) else json.dumps(lock)
    item = {"metadata": {"name": "kured", "namespace": "kube-system", "annotations": {KURED: written}}}
    assert bool(marks.of_kured([item, {"metadata": {"name": "other"}}], node("gpu-1"), NOW)) is is_locked


@pytest.mark.parametrize("created, seconds, is_locked", [
    ("2027-01-15T07:30:00Z", 1800, False), ("2027-01-15T07:30:00.000000001Z", 1801, True),
    ("2027-01-15T07:29:59.987654321Z", 1800, False), ("2027-01-15T08:00:01Z", 1800, True),
    ("2025-01-01T00:00:00Z", 0, True), ("2025-01-01T00:00:00Z", None, True), ("nonsense", 1800, True),
    (None, 1800, True)])
def test_a_lock_of_kureds_counts_as_long_as_kured_has_it(
    created: Optional[str], seconds: Optional[int], is_locked: bool
) -> None:
    """Its time to live is in nanoseconds, and without one it never ends; what cannot be read is no reason to go on."""
    lock = {"nodeID": "gpu-1", "created": created, "TTL": seconds and seconds * 10 ** 9}
    for written in (lock, {"maxOwners": 2, "locks": [{"nodeID": "gpu-2"}, lock]}):
        item = {"metadata": {"name": "kured", "annotations": {KURED: json.dumps(written)}}}
        assert bool(marks.of_kured([item], node("gpu-1"), NOW)) is is_locked


def kured(lock: Optional[str] = None, command: Sequence[str] = ("/usr/bin/kured",), **container: Any) -> Dict[str, Any]:
    """Its DaemonSet. lock: the node that has it, if one has."""
    annotations = {} if lock is None else {KURED: json.dumps({"nodeID": lock})}
    return {"metadata": {"name": "kured", "namespace": "kube-system", "annotations": annotations}, "spec": {
        "template": {"spec": {"containers": [{"name": "kured", "command": list(command), **container}]}}}}


ELSEWHERE = "--lock-annotation=example.com/lock"


@pytest.mark.parametrize("daemon_sets, words", [
    ([kured("gpu-1")], "has its lock"), ([kured("gpu-2")], ""), ([kured()], ""),
    ([kured(args=["--lock-annotation=" + KURED])], ""),
    ([{"metadata": {"name": "reboots", "annotations": {KURED: json.dumps({"nodeID": "gpu-2"})}}}], ""),
    ([], "wants to reboot"), ([kured(command=["/bin/other"])], "wants to reboot"),
    ([kured(command=[])], "wants to reboot"),
    ([kured(args=[ELSEWHERE])], "wants to reboot"), ([kured("gpu-2", args=[ELSEWHERE])], "wants to reboot"),
    ([kured(command=["/usr/bin/kured", "--lock-annotation", "x"])], "wants to reboot"),
    ([kured(env=[{"name": "KURED_LOCK_ANNOTATION", "value": "x"}])], "wants to reboot"),
    ([kured(), kured(args=[ELSEWHERE])], "wants to reboot"),
])
def test_that_kured_wants_to_reboot_a_node_is_a_mark_only_where_no_lock_tells_whether_it_may(
    daemon_sets: List[Dict[str, Any]], words: str
) -> None:
    """It says so before it asks whether it may, and where others have rebooted the host it never takes that back."""
    there = node("gpu-1", annotations={REBOOTS: "2026-01-01T00:00:00Z"})
    found = marks.of_kured(daemon_sets, there, NOW)
    assert len(found) == bool(words) and all(words in mark.who for mark in found)
    assert ["kubectl annotate node gpu-1 %s-" % REBOOTS in mark.left for mark in found] == (
        [words == "wants to reboot"] if words else [])


@pytest.mark.parametrize("metadata, evidence", [
    ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, "deletionTimestamp 2026-01-01T00:00:00Z of Machine default/m"),
    ({"annotations": {IN_PLACE: ""}}, "annotation %s of Machine default/m" % IN_PLACE)])
def test_a_machine_that_goes_or_changes_is_cluster_apis(metadata: Dict[str, Any], evidence: str) -> None:
    found, = marks.of_machine({"metadata": {"namespace": "default", "name": "m", **metadata}})
    assert "Cluster API" in found.who and found.evidence == evidence


def test_a_machine_that_stays_is_nobodys() -> None:
    assert marks.of_machine(None) == marks.of_machine({"metadata": {"name": "m", "annotations": {
        "cluster.x-k8s.io/skip-remediation": ""}}}) == []


@pytest.mark.parametrize("renewed, is_held", [
    ("2027-01-15T08:00:00.000000Z", True), ("2027-01-15T07:59:01Z", True), ("2027-01-15T07:58:59Z", False),
    ("2027-01-15T08:00:01.000000Z", True), ("2027-01-15T09:00:00Z", True), ("nonsense", False), (None, False)])
def test_medik8s_counts_by_the_wall_clock_and_never_for_less(renewed: Optional[str], is_held: bool) -> None:
    lease = {"metadata": {"name": "node-gpu-1"}, "spec": {
        "holderIdentity": "self-node-remediation", "leaseDurationSeconds": 60, "renewTime": renewed}}
    assert bool(marks.of_medik8s(lease, NOW)) is is_held
    assert marks.of_medik8s(None, 0.0) == marks.of_medik8s({"spec": {}}, 0.0) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 300.0)), max_size=30), st.integers(1, 200))
def test_a_holder_counts_as_dead_only_when_nothing_changed_for_the_whole_duration(
    seen: List[Any], seconds: int
) -> None:
    """seen: which version of the record, and how long after the last look."""
    watch, now = leases.Watch(), 0.0
    since, last = 0.0, None
    for version, later in seen:
        now += later
        if version != last:
            since, last = now, version
        record = leases.Record("a", seconds, "", str(version), 0, str(version), "u")
        assert watch.has_run_out(record, now) == (now - since > seconds)


@given(st.integers(0, 4 * 10 ** 9), st.integers(0, 999999))
def test_times_have_six_decimals_always(seconds: int, micros: int) -> None:
    written = leases.timestamp(seconds)
    assert written.endswith(".000000Z") and len(written) == 27


@given(st.text(max_size=70))
def test_a_run_is_called_by_what_can_be_a_field_manager(name: str) -> None:
    try:
        run = run_called(name, "c")
    except GpuOpsError as error:
        assert error.code == "cluster.run_malformed"
        return
    assert run == Run(name, "c") and len(run.manager) <= 128 and run.manager == MANAGER + name
    assert run.manager.isprintable() and " " not in run.manager
