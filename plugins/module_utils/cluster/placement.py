# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a Node is one that a pod asks for, as the scheduler and the controller of DaemonSets read it. Pure.

Taints are no part of it: a node that is left out is left out by its labels.
https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/
"""
from __future__ import annotations

from typing import Any, Mapping

from .selectors import is_met


def admits(node: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """Whether the labels and the name of a Node are what the spec of a pod requires: its nodeSelector, and one of the
    terms of its node affinity. node: of which only the metadata counts."""
    metadata = node.get("metadata") or {}
    labels: Mapping[str, str] = metadata.get("labels") or {}
    fields = {"metadata.name": str(metadata.get("name") or "")}
    if any(labels.get(key) != value for key, value in (pod.get("nodeSelector") or {}).items()):
        return False
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or any(_meets(term, labels, fields) for term in required.get("nodeSelectorTerms") or ())


def _meets(term: Mapping[str, Any], labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    """All requirements of a term; one without any selects no node."""
    met = [*(is_met(each, labels) for each in term.get("matchExpressions") or ()),
           *(is_met(each, fields) for each in term.get("matchFields") or ())]
    return bool(met) and all(met)
