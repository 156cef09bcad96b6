# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What dnf would do, read from the indexes of repositories and of the host's own."""
from __future__ import annotations

from dataclasses import replace
from typing import Callable, Dict, Iterable, List, Mapping, Optional

from ...core.facts import HostFacts
from ...core.host import Host
from ...packages.dnf import configuration, locks
from ...packages.dnf.index import Index, index
from ...packages.dnf.manager import DNF
from ...packages.dnf.transaction import specs
from ...packages.model import Repository, Simulation
from ...packages.rpm import database
from .. import catalogue, prebuilt
from ..files import REPOSITORY, RPM_KEY_FILE, STREAM_FILE
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
from ..target import Target, anchors, chosen_built, target_of, versions_offered
from .backend import NAME
from .dnf import streams_wanted
from .rpm_offers import (
    at_hand,
    offer_back,
    read_with,
    there_and_before,
    way_back_with,
    whole_request,
    without_leftovers,
)


def read_offer(host: Host, observation: Observation, policy: Policy, facts: HostFacts, origin: Origin) -> Offer:
    archives = configuration.cache(host)
    return read_with(index, host, observation, policy, facts, origin, archives, lambda opened, of: _offer(
        opened, observation, policy, facts, of))


def _offer(opened: Index, observation: Observation, policy: Policy, facts: HostFacts, origin: Origin) -> Offer:
    vendor = _vendor(policy, facts)
    known: Dict[str, List[str]] = {}

    def offered(names: Iterable[str]) -> Dict[str, List[str]]:
        """Each name is asked for once: an answer takes dnf seconds."""
        wanted = sorted(set(names))
        known.update(opened.versions([name for name in wanted if name not in known], origin.url, vendor))
        return {name: known[name] for name in wanted}

    versions = offered(anchors(policy, facts))
    modules = _modules_offered(offered, observation, policy, facts, versions)
    target = target_of(policy, facts, observation.installed, versions, replace(
        observation.prebuilt, offered=modules, unread=opened.unread))
    if not isinstance(target, Target):
        return Offer(versions=versions, modules=modules)
    family = catalogue.family(observation.installed, target.packages.floating)
    others = {*target.packages.required, *target.packages.optional, *family}.difference(versions)
    versions.update(offered(others))
    for name in target.packages.floating:
        # They may come from the distribution's own repositories
        versions.update(opened.versions([name]))
    headers = {} if target.is_precompiled else header_packages(observation, policy, facts)
    versions.update(_header_versions(opened, headers))
    if not all(target.package_version(name, versions) for name in target.packages.required):
        return Offer(versions=versions, modules=modules)
    streams = streams_wanted(policy, facts, target)
    # Files tell of none, and where one was chosen before the repository has them
    are_known = not origin.url and STREAM_FILE in observation.originals
    streams = {module: stream for module, stream in streams.items() if are_known or opened.streams(module)}
    request = requested(target, observation, versions, tuple(headers))
    transaction = _simulated(
        opened, observation, target, request, versions, streams, offered) if request else None
    of_others = _of_others(transaction, target, offered) if transaction else {}
    return Offer(versions=versions, transaction=transaction, streams=streams, modules=modules, of_others=of_others,
                 superfluous=_leaving(opened, observation, target, transaction),
                 returnable=there_and_before(opened, observation))


def _vendor(policy: Policy, facts: HostFacts) -> str:
    """Whose packages count, where no repository of ours tells it."""
    system = catalogue.system_of(facts.os_id, facts.os_version, facts.arch)
    return catalogue.vendor_of(system, policy.comes_from.of_distribution) if system else ""


def _modules_offered(
    offered: Callable[[Iterable[str]], Dict[str, List[str]]], observation: Observation, policy: Policy,
    facts: HostFacts, versions: Mapping[str, List[str]]
) -> Optional[Dict[str, Dict[str, str]]]:
    """See Offer.modules. They are named by driver and kernel."""
    wanted = chosen_built(policy, facts, observation.installed, versions)
    if wanted is None:
        return None
    named = [name for driver in versions_offered(policy, facts, versions) for name in prebuilt.names(
        replace(wanted, version=driver), observation.kernels, observation.installed)]
    return {name: dict.fromkeys(found, "") for name, found in offered(named).items() if found}


