# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The fate of each pod of a node that is drained."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

import pytest
from cluster_objects import pod
from hypothesis import given
from hypothesis import strategies as some

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.judgement import (
    GOES,
    LEFT,
    REFUSED,
    STAYS,
    WAITS,
    Fate,
    Surroundings,
    judge,
    loss_refusals,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.policy import DrainPolicy, policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.users import SEEN, claim_of, uses
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.pods import pod_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.times import epoch

DELETED = "2026-01-01T00:00:30Z"
NOW = epoch(DELETED) + 100
SCRATCH = [{"name": "scratch", "emptyDir": {}}]
SHM = [{"name": "dshm", "emptyDir": {"medium": "Memory"}}]
OURS = {"app.kubernetes.io/part-of": "gpuops"}
Case = Tuple[Dict[str, Any], Dict[str, Any], str]


def daemon(uid: str = "uid-ds", kind: str = "DaemonSet", api: str = "apps/v1") -> List[Dict[str, Any]]:
    return [{"apiVersion": api, "kind": kind, "name": "agents", "uid": uid, "controller": True}]


def fate(options: Mapping[str, Any], wanted: Mapping[str, Any]) -> Optional[Fate]:
    """That of a pod with these properties under a policy with these options."""
    policy = policy_of(wanted)
    found = pod_of(pod(**options), policy.is_gpu)
    there = Surroundings({"team/agents": "uid-ds"}, frozenset(["ending"]), NOW)
    return judge(found, uses(found, {}, policy), policy, there)


TABLE: Mapping[str, Case] = {
    "an ordinary pod": ({}, {}, GOES),
    "one that asks for no GPU": ({"gpus": 0}, {}, ""),
    "one that asks for none, of the whole node": ({"gpus": 0}, {"scope": "node"}, GOES),
    "one that asks for a network adapter": ({"resource": "nvidia.com/hostdev"}, {}, ""),
    "one that asks for a renamed GPU": ({"resource": "nvidia.com/a100"}, {"gpu_resources": ["a100"]}, GOES),
    "one that the host has seen": ({"gpus": 0}, {"holders": ["uid-trainer"]}, GOES),
    "one that the host has seen, by name": ({"gpus": 0}, {"holders": ["team/trainer"]}, GOES),
    "one that is named": ({"gpus": 0}, {"pods": ["team/trainer"]}, GOES),
    "one that is not named": ({}, {"pods": ["team/other"]}, ""),
    "one where none is named": ({}, {"pods": []}, ""),
    "a terminating one": ({"deletionTimestamp": DELETED}, {}, WAITS),
    "a terminating one that nobody starts again": ({"deletionTimestamp": DELETED, "owner": None}, {}, WAITS),
    "a terminating one that keeps data": ({"deletionTimestamp": DELETED, "volumes": SCRATCH}, {}, WAITS),
    "one that should have ended long ago": (
        {"deletionTimestamp": DELETED}, {"skip_wait_for_delete_timeout": 99}, LEFT),
    "one that should have ended just now": (
        {"deletionTimestamp": DELETED}, {"skip_wait_for_delete_timeout": 100}, WAITS),
    "one of a DaemonSet": ({"ownerReferences": daemon()}, {}, STAYS),
    "a terminating one of a DaemonSet": (
        {"gpus": 0, "ownerReferences": daemon(), "deletionTimestamp": DELETED}, {"scope": "node"}, STAYS),
    "a terminating one of a DaemonSet, which should have ended long ago": (
        {"gpus": 0, "ownerReferences": daemon(), "deletionTimestamp": DELETED},
        {"scope": "node", "skip_wait_for_delete_timeout": 99}, STAYS),
    "a terminating one of a DaemonSet that must not stay": (
        {"gpus": 0, "ownerReferences": daemon(), "deletionTimestamp": DELETED},
        {"scope": "node", "ignore_daemonsets": False}, REFUSED),
    "a terminating one of a DaemonSet with a GPU": (
        {"ownerReferences": daemon(), "deletionTimestamp": DELETED}, {}, WAITS),
    "a terminating one of a DaemonSet that is gone": (
        {"gpus": 0, "ownerReferences": daemon("uid-gone"), "deletionTimestamp": DELETED}, {"scope": "node"}, WAITS),
    "one of a DaemonSet that must not stay": ({"ownerReferences": daemon()}, {"ignore_daemonsets": False}, REFUSED),
    "one of a DaemonSet that is gone": ({"ownerReferences": daemon("uid-gone")}, {}, REFUSED),
    "one of a DaemonSet that is gone, by force": ({"ownerReferences": daemon("uid-gone")}, {"force": True}, GOES),
    "one of OpenKruise's DaemonSet": ({"ownerReferences": daemon("uid-k", api="apps.kruise.io/v1alpha1")}, {}, STAYS),
    "a finished one of a DaemonSet": (
        {"ownerReferences": daemon(), "phase": "Failed"}, {"scope": "node"}, GOES),
    "a component of ours": ({"ownerReferences": daemon(), "labels": OURS}, {"scope": "node"}, ""),
    "a component of ours that the host has seen": (
        {"gpus": 0, "ownerReferences": daemon(), "labels": OURS}, {"holders": ["uid-trainer"]}, ""),
    "a static pod": ({"annotations": {"kubernetes.io/config.mirror": "x"}}, {}, STAYS),
    "a static pod that the host has seen": (
        {"gpus": 0, "owner": "Node", "annotations": {"kubernetes.io/config.mirror": "x",
                                                     "kubernetes.io/config.hash": "0123456789abcdef0123456789abcdef"}},
        {"holders": ["0123456789abcdef0123456789abcdef"]}, STAYS),
    "one with an emptyDir": ({"volumes": SCRATCH}, {}, REFUSED),
    "one with /dev/shm": ({"volumes": SHM}, {}, REFUSED),
    "one with an emptyDir that may go": ({"volumes": SCRATCH}, {"delete_emptydir_data": True}, GOES),
    "one with another volume": ({"volumes": [{"name": "x", "configMap": {"name": "x"}}]}, {}, GOES),
    "a bare one": ({"owner": None}, {}, REFUSED),
    "a bare one by force": ({"owner": None}, {"force": True}, GOES),
    "a bare one with an emptyDir, half allowed": ({"owner": None, "volumes": SCRATCH}, {"force": True}, REFUSED),
    "one with a reference that controls nothing": (
        {"ownerReferences": [{"kind": "ReplicaSet", "name": "x", "controller": False}]}, {}, REFUSED),
    "one that has succeeded": ({"phase": "Succeeded"}, {}, ""),
    "one that has succeeded, of the whole node": (
        {"phase": "Succeeded", "owner": None, "volumes": SCRATCH}, {"scope": "node"}, GOES),
    "one that has failed, of the whole node": (
        {"phase": "Failed", "owner": None, "volumes": SCRATCH}, {"scope": "node"}, GOES),
    "one with NVIDIA's label": ({"labels": {"nvidia.com/gpu-driver-upgrade-drain.skip": "true"}}, {}, STAYS),
    "one with that label, where it means nothing": (
        {"labels": {"nvidia.com/gpu-driver-upgrade-drain.skip": "true"}}, {"skip_selector": ""}, GOES),
    "a bare one with a label of ours to skip": (
        {"owner": None, "labels": {"keep": "me"}}, {"skip_selector": "keep in (me,us)"}, STAYS),
    "one of a namespace that ends": ({"namespace": "ending"}, {}, WAITS),
    "a job": ({"labels": {"job": "x"}}, {"wait_for_completion": "job"}, WAITS),
    "a bare job that is never evicted": (
        {"owner": None, "volumes": SHM, "labels": {"job": "x"}}, {"wait_for_completion": "job"}, WAITS),
    "a bare job that will be": (
        {"owner": None, "labels": {"job": "x"}},
        {"wait_for_completion": "job", "wait_for_completion_timeout": 100}, REFUSED),
    "a job that has ended": (
        {"phase": "Succeeded", "labels": {"job": "x"}}, {"wait_for_completion": "job", "scope": "node"}, GOES),
    "no job": ({"labels": {"web": "x"}}, {"wait_for_completion": "job"}, GOES),
}


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
def test_the_fate_of(case: Case) -> None:
    options, wanted, verdict = case
    found = fate(options, wanted)
    assert (found.verdict if found else "") == verdict


def test_who_is_left_alone_by_a_label_is_told_with_the_option_that_says_so() -> None:
    found = fate(*TABLE["one with NVIDIA's label"][:2])
    assert found and found.why == "has a label that `skip_selector` names, so that drains leave it alone"


def test_all_that_a_pod_would_lose_is_told_at_once() -> None:
    fates = [fate({"name": "a", "owner": None, "volumes": SHM}, {}), fate({"name": "b", "volumes": SCRATCH}, {}),
             fate({"name": "c", "ownerReferences": daemon("uid-gone")}, {}),
             fate({"name": "d", "ownerReferences": daemon()}, {"ignore_daemonsets": False})]
    told = {refusal.code: refusal for refusal in loss_refusals([each for each in fates if each])}
    assert told["cluster.pods_without_controller"].found.endswith(": team/a")
    assert told["cluster.pods_with_local_data"].found.endswith(": team/a (in memory), team/b")
    assert told["cluster.pods_of_absent_daemonset"].found.endswith(": team/c (of DaemonSet/agents)")
    assert told["cluster.pods_of_daemonsets"].found.endswith(": team/d (of DaemonSet/agents)")
    assert {refusal.option for refusal in told.values()} == {"force", "delete_emptydir_data", "ignore_daemonsets"}


def claim(driver: str = "gpu.nvidia.com", reserved: str = "uid-trainer", **result: Any) -> Dict[str, Any]:
    return {"status": {
        "reservedFor": [{"resource": "pods", "name": "trainer", "uid": reserved}],
        "allocation": {"devices": {"results": [{"driver": driver, "pool": "gpu-1", "device": "gpu-0", **result}]}}}}


CLAIMED = {"spec": {"resourceClaims": [{"name": "gpus", "resourceClaimName": "claim"}]}}
ITSELF, ANOTHER = ({"resource": "pods", "name": name, "uid": "uid-" + name} for name in ("trainer", "other"))
ITS_GROUP = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "ranks", "uid": "uid-ranks"}
FROM_TEMPLATE = {"status": {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "claim"}]}}
BY_REQUEST = {"status": {"extendedResourceClaimStatus": {"resourceClaimName": "claim"}}}


