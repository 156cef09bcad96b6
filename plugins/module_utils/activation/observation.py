# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there: loaded modules, who holds them, services that belong to the driver, device nodes."""
from __future__ import annotations

import os
import re
import stat
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Tuple

from ..core.facts import HostFacts
from ..core.host import Host
from ..core.interrupted import LOADED_WITH, STOPPED, UNDIVIDED, UNLOADED, remembered
from ..core.journal import Journal
from ..core.steps import PACKAGES_INSTALL
from ..hardware import runfile
from ..hardware.boot import installed_module, module_file
from ..hardware.driver_container import DriverContainer, read_driver_container
from ..hardware.holders import Holder, module_of, only_asks, process_of, read_holders, read_mapped
from ..hardware.loaded import is_given_up
from ..hardware.mig import RESTORE_WANTED
from ..hardware.parameters import is_older_than_boot, stale_parameters
from ..hardware.peer_modules import GDRDRV
from .policy import Policy

MODULES_FILE = "/etc/modules-load.d/gpuops-nvidia.conf"
UNIT = "gpuops-nvidia-devices.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT

PERSISTENCED = "nvidia-persistenced.service"
PERSISTENCED_PACKAGE, MODPROBE_PACKAGE = "nvidia-persistenced", "nvidia-modprobe"
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
# Of other packages: a new driver does not bring them anew.
OTHERS = ("nvidia_fs", "gdrdrv", "nv_peer_mem")
# States of systemctl(1), is-enabled. A static unit cannot be enabled, and something else starts it: Ubuntu's own
# packages start nvidia-persistenced by a udev rule.
STARTED = ("enabled", "enabled-runtime", "static", "indirect", "generated")
READINGS = 3
_PROPERTIES = "Id,LoadState,ActiveState,SubState,ActiveEnterTimestampMonotonic"
# open-gpu-kernel-modules, kernel-open/nvidia/nv-procfs.c
_MINOR = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Service:
    """A unit that belongs to the driver: whether systemd knows it, starts it at boot, runs it now.

    One that fails and is started again and again does not run. died: it ran since the boot and failed, as a daemon
    does whose driver's user space was exchanged.
    """

    known: bool = False
    enabled: bool = False
    active: bool = False
    died: bool = False


@dataclass(frozen=True)
class Observation:
    """What the loaded driver is, who holds it, and what an earlier run has left undone since the boot.

    modules:    {loaded module of the driver: use count}.
    dependants: {loaded module of the driver: loaded modules that use it}.
    opened:     {module: how often its devices are open}.
    others:     {module of OTHERS that is loaded or was: driver that it was built after, '' if before the one on disk,
                None if the running kernel has none on disk}.
    on_disk:    whether a driver is installed now: the running kernel's module, or user space.
    holders:    processes with a device of the driver open.
    services:   {unit: state} of SERVICES and of our own unit.
    nodes:      device nodes of the driver in /dev.
    minors:     those of the GPUs that the loaded driver has, () where it tells none.
    modprobe:   whether nvidia-modprobe is installed, or to come by a transaction that was stopped.
    files:      {path: text or None} of the files whose whole content is ours.
    originals:  {path: text before us or None}.
    unloaded:   modules that an earlier run unloaded since the boot and did not load again.
    stopped:    services that an earlier run stopped since the boot and did not start again.
    enabled:    services that an earlier run enabled.
    divided:    whether a boot makes a layout of MIG instances, which no reload of the driver leaves.
    undivided:  whether an earlier run unloaded the driver since the boot and did not have that layout made again.
    taken:      parameters that the loaded modules were loaded with and report in another value, as
                HostFacts.parameters_differ has them.
    guest:      whether the GPUs are virtual ones, whose driver's package has no persistence daemon.
    ours:       whether the driver came through us, by packages or by NVIDIA's installer: a boot loads it, whatever has
                been taken back already.
    gdr_node:   whether GDRCopy's node leads to its module, None where there is none.
    given_up:   whether a repair wants the loaded driver loaded anew.
    container:  a driver container that works here, and what one has left.
    """

    modules: Mapping[str, int] = field(default_factory=dict)
    dependants: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    opened: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[str, Optional[str]] = field(default_factory=dict)
    on_disk: bool = False
    holders: Tuple[Holder, ...] = ()
    services: Mapping[str, Service] = field(default_factory=dict)
    nodes: Tuple[str, ...] = ()
    minors: Tuple[int, ...] = ()
    modprobe: bool = False
    files: Mapping[str, Optional[str]] = field(default_factory=dict)
    originals: Mapping[str, Optional[str]] = field(default_factory=dict)
    unloaded: Tuple[str, ...] = ()
    stopped: Tuple[str, ...] = ()
    enabled: Tuple[str, ...] = ()
    divided: bool = False
    undivided: bool = False
    taken: Tuple[str, ...] = ()
    guest: bool = False
    ours: bool = False
    gdr_node: Optional[bool] = None
    given_up: bool = False
    container: DriverContainer = DriverContainer()

    def to_dict(self) -> Dict[str, Any]:
        # Process ids come and go without any meaning for the plan.
        holders = sorted({holder.unit or holder.pod or holder.command for holder in self.holders})
        return dict(asdict(self), holders=holders)

    def unexplained(self) -> Dict[str, int]:
        """{module: uses beyond the modules that depend on it and the open devices}: the kernel itself, as a console."""
        left = {name: count - len(self.dependants.get(name, ())) - self.opened.get(name, 0)
                for name, count in self.modules.items()}
        return {name: count for name, count in left.items() if count > 0}


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    memory = remembered(host, journal, "activation")
    use = _use(host)
    unloaded = tuple(memory.get(UNLOADED, ()))
    coming = _coming(journal)
    return replace(
        use,
        others={name: _built_after(host, facts, name) for name in OTHERS if name in use.modules or name in unloaded},
        on_disk=bool(facts.driver_installed or facts.driver_userspace),
        services=_with_coming(_services(host), coming),
        nodes=_nodes(host),
        minors=_minors(host),
        modprobe=host.which(MODPROBE_PACKAGE) is not None or MODPROBE_PACKAGE in coming,
        files={path: host.read(path) for path in (MODULES_FILE, UNIT_FILE)},
        originals={original.path: None if original.content is None else original.content.decode("utf-8", "replace")
                   for original in journal.originals("activation")},
        unloaded=unloaded,
        stopped=tuple(memory.get(STOPPED, ())),
        enabled=tuple(memory.get("enabled", ())),
        divided=host.exists(RESTORE_WANTED),
        undivided=bool(memory.get(UNDIVIDED)),
        taken=tuple(sorted({*memory.get(LOADED_WITH, ()), *(
            stale_parameters(host) if is_older_than_boot(host) else ())})),
        guest=bool(facts.vgpu_manager),
        ours=runfile.is_ours(journal) or any(
            "nvidia" in name and change.before is None for name, change in journal.packages("driver").items()),
        gdr_node=_leads_to(host, GDRDRV),
        given_up=is_given_up(host),
        container=read_driver_container(host),
    )


