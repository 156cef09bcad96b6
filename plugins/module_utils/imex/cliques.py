# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which hosts of an inventory are in one clique of an NVLink cluster. Pure.

An IMEX domain is a clique (NVIDIA IMEX guide): its GPUs reach each other by NVLink, and no others.
"""
from __future__ import annotations

from typing import Any, List, Mapping, Optional, Sequence

from ..core.errors import GpuOpsError


def nodes_of_clique(
    hosts: Sequence[str], variables: Mapping[str, Mapping[str, Any]], host: str, address: str
) -> List[str]:
    """Addresses of the hosts in the clique of `host`, sorted by their names; [] while it is in none, or while a host
    with GPUs has no loaded driver: that tells the clique, and a list without the host would be another one later.

    variables: {host: its variables}; address: the variable with a host's address. Raises GpuOpsError for a host that
    was not observed, or that is in several cliques.
    """
    together = sorted({*hosts, host})
    cliques = {name: _cliques(variables[name]) for name in together}
    if not cliques[host]:
        return []
    unseen = [name for name in together if cliques[name] is None]
    if unseen:
        raise GpuOpsError(
            "imex.hosts_not_observed",
            found="nothing is known of the NVLink cliques of %s" % ", ".join(unseen),
            wanted="every host that may be in the clique of %s, so that the list is the same on each" % host,
            remedy="run `gpu_info` on these hosts first, or leave them out of the group",
        )
    if any(_is_undecided(variables[name]) for name in together):
        return []
    if len(cliques[host] or ()) > 1:
        raise GpuOpsError(
            "imex.several_cliques",
            found="the GPUs of %s are in several cliques: %s" % (host, ", ".join(cliques[host] or ())),
            wanted="one clique for all GPUs of a host",
            remedy="correct the partitions of the fabric, or set `nodes` by hand",
            option="nodes",
        )
    return [str(variables[name].get(address) or name) for name in together if cliques[name] == cliques[host]]


def _cliques(variables: Mapping[str, Any]) -> Optional[List[str]]:
    """What was observed of a host, None where nothing was."""
    known = _known(variables)
    return None if known is None or "fabric_cliques" not in known else sorted(known["fabric_cliques"])


def _is_undecided(variables: Mapping[str, Any]) -> bool:
    known = _known(variables) or {}
    return bool(known.get("gpu_count")) and not known.get("driver_loaded")


def _known(variables: Mapping[str, Any]) -> Optional[Mapping[str, Any]]:
    known: Optional[Mapping[str, Any]] = variables.get("ansible_facts", {}).get("gpuops", variables.get("gpuops"))
    return known
