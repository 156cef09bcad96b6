# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What zypper would do, read from the indexes of repositories and of the host's own."""
from __future__ import annotations

from dataclasses import replace
from typing import Dict, Iterable, List, Mapping, Optional

from ...core.facts import HostFacts
from ...core.host import Host
from ...packages.model import Repository, Simulation
from ...packages.rpm import database
from ...packages.zypper import configuration, locks
from ...packages.zypper.index import Index, index
from ...packages.zypper.manager import ZYPPER
from .. import catalogue, prebuilt
from ..files import RPM_KEY_FILE, repository_of
from ..observation import (
    Observation,
    Offer,
    goes_down,
    header_packages,
    requested,
    settled,
)
from ..origin import Origin
from ..policy import Policy
from ..record import Record
from ..rollback import recorded_text
from ..target import Target, anchors, chosen_built, target_of
from .backend import NAME
from .rpm_offers import (
    at_hand,
    offer_back,
    read_with,
    there_and_before,
    way_back_with,
    whole_request,
    without_leftovers,
)
from .zypper import kept_away


def read_offer(host: Host, observation: Observation, policy: Policy, facts: HostFacts, origin: Origin) -> Offer:
    archives = configuration.archives(host)
    return read_with(index, host, observation, policy, facts, origin, archives, lambda opened, of: _offer(
        opened, observation, policy, facts, of))


def _offer(opened: Index, observation: Observation, policy: Policy, facts: HostFacts, origin: Origin) -> Offer:
    versions = opened.versions(anchors(policy, facts), origin.url)
    modules = _modules_offered(opened, observation, policy, facts, versions)
    target = target_of(policy, facts, observation.installed, versions, replace(
        observation.prebuilt, offered=modules, unread=opened.unread))
    if not isinstance(target, Target):
        return Offer(versions=versions, modules=modules)
    family = catalogue.family(observation.installed, target.packages.floating)
    others = {*target.packages.required, *target.packages.optional, *family}.difference(versions)
    versions.update(opened.versions(others, origin.url))
    # They may come from the distribution's own repositories
    versions.update(opened.versions(target.packages.floating))
    headers = {} if target.is_precompiled else _header_versions(
        opened, header_packages(observation, policy, facts))
    versions.update(headers)
    if not all(target.package_version(name, versions) for name in target.packages.required):
        return Offer(versions=versions, modules=modules)
    request = requested(target, observation, versions, tuple(headers))
    transaction = _simulated(opened, observation, target, request, versions) if request else None
    return Offer(versions=versions, transaction=transaction, modules=modules, returnable=there_and_before(
        opened, observation))


def _modules_offered(
    opened: Index, observation: Observation, policy: Policy, facts: HostFacts, versions: Mapping[str, List[str]]
) -> Optional[Dict[str, Dict[str, str]]]:
    """See Offer.modules. SUSE has them in its own repositories, of each driver and kernel one that may be there beside
    the others: by the name that the database will have it under."""
    wanted = chosen_built(policy, facts, observation.installed, versions)
    if wanted is None:
        return None
    offered = opened.versions(prebuilt.names(wanted, observation.kernels, observation.installed))
    return {database.long_name(name, version): {version: ""} for name, found in offered.items() for version in found}


def _header_versions(opened: Index, headers: Mapping[str, str]) -> Dict[str, List[str]]:
    """The newest build of each that will do, by the name that the database will have it under."""
    names = {name: database.without_version(name, release) for name, release in headers.items()}
    offered = opened.versions(names.values())
    found: Dict[str, List[str]] = {}
    for name, release in headers.items():
        fitting = [version for version in offered[names[name]] if catalogue.is_of_kernel(version, release)][:1]
        found["".join(database.long_name(names[name], version) for version in fitting) or name] = fitting
    return found


def _simulated(
    opened: Index, observation: Observation, target: Target, request: Mapping[str, str],
    versions: Mapping[str, List[str]]
) -> Simulation:
    """The transaction as zypper will do it, under the locks that it will have.

    First without locks of a version: that of the version before hides the new one.
    """
    there = {locks.PATH: observation.files.get(locks.PATH)}
    away = kept_away(observation, target)
    opened.hold(ZYPPER.hold_files(NAME, away, there))
    draft = _asked(opened, observation, request, target.leaves)
    if draft.problem or settled(target, observation):
        return draft
    whole = whole_request(observation, target, draft, request, versions)
    locked = {**catalogue.family(draft.installs, target.packages.floating),
              **catalogue.family(whole, target.packages.floating), **away}
    opened.hold(ZYPPER.hold_files(NAME, locked, there))
    return _asked(opened, observation, whole, target.leaves)


def _asked(
    opened: Index, observation: Observation, request: Mapping[str, str], leaves: Iterable[str]
) -> Simulation:
    done = opened.simulate(request, goes_down(observation.installed, request, ZYPPER.compare), leaves=leaves)
    return without_leftovers(done, observation, request)


# the way back


def read_way_back(host: Host, observation: Observation, record: Record, origin: Origin) -> Offer:
    """What zypper would do to bring the recorded driver back, under the locks that it had then."""
    named = repository_of(replace(origin, url=record.url, credentials=origin.credentials if origin.url == record.url
                                  else None), record.files.get(RPM_KEY_FILE) or "")
    return way_back_with(observation, record, named, lambda repositories, beside_system: _offer_back(
        host, observation, record, repositories, beside_system))


def _offer_back(
    host: Host, observation: Observation, record: Record, repositories: List[Repository], beside_system: bool
) -> Offer:
    files = at_hand(host, observation, record)
    with index(host, repositories, beside_system) as opened:
        opened.hold({locks.PATH: recorded_text(observation, record, locks.PATH)})
        excluded = catalogue.excluded(record.packages, observation.installed)

        def simulated(
            request: Mapping[str, str], goes: bool, kept: Mapping[str, str], leaves: Mapping[str, str]
        ) -> Simulation:
            return opened.simulate(request, goes, kept, {*excluded, *leaves})

        return offer_back(opened, ZYPPER, host, observation, record, files, configuration.archives(host), simulated)
