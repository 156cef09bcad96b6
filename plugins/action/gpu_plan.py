# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Tuple

from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.utils.display import Display

from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.plan import Disruption, Plan, digest
from ..module_utils.core.refusal import Refusal
from ..module_utils.fleet.alike import common
from ..module_utils.fleet.model import Note, Standing
from ..plugin_utils.capability_action import CapabilityAction
from ..plugin_utils.collected import Collected
from ..plugin_utils.plan_files import (
    APPROVED_FLEET,
    APPROVED_FROM,
    approved_plan,
    plan_path,
    refuse_without_plans,
    save,
)
from ..plugin_utils.reader_words import OF_PLAYBOOKS, people_read
from ..plugin_utils.role_variables import ONLY

FOR_FLEET = "for_fleet"
OF_CONTROLLER = ("save_to", APPROVED_FROM, APPROVED_FLEET, "show", "brief", FOR_FLEET, ONLY)
# What a controller need not hold of every host until the run ends
AT_LENGTH = ("plan", "text", "observation")


class ActionModule(CapabilityAction):
    """Plans on the host; reads, saves and shows plans here, where their files and the screen are."""

    # With what is at length
    _whole: Mapping[str, Any] = {}

    def run(self, tmp: Any = None, task_vars: Any = None) -> Dict[str, Any]:
        if not self._wants(FOR_FLEET):
            return super().run(tmp, task_vars)
        host, collected = str(task_vars["inventory_hostname"]), Collected()
        collected.forget(host)
        try:
            result = super().run(tmp, task_vars)
        except AnsibleConnectionFailure as error:
            collected.host(Note(host, Standing.unreachable, why=str(error)), {})
            raise
        except Exception as error:
            collected.host(_without_plan(host, {"msg": str(error)}), {})
            raise
        collected.host(*self._note(host, result))
        return result

    def _given(self, task_vars: Any) -> Dict[str, Any]:
        self._lack = self._read_approved(str(task_vars["inventory_hostname"]))
        return super()._given(task_vars)

    def _run(self, task_vars: Any) -> Dict[str, Any]:
        result = super()._run(task_vars)
        if result.get("failed") or "plan" not in result:
            return result
        if self._lack is not None and result["observation"]["pci"]["gpus"]:
            raise self._lack
        self._whole = result
        if self._task.args.get("save_to"):
            # What is approved is done as it was read
            result["may_disturb"] = Disruption.none.name
            if not self._task.check_mode:
                result["saved_as"] = plan_path(self._task.args["save_to"], str(task_vars["inventory_hostname"]))
                save(result["plan"], result["saved_as"])
        if self._wants("show") and not self._task.no_log and people_read():
            Display().display(result["text"])
        if self._wants("brief") or (self._wants(FOR_FLEET) and people_read()):
            result = {name: value for name, value in result.items() if name not in AT_LENGTH}
        return result

    def for_host(self) -> Dict[str, Any]:
        arguments = {name: value for name, value in super().for_host().items() if name not in OF_CONTROLLER}
        if self._task.check_mode:
            arguments.pop("keep", None)
        return dict(arguments, **self._approved)

    def _wants(self, option: str) -> bool:
        return bool(boolean(self._task.args.get(option) or False))

    def _read_approved(self, host: str) -> Optional[GpuOpsError]:
        """Why there is no approved plan, where none is needed unless the host turns out to have a GPU."""
        self._approved: Dict[str, Any] = {}
        directory, fleet = self._task.args.get(APPROVED_FROM), str(self._task.args.get(APPROVED_FLEET) or "")
        try:
            if fleet and not directory:
                refuse_without_plans(fleet)
            if directory:
                self._approved = {"approved_plan": approved_plan(directory, host, fleet)}
        except GpuOpsError as error:
            refusals = [refusal.named(OF_PLAYBOOKS) if self._wants("from_variables") else refusal
                        for refusal in error.refusals]
            lack = GpuOpsError.because(refusals, **error.details)
            if not self._wants("gpus_only"):
                raise lack from error
            return lack
        return None

    def _note(self, host: str, result: Mapping[str, Any]) -> Tuple[Note, Mapping[str, Any]]:
        """What is said of the host, and what its plan has in common with others."""
        if result.get("unreachable"):
            return Note(host, Standing.unreachable, why=str(result.get("msg", ""))), {}
        if result.get("failed") or not self._whole:
            return _without_plan(host, result), {}
        if self._task.no_log:
            return Note(host, Standing.unshown), {}
        whole = self._whole
        if self._wants("gpus_only") and not whole["gpus"]:
            return Note(host, Standing.left_out), {}
        found = common(whole["plan"], [part["id"] for part in whole["deferred"]], whole["unfinished"])
        refused = bool(whole["plan"]["refusals"])
        promise = "" if refused else digest(Plan.from_dict(whole["plan"]).promise())
        return Note(host, Standing.refused if refused else Standing.planned, digest(found), promise,
                    tuple(whole["pods"]), whole["expected_seconds"]), found


def _without_plan(host: str, result: Mapping[str, Any]) -> Note:
    refusals = tuple(map(Refusal.from_dict, result.get("refusals") or ())) or (Refusal(
        "plan.not_made",
        found=str(result.get("msg") or "the task failed"),
        wanted="a plan of this host",
        remedy="read what Ansible says of the task on this host",
    ),)
    return Note(host, Standing.failed, refusals=refusals)
