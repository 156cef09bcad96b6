# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From what a host and its Node say, and what the record knows of it, to a host of a rollout. Pure."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, FrozenSet, Iterable, Mapping, Optional, Tuple

from ..core.plan import Disruption, canonical, digest
from ..core.refusal import Refusal
from .budget import FAILED, IsAlive, NodeState, Pool, Slot, counts_now, failed_by, is_no_repair, unmended
from .change import asked_by, concerned_by, repairs
from .model import Host, Kind
from .planner import interrupted
from .policy import Policy

# Of a Change what makes a kind
_OF_KIND = ("board", "system", "runtime", "driver_from", "driver_to")


@dataclass(frozen=True)
class Known:
    """What a controller knows of a host before its rollout.

    node:      name of its Node; '' where it is to be in no cluster.
    planned:   what gpu_plan has returned of it; None where it could not be asked.
    groups:    its host groups.
    domain:    its failure domain, where the inventory says so; '' leaves it to the Node.
    job_group: hosts that work on one job, where that is known.
    jobs:      names of those that have pods with GPUs on it.
    """

    name: str
    node: str = ""
    planned: Optional[Mapping[str, Any]] = None
    groups: Tuple[str, ...] = ()
    domain: str = ""
    job_group: str = ""
    jobs: FrozenSet[str] = field(default_factory=frozenset)


def host_of(
    known: Known, state: Optional[NodeState], pool: Pool, policy: Policy, is_alive: IsAlive
) -> Host:
    """state: of its Node, None where there is none in the cluster."""
    told = known.planned
    slot = pool.slots.get(known.node)
    change = (told or {}).get("change") or {}
    unfinished = (told or {}).get("unfinished") or ()
    kind = Kind(**{name: str(change.get(name) or "") for name in _OF_KIND})
    refusals = (told or {}).get("refusals") or ()
    asked = str(change.get("policy") or "")
    later = Disruption[str((told or {}).get("may_disturb") or "none")]
    is_loaded = bool((told or {}).get("driver_loaded"))
    leaves = bool(known.node) and str((told or {}).get("drain") or "none") != "none"
    host = Host(
        name=known.name,
        node=known.node,
        # What a run has begun and none has closed is something to do
        plan=str(change.get("digest") or "") or (digest(list(unfinished)) if unfinished else ""),
        policy=asked,
        disruption=Disruption[str((told or {}).get("disruption") or "none")],
        takes_out=leaves or later > allowed_later(known.node, state, is_loaded),
        loaded=is_loaded,
        kind=kind,
        domain=(state.domain if state is not None else "") or known.domain,
        # Of one that could not be asked, or has no plan, its Node knows
        clique=str(change.get("clique") or "") or (state.clique if state is not None and not change else ""),
        job_group=known.job_group,
        groups=known.groups,
        reachable=told is not None,
        ready=state is None or state.ready,
        cordoned_by="" if state is None else state.cordoned_by,
        marks=() if state is None else state.marks,
        half_done=_is_half_done(slot, state, pool, is_alive),
        ours=state is not None and state.ours,
        kept=slot is None and state is not None and state.kept,
        failed=_failed(slot, asked, told is not None and not refusals),
        refusal=Refusal.from_dict(refusals[0]) if refusals else None,
        in_service=counts_now(pool, state, known.node),
        seconds=policy.expected(pool.expected(str(kind))),
        jobs=known.jobs,
    )
    # What no record knows of may be anything but a repair; a node that is kept is in the middle of nothing
    is_interrupted = host.half_done and repairs(asked) and (not host.kept if slot is None else is_no_repair(slot))
    return replace(host, refusal=host.refusal or interrupted(host)) if is_interrupted else host


def allowed_later(node: str, state: Optional[NodeState], is_loaded: bool) -> Disruption:
    """The most that may be done to a host that stays in service of what only its loaded driver tells.

    Nobody can know of that when a turn is given. On a node that has not taken work yet nobody has to be spared. Beside
    that a GPU whose driver is not loaded is at work for nobody, while a reboot ends the work of others; and where the
    cluster knows the GPUs of a node, pods come to them as soon as there is a driver.

    node:      '' for a host that is to be in no cluster: its window is all that it has to wait for.
    state:     of its Node, None where there is none in the cluster.
    is_loaded: whether a driver is loaded already, as where only its libraries are to come.
    """
    if node and (state is None or not state.in_service):
        return Disruption.reboot
    is_at_work = is_loaded or (state is not None and (state.had_gpus or state.ours))
    return Disruption.service_restart if is_at_work else Disruption.driver_reload


def aim_of(hosts: Iterable[Host]) -> str:
    """What runs have in common that bring hosts to the same. Those count too where nothing is left to be done: who goes
    on where a run has ended has its aim."""
    return digest(sorted({canonical([host.kind.driver_to, asked_by(host.policy)]) for host in hosts if host.policy}))


def _failed(slot: Optional[Slot], policy: str, is_planned: bool) -> str:
    """What failed when this policy was tried. Where a plan asks nothing of it, nobody can tell that it was another; one
    that is refused says why itself. What a repair has left sick no other change mends, and what a change has left no
    repair does: that counts for all of them. All of it does still where another one has begun since and did not go
    well."""
    if slot is None:
        return ""
    failure = unmended(slot, policy)
    if failure is None and concerned_by(policy):
        failure = failed_by(slot, [policy])
    elif failure is None and is_planned and slot.without_its_run is slot.earlier_failure:
        failure = slot.earlier_failure
    return "" if failure is None else failure.reason or "no reason was told"


def _is_half_done(slot: Optional[Slot], state: Optional[NodeState], pool: Pool, is_alive: IsAlive) -> bool:
    if slot is None:
        return state is not None and state.ours
    works = pool.rollout is not None and slot.run in pool.rollout.runs and is_alive(slot.run)
    stands = slot.without_its_run
    return stands is not None and stands.state != FAILED and not works


def job_groups(nodes_of: Mapping[str, Iterable[str]]) -> Mapping[str, str]:
    """{node: the job group that it is of}, of {job: its nodes}: jobs that share a node restart together."""
    group_of: dict[str, str] = {}
    members: dict[str, set[str]] = {}
    for job in sorted(nodes_of):
        nodes = set(nodes_of[job])
        if len(nodes) < 2:
            continue
        name = job
        for joined in sorted({group_of[node] for node in nodes if node in group_of}):
            nodes |= members.pop(joined)
            name = min(name, joined)
        members[name] = nodes
        group_of.update(dict.fromkeys(nodes, name))
    return group_of
