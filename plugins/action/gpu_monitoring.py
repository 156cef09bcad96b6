# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from typing import Any, Dict, Sequence

from ..module_utils.cluster.client import Client
from ..plugin_utils.component_action import ComponentAction, Wanted
from ..plugin_utils.monitoring_files import wanted_files
from ..plugin_utils.text_files import Files, carry_out, changes, diff_of


class ActionModule(ComponentAction):
    """The component of the same name, and what it holds as files on the controller."""

    def _serve(self, client: Client, wanted: Sequence[Wanted], told: Dict[str, Any], hidden: Sequence[str]) -> None:
        files: Files = {}
        for each in wanted:
            files.update(wanted_files(each.parameters, each.is_absent, self.__dict__.setdefault("_files", {})))
        super()._serve(client, wanted, told, hidden)
        told["files"] = sorted(path for path, text in files.items() if text is not None)
        different = changes(files)
        told["changed"] = told["changed"] or bool(different)
        told["diff"] += diff_of(different)
        if not self._task.check_mode:
            carry_out({path: after for path, (_before, after) in different.items()})
