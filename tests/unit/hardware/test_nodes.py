# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which of the driver's device nodes lead to it."""
from __future__ import annotations

from pathlib import Path
from typing import Tuple

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import CUDA_NODES, UVM_NODES
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.node import control_nodes

MAJOR_OF_NULL = 1


@pytest.mark.parametrize("devices, there", [
    ("Character devices:\n  %d nvidia-uvm\n195 nvidia\n\nBlock devices:\n259 blkext\n" % MAJOR_OF_NULL, CUDA_NODES),
    ("Character devices:\n%d nvidia-uvm\n195 nvidia\n" % (MAJOR_OF_NULL + 1), ("/dev/nvidiactl",)),
    ("Character devices:\n195 nvidia\n", CUDA_NODES),
])
def test_nodes_of_unified_memory_have_the_major_of_this_load(
    tmp_path: Path, devices: str, there: Tuple[str, ...]
) -> None:
    host = Host(str(tmp_path))
    host.write("/proc/devices", devices)
    (tmp_path / "dev").mkdir()
    for node in ("/dev/nvidiactl", *UVM_NODES):
        Path(host.path(node)).symlink_to("/dev/null")
    assert control_nodes(host) == there
