# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What reading the offer of repositories has in common with dnf and zypper."""
from __future__ import annotations

from dataclasses import replace
from typing import Callable, ContextManager, Dict, Iterable, List, Mapping, Optional, Protocol, Tuple, TypeVar

from ...core.errors import GpuOpsError
from ...core.facts import HostFacts
from ...core.host import CommandTimedOut, Host
from ...packages import space
from ...packages.manager import Index, PackageManager
from ...packages.model import EVERY, Repository, Simulation
from ...packages.rpm import database, keyring
from .. import archive, catalogue
from ..files import REPOSITORY, places_of, repository_of
from ..observation import (
    Observation,
    Offer,
    archives_at_hand,
    goes_down,
    header_packages,
    key_text,
    superfluous,
    way_back_from,
)
from ..origin import Origin
from ..policy import Policy
from ..record import Record, is_archived
from ..target import Target


class FilesIndex(Index, Protocol):
    """Of a package manager that takes files."""

    def simulate(
        self, request: Mapping[str, str], allow_downgrade: bool = False, files: Optional[Mapping[str, str]] = None,
        leaves: Iterable[str] = ()
    ) -> Simulation:
        """files: {package: path} of those that come from a file on the host; leaves: what goes with it."""


AnIndex = TypeVar("AnIndex", bound=FilesIndex)


def read_with(
    index: Callable[..., ContextManager[AnIndex]], host: Host, observation: Observation, policy: Policy,
    facts: HostFacts, origin: Origin, archives: str, offer_of: Callable[[AnIndex, Origin], Offer]
) -> Offer:
    """The offer of the driver's repository, beside those of the system; one that cannot be read is told as its error,
    unless what was staged needs none. So it is where one of the system's cannot be read, and the others do not do.

    index: opens them, as the package manager has it; archives: where that keeps what it fetches.
    """
    try:
        key = key_text(host, observation, origin, facts)
    except GpuOpsError as error:
        return Offer(error=error.found)
    try:
        ours = [repository_of(origin, key)] if origin.url else []
        with index(host, ours, beside_system=True) as opened:
            offer = offer_of(opened, origin)
            room = space.observe(host, archives) if offer.transaction else None
            offer = replace(offer, key=key, unread=opened.unread, without=opened.without, space=room)
        does = not offer.unread or (offer.transaction is not None and not offer.transaction.problem)
        ways: Tuple[bool, ...] = () if does else (False, True)
    except GpuOpsError as error:
        offer = Offer.failed(error, key)
        # Who has just waited for one that never answers would wait for it again
        ways = (False,) if isinstance(error, CommandTimedOut) else (False, True)
    staged = next(filter(None, (_read_at_hand(
        index, host, observation, policy, facts, origin, beside_system, offer_of) for beside_system in ways)), None)
    return replace(staged, key=key, space=space.observe(host, archives)) if staged else offer


def _read_at_hand(
    index: Callable[..., ContextManager[AnIndex]], host: Host, observation: Observation, policy: Policy,
    facts: HostFacts, origin: Origin, beside_system: bool, offer_of: Callable[[AnIndex, Origin], Offer]
) -> Optional[Offer]:
    """What the package manager would do with package files on this host, where a driver was staged; else None.

    beside_system: what the driver needs beside its own packages may come from the host's own repositories.
    """
    there, places = archive.at_hand(host), places_of(facts)
    if not there or policy.comes_from.is_installer or (
            origin.url and observation.files.get(places.sources) != places.sources_text(origin)):
        return None
    try:
        with index(host, [], beside_system, list(there.values())) as opened:
            offer = offer_of(opened, replace(origin, url=""))
            draft = offer.transaction
            if draft is None or draft.problem or any(
                    offer.versions.get(name) == [] for name in header_packages(observation, policy, facts)):
                return None
            files = {package: path for package, version in draft.installs.items() for name, path in there.items()
                     if is_archived(package, version, [name])}
            if not set(filter(catalogue.FAMILY.match, draft.installs)) <= set(files) or not all(
                    keyring.has_signed(host, path) for path in files.values()):
                return None
            # What follows is asked for too, since only files that are named are there for the transaction
            paths = {package: host.path(path) for package, path in files.items()}
            request = {**draft.request, **{package: draft.installs[package] for package in files}}
            done = without_leftovers(
                opened.simulate(request, draft.allow_downgrade, paths, draft.leaves), observation, request)
            if done.problem:
                return None
            followers = tuple(sorted(set(request).difference(draft.request)))
            return replace(
                offer, at_hand=paths, without=opened.without if beside_system else (EVERY,),
                transaction=replace(done, named=(*draft.named, *followers),
                                    download=done.download if beside_system else 0),
                unread=tuple(each for each in opened.unread if not each.startswith(REPOSITORY + ":")))
    except GpuOpsError:
        return None


