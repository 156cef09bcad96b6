# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import os
import time
from typing import Any, ClassVar, Dict, Mapping, Sequence

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.core.errors import GpuOpsError
from ..module_utils.fleet.approval import index_of
from ..module_utils.fleet.model import Fleet, fleet_of
from ..module_utils.fleet.page import as_html, markdown
from ..module_utils.fleet.text import MOST_LINES, text
from ..plugin_utils.collected import Collected
from ..plugin_utils.plan_files import MARKDOWN, save_fleet
from ..plugin_utils.reader_words import people_read, typed

# Who plans that many reads each step
FEW_HOSTS = 10
ELSEWHERE = "With -v it is told whole; where gpu_plan_dir names a directory, a page there has all of it."


class ActionModule(ActionBase):
    """Says the plans of all hosts and clusters as one. Nobody is asked: the tasks before it have noted them."""

    _requires_connection = False
    ARGUMENTS: ClassVar[Mapping[str, Any]] = {
        "hosts": {"type": "list", "elements": "str"},
        "rollouts": {"type": "list", "elements": "dict", "default": []},
        "save_to": {"type": "path"},
        "show": {"type": "bool", "default": True},
    }

    def run(self, tmp: Any = None, task_vars: Any = None) -> Dict[str, Any]:
        super().run(None, task_vars)
        _found, options = self.validate_argument_spec(dict(self.ARGUMENTS))
        try:
            return self._say(options, task_vars)
        except GpuOpsError as error:
            return dict(error.result(), failed=True, changed=False)

    def _say(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> Dict[str, Any]:
        _refuse_malformed(options["rollouts"])
        hosts = task_vars["ansible_play_hosts_all"] if options["hosts"] is None else options["hosts"]
        notes, plans, clusters = Collected().take()
        fleet = fleet_of(map(str, hosts), notes, plans, clusters, options["rollouts"])
        result: Dict[str, Any] = {"changed": False, "digest": fleet.digest, "fleet": fleet.to_dict(),
                                  # A callback for people shows what was displayed, and not as data once more
                                  "_ansible_verbose_override": True}
        directory = "" if self._task.check_mode else options["save_to"] or ""
        if directory:
            there = {host for part in fleet.parts.values() for host in part}
            index = index_of([note for note in notes if note.host in there], fleet.clusters)
            taken = time.strftime("%Y-%m-%d %H:%M %Z")
            result["saved_as"] = save_fleet(directory, index, markdown(fleet, taken), as_html(fleet, taken))
        if options["show"] and not self._task.no_log and people_read():
            Display().display(self._text(fleet, directory))
        return result

    def _text(self, fleet: Fleet, directory: str) -> str:
        few = sum(map(len, fleet.parts.values())) <= FEW_HOSTS
        return text(
            fleet, 0 if few or Display().verbosity else MOST_LINES,
            "The whole is in %s." % os.path.join(directory, MARKDOWN) if directory else ELSEWHERE,
            "Saved in %s. To do this and nothing else: -e %s -e gpu_approved_fleet=%s" % (
                directory, typed({"gpu_plan_dir": directory}), fleet.digest) if directory else "")


def _refuse_malformed(rollouts: Sequence[Mapping[str, Any]]) -> None:
    """Raises GpuOpsError."""
    for each in rollouts:
        rollout = each.get("rollout")
        units = rollout.get("units") if isinstance(rollout, Mapping) else None
        if not isinstance(units, list) or not isinstance(each.get("head") or [], list):
            raise GpuOpsError(
                "plan.rollout_malformed",
                found="a rollout with %s" % (", ".join(sorted(each)) or "nothing"),
                wanted="a list of `units` in `rollout`, and a list of lines in `head`, if any",
                remedy="give as `rollouts` the `clusters` that gpu_rollout has returned with `state: planned`",
                option="rollouts",
            )
        for number, unit in enumerate(units, 1):
            _refuse_malformed_unit(number, unit if isinstance(unit, Mapping) else {})


def _refuse_malformed_unit(number: int, unit: Mapping[str, Any]) -> None:
    seconds = unit.get("seconds")
    if not (isinstance(unit.get("hosts"), list) and unit.get("why")
            and (seconds is None or isinstance(seconds, (int, float)))):
        raise GpuOpsError(
            "plan.turn_malformed",
            found="unit %d with %s" % (number, ", ".join(sorted(unit)) or "nothing"),
            wanted="a list of `hosts`, and the reason `why` they stand there; `seconds`, if any, is a number",
            remedy="correct `rollouts`",
            option="rollouts",
        )