@pytest.mark.parametrize("parts, there, ways", [
    (CLAIMED, claim(), ("ResourceClaim claim: gpu.nvidia.com/gpu-1/gpu-0",)),
    (FROM_TEMPLATE, claim(), ("ResourceClaim claim: gpu.nvidia.com/gpu-1/gpu-0",)),
    (BY_REQUEST, claim(), ("ResourceClaim claim: gpu.nvidia.com/gpu-1/gpu-0",)),
    (CLAIMED, claim(adminAccess=True), ("ResourceClaim claim: gpu.nvidia.com/gpu-1/gpu-0 (admin)",)),
    (CLAIMED, claim("compute-domain.nvidia.com"), ("ResourceClaim claim: compute-domain.nvidia.com/gpu-1/gpu-0",)),
    (CLAIMED, claim("dra.net"), ()),
    (CLAIMED, claim(reserved="uid-of-another"), ()),
    (CLAIMED, {"status": {}}, ()),
    ({}, claim(), ()),
])
def test_a_claim_is_a_use_where_it_has_a_gpu_for_this_pod(
    parts: Dict[str, Any], there: Dict[str, Any], ways: Tuple[str, ...]
) -> None:
    made = pod(gpus=0)
    for part, more in parts.items():
        made[part].update(more)
    assert uses(pod_of(made), {"team/claim": claim_of(there)}, DrainPolicy()) == ways