def _leads_to(host: Host, module: str) -> Optional[bool]:
    """Whether the node of a module's name has the number that the module has registered, None without a node."""
    there = host.stat("/dev/" + module)
    return None if there is None else stat.S_ISCHR(there.st_mode) and "%d %s" % (os.major(there.st_rdev), module) in [
        " ".join(line.split()) for line in (host.read("/proc/devices") or "").splitlines()]


def _use(host: Host) -> Observation:
    """Who uses the loaded modules. Programs come and go while it is read: what does not add up is read again, and then
    looked for among what processes have mapped."""
    for _reading in range(READINGS):
        modules = _modules(host)
        holders, opened = read_holders(host)
        observation = Observation(
            modules=modules, opened=opened,
            holders=tuple(holder for holder in holders if not only_asks(host, holder)),
            dependants={name: tuple(host.list("/sys/module/%s/holders" % name)) for name in modules})
        if not observation.unexplained():
            return observation
    return _with_mapped(host, observation)


def _with_mapped(host: Host, observation: Observation) -> Observation:
    """With those that have closed a device and have it mapped: each of these counts as an open one."""
    holders, opened = {holder.pid: holder for holder in observation.holders}, dict(observation.opened)
    for pid, devices in read_mapped(host).items():
        known = holders.get(pid) or process_of(host, pid)
        for device in set(devices) - set(known.devices):
            opened[module_of(device)] = opened.get(module_of(device), 0) + 1
        holders[pid] = replace(known, devices=tuple(sorted({*known.devices, *devices})))
    return replace(observation, holders=tuple(holders[pid] for pid in sorted(holders)), opened=opened)


def _built_after(host: Host, facts: HostFacts, name: str) -> Optional[str]:
    path = module_file(host, facts.kernel, name)
    made, driver = host.stat(path) if path else None, installed_module(host, facts.kernel)
    if made is None:
        return None
    there = host.stat(driver.path) if driver.path else None
    return driver.version if there is not None and made.st_mtime_ns >= there.st_mtime_ns else ""


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


def _minors(host: Host) -> Tuple[int, ...]:
    """Minors of the GPUs' nodes: not 0 to n-1 where a GPU before them was taken from the driver while it was loaded."""
    texts = [host.read(path) or "" for path in host.glob("/proc/driver/nvidia/gpus/*/information")]
    return tuple(sorted(int(minor) for text in texts for minor in _MINOR.findall(text)))


def _coming(journal: Journal) -> FrozenSet[str]:
    """What a transaction of ours that was stopped was to bring: the driver's plan finishes it before ours begins."""
    return frozenset(name for event in journal.unfinished("driver") if event["step"]["action"] == PACKAGES_INSTALL
                     for name, version in event["step"]["change"]["after"].items() if version is not None)


def _with_coming(services: Mapping[str, Service], coming: FrozenSet[str]) -> Dict[str, Service]:
    """Units as the packages that are to come leave them."""
    found = dict(services)
    if PERSISTENCED_PACKAGE in coming and not found.get(PERSISTENCED, Service()).known:
        found[PERSISTENCED] = Service(known=True, enabled=True)
    return found


def _services(host: Host) -> Dict[str, Service]:
    """States of all units. Which are enabled is asked apart: 'show' repeats what the manager knew at its last reload,
    and a unit file that was written since then it may not know at all."""
    names = list(SERVICES) + [UNIT]
    done = host.run(["systemctl", "show", "--property", _PROPERTIES] + names, check=False)
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
            active=pairs.get("ActiveState") in ("active", "activating", "reloading") and not _fails(pairs),
            died=_fails(pairs) and pairs.get("ActiveEnterTimestampMonotonic", "0") != "0",
        ) for pairs in blocks if pairs.get("Id") in names
    }


def _fails(pairs: Mapping[str, str]) -> bool:
    return pairs.get("ActiveState") == "failed" or pairs.get("SubState") == "auto-restart"


def _enabled(host: Host, units: List[str]) -> Tuple[str, ...]:
    """Of units that there are, those that a boot starts. A unit whose file is gone gets no line in the answer."""
    lines = host.run(["systemctl", "is-enabled", *units], check=False).stdout.split() if units else []
    if len(lines) != len(units):
        return tuple(unit for unit in units if len(units) > 1 and _enabled(host, [unit]))
    return tuple(unit for unit, state in zip(units, lines) if state in STARTED)
