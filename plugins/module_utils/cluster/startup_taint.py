# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The start-up taint: what a node joins with, so that pods keep off until it was validated. Pure.

A kubelet sets it once, by --register-with-taints, and so does a cloud's node pool. It is known by its key, whatever its
value and its effects are: https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
"""
from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Sequence

from ..core.errors import GpuOpsError

Taint = Mapping[str, Any]

EFFECT = "NoSchedule"
_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def tolerations(key: str) -> List[Dict[str, Any]]:
    """What lets a pod of ours onto a node that has the taint; [] where there is none of it ('')."""
    return [{"key": _checked(key), "operator": "Exists"}] if key else []


def with_taint(taints: Sequence[Taint], key: str) -> List[Taint]:
    """The same with the taint, in whatever form it is there already."""
    there = any(taint.get("key") == _checked(key) for taint in taints)
    return [*taints, *([] if there else [{"key": key, "effect": EFFECT}])]


def without_taint(taints: Sequence[Taint], key: str) -> List[Taint]:
    """The same without the taint, whoever has set it."""
    return [taint for taint in taints if taint.get("key") != _checked(key)]


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise GpuOpsError(
            "cluster.startup_taint_malformed", found="`startup_taint` is %r" % key,
            wanted="the key of a taint, such as gpuops.nvidia.com/not-ready, without value and effect",
            remedy="correct `startup_taint`", option="startup_taint")
    return key
