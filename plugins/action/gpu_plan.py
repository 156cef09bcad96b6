# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from typing import Any, Dict, Optional

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.utils.display import Display

from ..module_utils.core.errors import GpuOpsError
from ..plugin_utils.capability_action import CapabilityAction
from ..plugin_utils.plan_files import plan_path, read, save
from ..plugin_utils.reader_words import people_read

OF_CONTROLLER = ("save_to", "approved_from", "show", "brief")
# What a controller need not hold of every host until the run ends
AT_LENGTH = ("plan", "text", "observation")


class ActionModule(CapabilityAction):
    """Plans on the host; reads, saves and shows plans here, where their files and the screen are."""

    def _given(self, task_vars: Any) -> Dict[str, Any]:
        self._lack = self._read_approved(str(task_vars["inventory_hostname"]))
        return super()._given(task_vars)

    def _run(self, task_vars: Any) -> Dict[str, Any]:
        result = super()._run(task_vars)
        if result.get("failed") or "plan" not in result:
            return result
        if self._lack is not None and result["observation"]["pci"]["gpus"]:
            raise self._lack
        if self._task.args.get("save_to") and not self._task.check_mode:
            result["saved_as"] = plan_path(self._task.args["save_to"], str(task_vars["inventory_hostname"]))
            save(result["plan"], result["saved_as"])
        if boolean(self._task.args.get("show") or False) and not self._task.no_log and people_read():
            Display().display(result["text"])
        if boolean(self._task.args.get("brief") or False):
            result = {name: value for name, value in result.items() if name not in AT_LENGTH}
        return result

    def for_host(self) -> Dict[str, Any]:
        arguments = {name: value for name, value in super().for_host().items() if name not in OF_CONTROLLER}
        if self._task.check_mode:
            arguments.pop("keep", None)
        return dict(arguments, **self._approved)

    def _read_approved(self, host: str) -> Optional[GpuOpsError]:
        """Why there is no approved plan, where none is needed unless the host turns out to have a GPU."""
        self._approved: Dict[str, Any] = {}
        directory = self._task.args.get("approved_from")
        try:
            if directory:
                self._approved = {"approved_plan": read(plan_path(directory, host))}
        except GpuOpsError as error:
            if not boolean(self._task.args.get("gpus_only") or False):
                raise
            return error
        return None