def there_and_before(opened: Index, observation: Observation) -> Tuple[str, ...]:
    """What repositories have of the driver that is there, and of the recorded one before it."""
    return returnable(
        opened, [catalogue.family(observation.installed), observation.record.packages if observation.record else {}])


def returnable(opened: Index, drivers: List[Mapping[str, str]]) -> Tuple[str, ...]:
    """'name=version' of what repositories have of these drivers."""
    named = {(name, version): database.without_version(name, version)
             for driver in drivers for name, version in driver.items()}
    offered = opened.versions(named.values())
    return tuple(sorted("%s=%s" % each for each, name in named.items() if each[1] in offered[name]))


def whole_request(
    observation: Observation, target: Target, draft: Simulation, request: Mapping[str, str],
    versions: Mapping[str, List[str]]
) -> Dict[str, str]:
    """The request with what of the driver nothing else needs (nvidia-settings): it would stay at the version before."""
    family = catalogue.family(observation.installed, target.packages.floating)
    others = {name: target.package_version(name, versions) for name in family if name not in {
        *draft.installs, *draft.removes, *request, *target.leaves}}
    return {**{name: version for name, version in others.items() if version}, **request}


def without_leftovers(done: Simulation, observation: Observation, request: Mapping[str, str]) -> Simulation:
    """What a stopped transaction had not erased is there while the manager is asked, and gone when the transaction
    begins: what the manager would keep of it comes again, and so does what is asked for by its name with its version.
    """
    left = {name: (database.without_version(name, version), version)
            for name, version in observation.of_rpm.left.leftovers.items()}
    again = {name: version for longer, (name, version) in left.items()
             if observation.installed.get(name) not in (None, version) and (
                 request.get(name) == version or name in done.removes and longer not in done.removes)}
    asked = {longer: version for longer, (_name, version) in left.items() if request.get(longer) == version}
    twice = {database.long_name(*package) for package in observation.of_rpm.left.doubtful.items()}
    return replace(done, installs={**done.installs, **again, **asked},
                   removes=tuple(name for name in done.removes if name not in {*again, *left, *twice}),
                   before={**done.before, **{name: observation.installed[name] for name in again}})


def way_back_with(
    observation: Observation, record: Record, named: Repository, offer_back: Callable[[List[Repository], bool], Offer]
) -> Offer:
    """What offer_back() has of repositories, and whether beside those of the host.

    What is on this host altogether takes no repository: of dozens the one that never answers would be waited for, and
    dnf and zypper would wait once more as they carry it out. Others are read where that lacks a dependency, which may
    have gone meanwhile.
    """
    from_files = None
    try:
        if all(is_archived(name, version, archives_at_hand(observation))
               for name, version in record.changed(observation.installed).items()):
            from_files = replace(offer_back([], False), without=(EVERY,))
    except GpuOpsError:
        # Repositories are read by the same program, which tells it again
        pass
    if from_files and not (from_files.transaction and from_files.transaction.problem):
        return from_files
    offer = way_back_from(observation, record, named, lambda repositories: offer_back(repositories, True))
    if from_files and offer.error and not offer.transaction:
        return replace(from_files, unread=(offer.error,))
    return offer


def at_hand(host: Host, observation: Observation, record: Record) -> Dict[str, str]:
    """{package: its file in our store, where it will be by then}."""
    files = archives_at_hand(observation)
    return {name: host.path("%s/%s" % (archive.STORE, next(each for each in files if is_archived(
        name, version, [each])))) for name, version in record.packages.items() if is_archived(name, version, files)}


def offer_back(
    opened: Index, manager: PackageManager, host: Host, observation: Observation, record: Record,
    files: Mapping[str, str], archives: str,
    simulated: Callable[[Mapping[str, str], bool, Mapping[str, str], Mapping[str, str]], Simulation]
) -> Offer:
    """What brings the recorded driver back; under what is held in the index by now.

    files:     of at_hand().
    archives:  where the manager keeps what it fetches.
    simulated: what a transaction would do that asks for these versions, whether one may go down, with those of these
               files, and without these packages.
    """
    needed = record.changed(observation.installed)
    offered = {*returnable(opened, [record.packages]), *("%s=%s" % (name, record.packages[name]) for name in files)}
    offer = Offer(returnable=tuple(sorted(offered)), unread=opened.unread, without=opened.without)
    if not all("%s=%s" % each in offered for each in needed.items()):
        return offer
    kept = {name: path for name, path in files.items() if name in needed}
    goes = goes_down(observation.installed, needed, manager.compare)
    transaction = without_leftovers(
        simulated(needed, goes, kept, {}), observation, needed) if needed else None
    removes = transaction.removes if transaction else ()
    names = {name: version for name, version in superfluous(observation, record).items() if name not in removes}
    both = simulated(needed, goes, kept, names) if names else None
    can_go = both is not None and not both.problem and set(both.removes) <= {*names, *removes}
    return replace(offer, transaction=transaction, superfluous=names if can_go else {}, at_hand=kept,
                   space=space.observe(host, archives) if transaction else None)