@pytest.mark.parametrize("reserved, is_used", [
    ([ITSELF, ANOTHER], True), ([ANOTHER], False), ([], False), ([ITS_GROUP], True), ([ANOTHER, ITS_GROUP], True)])
def test_a_claim_that_is_reserved_for_a_pod_group_is_that_of_every_pod_that_names_it(
    reserved: List[Dict[str, Any]], is_used: bool
) -> None:
    there, others = claim(), pod_of(pod(gpus=0))
    there["status"]["reservedFor"] = reserved
    claims = {"team/claim": claim_of(there)}
    assert bool(uses(pod_of({**pod(gpus=0), **CLAIMED}), claims, DrainPolicy())) is is_used
    assert uses(others, claims, DrainPolicy()) == ()


def test_every_way_is_told_and_none_of_a_pod_that_has_ended() -> None:
    policy = DrainPolicy(holders=frozenset(["uid-trainer"]))
    assert uses(pod_of(pod(gpus=2)), {}, policy) == ("nvidia.com/gpu=2", SEEN)
    assert uses(pod_of(pod(gpus=2, phase="Succeeded")), {}, policy) == ()


@pytest.mark.parametrize("options, code, option", [
    ({"wait_for_completion": "job", "wait_for_completion_timeout": 300}, "cluster.completion_outlasts_drain",
     "timeout"),
    ({"skip_selector": "a in"}, "cluster.selector_malformed", "skip_selector"),
    ({"wait_for_completion": "a=b,,"}, "cluster.selector_malformed", "wait_for_completion"),
    ({"grace_period": -1}, "cluster.time_negative", "grace_period"),
    ({"timeout": 0}, "cluster.drain_without_time", "timeout"),
])
def test_what_cannot_be_meant_is_refused(options: Dict[str, Any], code: str, option: str) -> None:
    with pytest.raises(GpuOpsError) as refused:
        policy_of(options)
    assert (refused.value.code, refused.value.refusals[0].option) == (code, option)


