# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the host's policy says, for those who need no capability to understand it."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Sequence

from ..agent.policy import ARGUMENTS, KUBECONFIG, NAME, POLICY_FILE, SILENT, TELLS, options_in
from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.rights import TO_READ, require_root
from ..health.policy import HealthPolicy
from ..health.policy import policy_of as health_policy_of

# What every capability's part may have
_OF_ALL = ("allowed_disruption",)


@dataclass(frozen=True)
class HealthOptions:
    """How the host's health is looked at, and who is told.

    metrics_directory: where metrics go, '' for nowhere.
    listen:            where they are served, '' for nowhere.
    node_condition:    one of TELLS.
    kubeconfig:        by which that is said.
    """

    policy: HealthPolicy = field(default_factory=HealthPolicy)
    metrics_directory: str = ""
    listen: str = ""
    node_condition: str = SILENT
    kubeconfig: str = KUBECONFIG


def read(host: Host, path: str = POLICY_FILE) -> Dict[str, Any]:
    """The options of gpu_plan that this host is to have, as they stand there. Raises GpuOpsError without any."""
    require_root(host, TO_READ)
    text = host.read(path)
    if text is None:
        raise GpuOpsError(
            "gpuops.no_policy",
            found="no %s" % path,
            wanted="the policy of this host",
            remedy="run the role gpuops.nvidia.node_agent for it, or name another file with --policy",
        )
    return options_in(text, path)


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Raises GpuOpsError where the agent's part has a name that it does not know, as a misspelt one."""
    _refuse(sorted(set(options.get(NAME) or {}).difference(ARGUMENTS, _OF_ALL)), "names of its options")


def health_options(options: Mapping[str, Any]) -> HealthOptions:
    """Raises GpuOpsError where they cannot be followed."""
    own = options.get(NAME) or {}
    told = own.get("node_condition")
    _refuse([] if told in (None, *TELLS) else ["node_condition: %r" % (told,)], "one of %s" % ", ".join(TELLS))
    _refuse(["%s: %r" % (name, own[name]) for name in ("health_metrics_directory", "kubeconfig")
             if not isinstance(own.get(name, ""), (str, type(None)))], "a path")
    return HealthOptions(health_policy_of(own.get("health") or {}), own.get("health_metrics_directory") or "",
                         own.get("watch_listen") or "", own.get("node_condition") or SILENT,
                         own.get("kubeconfig") or KUBECONFIG)


def _refuse(found: Sequence[str], wanted: str) -> None:
    if found:
        raise GpuOpsError(
            "gpuops.agent_not_understood",
            found="in `%s` of the policy: %s" % (NAME, ", ".join(found)),
            wanted=wanted,
            remedy="correct it, or run the role gpuops.nvidia.node_agent, which writes it; `gpuops plan` shows whether "
                   "all of a policy is understood",
        )
