# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What dnf would do, read from the indexes of repositories and of the host's own."""
from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Mapping

from ...core.errors import GpuOpsError
from ...core.facts import HostFacts
from ...core.host import Host
from ...packages import space
from ...packages.dnf import locks
from ...packages.dnf.index import Index, index
from ...packages.dnf.manager import DNF
from ...packages.model import Simulation
from ...packages.rpm import database
from .. import catalogue
from ..files import repository_of
from ..observation import Observation, Offer, goes_down, header_packages, key_text, requested, settled
from ..origin import Origin
from ..policy import Policy
from ..target import Target, anchors, target_of
from .backend import NAME
from .dnf import streams_wanted


def read_offer(host: Host, observation: Observation, policy: Policy, facts: HostFacts, origin: Origin) -> Offer:
    key = ""
    try:
        key = key_text(host, observation, origin, facts)
        with index(host, [repository_of(origin, key)], beside_system=True) as opened:
            offer = _offer(opened, observation, policy, facts, origin)
            room = space.observe(host, space.DNF_ARCHIVES) if offer.transaction else None
            return replace(offer, key=key, unread=opened.unread, without=opened.without, space=room)
    except GpuOpsError as error:
        return Offer(error=error.found, key=key)


def _offer(opened: Index, observation: Observation, policy: Policy, facts: HostFacts, origin: Origin) -> Offer:
    versions = opened.versions(anchors(policy, facts), origin.url)
    target = target_of(policy, facts, observation.installed, versions)
    if not isinstance(target, Target):
        return Offer(versions=versions)
    family = catalogue.family(observation.installed, target.packages.floating)
    others = {*target.packages.required, *target.packages.optional, *family}.difference(versions)
    versions.update(opened.versions(others, origin.url))
    for name in target.packages.floating:
        # They may come from the distribution's own repositories
        versions.update(opened.versions([name]))
    versions.update(_header_versions(opened, header_packages(observation, policy, facts)))
    if not all(target.package_version(name, versions) for name in target.packages.required):
        return Offer(versions=versions)
    streams = streams_wanted(policy, facts, target)
    streams = {module: stream for module, stream in streams.items() if opened.streams(module)}
    request = requested(target, observation, versions, tuple(header_packages(observation, policy, facts)))
    transaction = _simulated(opened, observation, target, request, versions, streams) if request else None
    return Offer(versions=versions, transaction=transaction, streams=streams)


def _header_versions(opened: Index, headers: Mapping[str, str]) -> Dict[str, List[str]]:
    """The one version of each that will do, where it is on offer."""
    names = {name: database.without_version(name, version) for name, version in headers.items()}
    offered = opened.versions(names.values())
    return {name: [version] if version in offered[names[name]] else [] for name, version in headers.items()}


def _simulated(
    opened: Index, observation: Observation, target: Target, request: Mapping[str, str],
    versions: Mapping[str, List[str]], streams: Mapping[str, str]
) -> Simulation:
    """The transaction as dnf will do it, under the stream and the locks that it will have.

    First without locks of ours: that of the version before would leave the new one not to be chosen. What of the
    driver nothing else needs (nvidia-settings) would stay at the version before, so it is asked for by name.
    """
    there = {locks.LIST: observation.files.get(locks.LIST)}
    opened.hold({**DNF.choose(streams), **DNF.hold_files(NAME, {}, there)})
    draft = _asked(opened, observation, request)
    if draft.problem or settled(target, observation):
        return draft
    family = catalogue.family(observation.installed, target.packages.floating)
    others = {name: target.package_version(name, versions) for name in family
              if name not in draft.installs and name not in draft.removes and name not in request}
    whole = {**{name: version for name, version in others.items() if version}, **request}
    locked = {**catalogue.family(draft.installs, target.packages.floating),
              **catalogue.family(whole, target.packages.floating)}
    opened.hold(DNF.hold_files(NAME, locked, there))
    return _asked(opened, observation, whole)


def _asked(opened: Index, observation: Observation, request: Mapping[str, str]) -> Simulation:
    return opened.simulate(request, goes_down(observation.installed, request, DNF.compare))
