# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a board's data sheet says of its rates, and how much of that is too little. Pure.

Sources: NVIDIA's data sheets of the boards, by name. Device memory: "memory bandwidth". Link: the PCIe generation by
sixteen lanes, one way. Peers: half of "NVLink bandwidth", which counts both ways. A board that is not here reports its
rates and is not judged by them, nor is a part of one (MIG), nor are links of other kinds (NVLink-C2C).

Measured rates reach 75 to 95 % of a data sheet on boards that are well. What is refused lies far below: a host may have
slots of an older generation, or half as wide, and ECC and clocks take their part; a sick board falls to a quarter.
NVIDIA's own DCGM wants a third of the data sheet's memory bandwidth of a GB200, so that it is not judged here. Pairs of
GPUs have all links only where NVSwitches are between them.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Tuple

# Shares of a data sheet that have to be reached
MEMORY_SHARE = 0.5
LINK_SHARE = 0.12
PEER_SHARE = 0.5


@dataclass(frozen=True)
class Sheet:
    """GB/s (10**9 bytes). 0 where it says none that a program of ours could measure.

    memory: of the device's memory. link: to the host, one way. peer: to another GPU over NVLink, one way.
    """

    memory: float
    link: float = 0.0
    peer: float = 0.0


_GEN3, _GEN4, _GEN5 = 15.75, 31.5, 63.0
# By the beginning of the name that the driver gives the device: the longest that fits counts
SHEETS: Dict[str, Sheet] = {
    "Tesla T4": Sheet(320, _GEN3),
    "Tesla V100-SXM2-16GB": Sheet(900, _GEN3, 150),
    "Tesla V100-SXM2-32GB": Sheet(900, _GEN3, 150),
    "Tesla V100-SXM3-32GB": Sheet(900, _GEN3, 150),
    "Tesla V100-PCIE-16GB": Sheet(900, _GEN3),
    "Tesla V100-PCIE-32GB": Sheet(900, _GEN3),
    "NVIDIA A2": Sheet(200, _GEN4 / 2),
    "NVIDIA A10": Sheet(600, _GEN4),
    "NVIDIA A16": Sheet(200, _GEN4 / 2),
    "NVIDIA A30": Sheet(933, _GEN4),
    "NVIDIA A40": Sheet(696, _GEN4),
    "NVIDIA A100-PCIE-40GB": Sheet(1555, _GEN4),
    "NVIDIA A100 80GB PCIe": Sheet(1935, _GEN4),
    "NVIDIA A100-SXM4-40GB": Sheet(1555, _GEN4, 300),
    "NVIDIA A100-SXM4-80GB": Sheet(2039, _GEN4, 300),
    "NVIDIA L4": Sheet(300, _GEN4),
    "NVIDIA L40": Sheet(864, _GEN4),
    "NVIDIA L40S": Sheet(864, _GEN4),
    "NVIDIA H100 PCIe": Sheet(2000, _GEN5),
    "NVIDIA H100 NVL": Sheet(3938, _GEN5),
    "NVIDIA H100 80GB HBM3": Sheet(3350, _GEN5, 450),
    "NVIDIA GH200": Sheet(4000),
    "NVIDIA H200": Sheet(4800, _GEN5, 450),
    "NVIDIA H200 NVL": Sheet(4800, _GEN5),
    "NVIDIA B200": Sheet(7700, _GEN5, 900),
    "NVIDIA B300": Sheet(7700, _GEN5, 900),
    "NVIDIA GB200": Sheet(0, 0, 900),
    "NVIDIA GB300": Sheet(7700, 0, 900),
    "NVIDIA RTX PRO 6000 Blackwell Server": Sheet(1597, _GEN5),
}


def sheet_of(name: str) -> Sheet:
    """The data sheet of a device by the name that the driver gives it; one without any figure where there is none."""
    if " MIG " in name:
        return Sheet(0)
    fitting = [each for each in SHEETS if name == each or name.startswith(each + " ")]
    return SHEETS[max(fitting, key=len)] if fitting else Sheet(0)


def too_slow(sheet: Sheet, rates: Dict[str, float]) -> Tuple[Tuple[str, float, float], ...]:
    """(what, GB/s that were measured, GB/s that are the least) of rates that are too low.

    rates: 'to_device', 'to_host', 'memory', 'peer', each where it was measured.
    """
    least = {"to_device": sheet.link * LINK_SHARE, "to_host": sheet.link * LINK_SHARE,
             "memory": sheet.memory * MEMORY_SHARE, "peer": sheet.peer * PEER_SHARE}
    return tuple((what, rate, least[what]) for what, rate in rates.items() if rate < least[what])