PODS = some.builds(
    dict, owner=some.sampled_from([None, "ReplicaSet", "DaemonSet"]),
    phase=some.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    volumes=some.sampled_from([[], SCRATCH, SHM]), gpus=some.integers(0, 2),
    labels=some.sampled_from([{}, {"job": "x"}, {"nvidia.com/gpu-driver-upgrade-drain.skip": "true"}]),
    namespace=some.sampled_from(["team", "ending"]), annotations=some.sampled_from(
        [{}, {"kubernetes.io/config.mirror": "x"}]))
POLICIES = some.builds(
    dict, scope=some.sampled_from(["gpus", "node"]), force=some.booleans(), delete_emptydir_data=some.booleans(),
    ignore_daemonsets=some.booleans(), wait_for_completion=some.sampled_from(["", "job"]),
    wait_for_completion_timeout=some.sampled_from([0, 60]))


@given(PODS, POLICIES)
def test_what_is_refused_goes_or_stays_once_all_is_allowed(options: Dict[str, Any], wanted: Dict[str, Any]) -> None:
    allowed = {**wanted, "force": True, "delete_emptydir_data": True, "ignore_daemonsets": True}
    before, after = fate(options, wanted), fate(options, allowed)
    assert (before is None) == (after is None)
    if before and after:
        assert after.verdict != REFUSED
        assert before.verdict in (REFUSED, after.verdict)
        assert bool(loss_refusals([before])) == (before.verdict == REFUSED) == bool(before.losses)


@given(PODS, POLICIES)
def test_the_whole_node_has_every_pod_that_uses_a_gpu(options: Dict[str, Any], wanted: Dict[str, Any]) -> None:
    of_gpus, of_node = fate(options, {**wanted, "scope": "gpus"}), fate(options, {**wanted, "scope": "node"})
    assert of_node is not None
    assert of_gpus in (None, of_node)
