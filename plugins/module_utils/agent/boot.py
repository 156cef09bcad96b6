# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A unit that has a host bring itself to its policy at every boot, and prove it, before the kubelet takes pods. Pure.

A kubelet registers its taints when it creates its Node and not later (kubelet_node_status.go): a node that is known
comes back from a boot without its start-up taint. So the kubelet itself is held: it requires this unit, and whoever
starts it later has the unit run once more. Where the kubelet brings its container runtime (k3s, RKE2, k0s, MicroK8s)
there is nothing to be validated before it: it is not held, and the unit comes after it.
"""
from __future__ import annotations

from typing import Any, Collection, Dict, Mapping, Optional, Tuple

from ..core.runtimes import KNOWN_RUNTIMES
from ..core.startup import BOOT_UNIT
from ..core.steps import managed

NONE, REPORT, HOLD = MODES = ("none", "report", "hold")

UNIT = BOOT_UNIT
UNIT_FILE = "/etc/systemd/system/" + UNIT
WANTS = "/etc/systemd/system/multi-user.target.wants/" + UNIT
KUBELET = "kubelet.service"
DROP_IN = "/etc/systemd/system/%s.d/60-gpuops-nvidia.conf" % KUBELET
FILES = (UNIT_FILE, DROP_IN)

# What begins with its own container runtime
WITH_RUNTIME: Tuple[str, ...] = tuple(
    unit for runtime in KNOWN_RUNTIMES if runtime.distribution for unit in runtime.units)
UNITS = (KUBELET, *WITH_RUNTIME)
# Not the toolkit's nvidia-cdi-refresh.service: it comes after multi-user.target, and so after this one
_AFTER = (
    "network-online.target", "time-sync.target", "systemd-modules-load.service", "nvidia-persistenced.service",
    "nvidia-fabricmanager.service", "nvidia-imex.service", "gpuops-nvidia-devices.service",
    "gpuops-nvidia-settings.service", "gpuops-nvidia-mig.service", "gpuops-nvidia-cdi.service",
    *(unit for runtime in KNOWN_RUNTIMES for unit in runtime.units))
_BEFORE = ("nvidia-dcgm.service", "dcgm-exporter.service")
# Of the unit's time, what the last try has: a repository that does not answer yet is asked again until then
_LAST_TRY_SECONDS = 300


def files(mode: str, command: str, timeout: int, tells: bool = False) -> Dict[str, Optional[str]]:
    """{path: text, None where there is to be none}, in the order in which they are written or removed: no kubelet is to
    require a unit that is not there. command: path of the command; timeout: seconds; tells: whether the host tells of
    itself on its Node."""
    unit = {UNIT_FILE: None if mode == NONE else _unit(command, timeout, mode == HOLD, tells)}
    return {**unit, DROP_IN: _drop_in()} if mode == HOLD else {DROP_IN: None, **unit}


def not_held(mode: str, there: Mapping[str, bool]) -> Tuple[str, ...]:
    """Notes on what would have to be held and is not. there: whether the host has each of UNITS."""
    if mode != HOLD:
        return ()
    units = [unit for unit in WITH_RUNTIME if there.get(unit)]
    notes = ["%s is not held: its container runtime begins with it, and can be validated only then." % unit
             for unit in units]
    if not units and not there.get(KUBELET):
        notes.append("There is no %s yet: a kubelet of another name is not held." % KUBELET)
    return tuple(notes)


def reports(mode: Any, started: Collection[str]) -> bool:
    """Whether a host is validated all the same where a kubelet was quicker. One that is held is not kept from another
    start; the others wait for nobody.

    started: those of UNITS that have run since the boot.
    """
    return mode == REPORT or (mode == HOLD and KUBELET not in started)


def _unit(command: str, timeout: int, holds: bool, tells: bool) -> str:
    return managed("\n".join([
        "[Unit]",
        "Description=NVIDIA GPUs of this host, as its policy has them",
        "Wants=network-online.target",
        "After=" + " ".join(_AFTER),
        "Before=" + " ".join((KUBELET, *_BEFORE) if holds else _BEFORE),
        # Who restarts it would stop the kubelet with it
        "RefuseManualStop=yes",
        "",
        "[Service]",
        "Type=oneshot",
        "RemainAfterExit=yes",
        "ExecStart=%s boot --retry-seconds %d" % (command, max(0, timeout - _LAST_TRY_SECONDS)),
        # The command tells by itself how it ends, unless its time is over
        *(["ExecStopPost=-%s node" % command] if tells else []),
        # Who stands before the machine is to see why it takes no pods
        "StandardOutput=journal+console",
        "StandardError=journal+console",
        "TimeoutStartSec=%ds" % timeout,
        # A package manager that is at work when the time is over is left to end
        "KillMode=process",
        # A process that hangs in the driver outlives every signal; and what is told last may take twenty seconds
        "TimeoutStopSec=45s",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]) + "\n")


def _drop_in() -> str:
    return managed("[Unit]\nRequires=%s\nAfter=%s\n" % (UNIT, UNIT))
