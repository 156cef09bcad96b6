# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there of the license of virtual GPUs: its service, its files, and what the GPUs say."""
from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, Mapping, Optional, Tuple

from ..core import assignments, daemons
from ..core.daemons import Daemon
from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import restore_steps
from ..hardware.nvml import LICENSED, NvmlGpu, reading_of
from .catalogue import CONFIGURATION, FEATURE, TOKEN_FILE, TOKEN_PATTERN, UNIT
from .policy import Policy, named

NAME = "vgpu"
TOKEN_MODE = 0o600


@dataclass(frozen=True)
class Observation:
    """What there is of the license; nothing is asked of a host whose GPUs are whole ones.

    daemon:     the service that fetches the license.
    outdated:   whether the one that runs does not know what we wrote into its files.
    text:       of its configuration file, None without one.
    ours:       whether that file is ours whole, as there was none before us.
    token:      what stands for our token, '' without one, and where others may read it.
    others:     other tokens that the service would take.
    noted:      what is remembered of our changes.
    loaded:     the driver that answered for the GPUs, '' without one.
    unlicensed: GPUs that say that they have no license.
    licensed:   how many say that they have one.
    error:      why no GPU answered, '' where they did.
    restore:    steps that put back our files (only read when they are taken back).
    """

    daemon: Daemon = Daemon()
    outdated: bool = False
    text: Optional[str] = None
    ours: bool = False
    token: str = ""
    others: Tuple[str, ...] = ()
    noted: Mapping[str, Any] = field(default_factory=dict)
    loaded: str = ""
    unlicensed: Tuple[str, ...] = ()
    licensed: int = 0
    error: str = ""
    restore: Tuple[Step, ...] = ()

    def to_dict(self) -> Dict[str, Any]:
        return dict(asdict(self), restore=[step.to_dict() for step in self.restore])

    @property
    def settings(self) -> Mapping[str, str]:
        """{key: value} in effect of the configuration file."""
        return assignments.values(self.text or "")


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    memory = journal.recall(NAME)
    originals = {original.path for original in journal.originals(NAME)}
    absent = policy.state == "absent"
    if not (memory or originals if absent else facts.vgpu_manager):
        return Observation()
    daemon = daemons.read_unit(host, UNIT)
    seen = Observation(
        daemon=daemon,
        outdated=daemons.is_outdated(daemon, memory),
        text=host.read(CONFIGURATION),
        ours=CONFIGURATION in originals,
        token=_token(host),
        others=tuple(path for path in host.glob(TOKEN_PATTERN) if path != TOKEN_FILE),
        noted=memory,
    )
    if absent:
        return replace(seen, restore=tuple(
            step if step.subject != TOKEN_FILE else replace(step, change={"before": "(a token)\n", "after": None})
            for step in restore_steps(NAME, host, journal)))
    reading = reading_of(facts.driver_userspace, facts.driver_loaded)
    return replace(
        seen,
        loaded=facts.driver_loaded,
        unlicensed=tuple(gpu.named() for gpu in reading.gpus if not _is_licensed(gpu)),
        licensed=sum(map(_is_licensed, reading.gpus)),
        error=reading.error,
    )


def asks_for_license(host: Host) -> bool:
    """Whether the service that fetches licenses is to ask for one, as its file is now."""
    return assignments.values(host.read(CONFIGURATION) or "").get(FEATURE) != "0"


def _token(host: Host) -> str:
    text = host.read(TOKEN_FILE)
    return named(text) if text is not None and host.mode(TOKEN_FILE) == TOKEN_MODE else ""


def _is_licensed(gpu: NvmlGpu) -> bool:
    return gpu.license.get("state") == LICENSED
