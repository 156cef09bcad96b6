# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wanted of the CDI specification."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping

ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "refresh_at_boot": {"type": "bool", "default": True},
    "device_links": {"type": "bool", "default": True},
    "remove_others": {"type": "bool", "default": False},
}


@dataclass(frozen=True)
class Policy:
    """What is wanted of the CDI specification, and of what else tells of the devices.

    present:         whether a specification of the GPUs is wanted; otherwise ours is removed.
    refresh_at_boot: whether it is to be generated at boot: /var/run is empty then, and the devices may be others.
    device_links:    whether links under /dev/char are to lead to NVIDIA's device nodes, now and after a boot.
    remove_others:   whether other files that describe GPUs under the same kind are to go.
    """

    present: bool
    refresh_at_boot: bool
    device_links: bool = True
    remove_others: bool = False


def policy_of(parameters: Mapping[str, Any]) -> Policy:
    return Policy(
        present=parameters["state"] == "present",
        refresh_at_boot=parameters["refresh_at_boot"],
        device_links=parameters["device_links"],
        remove_others=parameters["remove_others"],
    )
