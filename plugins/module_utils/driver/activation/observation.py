# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there: loaded modules, who holds them, services that belong to the driver, device nodes."""
from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ...core.host import Host
from ...core.journal import Journal

MODULES_FILE = "/etc/modules-load.d/gpuops-nvidia.conf"
UNIT = "gpuops-nvidia-devices.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT

PERSISTENCED = "nvidia-persistenced.service"
FABRIC_MANAGER = "nvidia-fabricmanager.service"
# Stopped in this order before the modules go, started in the reverse order afterwards.
SERVICES = (
    "dcgm-exporter.service", "nvidia-dcgm.service", "dcgm.service", "nvidia-mps.service", FABRIC_MANAGER,
    "nvlsm.service", "nvidia-imex.service", "nvidia-gridd.service", PERSISTENCED,
)
# Dependants first: the order in which modules can be removed.
UNLOAD_ORDER = (
    "nvidia_fs", "gdrdrv", "nvidia_peermem", "nv_peer_mem", "nvidia_vgpu_vfio", "nvidia_uvm", "nvidia_drm",
    "nvidia_modeset", "nvidia",
)
_POD = re.compile(r"pod([0-9a-f]{8}[-_](?:[0-9a-f]{4}[-_]){3}[0-9a-f]{12})")
_SERVICE = re.compile(r"/([^/]+\.(?:service|scope))(?:/|$)", re.MULTILINE)


@dataclass(frozen=True)
class Holder:
    """A process that has a device of the driver open.

    unit: its systemd unit, '' if none; pod: UID of its pod, '' if none.
    """

    pid: int
    command: str
    devices: Tuple[str, ...]
    unit: str = ""
    pod: str = ""

    def named(self) -> str:
        place = ", pod %s" % self.pod if self.pod else ", %s" % self.unit if self.unit else ""
        return "%s (pid %d%s)" % (self.command or "a process", self.pid, place)


@dataclass(frozen=True)
class Service:
    """A unit that belongs to the driver: whether systemd knows it, starts it at boot, runs it now."""

    known: bool = False
    enabled: bool = False
    active: bool = False


@dataclass(frozen=True)
class Observation:
    """
    modules:    {loaded module of the driver: use count}.
    on_disk:    whether the running kernel has the module on disk now.
    holders:    processes with a device of the driver open.
    services:   {unit: state} of SERVICES and of our own unit.
    nodes:      device nodes of the driver in /dev.
    modprobe:   whether nvidia-modprobe is installed now.
    files:      {path: text or None} of the files whose whole content is ours.
    originals:  {path: text before us or None}.
    unloaded:   modules that an earlier run unloaded and did not load again.
    stopped:    services that an earlier run stopped and did not start again.
    enabled:    services that an earlier run enabled.
    """

    modules: Mapping[str, int] = field(default_factory=dict)
    on_disk: bool = False
    holders: Tuple[Holder, ...] = ()
    services: Mapping[str, Service] = field(default_factory=dict)
    nodes: Tuple[str, ...] = ()
    modprobe: bool = False
    files: Mapping[str, Optional[str]] = field(default_factory=dict)
    originals: Mapping[str, Optional[str]] = field(default_factory=dict)
    unloaded: Tuple[str, ...] = ()
    stopped: Tuple[str, ...] = ()
    enabled: Tuple[str, ...] = ()

    def to_dict(self) -> Dict[str, Any]:
        # Process ids come and go without any meaning for the plan.
        holders = sorted({holder.unit or holder.pod or holder.command for holder in self.holders})
        return dict(asdict(self), holders=holders)


def observe(host: Host, journal: Journal, module_on_disk: bool) -> Observation:
    memory = journal.recall("activation")
    return Observation(
        modules=_modules(host),
        on_disk=module_on_disk,
        holders=_holders(host),
        services=_services(host),
        nodes=_nodes(host),
        modprobe=host.which("nvidia-modprobe") is not None,
        files={path: host.read(path) for path in (MODULES_FILE, UNIT_FILE)},
        originals={original.path: None if original.content is None else original.content.decode("utf-8", "replace")
                   for original in journal.originals("activation")},
        unloaded=tuple(memory.get("unloaded", ())),
        stopped=tuple(memory.get("stopped", ())),
        enabled=tuple(memory.get("enabled", ())),
    )


def _modules(host: Host) -> Dict[str, int]:
    """{module: use count}; the count includes loaded modules that depend on it."""
    counts = {}
    for line in (host.read("/proc/modules") or "").splitlines():
        words = line.split()
        if len(words) > 2 and words[0] in UNLOAD_ORDER:
            counts[words[0]] = int(words[2]) if words[2].isdigit() else 0
    return counts


def _nodes(host: Host) -> Tuple[str, ...]:
    return tuple(name for pattern in ("/dev/nvidia*", "/dev/nvidia-caps/*") for name in host.glob(pattern)
                 if not host.is_dir(name))


def _holders(host: Host) -> Tuple[Holder, ...]:
    found: Dict[int, List[str]] = {}
    for link in host.glob("/proc/[0-9]*/fd/*"):
        target = host.link(link) or ""
        if target.startswith("/dev/nvidia"):
            found.setdefault(int(link.split("/")[2]), []).append(target)
    return tuple(_holder(host, pid, devices) for pid, devices in sorted(found.items()))


def _holder(host: Host, pid: int, devices: List[str]) -> Holder:
    groups = host.read("/proc/%d/cgroup" % pid) or ""
    pod = _POD.search(groups)
    units = _SERVICE.findall(groups)
    return Holder(
        pid=pid,
        command=(host.read("/proc/%d/comm" % pid) or "").strip(),
        devices=tuple(sorted(set(devices))),
        unit="" if pod or not units else units[0],
        pod=pod.group(1).replace("_", "-") if pod else "",
    )


def _services(host: Host) -> Dict[str, Service]:
    """States of all units. Which are enabled is asked apart: 'show' repeats what the manager knew at its last reload,
    and a unit file that was written since then it may not know at all."""
    names = list(SERVICES) + [UNIT]
    done = host.run(["systemctl", "show", "--property", "Id,LoadState,ActiveState"] + names, check=False)
    blocks = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
              for block in done.stdout.split("\n\n")]
    known = [pairs["Id"] for pairs in blocks if pairs.get("Id") in names and pairs.get("LoadState") == "loaded"]
    if host.exists(UNIT_FILE) and UNIT not in known:
        known.append(UNIT)
    enabled = _enabled(host, known)
    return {
        pairs["Id"]: Service(
            known=pairs["Id"] in known,
            enabled=pairs["Id"] in enabled,
            active=pairs.get("ActiveState") in ("active", "activating", "reloading"),
        ) for pairs in blocks if pairs.get("Id") in names
    }


def _enabled(host: Host, units: List[str]) -> Tuple[str, ...]:
    """Of units that there are, those that a boot starts. A unit whose file is gone gets no line in the answer."""
    lines = host.run(["systemctl", "is-enabled", *units], check=False).stdout.split() if units else []
    if len(lines) != len(units):
        return tuple(unit for unit in units if len(units) > 1 and _enabled(host, [unit]))
    return tuple(unit for unit, state in zip(units, lines) if state in ("enabled", "enabled-runtime"))
