# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the laboratory builds from Go modules: a table of families, apart from the code that builds them.

Each family has a Go module of its own (tests/lab/kubernetes, tests/lab/nvidia/*, ...), because their dependencies
exclude each other. The programs are `tool` lines of that module, so go.mod names the exact version of each and go.sum
what its source must hash to. A line added to the table builds that family and leaves the others as they are.
"""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import List, Tuple

from ..cache import Input

LAB = Path(__file__).resolve().parents[2]

# go-nvml leaves libnvidia-ml's symbols open until the library is loaded at run time, so the linker may not bind early.
LAZY = "-extldflags=-Wl,-z,lazy"


@dataclass(frozen=True)
class Rewrite:
    """A text that is another in one source file of a module, for this build only."""

    module: str
    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Target:
    """One `go build` of a family: packages that share their flags."""

    packages: Tuple[str, ...]
    ldflags: Tuple[str, ...] = ()
    cgo: bool = False
    tags: str = ""
    # A single package may be given another file name than its last path element.
    output: str = ""
    rewrites: Tuple[Rewrite, ...] = ()

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
        """What the part's digest covers: the module's files and the way they are built."""
        return (*sorted(path for path in self.module.rglob("*") if path.is_file()), repr(self.targets))


def _commands(module: str, names: Tuple[str, ...]) -> Tuple[str, ...]:
    return tuple("%s/cmd/%s" % (module, name) for name in names)


_KUBERNETES = "v1.34.4"
_DEVICE_PLUGIN = "github.com/NVIDIA/k8s-device-plugin"
_TOOLKIT = "github.com/NVIDIA/nvidia-container-toolkit"
_MIG_PARTED = "github.com/NVIDIA/mig-parted"
_NFD = "sigs.k8s.io/node-feature-discovery"
_CRI_O = "github.com/cri-o/cri-o"
_MOBY = "github.com/moby/moby/v2"
_PROMETHEUS = "github.com/prometheus/prometheus"
_HELM = "helm.sh/helm/v3"
_PROBLEM_DETECTOR = "k8s.io/node-problem-detector"
_CONTAINERD_1 = "github.com/containerd/containerd"
_CONTAINERD_2 = "github.com/containerd/containerd/v2"


# Of generations that no host runs, the daemon alone is built: the judge of configurations.
_DAEMON = ("containerd",)


def _containerd(
    version: str, module: str, programs: Tuple[str, ...] = (*_DAEMON, "containerd-shim-runc-v2", "ctr")
) -> Family:
    """One generation; its programs are static, for they run in hosts with an older glibc than the build machine's."""
    generation = version.rsplit(".", 1)[0]
    return Family(
        "containerd-" + generation, "containerd v" + version,
        LAB / "containerd" / generation,
        (Target(
            _commands(module, programs), tags="no_btrfs",
            ldflags=("-X %s/version.Version=v%s" % (module, version),)),),
    )


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
        "nvidia-device-plugin", "NVIDIA device plugin v0.19.3, GPU feature discovery, config manager, MPS daemon",
        LAB / "nvidia" / "device-plugin",
        (Target(
            _commands(_DEVICE_PLUGIN, ("nvidia-device-plugin", "gpu-feature-discovery", "config-manager",
                                       "mps-control-daemon")),
            ldflags=(LAZY, "-X %s/internal/info.version=v0.19.3" % _DEVICE_PLUGIN), cgo=True),),
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
            ldflags=(LAZY, "-X %s/internal/info.version=0.13.1" % _MIG_PARTED), cgo=True,
            # A host's list of modules is the board's. C programs get it from a preloaded library, which a Go program
            # does not call.
            rewrites=(Rewrite(_MIG_PARTED, "cmd/nvidia-mig-parted/util/nvml.go", 'ReadFile("/proc/modules")',
                              'ReadFile("/var/lib/gpusim/proc/modules")'),)),),
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
    _containerd("1.7.27", _CONTAINERD_1),
    _containerd("2.2.0", _CONTAINERD_2),
    _containerd("2.3.4", _CONTAINERD_2),
    _containerd("2.0.14", _CONTAINERD_2, _DAEMON),
    _containerd("2.1.9", _CONTAINERD_2, _DAEMON),
    _containerd("2.4.2", _CONTAINERD_2, _DAEMON),
    Family(
        "cri-o", "CRI-O v1.34.0, and its own small program that fills an image store",
        LAB / "cri-o",
        (Target(
            (_CRI_O + "/cmd/crio", _CRI_O + "/test/copyimg"),
            # Neither the headers of btrfs nor those of gpgme are wanted for what a laboratory host does.
            tags="exclude_graphdriver_btrfs btrfs_noversion containers_image_openpgp"),),
    ),
    Family(
        "docker", "the Docker Engine, moby v2.0.0-beta.24 (of the line of Docker 29)",
        LAB / "docker",
        (Target(
            _commands(_MOBY, ("dockerd", "docker-proxy")), tags="exclude_graphdriver_btrfs",
            ldflags=("-X %s/dockerversion.Version=29.0.0-beta.24" % _MOBY,)),),
    ),
    Family(
        "k3s-render", "what k3s makes of a containerd template: Go's text/template and its data",
        LAB / "k3s",
        (Target((".",), output="k3s-render"),),
    ),
    Family(
        "helm", "Helm v3.19.5",
        LAB / "helm",
        (Target(_commands(_HELM, ("helm",)), ldflags=("-X %s/internal/version.version=v3.19.5" % _HELM,)),),
    ),
    Family(
        "dcgm", "the laboratory's stand-in for the DCGM exporter",
        LAB / "dcgm",
        (Target((".",), output="dcgm-exporter", ldflags=(LAZY,), cgo=True),),
    ),
    Family(
        "prometheus", "Prometheus 3.13.5 and promtool: the judges of alert rules and of the dashboard's queries",
        LAB / "prometheus",
        (Target(
            # Targets come from files: the discovery of fifteen clouds would be most of the build.
            _commands(_PROMETHEUS, ("prometheus", "promtool")), tags="remove_all_sd",
            ldflags=("-X github.com/prometheus/common/version.Version=3.13.5",)),),
    ),
    Family(
        "node-problem-detector", "node-problem-detector v1.34.0",
        LAB / "node-problem-detector",
        (Target(
            (_PROBLEM_DETECTOR + "/cmd/nodeproblemdetector",), output="node-problem-detector",
            # Plugins are what is shown: without the log, whose journal wants cgo, and without statistics and a cloud
            tags="disable_system_log_monitor disable_system_stats_monitor disable_stackdriver_exporter",
            ldflags=("-X %s/pkg/version.version=v1.34.0" % _PROBLEM_DETECTOR,)),),
    ),
    Family(
        "pause", "the process that holds a pod's namespaces",
        LAB / "images" / "pause",
        (Target((".",), output="pause"),),
    ),
)
