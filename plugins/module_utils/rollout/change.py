# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a host's plan does, in short, and without the host's name: hosts that are changed alike have the same. Pure."""
from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Dict, Iterable, Mapping, Sequence, Union

from ..core.facts import HostFacts
from ..core.plan import Plan, Requirement, Step, digest

# Daemons that start containers, by their units: one is at work
RUNTIMES = ("containerd", "crio", "docker")
# Before a capability that has nothing to do
IDLE = "-"
# What is asked of this one is what comes next, and not its options: where a remedy has failed, another one, or a second
# try that was written down, is another change. Runs of this aim do nothing else
REPAIR = "repair"


@dataclass(frozen=True)
class Change:
    """What hosts have in common that are changed alike. '' is none or unknown.

    digest:      of all that is to be done, '' nothing.
    policy:      what is asked, by capability: 'driver=0123456789abcdef -mig=89abcdef01234567', with a '-' before those
                 that have nothing to do. So it is known again when part of it is done: see is_of_one_policy().
    board:       the GPUs, as '8 x 10de:2330'.
    system:      distribution and architecture.
    runtime:     what starts containers.
    driver_from: its version, before.
    driver_to:   the same afterwards, and where it stays.
    clique:      its IMEX domain, where its board is of a rack.
    """

    digest: str = ""
    policy: str = ""
    board: str = ""
    system: str = ""
    runtime: str = ""
    driver_from: str = ""
    driver_to: str = ""
    clique: str = ""

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)


def change_of(plan: Plan, before: HostFacts, after: HostFacts, runtime: str, cliques: Iterable[str]) -> Change:
    """before, after: the facts that the plan was made with, and those that it leaves. cliques: those of its GPUs."""
    parts: Sequence[Union[Step, Requirement]] = (*plan.steps, *plan.requirements)
    concerned = {part.capability for part in parts}
    promise: Mapping[str, Any] = {
        name: value for name, value in plan.promise().items() if name in ("schema", "steps", "requirements")}
    asked = dict(plan.policies)
    if REPAIR in concerned:
        asked[REPAIR] = digest([part.promise() for part in parts if part.capability == REPAIR])
    boards = Counter("10de:%s" % gpu.device_id for gpu in before.gpus)
    return Change(
        digest=digest(promise) if parts else "",
        policy=" ".join("%s%s=%s" % ("" if name in concerned else IDLE, name, value)
                        for name, value in sorted(asked.items())),
        board=", ".join("%d x %s" % (number, name) for name, number in sorted(boards.items())),
        system=" ".join(filter(None, ("-".join(filter(None, (before.os_id, before.os_version))), before.arch))),
        runtime=runtime,
        driver_from=before.driver_loaded or before.driver_installed,
        driver_to=after.driver_boots or after.driver_installed,
        clique=next(iter(sorted(cliques)), "") if before.imex else "",
    )


def concerned_by(policy: str) -> str:
    """What a policy asks of the capabilities that have something to do; '' where there is none."""
    return " ".join(part for part in policy.split() if not part.startswith(IDLE))


def asked_by(policy: str) -> str:
    """What a policy asks, whatever is done of it."""
    return " ".join(part[len(IDLE):] if part.startswith(IDLE) else part for part in policy.split())


def repairs(policy: str) -> bool:
    """Whether it mends what is sick."""
    return any(part.partition("=")[0] == REPAIR for part in concerned_by(policy).split())


def is_of_one_policy(one: str, other: str) -> bool:
    """Whether the same is asked of every capability that has something to do in one of the two. What a change that
    ended half way, or was rolled back, has left concerns fewer of them, or others, and is of its policy."""
    concerned = {part.partition("=")[0] for policy in (one, other) for part in concerned_by(policy).split()}
    asked, before = (dict(part.partition("=")[::2] for part in asked_by(policy).split()) for policy in (one, other))
    return all(asked.get(name) == before.get(name) for name in concerned)


def runtime_of(services: Mapping[str, str]) -> str:
    """services: {unit: systemd's active state}."""
    return next((name for name in RUNTIMES if services.get(name + ".service") == "active"), "")
