# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wanted of IMEX."""
from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Tuple

from ..core import assignments
from ..core.errors import GpuOpsError

HOST, KUBERNETES, OFF = "host", "kubernetes", "off"

ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "mode": {"type": "str", "default": HOST, "choices": [HOST, KUBERNETES, OFF]},
    "nodes": {"type": "list", "elements": "str", "default": []},
    "config": {"type": "dict", "default": {}},
    "channel0": {"type": "bool", "default": True},
    "channel_count": {"type": "int", "default": 0},
    "ready_timeout": {"type": "int", "default": 60},
    "boards": {"type": "list", "elements": "str", "default": []},
}

_ADDRESS = re.compile(r"^[0-9A-Za-z]([0-9A-Za-z._-]*[0-9A-Za-z])?$|^[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*$")


@dataclass(frozen=True)
class Policy:
    """What is wanted of IMEX on a board of a rack.

    state:         present, or absent, which takes back what we changed.
    mode:          HOST runs the host's service, KUBERNETES keeps it out of the way of ComputeDomains, OFF stops it.
    nodes:         addresses of all hosts of the domain, this one included, in one order on all of them.
    config:        {key: value} of its configuration file that are to be so.
    channel0:      whether the driver makes channel 0, by which programs share memory.
    channel_count: how many channels the driver has, 0 for its own default.
    ready_timeout: seconds that the daemon may take to be ready.
    """

    state: str = "present"
    mode: str = HOST
    nodes: Tuple[str, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    channel0: bool = True
    channel_count: int = 0
    ready_timeout: int = 60


def policy_of(parameters: Mapping[str, Any]) -> Policy:
    nodes = tuple(node.strip() for node in parameters["nodes"] or ())
    wrong = [node for number, node in enumerate(nodes) if node in nodes[:number] or not _ADDRESS.match(node)]
    if wrong:
        raise GpuOpsError(
            "imex.nodes_malformed",
            found="`nodes` has %s" % ", ".join(repr(node) for node in wrong),
            wanted="the address of every host of the domain, each once",
            remedy="correct `nodes`",
            option="nodes",
        )
    try:
        config = assignments.wanted_of(parameters["config"] or {})
    except ValueError as error:
        raise GpuOpsError(
            "imex.config_malformed",
            found="`config` has %s" % error,
            wanted="a text of one line, or a number, for each key",
            remedy="correct `config`",
            option="config",
        ) from error
    if parameters["channel_count"] < 0:
        raise GpuOpsError(
            "imex.channel_count_malformed",
            found="`channel_count`: %d" % parameters["channel_count"],
            wanted="a number of channels, or 0 for the driver's own",
            remedy="correct `channel_count`",
            option="channel_count",
        )
    return Policy(
        state=parameters["state"],
        mode=parameters["mode"],
        nodes=nodes,
        config=config,
        channel0=parameters["channel0"],
        channel_count=parameters["channel_count"],
        ready_timeout=parameters["ready_timeout"],
    )
