# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there of IMEX: its daemon, its files, its channels, and whether it is ready."""
from __future__ import annotations

import os
import re
import stat
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, Mapping, Optional, Tuple

from ..core import assignments, daemons
from ..core.daemons import Daemon
from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import restore_steps
from ..hardware.boot import loaded_kind
from ..hardware.nvml import reading_of
from .catalogue import (
    CHANNEL0,
    CHANNEL_DEVICE,
    CONFIGURATION,
    CONTROL,
    COUNT_PARAMETER,
    MODULE_FILE,
    NODES_FILE,
    PARAMETERS_FILE,
    PROGRAM,
    READY,
    UNIT,
)
from .policy import HOST, Policy

NAME = "imex"
# Of the journal's notes, beside those of core.daemons: that we masked the unit, and that we disabled it
MASKED, DISABLED = "masked", "disabled"
READY_LIMIT = 30.0


@dataclass(frozen=True)
class Observation:
    """What there is of IMEX; nothing is asked on a board that is of no rack.

    daemon:      its unit and program.
    outdated:    whether the daemon that runs does not know what we wrote into its files.
    ready:       what the daemon says of itself, '' where it does not run.
    nodes:       text of its node list, None without one.
    settings:    {key: value} in effect of its configuration file, None without one.
    keys:        keys that the file has.
    noted:       what is remembered of our changes; MASKED is 'enabled' or 'disabled', as the unit was before.
    options:     text of our file of the driver's options, None without one.
    channel0:    whether its node leads to the loaded driver.
    channels:    number of channels of the loaded driver, '' where it does not tell.
    loaded:      the driver that answered for the GPUs, and its kernel module, '' without one.
    cliques:     cluster and clique of its GPUs.
    registering: whether a GPU is not registered with its fabric yet, and may be given a clique.
    error:       why no GPU answered, '' where they did.
    restore:     steps that put back our files (only read when they are taken back, or not wanted in this mode).
    """

    daemon: Daemon = Daemon()
    outdated: bool = False
    ready: str = ""
    nodes: Optional[str] = None
    settings: Optional[Mapping[str, str]] = None
    keys: Tuple[str, ...] = ()
    noted: Mapping[str, Any] = field(default_factory=dict)
    options: Optional[str] = None
    channel0: bool = False
    channels: str = ""
    loaded: Tuple[str, str] = ("", "")
    cliques: Tuple[str, ...] = ()
    registering: bool = False
    error: str = ""
    restore: Tuple[Step, ...] = ()

    def to_dict(self) -> Dict[str, Any]:
        return dict(asdict(self), restore=[step.to_dict() for step in self.restore])


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    memory = journal.recall(NAME)
    absent = policy.state == "absent"
    if not (memory or journal.originals(NAME) if absent else facts.imex):
        return Observation()
    text = host.read(CONFIGURATION)
    daemon = daemons.read_daemon(host, UNIT, PROGRAM)
    seen = Observation(
        daemon=daemon,
        outdated=daemons.is_outdated(daemon, memory),
        nodes=host.read(NODES_FILE),
        settings=None if text is None else assignments.values(text),
        keys=() if text is None else assignments.keys(text),
        noted=memory,
        options=host.read(MODULE_FILE),
        restore=tuple(restore_steps(NAME, host, journal)),
    )
    if absent or policy.mode != HOST:
        return seen
    reading = reading_of(facts.driver_userspace, facts.driver_loaded)
    return replace(
        seen,
        ready=readiness(host) if daemon.active else "",
        channel0=major_of_channels(host) is not None and _leads_to_driver(host),
        channels=_parameter(host, COUNT_PARAMETER),
        loaded=(facts.driver_loaded, loaded_kind(host)) if facts.driver_loaded else ("", ""),
        cliques=tuple(sorted({"%s.%d" % (gpu.fabric_cluster, gpu.fabric_clique)
                              for gpu in reading.gpus if gpu.fabric_cluster})),
        registering=any(gpu.waits_for_fabric for gpu in reading.gpus),
        error=reading.error,
    )


def readiness(host: Host) -> str:
    """READY, or what the daemon says in its place."""
    done = host.run([CONTROL, "-q"], check=False, timeout=READY_LIMIT)
    words = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return READY if READY in [word.strip() for word in words] else "; ".join(words) or "no answer"


def major_of_channels(host: Host) -> Optional[int]:
    """The major that the loaded driver was given for channels, None where it has none."""
    found = re.search(r"^\s*(\d+) %s$" % CHANNEL_DEVICE, host.read("/proc/devices") or "", re.MULTILINE)
    return int(found.group(1)) if found else None


def _leads_to_driver(host: Host) -> bool:
    node = host.stat(CHANNEL0)
    return node is not None and stat.S_ISCHR(node.st_mode) and os.major(node.st_rdev) == major_of_channels(host)


def _parameter(host: Host, name: str) -> str:
    found = re.search(r"^%s:\s*(\d+)" % name, host.read(PARAMETERS_FILE) or "", re.MULTILINE)
    return found.group(1) if found else ""
