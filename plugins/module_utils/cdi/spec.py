# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A CDI specification as `nvidia-ctk cdi generate` writes it: what it names, and how it differs from the devices.

The layout is that of the CDI specification (cncf-tags/container-device-interface, SPEC.md). Only the few lines that
are compared are read: devices' names, device nodes and paths on the host, one to a line in YAML. JSON, which nvidia-ctk
writes in one single line (pkg/cdi/spec.go of that library), is laid out in the same way before.
"""
from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import List, Sequence, Set, Tuple

from ..hardware.nvml import NvmlGpu

PATH = "/var/run/cdi/nvidia.yaml"
KIND = "nvidia.com/gpu"

_NAME = re.compile(r'^\s*(?:- )?"?name"?: "?([^",\n]+)"?,?$', re.M)
_NODE = re.compile(r'^\s*(?:- )?"?path"?: "?(/dev/[^",\n]+)"?,?$', re.M)
_HOOK = re.compile(r'^\s*(?:- )?"?path"?: "?(/(?!dev/)[^",\n]+)"?,?$', re.M)
_SOURCE = re.compile(r'^\s*(?:- )?"?hostPath"?: "?(/[^",\n]+)"?,?$', re.M)
_KIND = re.compile(r'^\s*"?kind"?: "?([^",\s]+)"?,?$', re.M)
# What a hook does: the first argument after its program's name, which older toolkits call 'nvidia-ctk hook'
_ACTION = re.compile(
    r'^\s*(?:- )?"?(?:nvidia-cdi-hook|nvidia-ctk"?,?\n\s*(?:- )?"?hook)"?,?\n\s*(?:- )?"?([a-z][a-z-]+)"?,?$', re.M)
_DRIVER = re.compile(r"\.so\.(\d{3}\.\d+(?:\.\d+)?)$")
# A GPU's name by the strategies 'index' and 'type-index', and a MIG device's (nvidia-ctk cdi generate)
_GPU_INDEX = re.compile(r"(?:gpu)?(\d+)$")
_MIG_INDEX = re.compile(r"(?:mig)?(\d+:\d+)$")
_OF_DAEMONS = ("/run/", "/var/run/", "/tmp/")
# How much of what is missing a person is told
_NAMED = 4


@dataclass(frozen=True)
class Spec:
    """What a CDI specification gives to containers, without the form that it is written in.

    kind:    vendor and class of the devices.
    names:   names of the devices.
    nodes:   device nodes.
    sources: files of the host that are mounted into containers.
    hooks:   programs of the host that are run for a container.
    actions: what these programs do: 'create-symlinks', 'update-ldcache' ...
    """

    kind: str
    names: Tuple[str, ...]
    nodes: Tuple[str, ...]
    sources: Tuple[str, ...]
    hooks: Tuple[str, ...] = ()
    actions: Tuple[str, ...] = ()

    @property
    def driver(self) -> str:
        """The driver version that the libraries' names carry; '' when none does, several joined by commas."""
        versions = {match.group(1) for match in map(_DRIVER.search, self.sources) if match}
        return ", ".join(sorted(versions))

    @property
    def uuids(self) -> Tuple[str, ...]:
        return tuple(name for name in self.names if name.startswith(("GPU-", "MIG-")))

    @property
    def indices(self) -> Tuple[str, ...]:
        """Devices by index: '0' is a GPU, '0:1' a MIG device; which strategy wrote them does not matter."""
        found = [pattern.match(name) for name in self.names for pattern in (_GPU_INDEX, _MIG_INDEX)]
        return _unique([match.group(1) for match in found if match])

    @property
    def devices(self) -> int:
        """Number of devices, GPUs and MIG devices, by index or by UUID."""
        return len(self.indices) or len(self.uuids)

    @property
    def gpus(self) -> int:
        """Number of whole GPUs, by index or by UUID."""
        return len([name for name in self.indices if ":" not in name]) or \
            len([name for name in self.names if name.startswith("GPU-")])


def read_spec(text: str) -> Spec:
    text = _laid_out(text)
    kind = _KIND.search(text)
    return Spec(
        kind=kind.group(1) if kind else "",
        names=_unique(_NAME.findall(text)),
        nodes=_unique(_NODE.findall(text)),
        sources=_unique(_SOURCE.findall(text)),
        hooks=_unique(_HOOK.findall(text)),
        actions=_unique(_ACTION.findall(text)),
    )


def _laid_out(text: str) -> str:
    """JSON with one value to a line; YAML, and what is neither, as it is."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def missing_from(spec: Spec, new: Spec) -> List[str]:
    """Why a new specification would serve containers better: what it names and this one does not.

    What this one names beside that may stay, as long as it is there. Sockets of daemons come and go with them.
    """
    wanted = (
        [name for named, known in ((new.indices, spec.indices), (new.uuids, spec.uuids)) if known
         for name in named if name not in known]
        + [node for node in new.nodes if node not in spec.nodes]
        + [path for path in new.sources if path not in spec.sources and not path.startswith(_OF_DAEMONS)]
        + [path for path in new.hooks if path not in spec.hooks]
        + ["the hook %s" % action for action in new.actions if action not in spec.actions]
    )
    if not wanted:
        return []
    more = " and %d more" % (len(wanted) - _NAMED) if len(wanted) > _NAMED else ""
    return ["it lacks %s%s" % (", ".join(wanted[:_NAMED]), more)]


def outdated(spec: Spec, gpus: Sequence[NvmlGpu]) -> List[str]:
    """Why a specification does not describe the GPUs that answer: by UUID, or by index where it names no UUID.

    nvidia-ctk leaves out a GPU in MIG mode and describes its MIG devices instead.
    """
    if spec.uuids:
        wanted = {gpu.uuid for gpu in gpus if not gpu.is_divided}
        wanted.update(uuid for gpu in gpus for uuid in gpu.mig_devices)
        return _difference(set(spec.uuids), wanted, wanted.union(gpu.uuid for gpu in gpus))
    wanted = {str(gpu.index) for gpu in gpus if not gpu.is_divided}
    wanted.update(name for gpu in gpus for name in _mig_indices(spec, gpu))
    return _difference(set(spec.indices), wanted, wanted.union(str(gpu.index) for gpu in gpus))


def _mig_indices(spec: Spec, gpu: NvmlGpu) -> List[str]:
    """Names by index of a GPU's MIG devices.

    NVML does not move devices up where one before them has gone (nvmlDeviceGetMigDeviceHandleByIndex), so that as many
    names as there are devices fit; which ones they are, a new specification tells.
    """
    named = [name for name in spec.indices if name.startswith("%d:" % gpu.index)]
    if len(named) == len(gpu.mig_devices):
        return named
    return ["%d:%d" % (gpu.index, number) for number in range(len(gpu.mig_devices))]


def _difference(named: Set[str], wanted: Set[str], known: Set[str]) -> List[str]:
    reasons = []
    missing, gone = sorted(wanted - named), sorted(named - known)
    if missing:
        reasons.append("it lacks %s" % ", ".join(missing))
    if gone:
        reasons.append("it names %s, which %s not there" % (", ".join(gone), "is" if len(gone) == 1 else "are"))
    return reasons


def _unique(found: List[str]) -> Tuple[str, ...]:
    return tuple(dict.fromkeys(found))
