# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there of the fabric: its daemon, its configuration, its kernel modules, and what the GPUs say of it."""
from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, Mapping, Optional, Tuple

from ..core import assignments, daemons
from ..core.daemons import Daemon
from ..core.facts import FABRIC_MANAGER_NVLSM, HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import restore_steps
from ..hardware.boot import loaded_kind
from ..hardware.fabric_health import told_health
from ..hardware.nvml import reading_of
from .catalogue import CONFIGURATION, INFINIBAND, MODULES_FILE, PORT_STATUS, PROGRAM, SUBNET_MANAGER, UNIT
from .policy import Policy

NAME = "fabric"
# Of the journal's notes, beside those of core.daemons and core.assignments: the driver, with its kernel module, by
# which every GPU was registered when we last waited for them, PENDING between a start of ours and that
REGISTERED = "registered"
PENDING = ("none", "")
LOADED, LOADABLE, MISSING = "loaded", "loadable", "missing"


@dataclass(frozen=True)
class Observation:
    """What there is of the fabric manager; nothing is asked on a board that needs none.

    daemon:    its unit and program.
    outdated:  whether the daemon that runs does not know what we wrote into its configuration.
    settings:  {key: value} in effect of its configuration file, None without one.
    keys:      keys that the file has.
    noted:     what is remembered of our changes.
    programs:  {what the subnet manager of NVLink 5 needs: whether it is installed}.
    modules:   {kernel module that NVLink 5 needs: LOADED, LOADABLE or MISSING}.
    files:     {path: text or None} of our own files.
    kernel:    release of the running kernel, for which modules was asked.
    loaded:    the driver that answered for the GPUs, and its kernel module, '' without one.
    waiting:   GPUs that are not registered, each with its state.
    degraded:  GPUs whose fabric is not healthy, each with what is wrong and what to do.
    restore:   steps that put back our files (only read when they are taken back).
    """

    daemon: Daemon = Daemon()
    outdated: bool = False
    settings: Optional[Mapping[str, str]] = None
    keys: Tuple[str, ...] = ()
    noted: Mapping[str, Any] = field(default_factory=dict)
    programs: Mapping[str, bool] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Optional[str]] = field(default_factory=dict)
    kernel: str = ""
    loaded: Tuple[str, str] = ("", "")
    waiting: Tuple[str, ...] = ()
    degraded: Tuple[Tuple[str, str], ...] = ()
    restore: Tuple[Step, ...] = ()

    def to_dict(self) -> Dict[str, Any]:
        return dict(asdict(self), restore=[step.to_dict() for step in self.restore])


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    memory = journal.recall(NAME)
    absent = policy.state == "absent"
    if absent and not memory and not journal.originals(NAME):
        return Observation()
    if not absent and not (policy.managed and (facts.fabric or facts.imex)):
        return Observation()
    if not absent and not facts.fabric:
        return _of_gpus(host, facts, Observation(noted=memory))
    text = host.read(CONFIGURATION)
    daemon = daemons.read_daemon(host, UNIT, PROGRAM)
    seen = Observation(
        daemon=daemon,
        outdated=daemons.is_outdated(daemon, memory),
        settings=None if text is None else assignments.values(text),
        keys=() if text is None else assignments.keys(text),
        noted=memory,
        kernel=facts.kernel,
    )
    if absent:
        return replace(seen, restore=tuple(restore_steps(NAME, host, journal)))
    return _of_board(host, facts, seen)


def _of_gpus(host: Host, facts: HostFacts, seen: Observation) -> Observation:
    reading = reading_of(facts.driver_userspace, facts.driver_loaded)
    reporting = [gpu for gpu in reading.gpus if gpu.reports_fabric]
    return replace(
        seen,
        loaded=(facts.driver_loaded, loaded_kind(host)) if facts.driver_loaded else ("", ""),
        waiting=tuple(gpu.told_registration() for gpu in reporting if gpu.waits_for_fabric),
        degraded=tuple(told_health(gpu for gpu in reporting if not gpu.waits_for_fabric)),
    )


def _of_board(host: Host, facts: HostFacts, seen: Observation) -> Observation:
    seen = _of_gpus(host, facts, seen)
    if facts.fabric != FABRIC_MANAGER_NVLSM:
        return seen
    return replace(
        seen,
        files={MODULES_FILE: host.read(MODULES_FILE)},
        programs={"nvlsm": host.exists(SUBNET_MANAGER), PORT_STATUS: host.which(PORT_STATUS) is not None},
        modules={name: _module(host, name) for name in INFINIBAND},
    )


def _module(host: Host, name: str) -> str:
    """modprobe answers for modules that are built into the kernel too."""
    if host.exists("/sys/module/" + name):
        return LOADED
    return LOADABLE if host.run(["modprobe", "--dry-run", name], check=False).rc == 0 else MISSING
