# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Hosts with plans, as data: what the controller has noted of each, and the plans that they have in common."""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Requirement, Step, digest
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.fleet.alike import common
from ansible_collections.gpuops.nvidia.plugins.module_utils.fleet.model import Fleet, Note, Standing, fleet_of

UPGRADE = Plan(steps=(
    Step("driver", "packages.download", "driver 595.91.07", "It is fetched beside running work.", change={
        "before": {}, "after": {"nvidia-open": "595.91.07-1"}}),
    Step("driver", "packages.install", "driver 595.91.07", "580.178.04 is installed.", Disruption.driver_reload,
         {"before": {"nvidia-open": "580.178.04-1"}, "after": {"nvidia-open": "595.91.07-1"}}),
    Step("runtime", "file.write", "/etc/containerd/conf.d/nvidia.toml", "The handler is not there.",
         Disruption.runtime_restart, {"before": None, "after": "[plugins]\nimports = []\n"}),
))
REBOOTING = replace(UPGRADE, requirements=(
    Requirement("driver", "reboot", "kernel 6.1.0-56", "It is not running.", Disruption.reboot),))
NO_VERSION = Refusal("driver.version_not_offered", "no driver 595.91.07 in the repository", "driver 595.91.07",
                     "set `gpu_driver_version` to one of those offered", "gpu_driver_version")
BUSY = Refusal("mig.gpu_in_use", "GPU 0000:17:00.0 is used by process 4711", "a GPU that nobody uses", "end it")


class Noted:
    """Notes of hosts, and what their plans have in common."""

    def __init__(self) -> None:
        self.notes: List[Note] = []
        self.plans: Dict[str, Dict[str, Any]] = {}

    def add(self, host: str, plan: Plan, put_off: Sequence[str] = (), **more: Any) -> "Noted":
        own = replace(plan, host=host)
        found = common(own.to_dict(), put_off, more.pop("unfinished", ()))
        key = digest(found)
        self.plans[key] = found
        standing = Standing.refused if plan.refusals else Standing.planned
        promise = "" if plan.refusals else digest(own.promise())
        self.notes.append(Note(host, standing, key, promise, **more))
        return self

    def without(self, host: str, standing: Standing, **more: Any) -> "Noted":
        self.notes.append(Note(host, standing, **more))
        return self

    @property
    def hosts(self) -> List[str]:
        return [note.host for note in self.notes]

    def fleet(self, *others: str, turns: Sequence[Mapping[str, Any]] = (), **more: Any) -> Fleet:
        """turns: of one cluster."""
        rollouts = [{"rollout": {"units": turns}}] if turns else []
        return fleet_of([*self.hosts, *others], self.notes, self.plans, **{"rollouts": rollouts, **more})


def numbered(first: int, last: int, name: str = "gpu-%03d") -> Tuple[str, ...]:
    return tuple(name % number for number in range(first, last + 1))


def of_500() -> Noted:
    """500 hosts of several kinds, as the issue of a fleet has them."""
    noted = Noted()
    for host in numbered(1, 412):
        noted.add(host, Plan(notes=("Its BIOS is old.",) if host < "gpu-040" else ()))
    for host in numbered(413, 480):
        noted.add(host, UPGRADE, seconds=600 + int(host[-3:]) % 60, pods=("team/job-%s" % host,))
    for host in numbered(481, 487):
        noted.add(host, REBOOTING, put_off=[REBOOTING.requirements[0].id])
    for host in numbered(488, 492):
        noted.add(host, Plan(refusals=(NO_VERSION,)))
    for host in numbered(493, 495):
        busy = replace(BUSY, found=BUSY.found.replace("4711", host[-3:]))
        noted.add(host, Plan(refusals=(busy,)))
    for host in numbered(496, 498):
        noted.without(host, Standing.unreachable, why="ssh: connect to host %s port 22: No route" % host)
    noted.without("gpu-499", Standing.left_out).without("gpu-500", Standing.failed, refusals=(BUSY,))
    return noted
