# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What of a host can be given to containers, counted and drawn."""
from __future__ import annotations

from typing import Sequence, Tuple

from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.devices import devices_of, layouts_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.mig import (
    ComputeInstance,
    GpuInstance,
    Mig,
    Profile,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlGpu, NvmlReading

# H100 80GB HBM3: 81559 MiB
PROFILES = (
    Profile(9, "3g.40gb", "", 3, 40448, 2, 4, (0, 4)),
    Profile(20, "1g.10gb+me", "+me", 1, 9856, 1, 1, tuple(range(7))),
    Profile(19, "1g.10gb", "", 1, 9856, 7, 1, tuple(range(7))),
)


def gpu(index: int, current: bool, *instances: Tuple[int, int, Sequence[int]]) -> NvmlGpu:
    """instances: (profile, start, slices of compute instances)."""
    sizes = {profile.id: profile.size for profile in PROFILES}
    made = tuple(
        GpuInstance(number, profile, start, sizes[profile], tuple(
            ComputeInstance(each, each, slices, "MIG-%d-%d-%d" % (index, number, each))
            for each, slices in enumerate(compute)))
        for number, (profile, start, compute) in enumerate(instances))
    mig = Mig(current, current, PROFILES, made, tuple(each.uuid for instance in made for each in instance.compute))
    return NvmlGpu(index, "GPU-%d" % index, pci_address="0000:%02x:00.0" % index, memory_mib=81559, mig=mig)


def test_mig_devices_are_counted_by_the_names_that_the_device_plugin_has() -> None:
    reading = NvmlReading(gpus=(
        gpu(0, False), gpu(1, True), gpu(2, True, (9, 0, (3,)), (19, 4, (1,)), (20, 5, (1,))),
        gpu(3, True, (9, 0, (1, 2))), NvmlGpu(4, pci_address="0000:04:00.0")))
    assert devices_of(5, reading) == {
        "whole": 2, "divided": 3, "empty": 1,
        "mig": {"1c.3g.40gb": 1, "1g.10gb": 1, "1g.10gb+me": 1, "2c.3g.40gb": 1, "3g.40gb": 1}}


def test_a_gpu_that_nvml_does_not_tell_of_is_one_that_should_be_offered() -> None:
    assert devices_of(8, NvmlReading(error="no driver is loaded")) == {
        "whole": 8, "divided": 0, "empty": 0, "mig": {}}


def test_a_layout_is_drawn_in_its_places() -> None:
    assert layouts_of(NvmlReading(gpus=(gpu(0, False), gpu(1, True, (9, 4, (3,)), (19, 0, (1,)))))) == {
        "0000:01:00.0": "|1g.10gb|.......|.......|.......|3g.40gb                        |"}
