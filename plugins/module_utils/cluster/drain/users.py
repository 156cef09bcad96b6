# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which pods use GPUs, and how that is known. Pure.

The API tells of requests and of ResourceClaims. Of pods that have GPUs by a RuntimeClass, NVIDIA_VISIBLE_DEVICES or a
hostPath alone only the host tells, by the cgroups of processes that have a device of the driver open.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, FrozenSet, List, Mapping, Optional, Tuple

from ..pods import Pod
from .policy import DrainPolicy

# GPUs and their parts, and channels of IMEX (kubernetes-sigs/dra-driver-nvidia-gpu); both keep the driver loaded
DRA_DRIVERS = ("gpu.nvidia.com", "compute-domain.nvidia.com")
SEEN = "seen with a GPU on its host"


@dataclass(frozen=True)
class Claim:
    """A ResourceClaim with devices of NVIDIA's.

    reserved: UIDs of the pods that may use it; None where it is reserved for more than pods, as for a PodGroup
              (kubernetes/enhancements, KEP-5729), which does not tell its pods: each that names the claim may then.
    devices:  'driver/pool/device' each; ' (admin)' follows one that is only monitored.
    """

    reserved: Optional[FrozenSet[str]]
    devices: Tuple[str, ...]


def claim_of(found: Mapping[str, Any]) -> Claim:
    """The claim of an object of resource.k8s.io, any version."""
    status = found.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    consumers = status.get("reservedFor") or ()
    return Claim(
        frozenset(str(each.get("uid")) for each in consumers)
        if all(each.get("resource") == "pods" for each in consumers) else None,
        tuple("%s/%s/%s%s" % (each.get("driver"), each.get("pool"), each.get("device"),
                              " (admin)" if each.get("adminAccess") else "")
              for each in results if each.get("driver") in DRA_DRIVERS))


def uses(pod: Pod, claims: Mapping[str, Claim], policy: DrainPolicy) -> Tuple[str, ...]:
    """How a pod uses GPUs, one text a way; () for one that does not, and one that has ended.

    claims: {'namespace/name': claim}.
    """
    if pod.is_finished:
        return ()
    ways: List[str] = ["%s=%d" % (name, count) for name, count in sorted(pod.resources.items())]
    for name in pod.claims:
        claim = claims.get("%s/%s" % (pod.namespace, name))
        if claim is not None and claim.devices and (claim.reserved is None or pod.uid in claim.reserved):
            ways.append("ResourceClaim %s: %s" % (name, ", ".join(claim.devices)))
    if pod.known_as & (policy.holders | (policy.pods or frozenset())):
        ways.append(SEEN)
    return tuple(ways)