def _leaving(
    opened: Index, observation: Observation, target: Target, transaction: Optional[Simulation]
) -> Dict[str, str]:
    """{package: version} of what is to leave and dnf does not take away with the transaction: it goes after it, where
    nothing else would go with it."""
    gone = transaction.removes if transaction else ()
    names = {name: observation.installed[name] for name in target.leaves
             if name in observation.installed and name not in gone}
    if not names or (transaction and transaction.problem):
        return {}
    request, goes_down_too = (transaction.request, transaction.allow_downgrade) if transaction else ({}, False)
    both = opened.simulate(request, goes_down_too, leaves=specs(names))
    return names if not both.problem and set(both.removes) <= {*names, *gone} else {}


def _header_versions(opened: Index, headers: Mapping[str, str]) -> Dict[str, List[str]]:
    """The one version of each that will do, where it is on offer."""
    names = {name: database.without_version(name, version) for name, version in headers.items()}
    offered = opened.versions(names.values())
    return {name: [version] if version in offered[names[name]] else [] for name, version in headers.items()}


def _simulated(
    opened: Index, observation: Observation, target: Target, request: Mapping[str, str],
    versions: Mapping[str, List[str]], streams: Mapping[str, str],
    offered: Callable[[Iterable[str]], Dict[str, List[str]]]
) -> Simulation:
    """The transaction as dnf will do it, under the stream and the locks that it will have.

    First without locks of ours: that of the version before would leave the new one not to be chosen. What only follows
    may come from another source, as Red Hat and NVIDIA have packages of the same names and versions beside each other:
    it is asked for by its name, in the version that the wanted one has. offered: what that has of these names.
    """
    there = {locks.LIST: observation.files.get(locks.LIST)}
    opened.hold({**DNF.choose(streams), **DNF.hold_files(NAME, {}, there)})
    draft = _asked(opened, observation, request)
    if draft.problem or settled(target, observation):
        return draft
    asked = set(request)
    others = _of_others(draft, target, offered)
    known = offered(others)
    followers = {name: target.package_version(name, known) for name in others}
    followers = {name: version for name, version in followers.items() if version}
    if followers:
        request = {**followers, **request}
        draft = _asked(opened, observation, request)
        if draft.problem:
            return draft
    whole = whole_request(observation, target, draft, request, versions)
    locked = {**catalogue.family(draft.installs, target.packages.floating),
              **catalogue.family(whole, target.packages.floating)}
    opened.hold(DNF.hold_files(NAME, locked, there))
    done = _asked(opened, observation, whole)
    return replace(done, named=tuple(sorted(
        name for name in followers if name not in asked and name not in observation.installed)))


def _of_others(
    done: Simulation, target: Target, offered: Callable[[Iterable[str]], Dict[str, List[str]]]
) -> Dict[str, str]:
    """{package: version} of those of the driver that would come in a version that the wanted source has not."""
    coming = catalogue.family(done.installs, target.packages.floating)
    known = offered(coming) if coming else {}
    return {name: version for name, version in coming.items() if version not in known[name]}


def _asked(opened: Index, observation: Observation, request: Mapping[str, str]) -> Simulation:
    done = opened.simulate(request, goes_down(observation.installed, request, DNF.compare))
    return without_leftovers(done, observation, request)


# the way back


def read_way_back(host: Host, observation: Observation, record: Record, origin: Origin) -> Offer:
    """What dnf would do to bring the recorded driver back, under the stream and the locks that it had then."""
    named = Repository(record.url, record.files.get(RPM_KEY_FILE) or "", RPM_KEY_FILE, id=REPOSITORY,
                       credentials=origin.credentials if origin.url == record.url else None)
    return way_back_with(observation, record, named, lambda repositories, beside_system: _offer_back(
        host, observation, record, repositories, beside_system))


def _offer_back(
    host: Host, observation: Observation, record: Record, repositories: List[Repository], beside_system: bool
) -> Offer:
    files = at_hand(host, observation, record)
    with index(host, repositories, beside_system) as opened:
        if not repositories:
            # By then ours is the one of that driver, which nobody has read
            opened.leave_out(REPOSITORY)
        opened.hold({path: recorded_text(observation, record, path) for path in (STREAM_FILE, locks.LIST)
                     if observation.files.get(path) != record.files.get(path)})

        def simulated(
            request: Mapping[str, str], goes: bool, kept: Mapping[str, str], leaves: Mapping[str, str]
        ) -> Simulation:
            return opened.simulate(request, goes, kept, specs(leaves))

        return offer_back(opened, DNF, host, observation, record, files, configuration.cache(host), simulated)
