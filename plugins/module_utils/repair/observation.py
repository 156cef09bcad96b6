# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What was found of this host, what has been tried, and what a remedy takes. Nothing is looked for here: a look at the
host's health is made before."""
from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, Mapping, Tuple

from ..core.errors import GpuOpsError
from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.refusal import Refusal
from ..hardware.loaded import is_given_up, load_of
from ..hardware.nvml import reading_of
from ..hardware.reset import fabric_runs, read_all, read_silent, unfinished_steps
from ..hardware.reset_plan import Resettable
from ..health.catalogue import MENDED
from ..health.findings import Finding
from ..health.model import State
from ..health.policy import AGENTS
from ..health.state import is_kept, kept
from .attempts import PATH, Attempt, attempts
from .policy import ABSENT, IGNORED, NAME, Policy


@dataclass(frozen=True)
class Observation:
    """What there is to be mended, and with what.

    findings:    open ones that something has to be done about.
    boot:        the boot that is. looked_in: the boot of the last look, '' where nobody has looked.
    load:        the load of the driver that is, '' without one. looked_at: that of the last look.
    given_up:    whether that load is to be replaced, which is said in /run alone.
    unknown:     {what cannot be told of the host's health: why}.
    attempts:    what has been tried, oldest first. refusals: why that cannot be read.
    has_record:  whether anything was tried. has_findings: whether a look is kept that is of nobody else: an agent takes
                 back what it looks at (only read when it is taken back).
    gpus:        all GPUs of the host for its driver, as a reset takes them; () where nothing needs one, and where the
                 driver answers for none.
    fabric_runs: whether the fabric manager does.
    units:       services that the host's GPUs wait for.
    unfinished:  steps that bring back what a reset of a run that was killed has stopped and lost.
    now:         seconds since 1970.
    """

    findings: Tuple[Finding, ...] = ()
    boot: str = ""
    looked_in: str = ""
    load: str = ""
    looked_at: str = ""
    given_up: bool = False
    unknown: Mapping[str, str] = field(default_factory=dict)
    attempts: Tuple[Attempt, ...] = ()
    refusals: Tuple[Refusal, ...] = ()
    has_record: bool = False
    has_findings: bool = False
    gpus: Tuple[Resettable, ...] = ()
    fabric_runs: bool = False
    units: Tuple[str, ...] = ()
    unfinished: Tuple[Step, ...] = ()
    now: float = 0.0

    def to_dict(self) -> Dict[str, Any]:
        # What changes with every look, and who has a GPU open, says nothing of what is to be done
        told = asdict(replace(self, findings=(), refusals=(), unfinished=(), now=0.0,
                              gpus=tuple(replace(gpu, holders=()) for gpu in self.gpus)))
        return dict(told, findings=sorted((each.key, each.kind, each.remedy, each.mended) for each in self.findings),
                    refusals=[refusal.to_dict() for refusal in self.refusals],
                    unfinished=[step.to_dict() for step in self.unfinished])


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    if policy.state == IGNORED:
        return Observation()
    if policy.state == ABSENT:
        return Observation(has_record=host.exists(PATH),
                           has_findings=is_kept(host) and not host.exists(AGENTS))
    state = kept(host)
    seen = Observation(
        findings=tuple(each for _key, each in sorted(state.findings.items()) if each.kind in MENDED),
        boot=host.boot(), looked_in=state.boot, load=load_of(host), looked_at=state.load,
        given_up=is_given_up(host),
        unknown={what: each.text for what, each in state.unknown.items()},
        units=tuple(sorted(state.services)), unfinished=unfinished_steps(host, journal, NAME), now=time.time())
    try:
        seen = replace(seen, attempts=attempts(host), has_record=host.exists(PATH))
    except GpuOpsError as error:
        return replace(seen, refusals=tuple(error.refusals), has_record=True)
    if all(each.mended for each in seen.findings) or not facts.driver_loaded or facts.hung:
        return seen
    gpus = _gpus(host, journal, facts, state)
    return replace(seen, gpus=gpus, fabric_runs=any(gpu.joined for gpu in gpus) and fabric_runs(host))


def _gpus(host: Host, journal: Journal, facts: HostFacts, state: State) -> Tuple[Resettable, ...]:
    reading = reading_of(facts.driver_userspace, facts.driver_loaded)
    if reading.error:
        return ()
    answering = {gpu.address: gpu for gpu in read_all(host, journal, reading.gpus)[1]}
    uuids = {known.address: known.uuid for known in state.gpus.values() if known.address}
    return tuple(answering.get(gpu.address) or read_silent(host, uuids.get(gpu.address, ""), gpu.address)
                 for gpu in facts.gpus)
