# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The collection with hosts that exist only in words: what its modules find on them, a test says.

Playbooks, roles, and all that goes to a cluster are the real ones.
"""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from cluster_api import Api
from controller import Controller
from stand_ins import kept

from ansible_collections.gpuops.nvidia.plugins.action.gpu_plan import AT_LENGTH
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, digest, render
from ansible_collections.gpuops.nvidia.plugins.module_utils.registry import deferred_of, later_of, told_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.change import Change
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.role_variables import SOURCES

# Answers with the variable 'canned': {module: result, or a list of them, the first for the first call}, of all hosts
# or below the name of each
ACTION = '''
import pathlib
from ansible.plugins.action import ActionBase

AT_LENGTH = %r


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        name = self._task.action.rpartition(".")[2]
        calls = pathlib.Path(task_vars["inventory_dir"]) / (task_vars["inventory_hostname"] + "." + name)
        number = int(calls.read_text()) if calls.exists() else 0
        calls.write_text(str(number + 1))
        canned = self._templar.template(task_vars["canned"])
        canned = canned.get(task_vars["inventory_hostname"], canned)
        canned = canned.get(name, {"changed": False, "reboot_required": False})
        found = canned[min(number, len(canned) - 1)] if isinstance(canned, list) else canned
        at_length = AT_LENGTH if name == "gpu_plan" and self._task.args.get("brief") else ()
        return {name: value for name, value in found.items() if name not in at_length}
''' % (AT_LENGTH,)
# Before an action plugin that stands in for one of the collection's, and has it at hand
AROUND = '''
import pathlib
from ansible_collections.gpuops.nvidia.plugins.action.of_{name} import ActionModule as Real
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
'''
# The driver that a change may go back to, as a plan has it in returns_to
WAY = {"version": "580.178.04", "kernel_module": "open", "source": "distribution", "how": "archive", "why": ""}
CANNED = (*SOURCES, "gpu_plan", "gpu_info", "gpu_health")


def planned(plan: Plan, allowed: Disruption = Disruption.driver_reload, **more: Any) -> Dict[str, Any]:
    """What gpu_plan returns of a host."""
    is_done = not (plan.steps or plan.requirements or plan.refusals)
    return {
        "changed": False, "plan": plan.to_dict(), "text": render(plan), "digest": "0", "kept_as": "/kept",
        "refusals": [refusal.to_dict() for refusal in plan.refusals], **told_of([(plan, deferred_of(plan, allowed))]),
        "converged": is_done, "waiting": list(plan.waiting),
        "may_disturb": later_of(plan, allowed).name, "driver_loaded": "", "unfinished": [], "expected_seconds": None,
        "gpus": 1, "checks": [],
        "change": Change("" if is_done else digest(plan.to_dict()), "" if is_done else "policy", "1 x 10de:2330",
                         "debian-13 x86_64", "containerd").to_dict(),
        "devices": {"whole": 1, "divided": 0, "empty": 0, "mig": {}}, "validated": is_done, **more}


class Hosts:
    """Hosts in words, nodes of one cluster."""

    def __init__(self, controller: Controller, api: Api) -> None:
        self.controller, self.api = controller, api
        self._actions = dict.fromkeys(CANNED, ACTION)

    @property
    def root(self) -> Path:
        return kept(self.controller.directory.parent / "in-words", self._actions)

    def put(self, **actions: str) -> None:
        """Have action plugins of a test in the place of the collection's. actions: {name: source}."""
        self._actions.update(actions)

    def around(self, name: str, source: str) -> None:
        """Put an action plugin of a test around one of the collection."""
        self.put(**{name: AROUND.format(name=name) + source})

    def site(
        self, canned: Dict[str, Any], *options: str, hosts: Sequence[str] = ("gpu-1",), **variables: Any
    ) -> str:
        """What is told of a change of these hosts."""
        done = self.controller.play(
            "gpuops.nvidia.site", "--tags", "hosts", *options, hosts=hosts,
            environment={"ANSIBLE_COLLECTIONS_PATH": str(self.root)}, variables={
                "gpu_cluster_kubeconfig": str(self.api.kubeconfig), "canned": canned, "node_maintenance_timeout": 1,
                **variables})
        return done.stdout + done.stderr

    def calls(self, module: str, host: str = "gpu-1") -> int:
        """How often a module was run."""
        path = self.controller.directory / ("%s.%s" % (host, module))
        return int(path.read_text()) if path.exists() else 0

    def label(self, name: str) -> Optional[str]:
        labels: Dict[str, str] = self.api.state.nodes[0]["metadata"]["labels"]
        return labels.get(name)

    def writes(self) -> List[Tuple[str, str]]:
        """What was asked of the server but reading, and but whether one may."""
        return [(request.method, request.path) for request in self.api.state.requests
                if request.method != "GET" and not request.path.startswith("/apis/authorization.k8s.io/")]
