# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What other managers write when they are at work on a node. Pure.

Whoever of them finds a node that we have cordoned notes that it was cordoned before him, and writes no cordon of his
own: were it given back then, pods would come to a node that is about to reboot. So the marks are read before a node is
taken, once more when it is cordoned, and before it is given back.
"""
from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence

from ...core.errors import GpuOpsError
from ...core.times import epoch
from ..labels import our_labels

# NVIDIA/k8s-operator-libs, pkg/upgrade/consts.go: of the GPU Operator's drivers and of the Network Operator's
_UPGRADE_STATE = re.compile(r"(nvidia\.com/[a-z0-9-]+-driver-upgrade)-state")
_UPGRADED = ("", "upgrade-done")
# In this state a node stays that has the other label, and nothing is done to it (there too, SkipNodeUpgrade)
_UPGRADE_AHEAD, _UPGRADE_SKIPPED = "upgrade-required", "%s.skip"
# NVIDIA/mig-parted, deployments/container/reconfigure-mig.sh: while it divides GPUs, and has stopped who uses them
_MIG_STATE = "nvidia.com/mig.config.state"
_DIVIDING = ("pending", "rebooting")
# kubereboot/kured, cmd/kured/main.go and pkg/daemonsetlock. With --annotate-nodes it writes the first as soon as it
# wants to reboot, before it asks whether it may, and takes it away only while it has its lock: never after a reboot
# that others have made
_KURED_REBOOTS = "weave.works/kured-reboot-in-progress"
_KURED_LOCK = "weave.works/kured-node-lock"
_KURED_LOCK_OPTION, _KURED_LOCK_VARIABLE = "--lock-annotation", "KURED_LOCK_ANNOTATION"
# flatcar/flatcar-linux-update-operator, pkg/constants; the second is that of before Flatcar
_FLUO = ("flatcar-linux-update.v1.flatcar-linux.net/", "container-linux-update.v1.coreos.com/")
_FLUO_ANNOTATIONS = ("reboot-in-progress", "reboot-ok")
_FLUO_LABELS = ("before-reboot", "after-reboot")
# openshift/machine-config-operator, pkg/daemon/constants, and pkg/controller/common/layered_node_state.go for images,
# of which a node that is not layered has none
_MCO = "machineconfiguration.openshift.io/"
_MCO_PAIRS = (("desiredConfig", "currentConfig"), ("desiredImage", "currentImage"),
              ("desiredDrain", "lastAppliedDrain"))
_FENCED = "medik8s' fence agents remediation, which switches the node's power"
_REBOOTED = "medik8s' self node remediation, which is rebooting the node"
# kubernetes/autoscaler, utils/taints; karpenter.sh, pkg/apis/v1 and v1beta1; medik8s/self-node-remediation,
# controllers, since v0.12.0 and before, and medik8s/fence-agents-remediation, api/v1alpha1, now and before
_TAINTS = {
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler, which is removing the node",
    "karpenter.sh/disrupted": "Karpenter, which is replacing the node",
    "karpenter.sh/disruption": "Karpenter, which is replacing the node",
    "remediation.medik8s.io/self-node-remediation": _REBOOTED,
    "medik8s.io/remediation": _REBOOTED,
    "remediation.medik8s.io/fence-agents-remediation": _FENCED,
    "medik8s.io/fence-agents-remediation": _FENCED,
}
# kubernetes-sigs/cluster-api, api/core/v1beta2: of a Machine, from the beginning of a change in place to its end
_MACHINE_CHANGES = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress"
# medik8s/common, pkg/lease
MEDIK8S_NAMESPACE = "medik8s-leases"
# Of Mellanox/maintenance-operator and of medik8s/node-maintenance-operator. {path of the list: who}
MAINTENANCES = {
    "/apis/maintenance.nvidia.com/v1alpha1/nodemaintenances": "NVIDIA's maintenance operator",
    "/apis/nodemaintenance.medik8s.io/v1beta1/nodemaintenances": "medik8s' node maintenance operator",
}


@dataclass(frozen=True)
class Mark:
    """who: is at work. evidence: what is written where. left: how one is taken away that has outlived its meaning.

    is_out: whether the node is out of service by it, though nobody may have cordoned it.
    """

    who: str
    evidence: str
    left: str = ""
    is_out: bool = False

    def __str__(self) -> str:
        return "%s (%s)" % (self.who, self.evidence)


def on_node(node: Mapping[str, Any]) -> List[Mark]:
    """What the Node itself says, but for kured's annotation."""
    metadata, spec = node.get("metadata") or {}, node.get("spec") or {}
    labels, annotations = dict(metadata.get("labels") or {}), dict(metadata.get("annotations") or {})
    found = []
    if metadata.get("deletionTimestamp"):
        found.append(Mark("somebody who is deleting the Node", "deletionTimestamp " + metadata["deletionTimestamp"],
                          is_out=True))
    found += _of_upgrades(labels)
    if labels.get(_MIG_STATE) in _DIVIDING and not _is_ours(node, _MIG_STATE):
        found.append(Mark("NVIDIA's MIG manager", "label %s=%s" % (_MIG_STATE, labels[_MIG_STATE])))
    found += _of_flatcar(labels, annotations)
    found += _of_openshift(annotations)
    found += [Mark(_TAINTS[taint["key"]], "taint %s" % taint["key"], is_out=True)
              for taint in spec.get("taints") or () if taint.get("key") in _TAINTS]
    return found


