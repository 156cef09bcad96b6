# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a host is watched. Pure."""
from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, List, Mapping

from ..core.errors import GpuOpsError
from ..core.refusal import Refusal
from .catalogue import Overrides, overrides_of

# Where an agent has it, with all else that is wanted of the host: what is kept of the health of such a host is the
# agent's
AGENTS = "/etc/gpuops/policy.json"


@dataclass(frozen=True)
class HealthPolicy:
    """Seconds, where nothing else is said.

    overrides:            what numbers are to mean otherwise, see catalogue.overrides_of().
    rounds:               in how many rounds one after the other a look has to fail before that is a finding.
    warning_seconds:      without repetition, after which a warning ends.
    suspicion_processes:  whose errors on one GPU make it suspect.
    suspicion_seconds:    in which they have to come.
    old_seconds:          after which what nobody heard when it was said is a warning: it may have been mended since.
    fabric_seconds:       that GPUs may wait for their fabric, its service for its start, and it for its recovery.
    silence, patience:    that one call of NVML, and all of a round, may take.
    stale_seconds:        after which what was kept tells nothing any more.
    round_seconds:        between two rounds of who watches all the time.
    nvml_seconds:         after which such a round asks NVML too, where nothing else is a reason to: it wakes GPUs.
    """

    overrides: Overrides = field(default_factory=dict)
    rounds: int = 3
    warning_seconds: int = 86400
    suspicion_processes: int = 2
    suspicion_seconds: int = 86400
    old_seconds: int = 86400
    fabric_seconds: int = 300
    silence: int = 60
    patience: int = 120
    stale_seconds: int = 300
    round_seconds: int = 60
    nvml_seconds: int = 240


def policy_of(given: Any) -> HealthPolicy:
    """Of what a user says; the rest is as above. Raises GpuOpsError with every slip."""
    if not isinstance(given, Mapping):
        raise GpuOpsError.because([_malformed(repr(given), "options by their names")])
    known = {each.name for each in fields(HealthPolicy)}
    refusals: List[Refusal] = []
    for name, value in given.items():
        if name not in known:
            refusals.append(_malformed("'%s'" % name, "one of %s" % ", ".join(sorted(known))))
        elif name != "overrides" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            refusals.append(_malformed("%s: %r" % (name, value), "a whole number of at least 1"))
    try:
        overrides = overrides_of(given.get("overrides", {}))
    except GpuOpsError as error:
        refusals += error.refusals
    if refusals:
        raise GpuOpsError.because(refusals)
    policy = HealthPolicy(**dict(given, overrides=overrides))
    for name in ("round_seconds", "nvml_seconds"):
        # What is asked for more seldom than it goes stale is never known
        if getattr(policy, name) >= policy.stale_seconds:
            raise GpuOpsError.because([_malformed("%s: %d" % (name, getattr(policy, name)),
                                                  "less than stale_seconds (%d)" % policy.stale_seconds)])
    return policy


def _malformed(found: str, wanted: str) -> Refusal:
    return Refusal("health.policy_not_understood", "in how health is watched: %s" % found, wanted,
                   "correct it; `docs/health.md` has what there is")
