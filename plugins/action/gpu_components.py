# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping

from ..plugin_utils.cluster_action import checked
from ..plugin_utils.component_action import OF_TASK, SEVERAL, ComponentAction


class ActionModule(ComponentAction):
    """All components of a list, with one observation of each cluster."""

    ARGUMENTS: ClassVar[Mapping[str, Any]] = {
        **SEVERAL,
        "state": {"type": "str", "choices": ["present", "absent"]},
        **OF_TASK,
    }

    def given(self, task: Mapping[str, Any]) -> Dict[str, Dict[str, Any]]:
        options = checked(task, self.ARGUMENTS, "gpu_components")
        state = {"state": options["state"]} if options["state"] else {}
        return {name: {**options[name], **state} for name in options["components"]}
