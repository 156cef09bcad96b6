# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the tasks of a run have found of its hosts and clusters, for the one task that says it of all of them.

What the plans of many hosts have in common is there once, by its digest.
"""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

from ..module_utils.fleet.model import ClusterNote, Note
from .run_files import RunFiles

_PLAN = "plan"


class Collected:
    """The notes of this run."""

    def __init__(self) -> None:
        self._plans, self._hosts, self._clusters = RunFiles("plans"), RunFiles("hosts"), RunFiles("clusters")

    def forget(self, host: str) -> None:
        """What an earlier task of the run has said of the host counts no more, whatever becomes of this one."""
        self._hosts.remove(host)

    def host(self, note: Note, common: Mapping[str, Any]) -> None:
        """common: what alike.common() has told of the plan; {} where there is none."""
        if note.alike and not self._plans.has(note.alike):
            self._plans.put(note.alike, {"alike": note.alike, _PLAN: common})
        self._hosts.put(note.host, note.to_dict())

    def cluster(self, note: ClusterNote) -> None:
        self._clusters.put(note.name, note.to_dict())

    def take(self) -> Tuple[List[Note], Dict[str, Dict[str, Any]], List[ClusterNote]]:
        """(notes of hosts, {digest: what plans have in common}, notes of clusters); none of it is there any more."""
        hosts = [Note.from_dict(each) for each in self._hosts.all()]
        clusters = [ClusterNote.from_dict(each) for each in self._clusters.all()]
        plans = {each["alike"]: each[_PLAN] for each in self._plans.all()}
        for files in (self._hosts, self._clusters, self._plans):
            files.clear()
        return hosts, plans, clusters
