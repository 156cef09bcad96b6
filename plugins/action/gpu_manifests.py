# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import os
from typing import Any, ClassVar, Dict, List, Mapping, Sequence

from ansible.utils.path import unfrackpath

from ..module_utils.cluster.client import Connection
from ..module_utils.cluster.components.model import images
from ..module_utils.cluster.components.registry import COMPONENTS
from ..plugin_utils.component_action import SEVERAL, SeveralComponents, Wanted
from ..plugin_utils.manifest_files import (
    DIRECTORY,
    HEAD,
    manifest_files,
    names_of,
    one_directory,
    refuse_files_of_others,
)
from ..plugin_utils.text_files import Files, carry_out, changes, claim, diff_of


class ActionModule(SeveralComponents):
    """Writes what gpu_components would apply; no cluster is asked."""

    ARGUMENTS: ClassVar[Mapping[str, Any]] = {**SEVERAL, "directory": {"type": "path"}}

    def given(self, task: Mapping[str, Any]) -> Dict[str, Dict[str, Any]]:
        self._directory = task.get("directory")
        self._files: Files = {}
        return super().given(task)

    def _carry(self, _access: Connection, wanted: Sequence[Wanted], told: Dict[str, Any]) -> None:
        brought = [(each.component, each.parameters) for each in wanted if not each.is_absent]
        made = manifest_files(brought)
        told["images"] = sorted({image for component, parameters in brought for image in images(component, parameters)})
        place = self._directory or self._of_cluster(told["hosts"])
        if not place:
            return
        directory = unfrackpath(place, follow=False)
        files: Files = {os.path.join(directory, name): made.get(name) for name in names_of(list(COMPONENTS.values()))}
        claim(files, self._files, DIRECTORY)
        # A file of somebody else under the name of one that is not wanted stays
        different = {path: (before, after) for path, (before, after) in changes(files).items()
                     if after is not None or (before or "").startswith(HEAD)}
        refuse_files_of_others(different)
        told.update(files=sorted(path for path, text in files.items() if text is not None), changed=bool(different),
                    diff=diff_of(different))
        if not self._task.check_mode:
            carry_out({path: after for path, (_before, after) in different.items()})

    def _of_cluster(self, hosts: Sequence[str]) -> str:
        """The directory that a cluster's hosts name. Raises GpuOpsError where they name several."""
        if self.variables is None:
            return ""
        return one_directory({str(self.variables.value(host, DIRECTORY) or "") for host in hosts})

    def _together(self, clusters: Sequence[Dict[str, Any]]) -> Dict[str, Any]:
        found: List[str] = [image for cluster in clusters for image in cluster.get("images", ())]
        return {**super()._together(clusters), "images": sorted(set(found))}