def of_kured(daemon_sets: Sequence[Mapping[str, Any]], node: Mapping[str, Any], now: float) -> List[Mark]:
    """Locks that kured holds for a node, in the annotation of its DaemonSet: one, or a list of them. Where no DaemonSet
    tells whether it has one, the Node's annotation counts.

    daemon_sets: whole where wants_reboot(), else their metadata do. now: seconds since the epoch.
    """
    found, name = [], node["metadata"]["name"]
    for item in daemon_sets:
        written = _annotations(item).get(_KURED_LOCK)
        if written and name in _locked(written, now):
            found.append(Mark("kured, which has its lock for the node", "annotation %s of DaemonSet %s/%s" % (
                _KURED_LOCK, item["metadata"].get("namespace"), item["metadata"].get("name"))))
    if wants_reboot(node) and not found and not _tell_of_every_lock(daemon_sets):
        found.append(Mark(
            "kured, which wants to reboot the node",
            "annotation %s=%s" % (_KURED_REBOOTS, _annotations(node)[_KURED_REBOOTS]),
            "`kubectl annotate node %s %s-` once others have rebooted it" % (name, _KURED_REBOOTS)))
    return found


def wants_reboot(node: Mapping[str, Any]) -> bool:
    """Whether a Node says that kured wants to reboot it, or that it did before others have."""
    return _KURED_REBOOTS in _annotations(node)


def is_kureds(daemon_set: Mapping[str, Any]) -> bool:
    """Whether a whole DaemonSet is kured's."""
    return _KURED_LOCK in _annotations(daemon_set) or any(map(_runs_kured, _containers(daemon_set)))


def of_maintenances(who: str, items: Iterable[Mapping[str, Any]], node: str) -> List[Mark]:
    """NodeMaintenance objects about a node: as long as one is there, the node is its requestor's."""
    return [Mark(who, "NodeMaintenance %s" % "/".join(filter(None, (
        item["metadata"].get("namespace"), item["metadata"].get("name")))))
        for item in items if (item.get("spec") or {}).get("nodeName") == node]


def of_machine(machine: Optional[Mapping[str, Any]]) -> List[Mark]:
    """A Machine of Cluster API that is being deleted or changed in place. Its drain leaves a cordon as it finds it, and
    writes none (core/reconcilers/machine/drain of kubernetes-sigs/cluster-api)."""
    metadata = (machine or {}).get("metadata") or {}
    called = "Machine %s/%s" % (metadata.get("namespace"), metadata.get("name"))
    if metadata.get("deletionTimestamp"):
        return [Mark("Cluster API, which is removing the node",
                     "deletionTimestamp %s of %s" % (metadata["deletionTimestamp"], called))]
    if _MACHINE_CHANGES in (metadata.get("annotations") or {}):
        return [Mark("Cluster API, which is changing the node", "annotation %s of %s" % (_MACHINE_CHANGES, called))]
    return []


def of_medik8s(lease: Optional[Mapping[str, Any]], now: float) -> List[Mark]:
    """The Lease by which medik8s' operators have a node. They compare its times with the wall clock, and take one that
    was renewed in the future for free; it is held here, as one of two clocks is wrong then. now: seconds since the
    epoch."""
    spec = (lease or {}).get("spec") or {}
    holder, renewed = spec.get("holderIdentity"), _seconds(spec.get("renewTime"))
    if not holder or renewed is None or now > renewed + (spec.get("leaseDurationSeconds") or 0):
        return []
    return [Mark("%s, by medik8s" % holder, "Lease %s/%s" % (
        MEDIK8S_NAMESPACE, ((lease or {}).get("metadata") or {}).get("name")))]


