# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wanted of the agent, and the policy that lies beside it.

The policy is one JSON file, root's alone, for it may hold credentials:
  {'schema': 1,
   'managed': who writes it,
   'policy':  the options of gpu_plan: those of every capability by its name, 'validation' among them}
"""
from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Tuple

from ..core.errors import GpuOpsError
from ..core.steps import MANAGED
from ..health.policy import AGENTS
from ..health.policy import policy_of as health_policy_of
from .boot import MODES, NONE
from .watch import address_of

SCHEMA = 1
POLICY_FILE = AGENTS
POLICY_MODE = 0o600
# Whether the host tells of its GPUs on its own Node, and cordons that for them
SILENT, CONDITION, CORDON = TELLS = ("none", "condition", "cordon")
KUBECONFIG = "/etc/kubernetes/kubelet.conf"

ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "command": {"type": "path", "default": "/usr/local/sbin/gpuops"},
    "boot": {"type": "str", "default": NONE, "choices": list(MODES)},
    "boot_timeout": {"type": "int", "default": 900},
    "watch": {"type": "bool", "default": False},
    "watch_listen": {"type": "str", "default": ""},
    "health": {"type": "dict", "default": {}},
    "health_metrics_directory": {"type": "str", "default": ""},
    "problem_detector": {"type": "bool", "default": False},
    "node_condition": {"type": "str", "default": SILENT, "choices": list(TELLS)},
    "kubeconfig": {"type": "path", "default": KUBECONFIG},
    "policy": {"type": "json", "default": "{}", "no_log": True},
}
# Of the options above those that the policy on the host has too: a plan that is made there is then the same
KEPT = ("state", "command", "boot", "boot_timeout", "watch", "watch_listen", "health", "health_metrics_directory",
        "problem_detector", "node_condition", "kubeconfig")
NAME = "agent"
_PATH = re.compile(r"(/[A-Za-z0-9_.+-]+)+")


@dataclass(frozen=True)
class Policy:
    """What is wanted of the agent.

    state:            present, or absent, which takes it away with all that it has brought.
    command:          path of the command.
    boot:             one of boot.MODES.
    boot_timeout:     seconds that the unit may take.
    watch:            whether a unit watches the host's health.
    problem_detector: whether the host has what node-problem-detector needs.
    node_condition:   one of TELLS.
    text:             of the policy's file.
    """

    state: str = "present"
    command: str = "/usr/local/sbin/gpuops"
    boot: str = NONE
    boot_timeout: int = 900
    watch: bool = False
    problem_detector: bool = False
    node_condition: str = SILENT
    text: str = field(default="", repr=False)


def policy_of(parameters: Mapping[str, Any]) -> Policy:
    command = parameters["command"]
    if parameters["state"] == "present" and not _PATH.fullmatch(command):
        raise GpuOpsError(
            "agent.relative_command",
            found="the command %s" % command,
            wanted="its whole path, without spaces and signs that a shell or systemd reads: a unit runs it",
            remedy="give `command` as in /usr/local/sbin/gpuops",
            option="command",
        )
    # What is wrong with it is refused now, and not when somebody asks for the host's health
    health_policy_of(parameters["health"] or {})
    if parameters["boot_timeout"] < 1:
        raise GpuOpsError(
            "agent.boot_without_time",
            found="%d seconds for the unit" % parameters["boot_timeout"],
            wanted="the time after which a boot is not waited for any more",
            remedy="give `boot_timeout` as 900, or leave it out",
            option="boot_timeout",
        )
    if parameters["watch_listen"]:
        address_of(parameters["watch_listen"])
    if parameters["problem_detector"] and parameters["node_condition"] != SILENT:
        raise GpuOpsError(
            "agent.told_twice",
            found="`problem_detector` beside `node_condition: %s`" % parameters["node_condition"],
            wanted="one who writes the conditions of the Node",
            remedy="leave `problem_detector` or `node_condition` out: with both, each would write over what the other "
                   "has said",
            option="node_condition",
        )
    return Policy(parameters["state"], command, parameters["boot"], parameters["boot_timeout"], parameters["watch"],
                  parameters["problem_detector"], parameters["node_condition"],
                  text_of(_options(parameters["policy"]), parameters))


def _options(given: str) -> Dict[str, Any]:
    """Of all capabilities but this one."""
    try:
        options = json.loads(given)
        return {name: value for name, value in options.items() if name != NAME}
    except (ValueError, AttributeError) as error:
        raise GpuOpsError(
            "agent.policy_malformed",
            found="a policy that is no JSON object",
            wanted="the options of `gpu_plan`",
            remedy="give `policy` as a dictionary, or leave it out with `from_variables`",
            option="policy",
        ) from error


def text_of(options: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """The policy's file. options: of all other capabilities; own: of this one."""
    policy = {**options, NAME: {name: own[name] for name in KEPT if own.get(name) is not None}}
    return json.dumps({"schema": SCHEMA, "managed": MANAGED, "policy": policy}, indent=2, sort_keys=True) + "\n"


def options_in(text: str, path: str = POLICY_FILE) -> Dict[str, Any]:
    """The options of gpu_plan in the policy's file. Raises GpuOpsError where it holds none that are understood."""
    found, trouble = _parsed(text)
    policy = found.get("policy") if isinstance(found, dict) else None
    own = policy.get(NAME, {}) if isinstance(policy, dict) else None
    if policy is None or not isinstance(own, dict) or "schema" not in found:
        raise GpuOpsError(
            "agent.policy_unreadable",
            found="%s holds no policy: %s" % (
                path, trouble or "it is no object with `schema` and `policy`, of which `%s` is an object too" % NAME),
            wanted="the policy that the role gpuops.nvidia.node_agent writes there",
            remedy="correct it there, or run that role for this host again",
        )
    if found["schema"] != SCHEMA:
        raise GpuOpsError(
            "agent.policy_of_another_release",
            found="%s has schema %s" % (path, found["schema"]),
            wanted="schema %d" % SCHEMA,
            remedy="run the role gpuops.nvidia.node_agent for this host, with the release that is to be used",
        )
    options = {name: value for name, value in policy.items() if name != NAME}
    # As the controller gives it: the policy without this capability's own part
    return {**options, NAME: {**own, "policy": json.dumps(options)}} if own else options


def _parsed(text: str) -> Tuple[Any, str]:
    """(what it says, why it says nothing): without a word of it, which may be a credential."""
    try:
        return json.loads(text), ""
    except json.JSONDecodeError as error:
        return None, "no JSON in line %d, column %d: %s" % (error.lineno, error.colno, error.msg)
