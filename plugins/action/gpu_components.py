# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence

from ansible.module_utils.parsing.convert_bool import boolean

from ..module_utils.cluster.client import Client
from ..module_utils.cluster.components.gpu_feature_discovery import GPU_FEATURE_DISCOVERY
from ..module_utils.cluster.components.observation import Live
from ..plugin_utils.clusters import PlayCluster, PlayVariables
from ..plugin_utils.component_action import OF_TASK, SEVERAL, SeveralComponents, Wanted


class ActionModule(SeveralComponents):
    """All components of a list, with one observation of each cluster."""

    ARGUMENTS: ClassVar[Mapping[str, Any]] = {
        **SEVERAL,
        "state": {"type": "str", "choices": ["present", "absent"]},
        "labels_to_come": {"type": "bool", "default": False},
        "hosts": {"type": "list", "elements": "str"},
        **OF_TASK,
    }

    def given_to(self, name: str, options: Mapping[str, Any]) -> Dict[str, Any]:
        state = {"state": options["state"]} if options["state"] else {}
        return {**options[name], **state}

    def clusters(self, variables: PlayVariables) -> List[PlayCluster]:
        hosts = self._task.args.get("hosts")
        return [cluster for cluster in super().clusters(variables)
                if hosts is None or not frozenset(hosts).isdisjoint(cluster.hosts)]

    def _await(self, client: Client, wanted: Sequence[Wanted], seen: Optional[Live], told: Dict[str, Any]) -> None:
        """Where the task after this one makes labels of features, what may wait for those is not waited for here."""
        to_come = boolean(self._task.args.get("labels_to_come") or False)
        writers = [each for each in wanted if _writes_files(each)] if to_come else []
        super()._await(client, writers or wanted, seen, told)


def _writes_files(wanted: Wanted) -> bool:
    return (wanted.component is GPU_FEATURE_DISCOVERY and not wanted.is_absent
            and not wanted.parameters["use_node_feature_api"])
