# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Programs built from Go modules: Kubernetes, NVIDIA's container programs, node feature discovery, containerd.

Each family has a Go module of its own (tests/lab/kubernetes, tests/lab/nvidia/*, ...), because their dependencies
exclude each other. The programs are `tool` lines of that module, so go.mod names the exact version of each and go.sum
what its source must hash to.
"""
from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from gpulab.cache import BuildError, Input, Job, Part

LAB = Path(__file__).resolve().parents[2]

# go-nvml leaves libnvidia-ml's symbols open until the library is loaded at run time, so the linker may not bind early.
LAZY = "-extldflags=-Wl,-z,lazy"


@dataclass(frozen=True)
class Target:
    """One `go build` of a family: packages that share their flags."""

    packages: Tuple[str, ...]
    ldflags: Tuple[str, ...] = ()
    cgo: bool = False
    tags: str = ""
    # A single package may be given another file name than its last path element.
    output: str = ""

    def programs(self) -> List[str]:
        return [self.output] if self.output else [package.rsplit("/", 1)[-1] for package in self.packages]


@dataclass(frozen=True)
class Family:
    """A Go module of ours and what is built from it."""

    name: str
    title: str
    module: Path
    targets: Tuple[Target, ...]

    def sources(self) -> Tuple[Input, ...]:
        return tuple(sorted(path for path in self.module.rglob("*") if path.is_file()))


def _commands(module: str, names: Tuple[str, ...]) -> Tuple[str, ...]:
    return tuple("%s/cmd/%s" % (module, name) for name in names)


_KUBERNETES = "v1.34.4"
_DEVICE_PLUGIN = "github.com/NVIDIA/k8s-device-plugin"
_TOOLKIT = "github.com/NVIDIA/nvidia-container-toolkit"
_MIG_PARTED = "github.com/NVIDIA/mig-parted"
_NFD = "sigs.k8s.io/node-feature-discovery"
_CONTAINERD = "github.com/containerd/containerd/v2"

FAMILIES: Tuple[Family, ...] = (
    Family(
        "kubernetes", "Kubernetes %s: API server, controller manager, scheduler, proxy, kubelet, kubectl" % _KUBERNETES,
        LAB / "kubernetes",
        (Target(
            (".",), output="kubernetes",
            ldflags=("-X k8s.io/component-base/version.gitVersion=" + _KUBERNETES,
                     "-X k8s.io/component-base/version.gitMajor=1",
                     "-X k8s.io/component-base/version.gitMinor=34")),),
    ),
    Family(
        "nvidia-device-plugin", "NVIDIA device plugin v0.19.0, GPU feature discovery, config manager, MPS daemon",
        LAB / "nvidia" / "device-plugin",
        (Target(
            _commands(_DEVICE_PLUGIN, ("nvidia-device-plugin", "gpu-feature-discovery", "config-manager",
                                       "mps-control-daemon")),
            ldflags=(LAZY, "-X %s/internal/info.version=v0.19.0" % _DEVICE_PLUGIN), cgo=True),),
    ),
    Family(
        "nvidia-toolkit", "NVIDIA container toolkit v1.20.1",
        LAB / "nvidia" / "toolkit",
        (Target(
            _commands(_TOOLKIT, ("nvidia-ctk", "nvidia-container-runtime", "nvidia-container-runtime-hook",
                                 "nvidia-cdi-hook")),
            ldflags=(LAZY, "-X %s/internal/info.version=1.20.1" % _TOOLKIT), cgo=True),),
    ),
    Family(
        "mig-parted", "nvidia-mig-parted v0.13.1",
        LAB / "nvidia" / "mig-parted",
        (Target(
            _commands(_MIG_PARTED, ("nvidia-mig-parted",)),
            ldflags=(LAZY, "-X %s/internal/info.version=0.13.1" % _MIG_PARTED), cgo=True),),
    ),
    Family(
        "nfd", "node feature discovery v0.17.3",
        LAB / "nvidia" / "nfd",
        (Target(
            _commands(_NFD, ("nfd-master", "nfd-worker", "nfd-gc")),
            ldflags=("-X %s/pkg/version.version=v0.17.3" % _NFD,
                     # The worker's pod mounts the host below this prefix; without it the worker describes itself.
                     "-X %s/pkg/utils/hostpath.pathPrefix=/host-" % _NFD)),),
    ),
    Family(
        "containerd-2.2", "containerd v2.2.0",
        LAB / "containerd" / "2.2",
        (Target(
            _commands(_CONTAINERD, ("containerd", "containerd-shim-runc-v2", "ctr")), tags="no_btrfs",
            ldflags=("-X %s/version.Version=v2.2.0" % _CONTAINERD,)),),
    ),
    Family(
        "dcgm", "the laboratory's stand-in for the DCGM exporter",
        LAB / "dcgm",
        (Target((".",), output="dcgm-exporter", ldflags=(LAZY,), cgo=True),),
    ),
    Family(
        "pause", "the process that holds a pod's namespaces",
        LAB / "images" / "pause",
        (Target((".",), output="pause"),),
    ),
)


def required_go() -> Tuple[int, int]:
    """The Go release (major, minor) that builds every family: the highest `go` line of their go.mod files."""
    return max(_go_line(family) for family in FAMILIES)


def toolchain_problem(family: Optional[Family] = None) -> str:
    """What keeps this machine from building the family (default: any of them), with the remedy; empty if nothing."""
    families = (family,) if family else FAMILIES
    wanted = max(_go_line(each) for each in families)
    remedy = ("install Go %d.%d or newer from https://go.dev/dl/ (or the package golang-go where the distribution's "
              "is that new)" % wanted)
    if shutil.which("go") is None:
        return "found no `go` command, wanted Go %d.%d or newer: %s" % (wanted + (remedy,))
    found, policy = _installed_go()
    # From 1.21 on, `go` fetches the toolchain that a go.mod asks for, unless GOTOOLCHAIN=local forbids it.
    if found < wanted and (found < (1, 21) or policy == "local"):
        return "found Go %d.%d with GOTOOLCHAIN=%s, wanted %d.%d or newer: %s" % (
            found + (policy or "unknown",) + wanted + (remedy,))
    needs_cgo = any(target.cgo for each in families for target in each.targets)
    if needs_cgo and shutil.which("gcc") is None:
        return "found no `gcc`, wanted a C compiler for programs that load libnvidia-ml: install gcc and libc6-dev"
    return ""


def build_family(family: Family, job: Job) -> None:
    problem = toolchain_problem(family)
    if problem:
        raise BuildError("part %s: %s" % (family.name, problem))
    programs = job.out / "bin"
    programs.mkdir()
    for target in family.targets:
        argv: List[str] = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false",
                           "-ldflags", " ".join(("-s", "-w") + target.ldflags)]
        if target.tags:
            argv += ["-tags", target.tags]
        destination = programs / target.output if target.output else programs
        # Half a minute to six minutes of compilation should not make the machine unusable meanwhile.
        job.run(["nice", *argv, "-o", str(destination), *target.packages],
                cwd=family.module, env=_environment(target))
        missing = [name for name in target.programs() if not (programs / name).is_file()]
        if missing:
            raise BuildError("part %s: go build ended well but did not write %s" % (family.name, ", ".join(missing)))


def _environment(target: Target) -> Dict[str, str]:
    """The user's environment less what would make a build differ from machine to machine."""
    kept = {name: value for name, value in os.environ.items() if name not in ("GOFLAGS", "GOOS", "GOARCH")}
    kept.update(CGO_ENABLED="1" if target.cgo else "0", GOFLAGS="", GOWORK="off", GOAMD64="v1")
    return kept


def _go_line(family: Family) -> Tuple[int, int]:
    text = (family.module / "go.mod").read_text(encoding="utf-8")
    found = re.search(r"^go (\d+)\.(\d+)", text, re.MULTILINE)
    if found is None:
        raise BuildError("part %s: %s has no go line" % (family.name, family.module / "go.mod"))
    return int(found.group(1)), int(found.group(2))


def _installed_go() -> Tuple[Tuple[int, int], str]:
    """Version and GOTOOLCHAIN policy of the `go` command (asked outside any module, so that it does not switch)."""
    told = subprocess.run(["go", "env", "GOVERSION", "GOTOOLCHAIN"], cwd="/", check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True)
    lines = told.stdout.splitlines() + ["", ""]
    found = re.match(r"go(\d+)\.(\d+)", lines[0])
    return ((int(found.group(1)), int(found.group(2))) if found else (0, 0)), lines[1].strip()


def _part(family: Family) -> Part:
    def build(job: Job) -> None:
        build_family(family, job)

    return Part(family.name, family.title, build, inputs=family.sources())


PARTS: Tuple[Part, ...] = tuple(_part(family) for family in FAMILIES)
