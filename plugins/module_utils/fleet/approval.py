# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What an approval of a fleet's plan is an approval of, and whether one host's plan is among it. Pure.

An index names every host and cluster with the digest of what its own plan promises, and its digest is that of the
fleet's plan: whoever knows it knows whether a plan in a file is the one that was read. What a host needs is then
compared with its own plan as always (core/approval.py), which names what differs.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterable, Mapping

from ..core.errors import GpuOpsError
from ..core.plan import digest

if TYPE_CHECKING:
    from .model import ClusterNote, Note

SCHEMA = "gpuops.nvidia/fleet/v1"
HOSTS, CLUSTERS = "hosts", "clusters"
# A plan in the same directory takes the place of the one that is approved, for all hosts
REMEDY = ("make a new plan of all of them with `gpuops.nvidia.plan` in another directory, read it and approve that "
          "one; for those that have a plan, the one that was approved holds until then")


def index_of(notes: Iterable[Note], clusters: Iterable[ClusterNote]) -> Dict[str, Any]:
    """'' stands for a host or cluster whose plan could not be made or carried out: nothing is approved there."""
    return {
        "schema": SCHEMA,
        HOSTS: {note.host: note.promise for note in notes},
        CLUSTERS: {cluster.uid: cluster.promise for cluster in clusters if cluster.uid},
    }


def promised(index: Mapping[str, Any], approved: str, kind: str, name: str) -> str:
    """Digest of what the plan promises that was approved for a host or a cluster. Raises GpuOpsError where none was.

    approved: the digest of the fleet's plan. kind: HOSTS or CLUSTERS.
    """
    there = digest(dict(index))
    if index.get("schema") != SCHEMA or there != approved:
        raise GpuOpsError(
            "approval.of_another_fleet",
            found="the plan of the fleet that is saved has the digest %s" % there,
            wanted="%s, which was approved" % approved,
            remedy="set `approved_from` to the directory with the plan that was approved, or " + REMEDY,
            option="approved_from",
        )
    known = index[kind]
    if name not in known:
        raise GpuOpsError(
            "approval.not_of_this_fleet",
            found="the approved plan of the fleet says nothing of %s" % name,
            wanted="a plan with every host and cluster that is to be changed", remedy=REMEDY)
    if not known[name]:
        raise GpuOpsError(
            "approval.nothing_approved",
            found="when the plan of the fleet was approved, %s had none that can be carried out" % name,
            wanted="a plan that was read and approved", remedy=REMEDY)
    return str(known[name])


def require(index: Mapping[str, Any], approved: str, kind: str, name: str, promise: str) -> None:
    """Raises GpuOpsError unless a plan is part of the fleet's plan that was approved.

    promise: digest of what the plan in its own file promises; the others are those of promised().
    """
    if promised(index, approved, kind, name) != promise:
        raise GpuOpsError(
            "approval.plan_exchanged",
            found="the saved plan of %s is another than when the plan of the fleet was approved" % name,
            wanted="the plan that was read and approved",
            remedy="put the plans back as they were, or " + REMEDY)
