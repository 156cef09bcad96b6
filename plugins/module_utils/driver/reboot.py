# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A reboot is planned on the host and done by the controller: no module can outlive it."""
from __future__ import annotations

from typing import Any, Tuple

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Disruption, Step

ACTION = "host.reboot"


def reboot_step(
    capability: str, subject: str, why: str, before: Any, after: Any, requires: Tuple[str, ...] = ()
) -> Step:
    return Step(capability, ACTION, subject, why, Disruption.reboot, {"before": before, "after": after}, after=requires)


def refuse_to_reboot(host: Host, journal: Journal, step: Step) -> None:
    raise GpuOpsError(
        found="only a reboot brings this about: %s" % step.why,
        wanted="allowed_disruption below reboot, where the step is put off and reboot_required is reported",
        remedy="reboot the host (ansible.builtin.reboot) and run the module again; the collection's roles do both",
    )
