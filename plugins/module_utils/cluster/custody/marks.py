# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What other managers write when they are at work on a node. Pure.

Whoever of them finds a node that we have cordoned notes that it was cordoned before him, and writes no cordon of his
own: were it given back then, pods would come to a node that is about to reboot. So the marks are read before a node is
taken, once more when it is cordoned, and before it is given back.
"""
from __future__ import annotations

import datetime
import json
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional

# NVIDIA/k8s-operator-libs, pkg/upgrade/consts.go: of the GPU Operator's drivers and of the Network Operator's
_UPGRADE_STATE = re.compile(r"nvidia\.com/[a-z0-9-]+-driver-upgrade-state")
_UPGRADED = ("", "upgrade-done")
# kubereboot/kured, cmd/kured/main.go and pkg/daemonsetlock
_KURED_REBOOTS = "weave.works/kured-reboot-in-progress"
_KURED_LOCK = "weave.works/kured-node-lock"
# flatcar/flatcar-linux-update-operator, pkg/constants; the second is that of before Flatcar
_FLUO = ("flatcar-linux-update.v1.flatcar-linux.net/", "container-linux-update.v1.coreos.com/")
_FLUO_ANNOTATIONS = ("reboot-in-progress", "reboot-ok")
_FLUO_LABELS = ("before-reboot", "after-reboot")
# openshift/machine-config-operator, pkg/daemon/constants
_MCO = "machineconfiguration.openshift.io/"
# kubernetes/autoscaler, utils/taints; karpenter.sh, pkg/apis/v1 and v1beta1
_TAINTS = {
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler, which is removing the node",
    "karpenter.sh/disrupted": "Karpenter, which is replacing the node",
    "karpenter.sh/disruption": "Karpenter, which is replacing the node",
}
# medik8s/common, pkg/lease
MEDIK8S_NAMESPACE = "medik8s-leases"
# Of Mellanox/maintenance-operator and of medik8s/node-maintenance-operator. {path of the list: who}
MAINTENANCES = {
    "/apis/maintenance.nvidia.com/v1alpha1/nodemaintenances": "NVIDIA's maintenance operator",
    "/apis/nodemaintenance.medik8s.io/v1beta1/nodemaintenances": "medik8s' node maintenance operator",
}


@dataclass(frozen=True)
class Mark:
    """who: is at work. evidence: what is written where."""

    who: str
    evidence: str

    def __str__(self) -> str:
        return "%s (%s)" % (self.who, self.evidence)


def on_node(node: Mapping[str, Any]) -> List[Mark]:
    """What the Node itself says."""
    metadata, spec = node.get("metadata") or {}, node.get("spec") or {}
    labels, annotations = dict(metadata.get("labels") or {}), dict(metadata.get("annotations") or {})
    found = []
    if metadata.get("deletionTimestamp"):
        found.append(Mark("somebody who is deleting the Node", "deletionTimestamp " + metadata["deletionTimestamp"]))
    found += [Mark("NVIDIA's upgrade controller", "label %s=%s" % (key, value))
              for key, value in sorted(labels.items()) if _UPGRADE_STATE.fullmatch(key) and value not in _UPGRADED]
    if _KURED_REBOOTS in annotations:
        found.append(Mark("kured, which reboots the node", "annotation %s=%s" % (
            _KURED_REBOOTS, annotations[_KURED_REBOOTS])))
    found += _of_flatcar(labels, annotations)
    found += _of_openshift(annotations)
    found += [Mark(_TAINTS[taint["key"]], "taint %s" % taint["key"])
              for taint in spec.get("taints") or () if taint.get("key") in _TAINTS]
    return found


def of_kured(daemon_sets: Iterable[Mapping[str, Any]], node: str) -> List[Mark]:
    """Locks that kured holds for a node, in the annotation of its DaemonSet: one, or a list of them."""
    found = []
    for item in daemon_sets:
        metadata = item.get("metadata") or {}
        written = (metadata.get("annotations") or {}).get(_KURED_LOCK)
        if written and node in _locked(written):
            found.append(Mark("kured, which has its lock for the node", "annotation %s of DaemonSet %s/%s" % (
                _KURED_LOCK, metadata.get("namespace"), metadata.get("name"))))
    return found


def of_maintenances(who: str, items: Iterable[Mapping[str, Any]], node: str) -> List[Mark]:
    """NodeMaintenance objects about a node: as long as one is there, the node is its requestor's."""
    return [Mark(who, "NodeMaintenance %s" % "/".join(filter(None, (
        item["metadata"].get("namespace"), item["metadata"].get("name")))))
        for item in items if (item.get("spec") or {}).get("nodeName") == node]


def of_medik8s(lease: Optional[Mapping[str, Any]], now: float) -> List[Mark]:
    """The Lease by which medik8s' operators have a node. They compare its times with the wall clock, and take one that
    was renewed in the future for free. now: seconds since the epoch."""
    spec = (lease or {}).get("spec") or {}
    holder, renewed = spec.get("holderIdentity"), _seconds(spec.get("renewTime"))
    if not holder or renewed is None or not renewed <= now <= renewed + (spec.get("leaseDurationSeconds") or 0):
        return []
    return [Mark("%s, by medik8s" % holder, "Lease %s/%s" % (
        MEDIK8S_NAMESPACE, ((lease or {}).get("metadata") or {}).get("name")))]


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
    if of("state") not in ("", "Done"):
        yield Mark(who, "annotation %sstate=%s" % (_MCO, of("state")))
    elif of("desiredConfig") != of("currentConfig"):
        yield Mark(who, "annotation %sdesiredConfig=%s, and the node has %s" % (
            _MCO, of("desiredConfig"), of("currentConfig")))
    elif of("desiredDrain").startswith("drain-"):
        yield Mark(who, "annotation %sdesiredDrain=%s" % (_MCO, of("desiredDrain")))


def _locked(written: str) -> List[str]:
    """The nodes of a lock. One that cannot be read is of none: its form is kured's own."""
    try:
        lock: Dict[str, Any] = json.loads(written)
        locks = lock.get("locks")
        return [str(each["nodeID"]) for each in ([lock] if locks is None else locks) if each.get("nodeID")]
    except (ValueError, TypeError, AttributeError, KeyError):
        return []


def _seconds(written: Any) -> Optional[float]:
    """Of a time as Kubernetes writes it, with decimals or without."""
    for form in ("%Y-%m-%dT%H:%M:%S.%fZ", "%Y-%m-%dT%H:%M:%SZ"):
        try:
            return datetime.datetime.strptime(str(written), form).replace(tzinfo=datetime.timezone.utc).timestamp()
        except ValueError:
            continue
    return None
