# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the programs in PTX promise by their text alone, and which GPUs copy to which."""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Set, Tuple, cast

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.cuda import Context, Cuda
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute import child
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.kernels import NAMES, SOURCE

PROGRAMS = dict(re.findall(r"\.visible \.entry (\w+)\(.*?\n\{(.*?)\n\}", SOURCE, re.DOTALL))
BRANCH = re.compile(r"@(%p\d+) bra (\w+)$")


def instructions(body: str) -> List[str]:
    lines = [line.strip().rstrip(";") for line in body.splitlines()]
    return [line for line in lines if line and not line.startswith(".")]


def written(line: str) -> Set[str]:
    """Registers that an instruction writes: its first word after the name, or those in braces."""
    name, _space, rest = re.sub(r"^@%p\d+ ", "", line).partition(" ")
    if name.startswith(("st.", "wmma.store", "bar.", "ret")):
        return set()
    return set(re.findall(r"%\w+", rest[:rest.index("}")] if rest.startswith("{") else rest.partition(",")[0]))


def test_they_are_of_the_oldest_form_that_volta_takes() -> None:
    assert re.findall(r"^\.(version|target|address_size) (.*)$", SOURCE, re.MULTILINE) == [
        ("version", "6.0"), ("target", "sm_70"), ("address_size", "64")]
    assert set(PROGRAMS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_ends_by_itself(name: str) -> None:
    """Its one way back is taken while a number that only grows is below one that never changes."""
    lines = instructions(PROGRAMS[name])
    branches = [(place, found) for place, found in ((place, BRANCH.match(line)) for place, line in enumerate(lines))
                if found] or [(-1, None)]
    ((place, branch),) = branches
    assert branch is not None and sum("bra" in line.split() for line in lines) == 1 and lines[-1] == "ret"
    begin = lines.index(branch[2] + ":")
    condition = re.match(r"setp\.lt\.u(?:32|64) (%p\d+), (%\w+), (%\w+)$", lines[place - 1])
    assert begin < place and condition is not None and condition[1] == branch[1]
    loop = lines[begin + 1:place]
    grown = [line for line in loop if condition[2] in written(line)]
    (growth,) = grown
    step = re.match(r"add\.u(?:32|64) %s, %s, (%%?\w+)$" % (condition[2], condition[2]), growth)
    assert step is not None and step[1] != "0"
    unchanged = {condition[3], step[1]}
    assert not unchanged & {each for line in loop for each in written(line)}


@dataclass
class Gpu:
    device: int


class Linked:
    """GPUs of which all are linked but some."""

    def __init__(self, *apart: Tuple[int, int]) -> None:
        self.apart = apart

    def are_linked(self, device: int, peer: int) -> bool:
        return (device, peer) not in self.apart


def pairs(count: int, *apart: Tuple[int, int]) -> List[Tuple[int, int]]:
    gpus = cast(List[Context], [Gpu(device) for device in range(count)])
    return [(here.device, there.device) for here, there in child._pairs(cast(Cuda, Linked(*apart)), gpus)]


def test_each_gpu_copies_to_each_that_nvlink_leads_to() -> None:
    assert len(pairs(8)) == 56 == len(set(pairs(8)))
    assert pairs(3, (0, 2), (2, 0)) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    assert pairs(1) == []
