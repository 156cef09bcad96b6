# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether so many nodes are sick at once that what is sick is something else. Pure.

A driver, a firmware, a fabric or a power feed that fails makes whole racks ill within minutes; to reset and reboot them
mends nothing, and takes more work away than the fault. Others stop at a share of the nodes: Amazon EKS and Karpenter
at 20 %, NVSentinel at half of them within five minutes. Here a look is one instant. The same code on many nodes says
more than as many different ones do, and stops at half of that share. A few nodes are no pattern, whatever the share:
two of a cluster of four may be sick for reasons of their own.
"""
from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ..core.errors import GpuOpsError
from ..core.refusal import Refusal

# Named at most; the others are counted
NAMED = 10
# The limits of a share
ALL, ALIKE = "percent", "percent_alike"


@dataclass(frozen=True)
class Limits:
    """nodes: so many sick ones are let in any case. percent: of the nodes that were looked at, with whatever code.
    percent_alike: the same, with one and the same code."""

    nodes: int = 2
    percent: int = 20
    percent_alike: int = 10


def limits_of(given: Any) -> Optional[Limits]:
    """None where nothing stops. Raises GpuOpsError where it is not understood."""
    # What is given by -e is text
    if given is False or str(given).lower() in ("false", "no"):
        return None
    known = {each.name for each in fields(Limits)}
    wrong = not isinstance(given, Mapping) or set(given) - known or any(
        not isinstance(value, int) or isinstance(value, bool) or value < 0 for value in given.values())
    if wrong:
        raise GpuOpsError(
            "repair.breaker_malformed",
            found="gpu_repair_breaker is %s" % (given,),
            wanted="a dictionary with numbers for %s, or false" % ", ".join(sorted(known)),
            remedy="write it so, as {percent: 30}; `docs/repair.md` has what each is",
        )
    return Limits(**given)


def stopped(sick: Mapping[str, Sequence[str]], count: int, limits: Optional[Limits]) -> Optional[Refusal]:
    """Why no node of a cluster is repaired, None where nothing speaks against it.

    sick:  {node: codes of what it is sick of} of those that are.
    count: how many nodes were looked at.
    """
    alike: Dict[str, List[str]] = {}
    for node in sorted(sick):
        for code in sorted(set(sick[node])):
            alike.setdefault(code, []).append(node)
    worst = sorted(alike.items(), key=lambda each: (-len(each[1]), each[0]))
    most = len(worst[0][1]) if worst else 0
    limit = _exceeded(len(sick), most, count, limits) if limits is not None else ""
    if limits is None or not limit:
        return None
    if limit == ALIKE:
        code, nodes = worst[0]
        found = "%d of %d nodes are sick of the same at once, %s: %s" % (most, count, code, _named(nodes))
    else:
        found = "%d of %d nodes are sick at once: %s" % (len(sick), count, "; ".join(
            "%s (%s)" % (code, _named(nodes)) for code, nodes in worst[:NAMED]))
    passing = replace(limits, **{limit: 100})
    further = _exceeded(len(sick), most, count, passing)
    passing = replace(passing, **{further: 100}) if further else passing
    given = {each.name: getattr(passing, each.name) for each in fields(Limits)
             if getattr(passing, each.name) != each.default}
    return Refusal(
        "repair.many_are_sick", found,
        "not more than %d %% of them, and %d in any case: so many at once have one cause, which no repair of single "
        "nodes mends" % (getattr(limits, limit), limits.nodes),
        "look for what they have in common (driver, firmware, fabric, power, one job); where each is to be repaired "
        "all the same, add -e '%s', or false for no limit" % json.dumps({"gpu_repair_breaker": given}))


def differing(variable: str, hosts: Sequence[str]) -> Refusal:
    """Why none of a cluster's hosts is repaired whose limits are not alike."""
    return Refusal(
        "repair.breakers_differ", "%s differs between hosts of one cluster: %s" % (variable, _named(hosts)),
        "one for all of its nodes", "set it for all of them alike, as in the group of the cluster")


def without_cluster(host: str, why: str) -> Refusal:
    """Why a host is not repaired of which nobody knows where it belongs."""
    return Refusal(
        "repair.variables_not_worked_out", "which cluster %s is in cannot be worked out: %s" % (host, why),
        "to know how many nodes of its cluster are sick", "correct its variables")


def is_many(number: int, count: int, nodes: int, percent: int) -> bool:
    """Whether so many of that count are beyond both limits."""
    return number > nodes and number * 100 > count * percent


def _exceeded(sick: int, alike: int, count: int, limits: Limits) -> str:
    """The name of the limit that this is beyond, '' for none. alike: how many are sick of the same."""
    if is_many(alike, count, limits.nodes, limits.percent_alike):
        return ALIKE
    return ALL if is_many(sick, count, limits.nodes, limits.percent) else ""


def _named(nodes: Sequence[str]) -> str:
    more = len(nodes) - NAMED
    return ", ".join(nodes[:NAMED]) + (" and %d more" % more if more > 0 else "")
