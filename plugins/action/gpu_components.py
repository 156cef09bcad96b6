# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping

from ..plugin_utils.component_action import OF_TASK, SEVERAL, SeveralComponents


class ActionModule(SeveralComponents):
    """All components of a list, with one observation of each cluster."""

    ARGUMENTS: ClassVar[Mapping[str, Any]] = {
        **SEVERAL,
        "state": {"type": "str", "choices": ["present", "absent"]},
        **OF_TASK,
    }

    def given_to(self, name: str, options: Mapping[str, Any]) -> Dict[str, Any]:
        state = {"state": options["state"]} if options["state"] else {}
        return {**options[name], **state}
