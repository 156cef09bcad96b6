# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the tasks of a run have found of its hosts and clusters, for the one task that says it of all of them.

Each task of a host is a process of its own, and what it returns Ansible holds until the run ends, once a host. So plans
are put by here, in the run's own directory on the controller, for its user alone: what many hosts have in common is one
file, which its digest names. Ansible removes the directory when it ends.
"""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Tuple

from ansible import constants as C

from ..module_utils.core.plan import canonical, digest
from ..module_utils.fleet.model import ClusterNote, Note
from .text_files import write

_MODE = 0o600
_PLANS, _HOSTS, _CLUSTERS = "plans", "hosts", "clusters"


class Collected:
    """The notes of this run. kind: of what they are: what is collected apart does not meet."""

    def __init__(self, kind: str = "fleet") -> None:
        self._directory = Path(C.DEFAULT_LOCAL_TMP) / ("gpuops-" + kind)

    def forget(self, host: str) -> None:
        """What an earlier task of the run has said of the host counts no more, whatever becomes of this one."""
        self._of(_HOSTS, host).unlink(missing_ok=True)

    def host(self, note: Note, common: Mapping[str, Any]) -> None:
        """common: what alike.common() has told of the plan; {} where there is none."""
        if note.alike and not self._file(_PLANS, note.alike).exists():
            self._write(self._file(_PLANS, note.alike), common)
        self._write(self._of(_HOSTS, note.host), note.to_dict())

    def cluster(self, note: ClusterNote) -> None:
        self._write(self._of(_CLUSTERS, note.name), note.to_dict())

    def take(self) -> Tuple[List[Note], Dict[str, Dict[str, Any]], List[ClusterNote]]:
        """(notes of hosts, {digest: what plans have in common}, notes of clusters); none of it is there any more."""
        hosts = [Note.from_dict(each) for each in self._taken(_HOSTS)]
        clusters = [ClusterNote.from_dict(each) for each in self._taken(_CLUSTERS)]
        wanted = {note.alike for note in hosts if note.alike}
        plans = {key: json.loads(self._file(_PLANS, key).read_text(encoding="utf-8")) for key in wanted}
        return hosts, plans, clusters

    def _taken(self, section: str) -> Iterator[Dict[str, Any]]:
        place = self._directory / section
        for path in sorted(place.glob("*.json")) if place.is_dir() else ():
            yield json.loads(path.read_text(encoding="utf-8"))
            path.unlink()

    def _of(self, section: str, name: str) -> Path:
        """A host's name may be one that no file can have."""
        return self._file(section, digest(name))

    def _file(self, section: str, name: str) -> Path:
        return self._directory / section / (name + ".json")

    @staticmethod
    def _write(path: Path, data: Mapping[str, Any]) -> None:
        os.makedirs(path.parent, mode=0o700, exist_ok=True)
        write(str(path), canonical(data), _MODE)