def _tell_of_every_lock(daemon_sets: Iterable[Mapping[str, Any]]) -> bool:
    """Whether kured is among them, with its locks where we look for them. It takes that annotation away where nobody
    has one."""
    kureds = [item for item in daemon_sets if is_kureds(item)]
    return bool(kureds) and not any(_locks_elsewhere(each) for item in kureds for each in _containers(item))


def _containers(daemon_set: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (((daemon_set.get("spec") or {}).get("template") or {}).get("spec") or {}).get("containers") or ()


def _runs_kured(container: Mapping[str, Any]) -> bool:
    command = container.get("command") or [""]
    return str(command[0]).rpartition("/")[2] == "kured"


def _locks_elsewhere(container: Mapping[str, Any]) -> bool:
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return _runs_kured(container) and (
        any(each.get("name") == _KURED_LOCK_VARIABLE for each in container.get("env") or ()) or any(
            word.startswith(_KURED_LOCK_OPTION) and word != "%s=%s" % (_KURED_LOCK_OPTION, _KURED_LOCK)
            for word in words))


def _annotations(item: Mapping[str, Any]) -> Mapping[str, str]:
    return (item.get("metadata") or {}).get("annotations") or {}


def _of_upgrades(labels: Mapping[str, str]) -> Iterator[Mark]:
    for key, state in sorted(labels.items()):
        upgrade = _UPGRADE_STATE.fullmatch(key)
        if upgrade is None or state in _UPGRADED:
            continue
        if state != _UPGRADE_AHEAD or labels.get(_UPGRADE_SKIPPED % upgrade.group(1)) != "true":
            yield Mark("NVIDIA's upgrade controller", "label %s=%s" % (key, state))


def _is_ours(node: Mapping[str, Any], label: str) -> bool:
    """Whether a label says what we have written. Where nobody can read what that was, it is of others."""
    try:
        return our_labels(node).get(label) == node["metadata"]["labels"][label]
    except GpuOpsError:
        return False


def _of_flatcar(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Iterator[Mark]:
    for prefix in _FLUO:
        for kind, there, names in (("annotation", annotations, _FLUO_ANNOTATIONS), ("label", labels, _FLUO_LABELS)):
            for name in names:
                if there.get(prefix + name) == "true":
                    yield Mark("Flatcar's update operator", "%s %s%s=true" % (kind, prefix, name))


def _of_openshift(annotations: Mapping[str, str]) -> Iterator[Mark]:
    def of(name: str) -> str:
        return annotations.get(_MCO + name, "")

    who = "OpenShift's machine config operator"
    behind = [(wanted, there) for wanted, there in _MCO_PAIRS if of(wanted) != of(there)]
    if of("state") not in ("", "Done"):
        yield Mark(who, "annotation %sstate=%s" % (_MCO, of("state")))
    elif behind:
        wanted, there = behind[0]
        yield Mark(who, "annotation %s%s=%s, and the node has %s" % (
            _MCO, wanted, of(wanted) or "none", of(there) or "none"))
    elif of("desiredDrain").startswith("drain-"):
        yield Mark(who, "annotation %sdesiredDrain=%s" % (_MCO, of("desiredDrain")))


def _locked(written: str, now: float) -> List[str]:
    """The nodes of a lock. One that cannot be read is of none: its form is kured's own."""
    try:
        lock: Dict[str, Any] = json.loads(written)
        locks = lock.get("locks")
        return [str(each["nodeID"]) for each in ([lock] if locks is None else locks)
                if each.get("nodeID") and not _is_over(each, now)]
    except (ValueError, TypeError, AttributeError, KeyError):
        return []


def _is_over(lock: Mapping[str, Any], now: float) -> bool:
    """Whether kured itself counts it for nothing (ttlExpired), whose nanoseconds of 0 are for ever."""
    created, lives = _seconds(lock.get("created")), lock.get("TTL") or 0
    return created is not None and 0 < lives <= (now - created) * 1e9


def _seconds(written: Any) -> Optional[float]:
    """Of a time as Kubernetes or Go writes it; None for what is none."""
    try:
        return epoch(str(written))
    except ValueError:
        return None
