# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What mends a GPU, and what a driver itself asks for. Pure.

Sources: nvml.h, nvmlDeviceGpuRecoveryAction_t; nvidia-smi(1), "GPU Recovery Action".
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Dict

# From the slightest to the last; NONE where nothing has to be done, or nothing is known that helps
NONE, SERVICE, RESET, BOARD_RESET, RELOAD, REBOOT, POWER_CYCLE, OUT = (
    "", "service", "reset", "board_reset", "reload", "reboot", "power_cycle", "out")
LADDER = (NONE, SERVICE, RESET, BOARD_RESET, RELOAD, REBOOT, POWER_CYCLE, OUT)
# In words for people
REMEDIES: Dict[str, str] = {
    NONE: "",
    SERVICE: "restart the service that the GPUs wait for",
    RESET: "reset the GPU",
    BOARD_RESET: "reset all GPUs of its NVLink board",
    RELOAD: "load the driver anew",
    REBOOT: "reboot the node",
    POWER_CYCLE: "switch the node's power off and on",
    OUT: "take the GPU out of service and return it to its vendor",
}


def satisfies(done: str, remedy: str) -> bool:
    """Whether what was done is the remedy, or more. Nothing that is done here brings back a GPU that is to be OUT."""
    return remedy != OUT and LADDER.index(done) >= LADDER.index(remedy)


@dataclass(frozen=True)
class RecoveryAction:
    """What a driver asks for.

    asks:       in its own words.
    do:         what a person does then.
    remedy:     its rung of the ladder.
    work_stays: whether work that runs may end by itself.
    """

    asks: str
    do: str
    remedy: str
    work_stays: bool = False


_RESET = "drain the node and reset the named GPUs"
_REBOOT = "drain the node and reboot it"
# Which a reset as usual is not
BUS_RESET = 6
RECOVERY_ACTIONS: Dict[int, RecoveryAction] = {
    1: RecoveryAction("a reset of the GPU", _RESET, RESET),
    2: RecoveryAction("a reboot of the node", _REBOOT, REBOOT),
    3: RecoveryAction("an end of work between peers",
                      "end the work that uses more than one GPU, then reset them where it is asked for still", RESET,
                      work_stays=True),
    4: RecoveryAction("no new work, and then a reset", _RESET, RESET, work_stays=True),
    5: RecoveryAction("a recovery of the IMEX domain", "restart nvidia-imex on the nodes of the domain (role imex)",
                      SERVICE),
    BUS_RESET: RecoveryAction("a reset of its bus",
                              "drain the node and reset the named GPUs by their bus (nvidia-smi -r bus)", RESET),
    7: RecoveryAction("a reboot of the system", _REBOOT, REBOOT),
}
_OTHER = RecoveryAction("something that this collection does not know",
                        "see nvidia-smi -q, GPU Recovery Action; drain the node and reboot it", REBOOT)


def asked_for(number: int) -> RecoveryAction:
    """Of any number but 0, which asks for nothing."""
    return RECOVERY_ACTIONS.get(number, _OTHER)
