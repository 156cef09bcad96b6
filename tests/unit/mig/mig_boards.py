# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Boards, from the tables of the simulated silicon; policies, from options; NVIDIA's own file of layouts."""
from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.mig import GpuInstance, Mig, Profile
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.model import Board, Target
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.policy import ARGUMENTS, Policy, policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.target import targets

TABLES = REPOSITORY / "tests" / "lab" / "silicon" / "boards"
MIG_PARTED = REPOSITORY / "tests" / "lab" / "nvidia" / "mig-parted"
WITH_MIG = ("a100-40gb-sxm", "a100-80gb-sxm", "a30", "b200-hgx", "b300-hgx", "gb200-nvl72", "h100-nvl", "h100-sxm-hgx",
            "h200-sxm", "rtx-pro-6000-server")
WITHOUT_MIG = ("l40s", "t4", "v100")


@lru_cache(maxsize=None)
def table(name: str) -> Dict[str, Any]:
    loaded: Dict[str, Any] = json.loads((TABLES / ("%s.json" % name)).read_text())
    return loaded


def profiles(name: str) -> Tuple[Profile, ...]:
    """Of a board with MIG, the greatest first."""
    found = [Profile(
        id=each["id"], name=each["name"], attributes=_attributes(each["name"]), slices=each["slices"],
        memory_mib=each["memory_mib"], most=each["max"], size=each["size"], starts=tuple(each["starts"]),
        engines=tuple(each[engine] for engine in ("copy", "decoders", "encoders", "jpeg", "ofa")),
    ) for each in table(name)["mig"]["profiles"]]
    return tuple(sorted(found, key=lambda profile: (-profile.size, -profile.slices, profile.id)))


def _attributes(name: str) -> str:
    return name[name.index("gb") + 2:]


def board(name: str, index: int = 0, enabled: bool = True, instances: Sequence[GpuInstance] = ()) -> Board:
    """A GPU of a board's table; without MIG where the table has none."""
    gpu = table(name)["gpu"]
    mig = Mig(enabled, enabled, profiles(name), tuple(instances)) if "mig" in table(name) else None
    return Board(
        index=index, uuid="GPU-%08x-5ab4-41d8-9c2e-0d1f6a7b8c9d" % (0xc0ffee00 + index),
        address=table(name)["slots"][index], name=gpu["name"], device_id=gpu["pci_device"] + "10DE",
        subsystem_id=gpu["pci_subsystem"], memory_mib=gpu["memory_mib"], mig=mig,
    )


def boards(name: str, number: int) -> List[Board]:
    return [board(name, index) for index in range(number)]


def untold(gpu: Board) -> Board:
    """A GPU whose MIG mode is off, under a driver that tells no profile then."""
    return replace(gpu, mig=Mig(False, False))


def policy(**options: Any) -> Policy:
    """The policy of options, with the defaults that Ansible gives the others."""
    result = ArgumentSpecValidator(ARGUMENTS).validate(options)
    assert result.error_messages == []
    return policy_of(result.validated_parameters)


def made(gpus: Sequence[Board], **options: Any) -> Dict[int, Target]:
    """{index: target} of the GPUs that have one."""
    found, _notes = targets(policy(**options), gpus)
    return {gpu.index: found[gpu.uuid] for gpu in gpus if gpu.uuid in found}


def notes(gpus: Sequence[Board], **options: Any) -> Tuple[str, ...]:
    return targets(policy(**options), gpus)[1]


def contents(target: Target, gpu: Board) -> Optional[List[str]]:
    """The instances of a target in the words of its driver, '1c.' in front where compute instances are smaller."""
    if target.instances is None:
        return None
    assert gpu.mig is not None
    found = []
    for wanted in target.instances:
        profile = gpu.mig.profile(wanted.profile)
        assert profile is not None
        whole = wanted.compute == (profile.slices,)
        found.extend([profile.name] if whole else ["%dc.%s" % (size, profile.name) for size in wanted.compute])
    return sorted(found)


def refused(gpus: Sequence[Board], **options: Any) -> GpuOpsError:
    """The error that policy or targets end in."""
    with pytest.raises(GpuOpsError) as error:
        targets(policy(**options), gpus)
    return error.value


def codes(gpus: Sequence[Board], **options: Any) -> List[str]:
    return [refusal.code for refusal in refused(gpus, **options).refusals]


def document(*entries: Dict[str, Any], label: str = "mine") -> Dict[str, Any]:
    return {"version": "v1", "mig-configs": {label: list(entries)}}


def entry(devices: Any = "all", profiles: Optional[Dict[str, int]] = None, **more: Any) -> Dict[str, Any]:
    """One that divides GPUs; keys with '_' for '-'."""
    found = {"devices": devices, "mig-enabled": True, "mig-devices": profiles or {}}
    return {**found, **{key.replace("_", "-"): value for key, value in more.items()}}


@lru_cache(maxsize=None)
def default_file() -> Dict[str, Any]:
    """The file of nvidia-mig-parted, of the release that the laboratory builds; skips where it cannot be had."""
    if shutil.which("go") is None:
        pytest.skip("needs Go")
    told = subprocess.run(["go", "mod", "download", "-json", "github.com/NVIDIA/mig-parted"], cwd=MIG_PARTED,
                          stdout=subprocess.PIPE, check=False, timeout=300)
    if told.returncode:
        pytest.skip("needs the Go module of nvidia-mig-parted")
    loaded: Dict[str, Any] = yaml.safe_load(
        (Path(json.loads(told.stdout)["Dir"]) / "deployments" / "systemd" / "config-default.yaml").read_text())
    return loaded
